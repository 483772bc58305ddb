package pulsar

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// handle is an open log: the walimpls.WAL of this backend.
type handle struct {
	o   *opener
	log *logState
	ch  walimpls.Channel
	app *appender // nil on a read-only handle
	// life ends with Close, or when the log is gone; it ends the scanners.
	life context.Context
	end  context.CancelCauseFunc

	closeOnce sync.Once
	closed    chan struct{} // closed when Close is done
}

var _ walimpls.WAL = (*handle)(nil)

func newHandle(o *opener, l *logState, ch walimpls.Channel) *handle {
	h := &handle{o: o, log: l, ch: ch, closed: make(chan struct{})}
	h.life, h.end = context.WithCancelCause(l.alive)
	return h
}

// start begins to watch what others do to the log.
func (h *handle) start() { h.o.run.goFunc(h.watch) }

// watch looks at the log's cursor now and then: another process may truncate or
// drop the log, and a reader whose topic is gone waits for ever.
func (h *handle) watch() {
	tick := time.NewTicker(h.o.settings.watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.life.Done():
			return
		}
		c, err := h.o.admin.cursor(h.life, h.log.topic)
		switch {
		case err == nil && c.storeID != h.log.storeID:
			h.o.forget(h.log)
			h.log.lost(walimpls.Errorf(walimpls.CodeNotFound, h.ch.Name, "the log was dropped, and another has its name"))
		case err == nil:
			h.log.raisePoint(c.point)
		case errors.Is(err, errMissing):
			h.o.forget(h.log)
			h.log.lost(walimpls.Errorf(walimpls.CodeNotFound, h.ch.Name, "the log was dropped"))
		}
	}
}

// forget makes the next Open of the channel look anew.
func (o *opener) forget(l *logState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.logs[l.channel] == l {
		delete(o.logs, l.channel)
	}
}

// Channel returns name, store id and pair.
func (h *handle) Channel() walimpls.Channel { return h.ch }

// usable returns why the handle cannot be used at all.
func (h *handle) usable(ctx context.Context, what string) error {
	if h.isClosed() {
		return closedError(h.ch.Name, what)
	}
	if ctx.Err() != nil {
		return walimpls.ContextError(ctx, h.ch.Name, what)
	}
	return nil
}

func (h *handle) isClosed() bool {
	if h.life.Err() == nil {
		return false
	}
	var e *walimpls.Error
	return errors.As(context.Cause(h.life), &e) && e.Code == walimpls.CodeClosed
}

// readable is usable, and says that the log is gone if it is.
func (h *handle) readable(ctx context.Context, what string) error {
	if h.life.Err() != nil {
		return h.ending(what)
	}
	return h.usable(ctx, what)
}

// ending is why the handle's life ended.
func (h *handle) ending(what string) error {
	var e *walimpls.Error
	if errors.As(context.Cause(h.life), &e) && e.Code != walimpls.CodeClosed {
		return e
	}
	return closedError(h.ch.Name, what)
}

// mayWrite returns why the handle may not append or truncate.
func (h *handle) mayWrite(ctx context.Context, what string) error {
	if err := h.usable(ctx, what); err != nil {
		return err
	}
	if h.app == nil {
		return walimpls.Errorf(walimpls.CodeReadOnly, h.ch.Name, "%s: the handle was opened read-only", what)
	}
	return h.app.refusal(what)
}

// Append stores the batch; see walimpls.WAL. A record that is refused by itself
// (too large, of no appendable type) does not keep its neighbours out.
func (h *handle) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	if err := h.mayWrite(ctx, "append"); err != nil {
		return nil, err
	}
	records, refused, err := h.encode(batch)
	if err != nil {
		return nil, err
	}
	var r *request
	if len(records) > 0 {
		r = h.app.append(ctx, records)
		if refused == nil {
			if ids := r.ids(); ids != nil {
				return ids, nil
			}
			if err := r.nothing(); err != nil {
				return nil, err
			}
			return nil, &walimpls.BatchError{Channel: h.ch.Name, Outcomes: r.out}
		}
	}
	outcomes := make([]walimpls.Outcome, len(batch))
	taken := 0
	for i := range outcomes {
		if refused[i] != nil {
			outcomes[i] = walimpls.Outcome{State: walimpls.NotStored, Err: refused[i]}
			continue
		}
		outcomes[i] = r.out[taken]
		taken++
	}
	return nil, &walimpls.BatchError{Channel: h.ch.Name, Outcomes: outcomes}
}

