package faultbackend

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Append implements walimpls.WAL.
func (h *handle) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	h.engine.called(OpAppend, len(batch))
	if len(batch) == 0 {
		return nil, nil
	}
	if err := h.checkWritable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errGaveUp(h.channel.Name, OpAppend, err)
	}
	if err := h.checkBatch(batch); err != nil {
		return nil, err
	}
	cl := h.call(OpAppend, len(batch))
	p := h.engine.plan(cl)
	switch h.engine.hold(ctx, h.closing, OpAppend, p.before) {
	case heldCtx:
		return nil, errGaveUp(h.channel.Name, OpAppend, ctx.Err())
	case heldClose:
		return nil, errClosed(h.channel.Name, "handle")
	}

	a := h.sort(batch, cl, &p)
	if err := a.commit(h, p.whole); err != nil {
		return nil, err
	}
	if end := h.engine.hold(ctx, h.closing, OpAppend, p.after); end != heldOut {
		a.unanswered(h, end, ctx.Err())
	}
	if p.whole != nil {
		_ = h.engine.strike(p.whole, cl, h.end)
	}
	return a.result(h.channel.Name)
}

// checkBatch refuses what the host must not have sent.
func (h *handle) checkBatch(batch []message.Message) error {
	limits, size := h.opener.limits, 0
	for i := range batch {
		if n := batch[i].Size(); n <= limits.MaxMessageBytes { // larger ones are refused one by one
			size += n
		}
	}
	switch {
	case len(batch) > limits.MaxBatchRecords:
		return walimpls.Errorf(walimpls.CodeTooLarge, h.channel.Name, "append: a batch of %d records, at most %d are allowed; cut it", len(batch), limits.MaxBatchRecords)
	case size > limits.MaxBatchBytes:
		return walimpls.Errorf(walimpls.CodeTooLarge, h.channel.Name, "append: a batch of %d bytes, at most %d are allowed; cut it", size, limits.MaxBatchBytes)
	}
	return nil
}

// checkRecord refuses one record without disturbing its neighbours.
func (h *handle) checkRecord(m *message.Message) error {
	switch limit := h.opener.limits.MaxMessageBytes; {
	case m.Size() > limit:
		return walimpls.Errorf(walimpls.CodeTooLarge, h.channel.Name, "append: the record has %d bytes, at most %d are allowed", m.Size(), limit)
	case m.Type == message.TypeInvalid || m.Type == message.TypeFence:
		return walimpls.Errorf(walimpls.CodeInvalidArgument, h.channel.Name, "append: a record of type %s cannot be appended", m.Type)
	}
	return nil
}

// appending is one Append between the rules and the answer.
type appending struct {
	outcomes []walimpls.Outcome
	// write are the records that go into the log now, with their place in the
	// batch; late those that go later.
	write []message.Message
	place []int
	late  []message.Message
	delay []time.Duration
	// ends says that an outcome is unknown whatever the store says.
	ends bool
}

// sort gives every record its fate.
func (h *handle) sort(batch []message.Message, cl call, p *plan) *appending {
	a := &appending{outcomes: make([]walimpls.Outcome, len(batch))}
	errs := map[*liveRule]error{} // one error a rule, as one fault has one cause
	injected := func(r *liveRule) error {
		if errs[r] == nil {
			errs[r] = r.injected(cl)
		}
		return errs[r]
	}
	for i := range batch {
		out := &a.outcomes[i]
		fate := p.fate(i)
		switch err := h.checkRecord(&batch[i]); {
		case err != nil:
			*out = walimpls.Outcome{State: walimpls.NotStored, Err: err}
			continue
		case p.whole != nil && (fate == nil || fate.outcome == walimpls.Unknown):
			*out = walimpls.Outcome{State: walimpls.Unknown, Err: injected(p.whole)}
			a.ends = true
			if !reaches(p, i) {
				continue
			}
		case fate == nil:
		case fate.act == actLate:
			*out = walimpls.Outcome{State: walimpls.Unknown, Err: injected(fate)}
			a.ends = true
			a.late, a.delay = append(a.late, h.stamp(&batch[i])), append(a.delay, fate.duration)
			continue
		default:
			*out = walimpls.Outcome{State: fate.outcome, Err: injected(fate)}
			a.ends = a.ends || fate.outcome == walimpls.Unknown
			if fate.act != actFailAfter {
				continue
			}
		}
		a.write, a.place = append(a.write, h.stamp(&batch[i])), append(a.place, i)
	}
	return a
}

