package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var scanChecks = []check{
	{Clause: "WAL-SCAN-001", Name: "all", Run: checkScanAll},
	{Clause: "WAL-SCAN-002", Name: "from", Run: checkScanFrom},
	{Clause: "WAL-SCAN-003", Name: "after", Run: checkScanAfter},
	{Clause: "WAL-SCAN-004", Name: "latest", Run: checkScanLatest},
	{Clause: "WAL-SCAN-005", Name: "pinned", Run: checkLatestIsPinned},
	{Clause: "WAL-SCAN-006", Name: "empty", Run: checkScanEmpty},
	{Clause: "WAL-SCAN-007", Name: "holes", Run: checkHoles},
	{Clause: "WAL-SCAN-008", Name: "wake-up", Run: checkWakeUp},
	{Clause: "WAL-SCAN-009", Name: "independent", Run: checkScannersAreIndependent},
	{Clause: "WAL-SCAN-010", Name: "stuck", Run: checkStuckReaders},
	{Clause: "WAL-SCAN-011", Name: "context", Run: checkNextContext},
	{Clause: "WAL-SCAN-012", Name: "close", Run: checkScannerClose},
	{Clause: "WAL-SCAN-013", Name: "buffer", Run: checkScanBuffer},
	{Clause: "WAL-SCAN-014", Name: "bad-start", Run: checkBadStart},
	{Clause: "WAL-SCAN-015", Name: "above-latest", Run: checkStartAboveLatest},
	{Clause: "WAL-SCAN-016", Name: "open-close", Run: checkConcurrentScanners},
	{Clause: "WAL-SCAN-017", Name: "bounds", Run: checkBounds},
}

func checkScanAll(t *T) {
	h := t.open(t.channel(), 1, 1)
	before := h.read(walimpls.FromAll())
	want := series("m", 30)
	ids := h.appendEach(want[:10]...)
	ids = append(ids, h.append(want[10:]...)...)
	middle := h.read(walimpls.FromAll())
	t.expectLog(before.take(30), want, ids, "a scanner from All that was there first")
	t.expectLog(middle.take(30), want, ids, "a scanner from All that came later")
	more := series("n", 5)
	want, ids = append(want, more...), append(ids, h.append(more...)...)
	t.expectLog(before.take(5), want[30:], ids[30:], "the first scanner, which goes on")
	t.expectLog(middle.take(5), want[30:], ids[30:], "the second scanner, which goes on")
	t.expectLog(h.read(walimpls.FromAll()).take(35), want, ids, "a third scanner from All")
}

// startTable is the table of starts over five messages: how many of them a
// scanner gets, and then the sixth.
func (t *T) startTable(h *handle, ids []message.ID, starts func(id message.ID) walimpls.Start, skip int) {
	want := series("m", len(ids)+1)
	scans := make([]*scan, len(ids))
	for i, id := range ids {
		s := h.read(starts(id))
		scans[i] = s
		t.expectLog(s.take(len(ids)-i-skip), want[i+skip:len(ids)], ids[i+skip:], "a scanner with "+showStart(starts(id)))
	}
	scans[len(scans)-1].silent("it has returned everything behind its start")
	last := h.append(want[len(ids)])
	for i, s := range scans {
		t.expectLog(s.take(1), want[len(ids):], last, fmt.Sprintf("the scanner with the start at message %d, after one more was appended", i))
		s.close()
	}
}

func checkScanFrom(t *T) {
	h := t.open(t.channel(), 1, 1)
	ids := h.appendEach(series("m", 2)...)
	ids = append(ids, h.append(series("m", 5)[2:]...)...) // the rest as a batch
	t.startTable(h, ids, walimpls.StartFrom, 0)
}

func checkScanAfter(t *T) {
	h := t.open(t.channel(), 1, 1)
	ids := h.appendEach(series("m", 2)...)
	ids = append(ids, h.append(series("m", 5)[2:]...)...)
	t.startTable(h, ids, walimpls.StartAfter, 1)
}

func checkScanLatest(t *T) {
	h := t.open(t.channel(), 1, 1)
	h.append(series("old", 5)...)
	s := h.read(walimpls.FromLatest())
	s.silent("nothing was appended since Read returned")
	want := series("new", 4)
	ids := h.appendEach(want...)
	t.expectLog(s.take(4), want, ids, "a scanner from Latest")
	again := h.read(walimpls.FromLatest())
	again.silent("nothing was appended since Read returned")
}

