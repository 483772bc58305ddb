package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var truncateChecks = []check{
	{Clause: "WAL-TRUNC-001", Name: "effect", Run: checkTruncate},
	{Clause: "WAL-TRUNC-002", Name: "repeated", Run: checkTruncateTwice},
	{Clause: "WAL-TRUNC-003", Name: "bad-id", Run: checkTruncateBadID},
	{Clause: "WAL-TRUNC-004", Name: "start-below", Run: checkStartBelowTheCut},
	{Clause: "WAL-TRUNC-005", Name: "running-scanner", Run: checkScannerBelowTheCut},
	{Clause: "WAL-TRUNC-006", Name: "newest", Run: checkTruncateKeepsTheNewest},
	{Clause: "WAL-TRUNC-007", Name: "concurrent", Run: checkTruncateBesideAppends},
	{Clause: "WAL-TRUNC-008", Name: "restart", Alone: true, Run: checkTruncationOutlivesRestart},
	{Clause: "WAL-TRUNC-009", Name: "space", Alone: true, Sizes: true, Bound: 10 * time.Minute, Run: checkTruncateFreesSpace},
}

// expectCut fails unless the log begins with the message at ids[at].
func (t *T) expectCut(h *handle, want []message.Message, ids []message.ID, at int) {
	b := h.bounds()
	t.expect(b.Earliest == ids[at], "after Truncate(%s) that is the earliest id; got %s", showID(ids[at]), showID(b.Earliest))
	got := h.log()
	t.expect(len(got) > 0 && got[0].ID == ids[at], "after Truncate(%s) the log begins with the record at it; got %s", showID(ids[at]), showBatch(got))
	t.expectLog(withoutFences(got), want[at:], ids[at:], fmt.Sprintf("the log after Truncate(%s)", showID(ids[at])))
}

func checkTruncate(t *T) {
	h := t.open(t.channel(), 1, 1)
	want := series("m", 20)
	ids := h.append(want[:10]...)
	ids = append(ids, h.appendEach(want[10:]...)...)
	for _, at := range []int{0, 1, 7, 15, 18} { // the newest is another clause's
		h.truncate(ids[at])
		t.expectCut(h, want, ids, at)
		for _, k := range []int{at, 19} {
			s := h.read(walimpls.StartFrom(ids[k]))
			t.expectLog(s.take(1), want[k:k+1], ids[k:k+1], "a start at a record that stays")
			s.close()
		}
	}
}

func checkTruncateTwice(t *T) {
	h := t.open(t.channel(), 1, 1)
	want := series("m", 10)
	ids := h.append(want...)
	for _, at := range []int{5, 5, 3, 0, 5, 7, 7} {
		h.truncate(ids[at])
	}
	t.expectCut(h, want, ids, 7)
}

func checkTruncateBadID(t *T) {
	h := t.open(t.channel(), 1, 1)
	want := series("m", 5)
	ids := h.append(want...)
	above, _ := successor(ids[4])
	for _, id := range []message.ID{above, "\x7f" + above[1:], "x", "", message.ID(t.bytes(30))} {
		err := h.tryTruncate(id)
		t.expect(errors.Is(err, walimpls.ErrInvalidArgument), "Truncate(%s), which is above the latest id or no id, is ErrInvalidArgument; got %v", showID(id), err)
	}
	t.expectLog(h.messages(), want, ids, "the log, from which nothing was removed")
}

func checkStartBelowTheCut(t *T) {
	h := t.open(t.channel(), 1, 1)
	ids := h.append(series("m", 10)...)
	h.truncate(ids[5])
	b := h.bounds()
	for _, start := range []walimpls.Start{walimpls.StartFrom(ids[0]), walimpls.StartFrom(ids[4]), walimpls.StartAfter(ids[0]), walimpls.StartAfter(ids[3])} {
		lost := t.expectLost(h, start, "which was truncated")
		t.expect(lost.Earliest == b.Earliest && lost.Latest == b.Latest, "PositionLostError carries the bounds %s to %s; got %s to %s",
			showID(b.Earliest), showID(b.Latest), showID(lost.Earliest), showID(lost.Latest))
	}
}