// reaches reports whether record i got to the store before the call was lost.
func reaches(p *plan, i int) bool {
	switch p.whole.when {
	case whenAfter, whenTorn: // torn: commit writes half of the bytes
		return true
	case whenHalf:
		return i < p.at
	}
	return false
}

// stamp copies a record, which belongs to the appender again after the answer,
// and gives it the handle's pair.
func (h *handle) stamp(m *message.Message) message.Message {
	out := *m
	out.ID = ""
	out.Term, out.Incarnation = h.channel.Term, h.channel.Incarnation
	out.Payload = bytes.Clone(m.Payload)
	out.Properties = maps.Clone(m.Properties)
	return out
}

// commit writes the records in one step under the store's mutex, so that no
// other handle can come between the check of the pair and the records.
func (a *appending) commit(h *handle, whole *liveRule) error {
	s := h.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.writable(); err != nil {
		return err
	}
	h.ended = h.ended || a.ends
	if len(a.write) > 0 {
		var frame []byte
		if s.file != nil {
			frame = recordsFrame(nil, h.log, a.write)
		}
		if whole != nil && whole.when == whenTorn {
			if s.file != nil {
				s.file.writeTorn(frame)
			}
			return nil
		}
		if err := s.write(frame); err != nil {
			a.failed(h, err)
			return nil
		}
		h.log.add(a.write)
	}
	for i, k := range a.place {
		if out := &a.outcomes[k]; out.Err == nil {
			*out = walimpls.Outcome{State: walimpls.Stored, ID: a.write[i].ID}
		}
	}
	for i := range a.late {
		// Finality: by the time it lands, nobody may have opened the log again.
		s.later(a.delay[i], func() { h.landLate(a.late[i : i+1]) })
	}
	return nil
}

// landLate stores a record whose caller was told "unknown", unless a higher pair
// was opened meanwhile. The store's mutex is held.
func (h *handle) landLate(recs []message.Message) {
	if h.log.dropped || h.log.highest != h.channel.Pair {
		return
	}
	if h.store.file != nil && h.store.write(recordsFrame(nil, h.log, recs)) != nil {
		return
	}
	h.log.add(recs)
}

// failed gives the records that the file did not take their outcomes. The
// store's mutex is held.
func (a *appending) failed(h *handle, err error) {
	state := walimpls.NotStored
	e := fileError(h.channel.Name, "append", err)
	if errors.Is(err, errInDoubt) {
		state, h.ended = walimpls.Unknown, true
		e = errUnknown(h.channel.Name, "append: "+err.Error())
	}
	for _, k := range a.place {
		if a.outcomes[k].Err == nil {
			a.outcomes[k] = walimpls.Outcome{State: state, Err: e}
		}
	}
}

// unanswered makes unknown what was stored but could not be told in time.
func (a *appending) unanswered(h *handle, end holdEnd, cause error) {
	why := "append: the handle was closed before the answer"
	if end == heldCtx {
		why = "append: the caller gave up before the answer: " + cause.Error()
	}
	err := errUnknown(h.channel.Name, why)
	for i := range a.outcomes {
		if out := &a.outcomes[i]; out.State == walimpls.Stored {
			*out = walimpls.Outcome{State: walimpls.Unknown, Err: err}
			h.end()
		}
	}
}

// result turns the outcomes into what Append returns.
func (a *appending) result(channel string) ([]message.ID, error) {
	ids := make([]message.ID, len(a.outcomes))
	for i, out := range a.outcomes {
		if out.State != walimpls.Stored {
			return nil, &walimpls.BatchError{Channel: channel, Outcomes: a.outcomes}
		}
		ids[i] = out.ID
	}
	return ids, nil
}