func checkLatestIsPinned(t *T) {
	h := t.open(t.channel(), 1, 1)
	h.append(series("old", 3)...)
	for round := range 5 {
		s := h.read(walimpls.FromLatest())
		want := series(fmt.Sprint("new", round), 3)
		ids := h.appendEach(want...)
		t.pause(t.duration(t.quiet / 10))
		t.expectLog(s.take(3), want, ids, "a scanner from Latest that was not read before the appends")
		s.close()
	}
}

func checkScanEmpty(t *T) {
	h := t.open(t.channel(), 1, 1)
	all, latest := h.read(walimpls.FromAll()), h.read(walimpls.FromLatest())
	all.silent("the log holds no message")
	latest.silent("the log holds no message")
	ids := h.append(data("first"))
	want := []message.Message{data("first")}
	t.expectLog(all.take(1), want, ids, "a scanner from All of an empty log")
	t.expectLog(latest.take(1), want, ids, "a scanner from Latest of an empty log")
}

// checkHoles makes what costs ids in one store or another: batches, opens, refused
// appends, and appends whose contexts end.
func checkHoles(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	h.append(series("a", 3)...)
	h.appendEach(series("b", 3)...)
	_, _ = h.tryAppend(t.ctx, data("c"), message.Message{Type: message.TypeInvalid}, data("d"))
	ended, cancel := context.WithCancel(t.ctx)
	cancel()
	_, _ = h.tryAppend(ended, data("e"))
	h.close()
	h = t.open(c, 2, 1)
	h.append(series("f", 3)...)
	log := h.log()
	holes := 0
	for i := 1; i < len(log); i++ {
		id, ok := successor(log[i-1].ID)
		if !ok || !id.Less(log[i].ID) {
			continue
		}
		holes++
		for _, start := range []walimpls.Start{walimpls.StartFrom(id), walimpls.StartAfter(id)} {
			s := h.read(start)
			m, err := s.tryTake()
			t.expect(err == nil && m.ID == log[i].ID, "%s, an id in a hole, starts at the next record %s; got %s, %v", showStart(start), showID(log[i].ID), showID(m.ID), err)
			s.close()
		}
	}
	if holes > 0 {
		t.remarkf("%d holes among %d records", holes, len(log))
		return
	}
	if layout := t.description().IDLayout; strings.Contains(string(layout), ".") {
		t.notRun("no hole was seen, and ids of the layout %s have some", layout)
	}
	t.notClaimed("the ids are consecutive: no id lies between two records, whatever was done")
}

// successor is the next id by bytes; ok is false at the end of its length.
func successor(id message.ID) (next message.ID, ok bool) {
	b := []byte(id)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]++
		if b[i] != 0 {
			return message.ID(b), true
		}
	}
	return "", false
}

func checkWakeUp(t *T) {
	h := t.open(t.channel(), 1, 1)
	s := h.read(walimpls.FromLatest())
	from := h.read(walimpls.FromAll())
	for i := range 6 {
		p := fmt.Sprint("m", i)
		got := t.start(func() {
			t.expectLog(s.take(1), []message.Message{data(p)}, nil, "a scanner that was blocked at the end")
		})
		also := t.start(func() {
			t.expectLog(from.take(1), []message.Message{data(p)}, nil, "another scanner that was blocked at the end")
		})
		t.pause(t.quiet/10 + t.duration(t.quiet/5)) // until both wait
		began := time.Now()
		h.append(data(p))
		got.wait()
		also.wait()
		if took := time.Since(began); took > t.run.opt.Bound/2 {
			t.fatalf("a blocked Next wakes for one record without other traffic; it took %s", took)
		}
	}
}

func checkScannersAreIndependent(t *T) {
	h := t.open(t.channel(), 1, 1)
	want := series("m", 60)
	ids := h.append(want...)
	scans := make([]*scan, 8)
	for i := range scans {
		scans[i] = h.readWith(walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 1 + i})
	}
	for i, s := range scans { // each to another place
		t.expectLog(s.take(7*i), want[:7*i], ids[:7*i], fmt.Sprintf("scanner %d", i))
	}
	scans[3].close()
	scans[6].close()
	for i, s := range scans {
		if i != 3 && i != 6 {
			t.expectLog(s.take(60-7*i), want[7*i:], ids[7*i:], fmt.Sprintf("scanner %d, from its own place, after others were closed", i))
		}
	}
}

