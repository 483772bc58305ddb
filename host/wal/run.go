package wal

import (
	"context"
	"errors"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// run owns the handle until the WAL ends.
func (w *termWAL) run() {
	defer w.wg.Done()
	pause := backoff{first: 20 * time.Millisecond, most: 5 * time.Second}
	again := false // a handle was lost before
	for {
		served := time.Now()
		w.serve()
		w.retire()
		if w.ctx.Err() != nil {
			return
		}
		// A handle that is lost at once, again and again, must not become a
		// storm of opens.
		if time.Since(served) > pause.most {
			pause.reset()
		} else if again && !pause.wait(w.ctx) {
			return
		}
		again = true
		if err := w.reopen(); err != nil {
			if w.ctx.Err() == nil {
				w.log.Warn("term ended", zap.Error(err))
			}
			w.end(err)
			return
		}
	}
}

// serve sends what waits until the handle is lost or the WAL ends.
func (w *termWAL) serve() {
	w.mu.Lock()
	handle, generation := w.handle, w.generation
	w.mu.Unlock()
	var broken <-chan struct{}
	if b, ok := handle.(breaker); ok {
		broken = b.Broken()
	}
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-broken:
			return
		case <-w.wake:
		}
		for {
			// Callers that were just answered append again at once: a moment's
			// patience makes the next group one of all of them.
			for range gatherYields {
				runtime.Gosched()
			}
			w.mu.Lock()
			if w.lost {
				w.mu.Unlock()
				return
			}
			g := w.next()
			w.mu.Unlock()
			if g == nil {
				break
			}
			handle.AppendAsync(g.messages, func(out []walimpls.Outcome) { w.answer(generation, g, out) })
		}
	}
}

// group is what the backend is handed at once: the queued records of as many
// batches as wait. One answer settles them all.
type group struct {
	parts    []part
	messages []message.Message
	bytes    int
}

// part is a batch's share of a group.
type part struct {
	batch *owner.Batch
	// indexes are the batch's records that are in the group, nil for all; n
	// counts them.
	indexes []int
	n       int
}

// index returns the batch's record that the part's k-th is.
func (p *part) index(k int) int {
	if p.indexes == nil {
		return k
	}
	return p.indexes[k]
}

// maxGroupRecords bounds a group. A plugin has a few of them under way, so that
// the hop is hidden behind the store's work; a backend in process, which works on
// one call at a time, gets the next group when it can be everybody's.
const (
	maxGroupRecords  = 4096
	maxGroupsRemote  = 3
	maxGroupsInPlace = 1
	gatherYields     = 4
)

// next marks the queued records of the sendable batches as sent and returns
// them, nil if there are none or enough is under way; w.mu is held. The messages
// are a copy: a handle that was given up may still look at what it was handed
// while the records are stored by another.
func (w *termWAL) next() *group {
	if len(w.sendable) == 0 || w.sentGroups >= w.maxGroups || (w.sentGroups > 0 && w.sentBytes >= w.opt.MaxSentBytes) {
		return nil
	}
	g := &group{}
	waiting := 0
	for _, b := range w.sendable {
		if waiting += len(b.States); waiting >= maxGroupRecords {
			break
		}
	}
	g.messages = make([]message.Message, 0, waiting)
	g.parts = make([]part, 0, min(len(w.sendable), waiting))
	n := 0
	for ; n < len(w.sendable) && len(g.messages) < maxGroupRecords && w.sentBytes+g.bytes < w.opt.MaxSentBytes; n++ {
		b := w.sendable[n]
		w.sendable[n] = nil
		p := part{batch: b}
		for i, s := range b.States {
			if s == owner.Queued {
				b.States[i] = owner.Sent
				p.n++
				g.messages = append(g.messages, b.Messages[i])
			}
		}
		if p.n < len(b.States) {
			p.indexes = sentIndexes(b)
		}
		if p.n > 0 {
			g.parts = append(g.parts, p)
			g.bytes += b.Bytes
		}
	}
	w.sendable = w.sendable[n:]
	if len(w.sendable) == 0 {
		w.sendable = nil
	}
	if len(g.messages) == 0 {
		return nil
	}
	w.sentBytes += g.bytes
	w.sentGroups++
	return g
}

