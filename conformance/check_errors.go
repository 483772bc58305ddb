package conformance

import (
	"errors"
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var errorChecks = []check{
	{Clause: "WAL-ERR-001", Name: "typed", Run: checkErrorsAreTyped},
	{Clause: "WAL-ERR-002", Name: "bounds", Run: checkLostCarriesBounds},
	{Clause: "WAL-ERR-003", Name: "outcomes", Run: checkOutcomesAreWhole},
}

// expectTyped fails unless err is a *walimpls.Error with everything in it.
func (t *T) expectTyped(what string, err error, channel string) {
	var e *walimpls.Error
	t.expect(errors.As(err, &e), "%s: the error is a *walimpls.Error; got %T: %v", what, err, err)
	known := slices.ContainsFunc(walimpls.Codes(), func(i walimpls.CodeInfo) bool { return i.Code == e.Code })
	t.expect(known, "%s: the code is one of walimpls.Codes; got %q", what, e.Code)
	t.expect(e.Channel == channel, "%s: the error carries the channel %q; got %q", what, channel, e.Channel)
	permanent := slices.Contains([]walimpls.Code{
		walimpls.CodeTooLarge, walimpls.CodeInvalidArgument, walimpls.CodeReadOnly, walimpls.CodeClosed,
		walimpls.CodePositionLost, walimpls.CodeFenced, walimpls.CodeNotFound, walimpls.CodeUnsupported,
	}, e.Code)
	t.expect(!permanent || !e.Retryable, "%s: no retry can help with %s; the error says that one can", what, e.Code)
	t.expect(e.Message != "", "%s: the error says what happened", what)
}

func checkErrorsAreTyped(t *T) {
	c := t.channel()
	h := t.open(c, 2, 1)
	id := h.append(series("m", 3)...)[2]
	if limit := t.description().Limits.MaxMessageBytes; limit <= most {
		_, err := h.tryAppend(t.ctx, message.Message{Type: message.TypeData, Payload: make([]byte, limit+1)})
		t.expectTyped("Append of a record that is too large", err, c)
	}
	_, err := h.tryRead(walimpls.ReadOptions{Start: walimpls.StartFrom("")})
	t.expectTyped("Read with an empty id", err, c)
	above, _ := successor(id)
	_, err = h.tryRead(walimpls.ReadOptions{Start: walimpls.StartFrom(above)})
	t.expectTyped("Read above the latest id", err, c)
	_, err = t.tryOpen(c, 0, 1)
	t.expectTyped("Open with term 0", err, c)
	if t.claimed(CapFencing) {
		_, err = t.tryOpen(c, 1, 1)
		t.expectTyped("Open of a lower term", err, c)
	}
	if t.claimed(CapTruncation) {
		t.expectTyped("Truncate above the latest id", h.tryTruncate(above), c)
	}
	if t.claimed(CapReadOnly) {
		_, err = h.t.tryOpenReadOnly(t.run.channelName())
		var e *walimpls.Error
		t.expect(errors.As(err, &e), "a read-only Open of a missing log is a *walimpls.Error; got %T: %v", err, err)
	}
	s := h.read(walimpls.FromLatest())
	s.close()
	_, err = s.next(t.ctx, t.run.opt.Bound)
	t.expectTyped("Next of a closed scanner", err, c)
	h.close()
	_, err = h.tryAppend(t.ctx, data("late"))
	t.expectTyped("Append on a closed handle", err, c)
	_, err = h.tryRead(walimpls.ReadOptions{Start: walimpls.FromAll()})
	t.expectTyped("Read on a closed handle", err, c)
}

func checkLostCarriesBounds(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	ids := h.append(series("m", 5)...)
	b := h.bounds()
	above, _ := successor(ids[4])
	lost := t.expectLost(h, walimpls.StartFrom(above), "which lies above the latest id")
	t.expect(lost.Earliest == b.Earliest && lost.Latest == b.Latest, "PositionLostError carries the bounds %s to %s; got %s to %s",
		showID(b.Earliest), showID(b.Latest), showID(lost.Earliest), showID(lost.Latest))
}

func checkOutcomesAreWhole(t *T) {
	h := t.open(t.channel(), 1, 1)
	limit := t.description().Limits.MaxMessageBytes
	if limit > most {
		t.notRun("a limit of %d bytes is above what the suite tries, %d", limit, most)
	}
	_, err := h.tryAppend(t.ctx, data("a"), message.Message{Type: message.TypeData, Payload: make([]byte, limit+1)}, data("b"))
	var batch *walimpls.BatchError
	t.expect(errors.As(err, &batch), "a batch with one record that is too large is a BatchError; got %v", err)
	t.expect(len(batch.Outcomes) == 3, "a BatchError has one outcome a record; got %d for 3", len(batch.Outcomes))
	for i, out := range batch.Outcomes {
		if out.State == walimpls.Stored {
			t.expect(out.ID != "" && out.Err == nil, "a stored record has an id and no error; record %d has %s and %v", i, showID(out.ID), out.Err)
		} else {
			t.expect(out.ID == "" && out.Err != nil, "a record that is not stored has an error and no id; record %d has %s and %v", i, showID(out.ID), out.Err)
		}
	}
}
