package owner

import (
	"slices"

	"github.com/walrig/walrig/sdk/message"
)

// State is what is known about one accepted record.
type State uint8

// The states of a record. A record is resolved when it is Stored or Failed.
const (
	Queued  State = iota // not handed to the present handle
	Sent                 // handed over, no answer yet
	Unknown              // the handle was lost without an answer
	Stored               // stored, with an id
	Failed               // definitely not stored, and never will be
)

// Batch is one accepted append: records with contiguous ticks.
type Batch struct {
	// Messages carry tick and last confirmed id; stored ones their id and pair.
	Messages []message.Message
	// States has one entry a record.
	States []State
	// Waiting says that somebody waits for the outcome; a record that turns out
	// not to be stored is appended again only then.
	Waiting bool
	// Bytes is the sum of the records' sizes.
	Bytes int

	known message.ID
	left  int // unresolved records
	tick  bool
}

// First and Last are the batch's first and last tick.
func (b *Batch) First() message.Tick { return b.Messages[0].TimeTick }

// Last is the batch's last tick.
func (b *Batch) Last() message.Tick { return b.Messages[len(b.Messages)-1].TimeTick }

// Resolved reports whether every record is stored or failed.
func (b *Batch) Resolved() bool { return b.left == 0 }

// IsTick reports whether the batch is a persisted time tick.
func (b *Batch) IsTick() bool { return b.tick }

// Core is the state of one term's owner.
type Core struct {
	term  int64
	known message.ID
	// window holds the accepted batches in tick order from the first that is
	// unresolved; released is the tick up to which everything is settled.
	window   []*Batch
	released message.Tick
	highest  message.Tick

	txns map[uint64]*Txn
	// open lists the transactions in the order of their Begin ticks; ending are
	// those that were asked to end and whose end has no tick yet; ended are
	// those that left since TakeEnded.
	open   []*Txn
	ending map[uint64]*Txn
	ended  []uint64
	// unreleased are those that ended at a tick above the released one: for a
	// reader at that tick they are open.
	unreleased []*Txn

	// ready collects stored records of the released prefix until Release.
	ready     []message.Message
	lastReady int
	// unresolvedBytes counts what is in the window and not resolved.
	unresolvedBytes int
	// ticks counts the unresolved persisted time ticks.
	ticks int
	// unticked counts stored bytes and records since the last persisted time tick.
	unticked        int
	untickedRecords int
	// reopened says that no persisted time tick followed the last re-open.
	reopened bool
}

// New returns the state behind the opening tick: its id is the first known.
func New(term int64, opening message.Message) *Core {
	return &Core{
		term: term, known: opening.ID, released: opening.TimeTick, highest: opening.TimeTick,
		txns: map[uint64]*Txn{}, ending: map[uint64]*Txn{},
	}
}

// LastConfirmed returns the last confirmed id that a record accepted now gets.
func (c *Core) LastConfirmed() message.ID {
	id := c.known
	// known never falls, so the oldest unresolved batch and the oldest open
	// transaction hold the smallest of theirs.
	if len(c.window) > 0 && c.window[0].known < id {
		id = c.window[0].known
	}
	if len(c.open) > 0 && c.open[0].known < id {
		id = c.open[0].known
	}
	return id
}

// Confirmed returns the last confirmed id of the released tick: a reader that
// has everything up to that tick finds there what follows. An end that is stored
// and not released does not count yet, so it may lie below LastConfirmed.
func (c *Core) Confirmed() message.ID {
	id := c.LastConfirmed()
	for _, t := range c.unreleased {
		if message.Tick(t.ID) <= c.released && t.end > c.released {
			id = min(id, t.known)
		}
	}
	return id
}

// Accept gives the messages ticks from first on and puts them into the window.
// first must be above every tick given before. The messages become the batch's.
func (c *Core) Accept(messages []message.Message, first message.Tick, waiting bool) *Batch {
	b := &Batch{
		Messages: messages, States: make([]State, len(messages)), Waiting: waiting,
		known: c.known, left: len(messages),
	}
	lc := c.LastConfirmed()
	for i := range messages {
		m := &messages[i]
		m.TimeTick = first + message.Tick(i)
		m.LastConfirmed = lc
		b.Bytes += m.Size()
	}
	c.highest = b.Last()
	c.unresolvedBytes += b.Bytes
	c.window = append(c.window, b)
	return b
}

// AcceptTick puts a persisted time tick into the window. It may be sent when
// SendableTick returns it.
func (c *Core) AcceptTick(tick message.Tick) *Batch {
	b := c.Accept([]message.Message{{Type: message.TypeTimeTick}}, tick, true)
	b.tick = true
	c.ticks++
	return b
}

// TickPending reports whether a persisted time tick is unresolved.
func (c *Core) TickPending() bool { return c.ticks > 0 }

// SendableTick returns the persisted time tick at the front of the window, if
// it waits to be sent: everything below it is resolved then.
func (c *Core) SendableTick() *Batch {
	if len(c.window) == 0 || !c.window[0].tick || c.window[0].States[0] != Queued {
		return nil
	}
	return c.window[0]
}