// sentIndexes returns the records of b that are under way.
func sentIndexes(b *owner.Batch) []int {
	var indexes []int
	for i, s := range b.States {
		if s == owner.Sent {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// answer takes a handle's outcomes. What comes from a handle that was given up
// is ignored: its records are settled by reading back.
func (w *termWAL) answer(generation int, g *group, out []walimpls.Outcome) {
	w.mu.Lock()
	if generation != w.generation || w.sentGroups == 0 {
		w.mu.Unlock()
		return
	}
	w.sentBytes -= g.bytes
	w.sentGroups--
	due := make([]func(), 0, len(g.parts))
	for _, p := range g.parts {
		for k := range p.n {
			w.outcome(p.batch, p.index(k), &out[k])
		}
		out = out[p.n:]
		if f := w.finish(p.batch); f != nil {
			due = append(due, f)
		}
	}
	w.settle()
	w.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// outcome takes the outcome of record i of b; w.mu is held.
func (w *termWAL) outcome(b *owner.Batch, i int, o *walimpls.Outcome) {
	switch {
	case o.State == walimpls.Stored:
		w.core.SetStored(b, i, o.ID, w.channel.Term, w.channel.Incarnation)
	case o.State == walimpls.NotStored && !endsHandle(o.Err):
		w.fail(b, i, o.Err)
	default:
		b.States[i] = owner.Unknown
		if o.State == walimpls.NotStored {
			b.States[i] = owner.Queued
		}
		w.lost, w.lastErr = true, o.Err
	}
}

// retire closes the handle and waits for its answers. The contract gives Close
// the grace period; the entries of a backend that does not keep it are unknown
// all the same.
func (w *termWAL) retire() {
	w.mu.Lock()
	handle := w.handle
	w.handle = nil
	w.mu.Unlock()
	if handle != nil {
		ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
		closeBounded(ctx, handle, w.log)
		w.awaitAnswers(ctx)
		cancel()
	}
	w.mu.Lock()
	w.generation++
	w.sentBytes, w.sentGroups = 0, 0
	w.core.Lose()
	w.sendable = nil
	w.changed()
	w.mu.Unlock()
}

// closeBounded closes a handle that may break the contract and hang: its
// goroutine is left behind then, and ends when the handle lets go.
func closeBounded(ctx context.Context, handle walimpls.WAL, log *zap.Logger) {
	closed := make(chan error, 1)
	go func() { closed <- handle.Close(ctx) }()
	select {
	case err := <-closed:
		if err != nil {
			log.Debug("close of a handle", zap.Error(err))
		}
	case <-ctx.Done():
		log.Warn("the backend's handle does not close")
	}
}

// awaitAnswers waits until the closed handle has answered everything.
func (w *termWAL) awaitAnswers(ctx context.Context) {
	for {
		w.mu.Lock()
		left, change := w.sentGroups, w.progressed()
		w.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			return
		}
	}
}

// reopen opens the next incarnation and settles what is unknown, again and
// again until both work; an error ends the term.
func (w *termWAL) reopen() error {
	pause := backoff{first: 20 * time.Millisecond, most: 5 * time.Second}
	for {
		handle, err := w.claim.attempt(w.ctx)
		if err == nil {
			err = w.resolve(handle)
			if err == nil {
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
			closeBounded(ctx, handle, w.log)
			cancel()
			// The read-back is not an Open: a fence that it meets is settled by
			// the next incarnation.
			if endsHandle(err) && w.ctx.Err() == nil {
				err = walimpls.Errorf(walimpls.CodeUnavailable, w.claim.channel, "settling unknown outcomes: %w", err)
			}
		} else if errors.Is(err, walimpls.ErrFenced) {
			return walimpls.Errorf(walimpls.CodeTermExpired, w.claim.channel, "term %d ended: %w", w.claim.term, err)
		}
		w.mu.Lock()
		w.lastErr = err
		w.mu.Unlock()
		if !transient(err) || w.ctx.Err() != nil {
			return err
		}
		w.log.Warn("reopen failed, trying again", zap.Int64("incarnation", w.claim.incarnation), zap.Error(err))
		if !pause.wait(w.ctx) {
			return err
		}
	}
}

// install makes handle the present one and queues what it has to be sent.
func (w *termWAL) install(handle walimpls.WAL) {
	h := async(handle)
	w.mu.Lock()
	w.handle, w.lost, w.lastErr = h, false, nil
	w.maxGroups = maxGroupsRemote
	if _, inPlace := h.(*serialHandle); inPlace {
		w.maxGroups = maxGroupsInPlace
	}
	w.channel = h.Channel()
	w.generation++
	again := w.generation > 1
	if again {
		w.core.Reopened()
	}
	w.sendable = nil
	for _, b := range w.core.Unresolved() {
		if !b.IsTick() {
			w.sendable = append(w.sendable, b)
		}
	}
	w.settle()
	w.mu.Unlock()
	w.log.Info("opened", zap.Int64("incarnation", h.Channel().Incarnation), zap.Bool("again", again))
}
