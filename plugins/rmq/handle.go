package rmq

import (
	"context"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// handle is an open log: the walimpls.WAL of this backend.
type handle struct {
	engine *engine
	log    *logState
	ch     walimpls.Channel
	// done is closed by Close; it ends the handle's scanners.
	done chan struct{}

	// Guarded by engine.mu.
	closed bool
	dead   bool // an outcome was unknown; see contract rule 3
}

var _ walimpls.WAL = (*handle)(nil)

// Channel returns name, store id and pair.
func (h *handle) Channel() walimpls.Channel { return h.ch }

// mayWriteLocked returns why the handle may not append or truncate; nothing
// has been handed to the store then. The caller holds engine.mu.
func (h *handle) mayWriteLocked(what string) error {
	name := h.ch.Name
	switch {
	case h.closed:
		return closedError(name, what)
	case h.ch.Access != walimpls.AccessReadWrite:
		return walimpls.Errorf(walimpls.CodeReadOnly, name, "%s: the handle was opened read-only", what)
	case h.log.dropped:
		return walimpls.Errorf(walimpls.CodeFenced, name, "%s: the log of handle %s was dropped", what, h.ch.Pair)
	case h.log.owner != h:
		return walimpls.Errorf(walimpls.CodeFenced, name, "%s: handle %s is fenced by %s", what, h.ch.Pair, h.log.highest)
	case h.dead:
		e := walimpls.Errorf(walimpls.CodeUnavailable, name, "%s: an earlier append of this handle has an unknown outcome, which ended it; nothing was stored", what)
		e.Hint, e.Retryable = hintReopen, false
		return e
	}
	return nil
}

// Append stores the batch; see walimpls.WAL. A record that is refused by itself
// (too large, of no appendable type) does not keep its neighbours out.
func (h *handle) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	name := h.ch.Name
	if err := ctx.Err(); err != nil {
		return nil, gaveUp(name, "append", err)
	}
	if err := h.engine.mayWrite(h, "append"); err != nil {
		return nil, err
	}
	req, refused, err := h.encode(batch)
	if err != nil {
		return nil, err
	}
	if req.count() > 0 {
		if err := h.engine.submit(ctx, req); err != nil {
			req.state = requestRefused
			req.err = err
		} else {
			_ = h.engine.await(ctx, req)
		}
	}
	if refused == nil {
		switch req.state {
		case requestDone:
			return idsFrom(req.first, req.count()), nil
		case requestUnknown:
			return nil, walimpls.BatchFailure(name, len(batch), walimpls.Unknown, req.err)
		}
		return nil, req.err
	}
	outcomes := make([]walimpls.Outcome, len(batch))
	ids := idsFrom(req.first, req.count())
	taken := 0
	for i := range outcomes {
		switch {
		case refused[i] != nil:
			outcomes[i] = walimpls.Outcome{State: walimpls.NotStored, Err: refused[i]}
			continue
		case req.state == requestDone:
			outcomes[i] = walimpls.Outcome{State: walimpls.Stored, ID: ids[taken]}
		case req.state == requestUnknown:
			outcomes[i] = walimpls.Outcome{State: walimpls.Unknown, Err: req.err}
		default:
			outcomes[i] = walimpls.Outcome{State: walimpls.NotStored, Err: req.err}
		}
		taken++
	}
	return nil, &walimpls.BatchError{Channel: name, Outcomes: outcomes}
}