func checkStuckReaders(t *T) {
	h := t.open(t.channel(), 1, 1)
	other := t.open(t.channel(), 1, 1)
	payload := t.bytes(min(8<<10, t.description().Limits.MaxMessageBytes/4))
	record := func(i int) message.Message {
		return message.Message{Type: message.TypeData, Payload: append([]byte(fmt.Sprintf("%d-", i)), payload...)}
	}
	h.append(record(0))
	stuck := make([]*scan, 10)
	for i := range stuck {
		stuck[i] = h.readWith(walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 4, BufferBytes: 32 << 10})
		stuck[i].take(1)
	}
	reader := h.read(walimpls.FromAll())
	const n = 80
	limit := t.run.opt.Bound / 2
	for i := 1; i <= n; i++ {
		began := time.Now()
		h.append(record(i))
		if i%10 == 0 {
			other.append(record(i))
		}
		took := time.Since(began)
		t.expect(took < limit, "an append beside scanners that nobody reads takes no longer than others; it took %s", took)
	}
	t.expect(len(reader.take(n+1)) == n+1, "a scanner beside stuck ones gets everything")
	t.expect(len(stuck[0].take(n)) == n, "a scanner that stood still goes on")
	for _, s := range stuck {
		s.close()
	}
}

func checkNextContext(t *T) {
	h := t.open(t.channel(), 1, 1)
	s := h.readWith(walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 3})
	const n = 25
	want := series("m", n)
	var ids []message.ID
	appending := t.start(func() {
		for _, m := range want {
			ids = append(ids, h.append(m)...)
			t.pause(t.duration(t.quiet / 30))
		}
	})
	var got []message.Message
	ended, progress := 0, time.Now()
	for len(got) < n {
		t.expect(time.Since(progress) < t.run.opt.Bound, "a scanner whose calls of Next end early gets all %d messages; after %d of them it got no more for %s", n, len(got), t.run.opt.Bound)
		recs, err := s.next(t.ctx, 1+t.duration(t.quiet/30))
		switch {
		case err == nil:
			progress = time.Now()
			got = append(got, withoutFences(recs)...)
		case isContext(err) && t.ctx.Err() == nil:
			ended++
		default:
			t.fatalf("a Next whose context ends returns the context's error and the scanner stays usable; got %v after %d messages", err, len(got))
		}
	}
	appending.wait()
	t.notef("%d calls of Next ended with their context", ended)
	t.expectLog(got, want, ids, "what a scanner returned between calls of Next that ended early")
	ctx, cancel := context.WithCancel(t.ctx)
	waiting := t.start(func() {
		_, err := s.next(ctx, t.run.opt.Bound)
		t.expect(err != nil && isContext(err), "a blocked Next returns when its context is cancelled; got %v", err)
	})
	t.pause(t.quiet / 3)
	cancel()
	waiting.wait()
	h.append(data("last"))
	t.expectLog(s.take(1), []message.Message{data("last")}, nil, "the scanner, which is still usable")
}

func checkScannerClose(t *T) {
	h := t.open(t.channel(), 1, 1)
	for range 3 {
		s := h.read(walimpls.FromLatest())
		waiting := t.start(func() {
			_, err := s.next(t.ctx, t.run.opt.Bound)
			t.expect(errors.Is(err, walimpls.ErrClosed), "a Next that was blocked when its scanner was closed is ErrClosed; got %v", err)
		})
		t.pause(t.quiet / 4)
		s.close()
		waiting.wait()
		s.close()
		h.append(data("later"))
		for range 2 {
			_, err := s.next(t.ctx, t.run.opt.Bound)
			t.expect(errors.Is(err, walimpls.ErrClosed), "Next of a closed scanner is ErrClosed; got %v", err)
		}
	}
	full := h.read(walimpls.FromAll())
	full.take(1)
	full.close()
	_, err := full.next(t.ctx, t.run.opt.Bound)
	t.expect(errors.Is(err, walimpls.ErrClosed), "Next of a closed scanner is ErrClosed, also if there is more to read; got %v", err)
}

func checkScanBuffer(t *T) {
	h := t.open(t.channel(), 1, 1)
	const size = 1000
	var want []message.Message
	for i := range 24 {
		want = append(want, message.Message{Type: message.TypeData, Payload: append([]byte(fmt.Sprintf("%d-", i)), t.bytes(size)...)})
	}
	ids := h.append(want...)
	for _, opt := range []walimpls.ReadOptions{
		{BufferRecords: 1}, {BufferRecords: 7}, {BufferRecords: 1000, BufferBytes: 3500}, {BufferRecords: 5, BufferBytes: 10}, {BufferBytes: 1},
	} {
		opt.Start = walimpls.FromAll()
		s := h.readWith(opt)
		var got []message.Message
		for len(got) < len(want) {
			recs, err := s.next(t.ctx, t.run.opt.Bound)
			t.expect(err == nil, "Next returns the next records; got %v", err)
			t.expect(opt.BufferRecords == 0 || len(recs) <= opt.BufferRecords, "one Next returns at most %d records; got %d", opt.BufferRecords, len(recs))
			bytes := 0
			for i := range recs {
				bytes += recs[i].Size()
			}
			// A backend may count what it stores around a record, or count the last one in.
			room := opt.BufferBytes + 2*size
			t.expect(opt.BufferBytes == 0 || len(recs) <= 1 || bytes <= room, "one Next returns about %d bytes; got %d records of %d bytes", opt.BufferBytes, len(recs), bytes)
			got = append(got, withoutFences(recs)...)
		}
		t.expectLog(got, want, ids, fmt.Sprintf("a scanner with BufferRecords %d and BufferBytes %d", opt.BufferRecords, opt.BufferBytes))
		s.close()
	}
}

