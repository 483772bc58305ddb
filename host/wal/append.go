package wal

import (
	"context"
	"time"

	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Append implements WAL.
func (w *termWAL) Append(ctx context.Context, batch []message.Message) []Result {
	return w.AppendAfter(ctx, 0, batch)
}

// AppendAfter implements WAL.
func (w *termWAL) AppendAfter(ctx context.Context, barrier message.Tick, batch []message.Message) []Result {
	results := make(chan []Result, 1)
	w.submit(ctx, barrier, batch, func(r []Result) { results <- r })
	return <-results
}

// AppendAsync implements WAL.
func (w *termWAL) AppendAsync(ctx context.Context, batch []message.Message, done func([]Result)) {
	w.submit(ctx, 0, batch, done)
}

// submit sends the batch through the chain, without the records that no backend
// would take: those are answered as not stored, and their neighbours go on.
func (w *termWAL) submit(ctx context.Context, barrier message.Tick, batch []message.Message, done func([]Result)) {
	if len(batch) == 0 {
		go done(nil)
		return
	}
	op := &interceptors.Operation{Ctx: ctx, Channel: w.claim.channel, Batch: batch, Barrier: barrier, Done: done}
	if id := batch[0].TxnID; id != 0 && batch[0].Type == message.TypeData {
		op.Done = func(results []Result) {
			w.refusedBodies(id, results)
			done(results)
		}
	}
	limit := w.claim.limits.MaxMessageBytes
	for i := range batch {
		if batch[i].Size() > limit {
			if !w.withoutOversized(op, limit) {
				return
			}
			break
		}
	}
	w.chain.Append(op)
}

// refusedBodies forbids the commit of a transaction one of whose records is not
// stored, whatever refused it. That it takes no more records is no such failure.
func (w *termWAL) refusedBodies(id uint64, results []Result) {
	for i := range results {
		if results[i].State != walimpls.NotStored {
			continue
		}
		if code := walimpls.AsError(results[i].Err).Code; code != walimpls.CodeTxnNotFound && code != walimpls.CodeTxnState {
			w.FailTxn(id)
			return
		}
	}
}

// withoutOversized takes the records above the limit out of op, and reports
// whether any are left.
func (w *termWAL) withoutOversized(op *interceptors.Operation, limit int) bool {
	errs := make([]error, len(op.Batch))
	for i := range op.Batch {
		if size := op.Batch[i].Size(); size > limit {
			errs[i] = wire.TooLarge(op.Channel, size, limit)
		}
	}
	return op.Without(errs)
}

// bodies lets the chain count the records of transactions in.
type bodies struct{ w *termWAL }

func (b bodies) Add(id uint64, n, bytes int) error {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	if err := b.w.core.AddBodies(b.w.claim.channel, id, n, bytes, b.w.opt.MaxTxnBytes); err != nil {
		return err
	}
	b.w.touchTxn(id)
	return nil
}

func (b bodies) Fail(id uint64, n, bytes int) {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.core.FailBodies(id, n, bytes)
	b.w.settle()
}

// accept is the end of the chain: the batch gets its ticks and its last
// confirmed id in one step, and is queued for the backend. It waits while the
// backend is away or too much is unresolved, for a wider tick window, and for a
// barrier.
func (w *termWAL) accept(op *interceptors.Operation) {
	w.mu.Lock()
	for {
		if err := w.refusal(op.Ctx); err != nil {
			w.mu.Unlock()
			op.Refuse(err)
			return
		}
		if op.Barrier > 0 {
			w.clock.Observe(op.Barrier)
		}
		room := w.core.UnresolvedBytes() < w.opt.MaxUnresolvedBytes && w.core.Released() >= min(op.Barrier, w.core.Highest())
		// While the backend is away nothing gets a tick, so that a caller whose
		// deadline passes meanwhile knows that its record is not stored.
		if room && w.handle != nil {
			if first, ok := w.clock.Take(len(op.Batch)); ok {
				w.accepted(op, first)
				w.mu.Unlock()
				poke(w.wake)
				return
			}
			poke(w.pulse)
		}
		change := w.progressed()
		w.waiting++
		w.mu.Unlock()
		select {
		case <-change:
		case <-op.Ctx.Done():
		}
		w.mu.Lock()
		w.waiting--
	}
}

// refusal says why a batch without ticks cannot get any; w.mu is held.
func (w *termWAL) refusal(ctx context.Context) error {
	if w.err != nil {
		return w.err
	}
	if ctx.Err() == nil {
		return nil
	}
	err := walimpls.ContextError(ctx, w.claim.channel, "append: nothing was handed to the backend")
	if w.lastErr != nil {
		err.Message += "; the backend is not available: " + w.lastErr.Error()
	}
	return err
}

// accepted tracks the batch from its tick on; w.mu is held.
func (w *termWAL) accepted(op *interceptors.Operation, first message.Tick) {
	var b *owner.Batch
	switch op.Batch[0].Type {
	case message.TypeBeginTxn:
		_, b = w.core.Begin(op.Batch[0], first)
		w.txns[uint64(first)] = &txnClock{keepalive: op.Keepalive, expires: time.Now().Add(op.Keepalive)}
	case message.TypeDropVChannel:
		w.core.Doom(op.Batch[0].VChannel)
		fallthrough
	default:
		b = w.core.Accept(op.Batch, first, true)
	}
	c := &call{done: op.Done, settled: op.Settle}
	if t := w.core.Txn(b.Messages[0].TxnID); t != nil {
		c.txnStart = t.LastConfirmed
	}
	w.calls[b] = c
	w.sendable = append(w.sendable, b)
	if op.Ctx.Done() != nil {
		c.release = context.AfterFunc(op.Ctx, func() { w.callerLeft(op.Ctx, b, c) })
	}
}

// callerLeft answers a caller whose context ended; its append goes on.
func (w *termWAL) callerLeft(ctx context.Context, b *owner.Batch, c *call) {
	err := walimpls.Errorf(walimpls.CodeUnknownOutcome, w.claim.channel, "append: %w after the record got its tick", context.Cause(ctx))
	w.mu.Lock()
	b.Waiting = false
	f := w.answerUnresolved(b, c, err)
	w.mu.Unlock()
	if f != nil {
		f()
	}
}

// answerUnresolved returns the answer of a batch that is not resolved: what is
// not stored or failed yet is unknown because of err. nil if it was answered
// before. w.mu is held.
func (w *termWAL) answerUnresolved(b *owner.Batch, c *call, err error) func() {
	var unknown error = walimpls.Errorf(walimpls.CodeUnknownOutcome, w.claim.channel, "append: %w", err)
	if walimpls.AsError(err).Code == walimpls.CodeUnknownOutcome {
		unknown = err
	}
	return w.answerWith(b, c, unknown)
}

// answerWith returns the answer of a batch; unknown is the error of what is
// neither stored nor failed.
func (w *termWAL) answerWith(b *owner.Batch, c *call, unknown error) func() {
	if c.answered {
		return nil
	}
	c.answered = true
	results := w.results(b, c, unknown)
	return func() {
		if c.release != nil {
			c.release()
		}
		c.done(results)
	}
}

// results turns the batch's states into results; w.mu is held.
func (w *termWAL) results(b *owner.Batch, c *call, unknown error) []Result {
	results := make([]Result, len(b.States))
	for i, s := range b.States {
		r := &results[i]
		switch s {
		case owner.Stored:
			m := &b.Messages[i]
			r.State, r.ID, r.Tick, r.Term = walimpls.Stored, m.ID, m.TimeTick, m.Term
			r.Checkpoint = message.Checkpoint{StoreID: w.channel.StoreID, ID: m.LastConfirmed, Term: m.Term, Tick: m.TimeTick}
			if m.TxnID != 0 && m.Type != message.TypeCommitTxn && m.Type != message.TypeRollbackTxn {
				// The unit comes with the commit; until then a reader has to begin
				// where the transaction did, with what else was open there.
				r.Checkpoint.ID, r.Checkpoint.Tick = c.txnStart, message.Tick(m.TxnID)-1
			}
		case owner.Failed:
			r.State, r.Err = walimpls.NotStored, c.errs[i]
		default:
			r.State, r.Err = walimpls.Unknown, unknown
		}
	}
	return results
}

// fail resolves record i of b as not stored because of err; w.mu is held.
func (w *termWAL) fail(b *owner.Batch, i int, err error) {
	if c := w.calls[b]; c != nil {
		if c.errs == nil {
			c.errs = make([]error, len(b.States))
		}
		c.errs[i] = err
	}
	w.core.SetFailed(b, i)
}

// finish returns the answer of a batch that is resolved, nil if it is not or
// owes none; w.mu is held.
func (w *termWAL) finish(b *owner.Batch) func() {
	c := w.calls[b]
	if c == nil || !b.Resolved() {
		return nil
	}
	delete(w.calls, b)
	answer := w.answerWith(b, c, nil)
	if c.settled == nil {
		return answer
	}
	return func() {
		if answer != nil {
			answer()
		}
		c.settled()
	}
}