func checkScannerBelowTheCut(t *T) {
	h := t.open(t.channel(), 1, 1)
	const n = 400
	want := series("m", n)
	ids := h.append(want...)
	s := h.readWith(walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 2})
	s.take(1)
	idle := h.readWith(walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 2})
	h.truncate(ids[n-1])
	for _, s := range []*scan{s, idle} {
		var last message.ID
		for got := 0; ; got++ {
			m, err := s.tryTake()
			if err != nil {
				t.expect(isLost(err), "a scanner that falls below the truncation point gets PositionLostError; got %v", err)
				_, again := s.tryTake()
				t.expect(isLost(again), "PositionLostError is final for a scanner; got %v", again)
				break
			}
			t.expect(m.ID != ids[n-1], "a scanner that falls below the truncation point gets PositionLostError and never jumps; it went from %s to %s", showID(last), showID(m.ID))
			last = m.ID
		}
	}
}

func checkTruncateKeepsTheNewest(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	fence := h.bounds().Latest
	h.truncate(fence) // all there is
	t.expect(h.bounds().Earliest == fence, "the newest record, be it a fence record, stays")
	var last message.ID
	for round := range 3 {
		want := series(fmt.Sprint("r", round), 5)
		ids := h.append(want...)
		t.expect(last.Less(ids[0]), "ids go on ascending after a truncation; %s is followed by %s", showID(last), showID(ids[0]))
		last = ids[4]
		h.truncate(last)
		t.expectCut(h, want, ids, 4)
	}
}

func checkTruncateBesideAppends(t *T) {
	h := t.open(t.channel(), 1, 1)
	o := newOracle(t)
	const writers = 4
	cut := make(chan struct{})
	first := h.append(data("first-0"))[0]
	point := first
	writing := t.start(func() {
		t.parallel(writers, func(w int) {
			for i := 0; ; i++ { // until the last truncation, which must meet appends, has returned
				t.expect(o.append(t.ctx, h, fmt.Sprintf("w%d-%d", w, i)), "an append beside truncations succeeds")
				select {
				case <-cut:
					return
				default:
				}
			}
		})
	})
	reader := h.read(walimpls.FromLatest())
	fail := guard(func() {
		for range 10 {
			t.pause(t.duration(t.quiet / 10))
			point = h.bounds().LatestRecord
			h.truncate(point)
			// What a truncation took too much shows at once: the next one covers it up.
			earliest := h.bounds().Earliest
			t.expect(earliest == point, "a truncation beside appends keeps what lies at its point %s and behind it; the earliest id is %s", showID(point), showID(earliest))
		}
	})
	close(cut)
	writing.wait()
	if fail != nil {
		panic(*fail)
	}
	got := h.messages()
	t.expect(len(got) > 0 && !got[0].ID.Less(point), "the log begins at the truncation point %s or behind it", showID(point))
	// What lies behind the point is whole; what lies before it was truncated.
	o.mu.Lock()
	for p, id := range o.ids {
		if id.Less(point) {
			delete(o.ids, p)
			o.state[p] = walimpls.Unknown
		}
	}
	o.state["first-0"] = walimpls.Unknown
	o.mu.Unlock()
	o.verify(got)
	o.verifyOrder(got)
	reader.close()
}

func checkTruncationOutlivesRestart(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	want := series("m", 12)
	ids := h.append(want...)
	h.truncate(ids[8])
	t.stop()
	t.restart()
	h = t.open(c, 2, 1)
	t.expectCut(h, want, ids, 8)
	_ = t.expectLost(h, walimpls.StartFrom(ids[7]), "which was truncated before the restart")
}

var dropChecks = []check{
	{Clause: "WAL-DROP-001", Name: "gone", Run: checkDrop},
	{Clause: "WAL-DROP-002", Name: "repeated", Run: checkDropTwice},
	{Clause: "WAL-DROP-003", Name: "lower-term", Run: checkDropOfLowerTerm},
	{Clause: "WAL-DROP-004", Name: "open-handles", Run: checkDropFencesHandles},
	{Clause: "WAL-DROP-005", Name: "others", Run: checkDropLeavesOthers},
	{Clause: "WAL-DROP-006", Name: "restart", Alone: true, Run: checkDropOutlivesRestart},
}

func (t *T) tryDrop(channel string, term int64) error {
	return t.call(t.ctx, t.run.opt.Bound, fmt.Sprintf("Drop(%s, %d)", shorten(channel), term), func(ctx context.Context) (string, error) {
		return "ok", t.opener().Drop(ctx, channel, term)
	})
}

func (t *T) drop(channel string, term int64) {
	err := t.tryDrop(channel, term)
	t.expect(err == nil, "Drop(%s, %d) succeeds; got %v", channel, term, err)
}

