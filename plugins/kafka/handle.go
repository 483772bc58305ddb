package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// handle is an open log: the walimpls.WAL of this backend.
type handle struct {
	o  *opener
	l  *ref
	ch walimpls.Channel
	p  *producer // nil for a read-only handle
	// floor: from this offset on every record's pair is at or above ch.Pair.
	floor int64

	// living ends with the handle, its cause says why; background counts what it owns.
	living     context.Context
	endLife    context.CancelCauseFunc
	background sync.WaitGroup

	mu      sync.Mutex // guards what follows
	closed  bool
	dropped bool
	gone    chan struct{} // closed when the handle is closed and all it owned has ended
}

var _ walimpls.WAL = (*handle)(nil)

func newHandle(o *opener, l *ref, ch walimpls.Channel, p *producer, floor int64) *handle {
	h := &handle{o: o, l: l, ch: ch, p: p, floor: floor, gone: make(chan struct{})}
	h.living, h.endLife = context.WithCancelCause(context.Background())
	return h
}

// Channel returns name, store id and pair.
func (h *handle) Channel() walimpls.Channel { return h.ch }

// mayWrite returns why the handle may not append or truncate; nothing was handed to
// the brokers then.
func (h *handle) mayWrite(what string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return closedError(h.ch.Name, what)
	case h.p == nil:
		return walimpls.Errorf(walimpls.CodeReadOnly, h.ch.Name, "%s: the handle was opened read-only", what)
	case h.dropped:
		return droppedHandle(h.ch.Name)
	}
	return h.p.usable()
}

// mayRead returns why the handle may not read.
func (h *handle) mayRead(what string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return closedError(h.ch.Name, what)
	case h.dropped:
		return droppedLog(h.ch.Name, what)
	}
	return nil
}

// drop marks the handle of a log that is being deleted.
func (h *handle) drop() {
	h.mu.Lock()
	h.dropped = true
	h.mu.Unlock()
	if h.p != nil {
		h.p.end(droppedHandle(h.ch.Name))
	}
	h.endLife(droppedLog(h.ch.Name, "read"))
}

// Append stores the batch; see walimpls.WAL. A record that is refused by itself (too
// large, of no appendable type) does not keep its neighbours out.
func (h *handle) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	if ctx.Err() != nil {
		return nil, walimpls.ContextError(ctx, h.ch.Name, "append")
	}
	if err := h.mayWrite("append"); err != nil {
		return nil, err
	}
	bodies, ends, refused, err := h.encode(batch)
	if err != nil {
		return nil, err
	}
	var stored []walimpls.Outcome
	if len(ends) > 0 {
		stored = h.p.append(ctx, bodies, ends)
	}
	if refused == nil {
		if ids, ok := allStored(stored); ok {
			return ids, nil
		}
		return nil, &walimpls.BatchError{Channel: h.ch.Name, Outcomes: stored}
	}
	outcomes := make([]walimpls.Outcome, len(batch))
	for i := range outcomes {
		if refused[i] != nil {
			outcomes[i] = walimpls.Outcome{State: walimpls.NotStored, Err: refused[i]}
			continue
		}
		outcomes[i] = stored[0]
		stored = stored[1:]
	}
	return nil, &walimpls.BatchError{Channel: h.ch.Name, Outcomes: outcomes}
}

func allStored(outcomes []walimpls.Outcome) ([]message.ID, bool) {
	ids := make([]message.ID, len(outcomes))
	for i := range outcomes {
		if outcomes[i].State != walimpls.Stored {
			return nil, false
		}
		ids[i] = outcomes[i].ID
	}
	return ids, true
}

// encode makes the bodies of a batch. refused has an error for each record that is
// refused by itself, and is nil if there is none.
func (h *handle) encode(batch []message.Message) (bodies []byte, ends []int, refused []error, err error) {
	name := h.ch.Name
	if len(batch) > maxBatchRecords {
		return nil, nil, nil, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a batch of %d records, the limit is %d; cut it", len(batch), maxBatchRecords)
	}
	total := 0
	for i := range batch {
		m := &batch[i]
		size := m.Size()
		var bad error
		switch {
		case size > maxMessageBytes:
			bad = walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a record of %d bytes, the limit is %d", size, maxMessageBytes)
		case m.Type == message.TypeInvalid, m.Type == message.TypeFence:
			bad = walimpls.Errorf(walimpls.CodeInvalidArgument, name, "append: records of type %s cannot be appended", m.Type)
		default:
			total += size
			continue
		}
		if refused == nil {
			refused = make([]error, len(batch))
		}
		refused[i] = bad
	}
	if total > maxBatchBytes {
		return nil, nil, nil, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a batch of %d bytes, the limit is %d; cut it", total, maxBatchBytes)
	}
	const overhead = 80
	bodies = make([]byte, 0, total+overhead*len(batch))
	ends = make([]int, 0, len(batch))
	tag := h.l.id.tag()
	for i := range batch {
		if refused != nil && refused[i] != nil {
			continue
		}
		m := batch[i]
		m.Term, m.Incarnation = h.ch.Term, h.ch.Incarnation
		bodies = appendBody(bodies, &m, tag, nil)
		ends = append(ends, len(bodies))
	}
	return bodies, ends, refused, nil
}