// encode makes the request of a batch. refused has an error for each record
// that is refused by itself, and is nil if there is none.
func (h *handle) encode(batch []message.Message) (req *request, refused []error, err error) {
	name, limits := h.ch.Name, h.engine.settings.limits
	if len(batch) > limits.MaxBatchRecords {
		return nil, nil, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a batch of %d records, the limit is %d; cut it", len(batch), limits.MaxBatchRecords)
	}
	refuse := func(i int, err error) {
		if refused == nil {
			refused = make([]error, len(batch))
		}
		refused[i] = err
	}
	total := 0
	for i := range batch {
		m := &batch[i]
		size := m.Size()
		switch {
		case size > limits.MaxMessageBytes:
			refuse(i, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a record of %d bytes, the limit is %d", size, limits.MaxMessageBytes))
		case m.Type == message.TypeInvalid, m.Type == message.TypeFence:
			refuse(i, walimpls.Errorf(walimpls.CodeInvalidArgument, name, "append: records of type %s cannot be appended", m.Type))
		default:
			total += size
		}
	}
	if total > limits.MaxBatchBytes {
		return nil, nil, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a batch of %d bytes, the limit is %d; cut it", total, limits.MaxBatchBytes)
	}
	const headerGuess = 48
	req = newRequest(requestAppend, h.log)
	req.handle = h
	req.data = make([]byte, 0, total+headerGuess*len(batch))
	req.ends = make([]int, 0, len(batch))
	for i := range batch {
		if refused != nil && refused[i] != nil {
			continue
		}
		m := batch[i]
		m.Term, m.Incarnation = h.ch.Term, h.ch.Incarnation
		req.data = message.AppendRecord(req.data, &m)
		req.ends = append(req.ends, len(req.data))
	}
	return req, refused, nil
}

// Read starts a scanner; see walimpls.WAL.
func (h *handle) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	opt, err := opt.Normalize(h.ch.Name)
	if err != nil {
		return nil, err
	}
	s, err := h.readable(ctx, "read")
	if err != nil {
		return nil, err
	}
	next, err := s.start(h.ch.Name, opt.Start)
	if err != nil {
		return nil, err
	}
	return &scanner{handle: h, opt: opt, next: next, done: make(chan struct{})}, nil
}

// Bounds returns the ends of the log.
func (h *handle) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	s, err := h.readable(ctx, "bounds")
	if err != nil {
		return walimpls.Bounds{}, err
	}
	return s.bounds(), nil
}

func (h *handle) readable(ctx context.Context, what string) (span, error) {
	if err := ctx.Err(); err != nil {
		return span{}, gaveUp(h.ch.Name, what, err)
	}
	h.engine.mu.Lock()
	closed := h.closed || h.engine.state == engineClosing
	h.engine.mu.Unlock()
	if closed {
		return span{}, closedError(h.ch.Name, what)
	}
	return h.log.view.snapshot()
}

// Truncate removes what lies before the id; see walimpls.WAL. The point is
// durable when it returns; the space comes free soon afterwards.
func (h *handle) Truncate(ctx context.Context, before message.ID) error {
	name := h.ch.Name
	if err := ctx.Err(); err != nil {
		return gaveUp(name, "truncate", err)
	}
	if err := h.engine.mayWrite(h, "truncate"); err != nil {
		return err
	}
	id, ok := before.Uint64()
	if !ok || id == 0 {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, name, "truncate: %q is not an id of this backend", before.String())
	}
	s, err := h.log.view.snapshot()
	if err != nil {
		return err
	}
	if id > s.last {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, name, "truncate: %d lies above %d, the latest id", id, s.last)
	}
	req := newRequest(requestTruncate, h.log)
	req.handle, req.first = h, id
	if err := h.engine.submit(ctx, req); err != nil {
		return err
	}
	return h.engine.await(ctx, req)
}

// Close ends the handle; see walimpls.WAL. Appends that the committer has in
// hand get a little time to end with what really became of them.
func (h *handle) Close(ctx context.Context) error {
	h.engine.closeHandle(ctx, h)
	return nil
}

// idsFrom returns the ids of n records from first on; they share one allocation.
func idsFrom(first uint64, n int) []message.ID {
	buf := make([]byte, 0, 8*n)
	for i := range n {
		id := message.Uint64ID(first + uint64(i))
		buf = append(buf, id...)
	}
	all := string(buf)
	ids := make([]message.ID, n)
	for i := range ids {
		ids[i] = message.ID(all[8*i : 8*i+8])
	}
	return ids
}