// expectGone fails unless the channel's log does not exist.
func (t *T) expectGone(channel string) {
	if !t.claimed(CapReadOnly) {
		return
	}
	_, err := t.tryOpenReadOnly(channel)
	t.expect(errors.Is(err, walimpls.ErrNotFound), "a dropped log does not exist; a read-only Open says %v", err)
}

func checkDrop(t *T) {
	c := t.channel()
	h := t.open(c, 5, 1)
	h.append(series("m", 5)...)
	h.close()
	t.drop(c, 5)
	t.expectGone(c)
	again := t.open(c, 1, 1)
	t.expect(again.ch.StoreID != h.ch.StoreID, "a log that was created again has another store id; it has %s again", h.ch.StoreID)
	log := again.log()
	t.expect(len(log) == 1 && log[0].Type == message.TypeFence, "a log that was created again holds its fence record alone; got %s", showBatch(log))
	want := series("n", 3)
	ids := again.append(want...)
	t.expectLog(again.messages(), want, ids, "the new log")
}

func checkDropTwice(t *T) {
	c := t.channel()
	t.drop(c, 1)
	h := t.open(c, 1, 1)
	h.append(data("m"))
	h.close()
	t.drop(c, 1)
	t.drop(c, 1)
	t.drop(c, 7)
	t.expectGone(c)
	for _, name := range []string{"", "../x", "a b"} {
		err := t.tryDrop(name, 1)
		t.expect(errors.Is(err, walimpls.ErrInvalidArgument), "Drop of the name %q is ErrInvalidArgument; got %v", name, err)
	}
}

func checkDropOfLowerTerm(t *T) {
	c := t.channel()
	h := t.open(c, 5, 2)
	want := series("m", 3)
	ids := h.append(want...)
	for _, term := range []int64{1, 4} {
		err := t.tryDrop(c, term)
		var fenced *walimpls.FencedError
		t.expect(errors.As(err, &fenced) && fenced.Highest.Term == 5, "Drop with term %d, below 5, is FencedError with the highest pair; got %v", term, err)
	}
	more := data("more")
	ids = append(ids, h.append(more)...)
	t.expectLog(h.messages(), append(want, more), ids, "the log, which a refused Drop did not change")
	t.drop(c, 6)
	t.expectGone(c)
}

func checkDropFencesHandles(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	h.append(series("m", 3)...)
	s := h.read(walimpls.FromLatest())
	waiting := t.start(func() {
		_, err := s.next(t.ctx, t.run.opt.Bound)
		t.expect(err != nil && !isContext(err), "a Next that was blocked when the log was dropped ends with an error; got %v", err)
	})
	t.pause(t.quiet / 4)
	t.drop(c, 1)
	waiting.wait()
	_, err := h.tryAppend(t.ctx, data("zombie"))
	t.expect(err != nil, "Append on a handle of a dropped log is refused; it was acknowledged")
	t.expect(errors.Is(err, walimpls.ErrFenced), "Append on a handle of a dropped log is ErrFenced; got %v", err)
	again := t.open(c, 1, 1)
	_, err = h.tryAppend(t.ctx, data("zombie"))
	t.expect(errors.Is(err, walimpls.ErrFenced), "Append on a handle of the old log is ErrFenced; got %v", err)
	again.append(data("new"))
	h.close()
	t.expectLog(again.messages(), []message.Message{data("new")}, nil, "the log that was created again")
}

func checkDropLeavesOthers(t *T) {
	base := t.channel()
	var others []string
	for _, suffix := range []string{".", "-x", "0", "A"} {
		t.own(base+suffix, 1)
		others = append(others, base+suffix)
	}
	h := t.open(base, 1, 1)
	h.append(data("gone"))
	var handles []*handle
	for _, n := range others {
		o := t.open(n, 1, 1)
		o.append(data(n))
		handles = append(handles, o)
	}
	h.close()
	t.drop(base, 1)
	for i, o := range handles {
		o.append(data("still"))
		t.expectLog(o.messages(), []message.Message{data(others[i]), data("still")}, nil, "the log of "+others[i]+" after the Drop of "+base)
	}
}

func checkDropOutlivesRestart(t *T) {
	c := t.channel()
	h := t.open(c, 5, 1)
	h.append(series("m", 3)...)
	h.close()
	t.drop(c, 5)
	t.stop()
	t.restart()
	t.expectGone(c)
	log := t.open(c, 1, 1).log()
	t.expect(len(log) == 1, "a log that was dropped before a restart is empty after it; got %s", showBatch(log))
}