// begin bounds a reading or truncating call and ties it to the handle's life.
func (h *handle) begin(ctx context.Context) (context.Context, func()) {
	ctx, cancel := h.o.k.within(ctx)
	ctx, tied := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.living, func() { tied(context.Cause(h.living)) })
	return ctx, func() { stop(); tied(nil); cancel() }
}

// Bounds returns the ends of the log.
func (h *handle) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	if ctx.Err() != nil {
		return walimpls.Bounds{}, walimpls.ContextError(ctx, h.ch.Name, "bounds")
	}
	if err := h.mayRead("bounds"); err != nil {
		return walimpls.Bounds{}, err
	}
	ctx, done := h.begin(ctx)
	defer done()
	b, err := h.o.k.bounds(ctx, h.l)
	if err != nil {
		return walimpls.Bounds{}, ended(ctx, h.ch.Name, "bounds", h.o.gone(h.l, "bounds", err))
	}
	return b, nil
}

// Truncate removes what lies before the id; see walimpls.WAL. Brokers free whole
// segments, some time later.
func (h *handle) Truncate(ctx context.Context, before message.ID) error {
	name := h.ch.Name
	if ctx.Err() != nil {
		return walimpls.ContextError(ctx, name, "truncate")
	}
	if err := h.mayWrite("truncate"); err != nil {
		return err
	}
	id, ok := before.Uint64()
	if !ok {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, name, "truncate: an id of %d bytes is not one of this backend", len(before))
	}
	ctx, done := h.begin(ctx)
	defer done()
	// DeleteRecords knows no producer, so nothing but the log says who owns it.
	t, err := h.o.k.tail(ctx, h.l, false)
	if err != nil {
		return ended(ctx, name, "truncate", h.o.gone(h.l, "truncate", err))
	}
	if t.highest.Compare(h.ch.Pair) > 0 {
		e := walimpls.Errorf(walimpls.CodeFenced, name, "truncate: handle %s is fenced by %s", h.ch.Pair, t.highest)
		h.p.end(e)
		return e
	}
	if t.latest < 0 || id > uint64(t.latest) {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, name, "truncate: %d lies above %d, the latest id", id, t.latest)
	}
	if int64(id) <= t.start {
		return nil
	}
	if err := h.o.k.deleteRecords(ctx, h.l.topic, h.l.id, int64(id)); err != nil {
		return ended(ctx, name, "truncate", h.o.gone(h.l, "truncate", err))
	}
	return nil
}

// keepAlive starts the renewal of what fences.
func (h *handle) keepAlive(who producerID, old []*retired, lease time.Duration) {
	every := h.o.s.renewInterval
	if every == 0 {
		every = min(lease/4, time.Hour)
	}
	var turn sync.Mutex // guards what is in old
	renew := func(ctx context.Context) error {
		turn.Lock()
		defer turn.Unlock()
		err := h.o.k.emptyAbort(ctx, txnID(h.l.topic), h.l.topic, who)
		for _, r := range old {
			if err == nil {
				err = h.o.k.retire(ctx, h.l, r)
			}
		}
		return err
	}
	h.p.setLease(lease/2, renew)
	h.background.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-h.living.Done():
				return
			}
			if h.p.usable() != nil {
				continue
			}
			ctx, cancel := context.WithTimeoutCause(h.living, every, errBudget)
			began := time.Now()
			err := renew(ctx)
			cancel()
			var code *answerError
			switch {
			case err == nil:
				h.p.proved(began)
			case errors.As(err, &code) && code.code.fences():
				h.p.end(fencedError(h.ch.Name, err))
			case h.living.Err() == nil:
				h.o.log.Warn("the producer state was not renewed", zap.String("channel", h.ch.Name), zap.Error(err))
			}
		}
	})
}

// Close ends the handle; see walimpls.WAL.
func (h *handle) Close(ctx context.Context) error {
	h.shut(h.o.s.flightGrace)
	return nil
}

// shut closes the handle; appends in flight have the grace to end. It is bounded:
// everything the handle owns ends with its context or its connections.
func (h *handle) shut(grace time.Duration) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		<-h.gone
		return
	}
	h.closed = true
	h.mu.Unlock()
	h.endLife(closedError(h.ch.Name, "read"))
	if h.p != nil {
		h.p.close(grace, closedError(h.ch.Name, "append"))
	}
	h.background.Wait()
	h.o.forget(h)
	close(h.gone)
}