// nothing returns the one reason for which no record of r was stored, nil if that
// is not so.
func (r *request) nothing() error {
	for i := range r.out {
		//nolint:errorlint // the same object, not one like it
		if r.out[i].State != walimpls.NotStored || r.out[i].Err != r.out[0].Err {
			return nil
		}
	}
	return r.out[0].Err
}

// Bounds returns the ends of the log as the store shows them.
func (h *handle) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	t, err := h.look(ctx, "bounds")
	if err != nil {
		return walimpls.Bounds{}, err
	}
	return t.bounds(), nil
}

// look reads the end of the log, and learns the truncation point.
func (h *handle) look(ctx context.Context, what string) (*tail, error) {
	if err := h.readable(ctx, what); err != nil {
		return nil, err
	}
	ctx, cancel, err := h.o.budget(ctx, h.ch.Name, what)
	if err != nil {
		return nil, err
	}
	defer cancel()
	t, err := h.o.tail(ctx, h.log.topic, h.log)
	if err == nil && t.cursor.storeID != h.log.storeID {
		err = walimpls.Errorf(walimpls.CodeNotFound, h.ch.Name, "%s: the log was dropped, and another has its name", what)
	}
	if err != nil {
		if h.life.Err() != nil {
			return nil, h.ending(what)
		}
		return nil, typed(ctx, h.ch.Name, what, err)
	}
	h.log.raisePoint(t.cursor.point)
	t.cursor.point = h.log.truncated()
	return t, nil
}

// Truncate removes what lies before the id; see walimpls.WAL. The point is stored
// first, then the cursor moves: Pulsar deletes the ledgers that lie below it.
func (h *handle) Truncate(ctx context.Context, before message.ID) error {
	const what = "truncate"
	if err := h.mayWrite(ctx, what); err != nil {
		return err
	}
	at, index, ok := parseID(before)
	if !ok {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, h.ch.Name, "truncate: %q is not an id of this backend", before.String())
	}
	t, err := h.look(ctx, what)
	if err != nil {
		return err
	}
	if t.newest == nil || before > t.latest() {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, h.ch.Name, "truncate: %s lies above the latest id", before)
	}
	if t.pair().Compare(h.ch.Pair) > 0 {
		h.app.fail(stateFenced, errFencedByBroker)
		return h.app.refusal(what)
	}
	ctx, cancel, err := h.o.budget(ctx, h.ch.Name, what)
	if err != nil {
		return err
	}
	defer cancel()
	return typed(ctx, h.ch.Name, what, h.truncate(ctx, t, at, index))
}

func (h *handle) truncate(ctx context.Context, t *tail, at entry, index int) error {
	topic := h.log.topic
	point := at.id(index)
	if point > t.cursor.point {
		env, err := h.o.admin.read(ctx, topic, at)
		switch {
		case errors.Is(err, errNoEntry) || err == nil && index >= env.count:
			// The id lies in a hole: what follows it is the first record that stays.
			next, ok := t.layout.after(at)
			if !ok {
				return nil
			}
			point = next.id(0)
		case err != nil:
			return err
		}
	}
	if point > t.cursor.point {
		if err := h.o.admin.savePoint(ctx, topic, cursorInfo{storeID: h.log.storeID, point: point}); err != nil {
			return err
		}
		h.log.raisePoint(point)
	} else {
		point = t.cursor.point
	}
	if e, _, ok := parseID(point); ok && t.layout.cursorOK && t.layout.cursor.compare(e) < 0 {
		return h.o.admin.resetCursor(ctx, topic, e)
	}
	return nil
}

// Close ends the handle; see walimpls.WAL.
func (h *handle) Close(context.Context) error {
	h.closeOnce.Do(func() {
		defer close(h.closed)
		deadline := time.NewTimer(h.o.settings.closeGrace)
		defer deadline.Stop()
		if h.app != nil {
			h.app.close(h.o.settings.inFlightGrace)
		}
		h.end(closedError(h.ch.Name, "use"))
		h.o.detach(h)
		if h.app != nil {
			// The next Open has less to sort out when the producer is really gone.
			select {
			case <-h.app.p.closed:
			case <-deadline.C:
			}
		}
	})
	<-h.closed
	return nil
}
