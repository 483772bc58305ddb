package faultbackend

import (
	"context"
	"errors"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// handle is the walimpls.WAL of one Open.
type handle struct {
	opener  *opener
	engine  *engine
	store   *Store
	log     *chanLog // guarded by store.mu
	channel walimpls.Channel

	closing   chan struct{}
	closeOnce sync.Once

	ended bool // an outcome is unknown; guarded by store.mu

	mu       sync.Mutex // guards scanners
	scanners map[*scanner]struct{}
}

// Channel implements walimpls.WAL.
func (h *handle) Channel() walimpls.Channel { return h.channel }

func (h *handle) readOnly() bool { return h.channel.Access == walimpls.AccessReadOnly }

func (h *handle) call(op Op, n int) call {
	return call{op: op, channel: h.channel.Name, pair: h.channel.Pair, n: n}
}

func (h *handle) isClosed() bool {
	select {
	case <-h.closing:
		return true
	default:
		return false
	}
}

// alive refuses what comes after Close.
func (h *handle) alive() error {
	if h.isClosed() {
		return errClosed(h.channel.Name, "handle")
	}
	return nil
}

// writable says why the handle may not write. store.mu is held, so the answer
// holds for the write that follows under it: whoever opens with a higher pair
// waits for the mutex.
func (h *handle) writable() error {
	switch {
	case h.isClosed():
		return errClosed(h.channel.Name, "handle")
	case h.store.closed:
		return errClosed(h.channel.Name, "store")
	case h.readOnly():
		return walimpls.Errorf(walimpls.CodeReadOnly, h.channel.Name, "the handle was opened read-only")
	case h.log.dropped:
		return walimpls.Errorf(walimpls.CodeFenced, h.channel.Name, "the log was dropped")
	case h.log.highest != h.channel.Pair:
		return errFencedHandle(h.channel.Name, h.channel.Pair, h.log.highest)
	case h.ended:
		return errEnded(h.channel.Name)
	}
	return nil
}

// checkWritable is writable for the start of a call.
func (h *handle) checkWritable() error {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	return h.writable()
}

// end makes the handle refuse writes from now on: an outcome is unknown.
func (h *handle) end() {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	h.ended = true
}

// Read implements walimpls.WAL.
func (h *handle) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	h.engine.called(OpRead, 0)
	opt, err := opt.Normalize(h.channel.Name)
	if err != nil {
		return nil, err
	}
	if err := h.alive(); err != nil {
		return nil, err
	}
	sc := &scanner{handle: h, opt: opt, done: make(chan struct{})}
	err = h.engine.step(ctx, h.closing, h.call(OpRead, 1), stepFuncs{ended: h.end, do: func() (err error) {
		sc.pos, err = h.resolve(opt.Start)
		return err
	}})
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.alive(); err != nil {
		return nil, err
	}
	h.scanners[sc] = struct{}{}
	h.engine.count(func(s *statsData) { s.scanners++ })
	return sc, nil
}

func (h *handle) resolve(start walimpls.Start) (uint64, error) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	switch {
	case h.store.closed:
		return 0, errClosed(h.channel.Name, "store")
	case h.log.dropped:
		return 0, errDropped(h.channel.Name)
	}
	return h.log.start(start)
}

// forget is the end of a scanner; only the first call counts.
func (h *handle) forget(sc *scanner) {
	h.mu.Lock()
	_, known := h.scanners[sc]
	delete(h.scanners, sc)
	h.mu.Unlock()
	if known {
		h.engine.count(func(s *statsData) { s.scanners-- })
	}
}

// Truncate implements walimpls.WAL.
func (h *handle) Truncate(ctx context.Context, before message.ID) error {
	h.engine.called(OpTruncate, 0)
	if err := h.checkWritable(); err != nil {
		return err
	}
	id, ok := before.Uint64()
	if !ok {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, h.channel.Name, "truncate: the id %s has %d bytes, ids of this backend have 8", shorten(before), len(before))
	}
	return h.engine.step(ctx, h.closing, h.call(OpTruncate, 1), stepFuncs{ended: h.end, do: func() error { return h.truncate(id) }})
}

func (h *handle) truncate(before uint64) error {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if err := h.writable(); err != nil {
		return err
	}
	switch l := h.log; {
	case before >= l.next():
		return walimpls.Errorf(walimpls.CodeInvalidArgument, l.name, "truncate: the id %d lies above the latest id %d", before, l.next()-1)
	case before <= l.first:
		return nil
	case h.store.file != nil:
		if err := h.store.write(truncateFrame(nil, l, before)); err != nil {
			return fileError(l.name, "truncate", err)
		}
	}
	h.log.cut(before)
	return nil
}

// Bounds implements walimpls.WAL.
func (h *handle) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	h.engine.called(OpBounds, 0)
	if err := h.alive(); err != nil {
		return walimpls.Bounds{}, err
	}
	var b walimpls.Bounds
	err := h.engine.step(ctx, h.closing, h.call(OpBounds, 1), stepFuncs{ended: h.end, do: func() error {
		h.store.mu.Lock()
		defer h.store.mu.Unlock()
		switch {
		case h.store.closed:
			return errClosed(h.channel.Name, "store")
		case h.log.dropped:
			return errDropped(h.channel.Name)
		}
		b = h.log.bounds()
		return nil
	}})
	if err != nil {
		return walimpls.Bounds{}, err
	}
	return b, nil
}

// Close implements walimpls.WAL. The handle is dead before the rules are asked,
// so whatever they do to the answer, nobody can use it any more.
func (h *handle) Close(ctx context.Context) error {
	h.engine.called(OpClose, 0)
	first := false
	h.closeOnce.Do(func() { first = true; close(h.closing) })
	if !first {
		return nil
	}
	h.mu.Lock()
	scanners := make([]*scanner, 0, len(h.scanners))
	for sc := range h.scanners {
		scanners = append(scanners, sc)
	}
	h.mu.Unlock()
	for _, sc := range scanners {
		_ = sc.Close() // it never fails
	}
	h.opener.forget(h)

	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeBound)
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	err := h.engine.step(bounded, nil, h.call(OpClose, 1), stepFuncs{ended: h.end, do: func() error { return nil }})
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil // a rule held it up for as long as a Close may take
	}
	return err
}