func checkBadStart(t *T) {
	h := t.open(t.channel(), 1, 1)
	h.append(series("m", 3)...)
	zero := message.ID(make([]byte, t.description().IDLayout.Size()))
	for _, start := range []walimpls.Start{
		{}, {Policy: 99}, {Policy: -1},
		walimpls.StartFrom(""), walimpls.StartAfter(""), walimpls.StartFrom(zero), walimpls.StartAfter(zero), walimpls.StartFrom("\x00"),
	} {
		_, err := h.tryRead(walimpls.ReadOptions{Start: start})
		t.expect(errors.Is(err, walimpls.ErrInvalidArgument), "Read with %s is ErrInvalidArgument; got %v", showStart(start), err)
	}
}

func checkStartAboveLatest(t *T) {
	h := t.open(t.channel(), 1, 1)
	id := h.append(series("m", 3)...)[2]
	next, ok := successor(id)
	t.expect(ok, "the id %s has a successor", showID(id))
	far := message.ID("\x7f") + next[1:]
	for _, above := range []message.ID{next, far} {
		for _, start := range []walimpls.Start{walimpls.StartFrom(above), walimpls.StartAfter(above)} {
			_ = t.expectLost(h, start, "which lies above the latest id")
		}
	}
}

// expectLost fails unless a start is refused as lost; a scanner that is lost at
// its first Next comes too late.
func (t *T) expectLost(h *handle, start walimpls.Start, why string) *walimpls.PositionLostError {
	s, err := h.tryRead(walimpls.ReadOptions{Start: start})
	if err == nil {
		_, nextErr := s.next(t.ctx, t.quiet)
		t.fatalf("Read with %s, %s, is PositionLostError; it returned a scanner, whose Next said %v", showStart(start), why, nextErr)
	}
	var lost *walimpls.PositionLostError
	t.expect(errors.As(err, &lost), "Read with %s, %s, is PositionLostError; got %v", showStart(start), why, err)
	return lost
}

func checkConcurrentScanners(t *T) {
	h := t.open(t.channel(), 1, 1)
	first := series("m", 10)
	ids := h.append(first...)
	stop := make(chan struct{})
	writing := t.start(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				h.append(data(fmt.Sprint("noise-", i)))
			}
		}
	})
	fail := guard(func() {
		t.parallel(12, func(i int) {
			for k := range 5 {
				s := h.readWith(walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 1 + (i+k)%5})
				t.expectLog(s.take(10), first, ids, "a scanner among many that come and go")
				s.close()
				latest := h.read(walimpls.FromLatest())
				latest.take(1)
				latest.close()
			}
		})
	})
	close(stop)
	writing.wait()
	if fail != nil {
		panic(*fail)
	}
}

func checkBounds(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	b := h.bounds()
	t.expect(!b.Empty && b.Earliest != "" && b.Earliest == b.Latest && b.LatestRecord == "",
		"the bounds of a log with a fence record alone are its id, and no latest record; got %+v", b)
	ids := h.append(series("m", 4)...)
	log := h.read(walimpls.FromAll())
	first, err := log.tryTake()
	t.expect(err == nil, "the log has a first record; got %v", err)
	b = h.bounds()
	t.expect(b.Earliest == first.ID && b.Latest == ids[3] && b.LatestRecord == ids[3],
		"the bounds are %s to %s and the latest record is %s; got %+v", showID(first.ID), showID(ids[3]), showID(ids[3]), b)
	h.close()
	h = t.open(c, 2, 1)
	b = h.bounds()
	t.expect(ids[3].Less(b.Latest) && b.LatestRecord == ids[3] && b.Earliest == first.ID,
		"a second fence record is the latest id, and %s stays the latest record; got %+v", showID(ids[3]), b)
	one := h.append(data("one"))[0]
	b = h.bounds()
	t.expect(b.Latest == one && b.LatestRecord == one, "an appended record is in the bounds when Append has returned; got %+v", b)
}
