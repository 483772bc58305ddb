package flusher

import (
	"container/heap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// before orders checkpoints by (term, tick).
func before(a, b message.Checkpoint) bool {
	return a.Term < b.Term || (a.Term == b.Term && a.Tick < b.Tick)
}

// later returns the checkpoint that lies further on.
func later(a, b message.Checkpoint) message.Checkpoint {
	if before(a, b) {
		return b
	}
	return a
}

// Checkpoints is how far each vchannel of a pchannel is flushed, and the minimum
// of all that. A vchannel with nothing to flush is idle: it is as far as the
// shared scanner, and costs nothing when that moves on.
//
// It is plain state: no clock, no lock, no I/O.
type Checkpoints struct {
	pchannel string
	byName   map[string]*position
	busy     positions
}

type position struct {
	at    message.Checkpoint
	index int // in busy, -1 while idle
}

// NewCheckpoints returns the state of a pchannel without vchannels.
func NewCheckpoints(pchannel string) *Checkpoints {
	return &Checkpoints{pchannel: pchannel, byName: map[string]*position{}}
}

// Len returns how many vchannels there are.
func (c *Checkpoints) Len() int { return len(c.byName) }

// Busy returns how many of them hold the minimum back.
func (c *Checkpoints) Busy() int { return len(c.busy) }

// Add adds an idle vchannel. One that is there is ErrAlreadyExists.
func (c *Checkpoints) Add(vchannel string) error {
	if c.byName[vchannel] != nil {
		return walimpls.Errorf(walimpls.CodeAlreadyExists, c.pchannel, "flusher: vchannel %q is there already", vchannel)
	}
	c.byName[vchannel] = &position{index: -1}
	return nil
}

// Drop forgets a vchannel. One that is not there is ErrNotFound.
func (c *Checkpoints) Drop(vchannel string) error {
	p, err := c.find(vchannel)
	if err != nil {
		return err
	}
	c.leave(p)
	delete(c.byName, vchannel)
	return nil
}

// Update says that everything of the vchannel up to at is flushed, and that
// something behind it is not. A checkpoint that goes back is
// ErrInvalidArgument, and an idle vchannel may begin anywhere.
func (c *Checkpoints) Update(vchannel string, at message.Checkpoint) error {
	p, err := c.find(vchannel)
	if err != nil {
		return err
	}
	if p.index < 0 {
		p.at = at
		heap.Push(&c.busy, p)
		return nil
	}
	if before(at, p.at) {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, c.pchannel,
			"flusher: the checkpoint of vchannel %q may not go back from (%d, %d) to (%d, %d)", vchannel, p.at.Term, p.at.Tick, at.Term, at.Tick)
	}
	p.at = at
	heap.Fix(&c.busy, p.index)
	return nil
}

// Idle says that everything of the vchannel is flushed that the scanner has met.
func (c *Checkpoints) Idle(vchannel string) error {
	p, err := c.find(vchannel)
	if err == nil {
		c.leave(p)
	}
	return err
}

// At returns how far the vchannel is flushed when the scanner is at scan.
func (c *Checkpoints) At(vchannel string, scan message.Checkpoint) (message.Checkpoint, bool) {
	p := c.byName[vchannel]
	switch {
	case p == nil:
		return message.Checkpoint{}, false
	case p.index < 0:
		return scan, true
	}
	return p.at, true
}

// Minimum returns the pchannel's checkpoint: the minimum by (term, tick) of the
// vchannels' and of where the shared scanner has got to.
func (c *Checkpoints) Minimum(scan message.Checkpoint) message.Checkpoint {
	if len(c.busy) > 0 && before(c.busy[0].at, scan) {
		return c.busy[0].at
	}
	return scan
}

func (c *Checkpoints) find(vchannel string) (*position, error) {
	if p := c.byName[vchannel]; p != nil {
		return p, nil
	}
	return nil, walimpls.Errorf(walimpls.CodeNotFound, c.pchannel, "flusher: no vchannel %q", vchannel)
}

func (c *Checkpoints) leave(p *position) {
	if p.index >= 0 {
		heap.Remove(&c.busy, p.index)
	}
}

// positions is a heap by (term, tick).
type positions []*position

func (h positions) Len() int           { return len(h) }
func (h positions) Less(i, j int) bool { return before(h[i].at, h[j].at) }
func (h positions) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *positions) Push(x any) {
	p := x.(*position)
	p.index = len(*h)
	*h = append(*h, p)
}

func (h *positions) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.index = -1
	return p
}
