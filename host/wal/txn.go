package wal

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// txnClock is the time of an open transaction, which the owner judges alone: no
// reader ever expires one.
type txnClock struct {
	keepalive time.Duration
	expires   time.Time
}

// Begin implements WAL.
func (w *termWAL) Begin(ctx context.Context, vchannel string, keepalive time.Duration) (Txn, error) {
	if keepalive == 0 {
		keepalive = w.opt.TxnKeepalive
	}
	if keepalive < time.Millisecond || keepalive > maxKeepalive {
		return Txn{}, walimpls.Errorf(walimpls.CodeInvalidArgument, w.claim.channel, "begin: keepalive %v is not between 1ms and %v", keepalive, maxKeepalive)
	}
	answer := make(chan []Result, 1)
	w.chain.Append(&interceptors.Operation{
		Ctx: ctx, Channel: w.claim.channel, Keepalive: keepalive,
		Batch: []message.Message{{Type: message.TypeBeginTxn, VChannel: vchannel}},
		Done:  func(r []Result) { answer <- r },
	})
	r := (<-answer)[0]
	if r.State != walimpls.Stored {
		return Txn{}, r.Err
	}
	return Txn{ID: uint64(r.Tick), Keepalive: keepalive, Expires: time.Now().Add(keepalive)}, nil
}

const maxKeepalive = 24 * time.Hour

func refused(err error) []Result {
	return []Result{{Outcome: walimpls.Outcome{State: walimpls.NotStored, Err: err}}}
}

// FailTxn implements WAL.
func (w *termWAL) FailTxn(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.core.FailTxn(id)
}

// touchTxn notes activity; w.mu is held.
func (w *termWAL) touchTxn(id uint64) {
	if t := w.txns[id]; t != nil {
		t.expires = time.Now().Add(t.keepalive)
	}
}

// Commit implements WAL.
func (w *termWAL) Commit(ctx context.Context, id uint64) Result { return w.endTxn(ctx, id, true) }

// Rollback implements WAL.
func (w *termWAL) Rollback(ctx context.Context, id uint64) Result { return w.endTxn(ctx, id, false) }

// endTxn asks for the end and waits for its record's outcome.
func (w *termWAL) endTxn(ctx context.Context, id uint64, commit bool) Result {
	answer := make(chan []Result, 1)
	c := &call{done: func(r []Result) { answer <- r }}
	w.mu.Lock()
	if w.err != nil {
		err := w.err
		w.mu.Unlock()
		return refused(err)[0]
	}
	if err := w.core.AskEnd(w.claim.channel, id, commit); err != nil {
		w.mu.Unlock()
		return refused(err)[0]
	}
	w.ends[id] = c
	w.settle()
	w.mu.Unlock()
	select {
	case r := <-answer:
		return r[0]
	case <-ctx.Done():
	}
	// The end was asked for and goes on; it may have been answered meanwhile.
	select {
	case r := <-answer:
		return r[0]
	default:
		err := walimpls.Errorf(walimpls.CodeUnknownOutcome, w.claim.channel, "transaction %d: %w while it was ending", id, context.Cause(ctx))
		return Result{Outcome: walimpls.Outcome{State: walimpls.Unknown, Err: err}}
	}
}

// endReadyTxns gives a tick to the end of every transaction whose records are
// all resolved; w.mu is held.
func (w *termWAL) endReadyTxns() {
	if w.err != nil {
		return
	}
	for _, id := range w.core.Ending() {
		tick, ok := w.clock.Take(1)
		if !ok {
			poke(w.pulse)
			return
		}
		e := w.core.EndReady(id)
		b := w.core.Accept([]message.Message{e.Message}, tick, true)
		c := w.ends[id]
		delete(w.ends, id)
		switch {
		case c == nil:
			// The owner's own rollback: it waits for itself, so it is sent again
			// until it is stored.
			c = &call{done: func([]Result) {}}
		case e.Refused:
			err := walimpls.Errorf(walimpls.CodeTxnRolledBack, w.claim.channel, "transaction %d: %d of its records failed, or an exclusive record came between; it is rolled back", id, e.Txn.Failed)
			done := c.done
			c = &call{done: func([]Result) { done(refused(err)) }}
		}
		w.calls[b] = c
		w.sendable = append(w.sendable, b)
	}
	for _, id := range w.core.TakeEnded() {
		delete(w.txns, id)
	}
}

// expireTxns asks for the rollback of transactions whose time is up. One that
// is ending is left alone: an unresolved commit never expires.
func (w *termWAL) expireTxns() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for id, t := range w.txns {
		if now.Before(t.expires) || w.core.Txn(id) == nil || w.core.Txn(id).State != owner.TxnOpen {
			continue
		}
		w.log.Info("transaction expired", zap.Uint64("txn", id), zap.Duration("keepalive", t.keepalive))
		_ = w.core.AskEnd(w.claim.channel, id, false)
	}
	w.settle()
}

// answerEnd returns the answer to whoever asked for an end that never got a
// tick; w.mu is held.
func (w *termWAL) answerEnd(c *call, r Result) func() {
	if c.answered {
		return func() {}
	}
	c.answered = true
	return func() { c.done([]Result{r}) }
}