// SetStored resolves record i of b as stored with the id.
func (c *Core) SetStored(b *Batch, i int, id message.ID, term, incarnation int64) {
	if b.States[i] == Stored || b.States[i] == Failed {
		return
	}
	m := &b.Messages[i]
	m.ID, m.Term, m.Incarnation = id, term, incarnation
	c.known = max(c.known, id)
	b.States[i] = Stored
	if !b.tick {
		c.unticked += m.Size()
		c.untickedRecords++
	}
	c.resolved(b)
	c.txnStored(m)
}

// SetFailed resolves record i of b as definitely not stored.
func (c *Core) SetFailed(b *Batch, i int) {
	if b.States[i] == Stored || b.States[i] == Failed {
		return
	}
	b.States[i] = Failed
	c.resolved(b)
	c.txnFailed(&b.Messages[i])
}

// resolved counts one record of b, and moves the resolved prefix of the window
// to what is ready.
func (c *Core) resolved(b *Batch) {
	b.left--
	if b.left == 0 {
		c.unresolvedBytes -= b.Bytes
		if b.tick {
			c.ticks--
		}
	}
	n := 0
	for n < len(c.window) && c.window[n].left == 0 {
		n++
	}
	if n == 0 {
		return
	}
	if c.ready == nil {
		// What was released last time is a good guess, with room for the time
		// tick that will cover it.
		c.ready = make([]message.Message, 0, c.lastReady+1)
	}
	for k, done := range c.window[:n] {
		for i := range done.Messages {
			if done.States[i] == Stored {
				c.ready = append(c.ready, done.Messages[i])
			}
		}
		c.released = done.Last()
		if done.tick && done.States[0] == Stored {
			// Read back or answered out of order, records behind the tick may be
			// settled before it; no persisted tick covers them yet.
			c.unticked, c.untickedRecords, c.reopened = 0, 0, false
			for _, later := range c.window[k+1:] {
				c.countStored(later)
			}
		}
	}
	clear(c.window[:n])
	c.window = c.window[n:]
	c.unreleased = slices.DeleteFunc(c.unreleased, func(t *Txn) bool { return t.end <= c.released })
}

// countStored counts the stored records of a batch above the last persisted tick.
func (c *Core) countStored(b *Batch) {
	for i := range b.Messages {
		if b.States[i] == Stored {
			c.unticked += b.Messages[i].Size()
			c.untickedRecords++
		}
	}
}

// Release returns the stored records that became settled since the last call,
// in tick order, and the tick up to which everything is settled.
func (c *Core) Release() ([]message.Message, message.Tick) {
	ready := c.ready
	if len(ready) > 0 {
		c.lastReady = len(ready)
		c.ready = nil
	}
	return ready, c.released
}

// Idle takes a fresh tick while nothing is unresolved: everything up to it is
// settled, without a record. It reports false while something is unresolved.
func (c *Core) Idle(tick message.Tick) bool {
	if len(c.window) > 0 || tick <= c.released {
		return false
	}
	c.released, c.highest = tick, tick
	return true
}

// Settled reports whether nothing is unresolved.
func (c *Core) Settled() bool { return len(c.window) == 0 }

// Released is the tick up to which everything is settled.
func (c *Core) Released() message.Tick { return c.released }

// Highest is the highest tick given out.
func (c *Core) Highest() message.Tick { return c.highest }

// Known is the highest acknowledged id.
func (c *Core) Known() message.ID { return c.known }

// Observe raises known to id, of a record that is outside the window (a barrier).
func (c *Core) Observe(id message.ID) { c.known = max(c.known, id) }

// UnresolvedBytes counts what is accepted and not resolved.
func (c *Core) UnresolvedBytes() int { return c.unresolvedBytes }

// Unticked counts the stored records and bytes since the last persisted time
// tick; a re-open counts as a record.
func (c *Core) Unticked() (records, bytes int) {
	if c.reopened {
		return c.untickedRecords + 1, c.unticked
	}
	return c.untickedRecords, c.unticked
}

// Reopened says that the next handle is there. Its fence record and its barrier
// lie behind the last persisted time tick, and last confirmed ids may name the
// barrier: without another tick a reader that begins there would find none.
func (c *Core) Reopened() { c.reopened = true }

// Lose turns every record that was handed over without an answer into Unknown:
// the handle is lost.
func (c *Core) Lose() {
	for _, b := range c.window {
		for i, s := range b.States {
			if s == Sent {
				b.States[i] = Unknown
			}
		}
	}
}

// Unresolved calls f for every unresolved record in tick order. f may resolve
// records of the batch that it is given, and no others, only after the walk;
// the batches are a copy of the window.
func (c *Core) Unresolved() []*Batch { return append([]*Batch(nil), c.window...) }

// ReadBackFrom returns where the read-back of unknown records starts: the
// smallest last confirmed id among them; ok is false if there are none.
func (c *Core) ReadBackFrom() (id message.ID, ok bool) {
	for _, b := range c.window {
		for i, s := range b.States {
			if s != Unknown {
				continue
			}
			if lc := b.Messages[i].LastConfirmed; !ok || lc < id {
				id, ok = lc, true
			}
		}
	}
	return id, ok
}
