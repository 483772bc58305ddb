package rmq

import (
	"context"

	"github.com/walrig/walrig/sdk/walimpls"
)

// openWrite opens a channel for writing: it decides on the pair, fences every
// earlier handle and queues the fence record, all under one lock, so an append
// of an earlier handle lies in the queue before the record or is refused.
func (e *engine) openWrite(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	e.mu.Lock()
	if err := e.usableLocked(opt.Channel); err != nil {
		e.mu.Unlock()
		return nil, err
	}
	l := e.logs[opt.Channel]
	if l == nil {
		l = &logState{row: row{name: opt.Channel, storeID: newStoreID(), num: e.nextLog, first: 1, next: 1}}
	}
	if l.broken != nil {
		e.mu.Unlock()
		return nil, l.broken
	}
	pair, err := l.nextPair(opt.Pair())
	if err != nil {
		e.mu.Unlock()
		return nil, err
	}
	if e.logs[opt.Channel] == nil {
		e.logs[opt.Channel] = l
		e.nextLog++
	}
	h := e.newHandle(l, pair, walimpls.AccessReadWrite)
	l.highest, l.owner = pair, h
	req := newRequest(requestFence, l)
	req.pair = pair
	e.queue.pushLocked(req)
	e.mu.Unlock()

	if err := e.await(ctx, req); err != nil {
		_ = h.Close(ctx)
		return nil, err
	}
	return h, nil
}

// openRead opens a channel for reading. A log whose first fence record is not
// durable yet does not exist for it.
func (e *engine) openRead(opt walimpls.OpenOptions) (walimpls.WAL, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usableLocked(opt.Channel); err != nil {
		return nil, err
	}
	l := e.logs[opt.Channel]
	if l == nil {
		return nil, missingError(opt.Channel)
	}
	if l.broken != nil {
		return nil, l.broken
	}
	if s, _ := l.view.snapshot(); s.last == 0 {
		return nil, missingError(opt.Channel)
	}
	return e.newHandle(l, l.highest, walimpls.AccessReadOnly), nil
}

func (e *engine) newHandle(l *logState, pair walimpls.Pair, access walimpls.Access) *handle {
	return &handle{
		engine: e, log: l, done: make(chan struct{}),
		ch: walimpls.Channel{Name: l.name, StoreID: l.storeID, Pair: pair, Access: access},
	}
}

// drop deletes a channel's log. Its handles are fenced from here on, its
// scanners end with ErrNotFound when the deletion is durable.
func (e *engine) drop(ctx context.Context, channel string, term int64) error {
	e.mu.Lock()
	if err := e.usableLocked(channel); err != nil {
		e.mu.Unlock()
		return err
	}
	l := e.logs[channel]
	// A log that is not there may be one whose deletion is still queued: the
	// barrier is done when that is durable.
	req := newRequest(requestBarrier, &logState{row: row{name: channel}})
	if l != nil {
		if l.broken != nil {
			e.mu.Unlock()
			return l.broken
		}
		if term < l.highest.Term {
			e.mu.Unlock()
			return walimpls.NewFencedError(channel, walimpls.Pair{Term: term}, l.highest)
		}
		l.dropped = true
		delete(e.logs, channel)
		e.leaving[l] = struct{}{}
		req = newRequest(requestDrop, l)
	}
	e.queue.pushLocked(req)
	e.mu.Unlock()
	return e.await(ctx, req)
}

// closeHandle ends a handle: what it has queued is refused, what the committer
// has in hand is waited for a little.
func (e *engine) closeHandle(ctx context.Context, h *handle) {
	e.mu.Lock()
	if h.closed {
		e.mu.Unlock()
		return
	}
	h.closed = true
	close(h.done)
	if h.log.owner == h {
		h.log.owner = nil
	}
	e.queue.refuseLocked(
		func(r *request) bool { return r.handle == h },
		func(r *request) error { return closedError(r.log.name, "append") })
	var taken []*request
	for _, r := range e.taken {
		if r.handle == h {
			taken = append(taken, r)
		}
	}
	e.mu.Unlock()
	e.waitOrAbandon(ctx, taken)
}
