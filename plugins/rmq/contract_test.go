package rmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestDescriptionIsValid(t *testing.T) {
	d := NewBuilder().Describe()
	must(t, d.Validate())
	if d.Capabilities.Fencing != walimpls.FencingStrict || !d.Capabilities.ExclusiveStore {
		t.Fatalf("unexpected claims %+v", d.Capabilities)
	}
}

func TestBuildReportsEveryProblemAndTouchesNothing(t *testing.T) {
	s := newMemStore(t)
	for _, cfg := range []walimpls.Config{
		{}, {"dir": ""}, {"dir": "/x", "segment_size": "1KiB"}, {"dir": "/x", "open_timeuot": "1s"},
	} {
		_, err := Builder{fs: s.fs}.Build(context.Background(), cfg, nil)
		wantIs(t, err, walimpls.ErrInvalidArgument)
	}
	o := s.opener()
	must(t, o.Close(context.Background()))
	if names, err := s.fs.List("/"); err != nil || len(names) != 0 {
		t.Fatalf("building left %v, %v", names, err)
	}
}

func TestRecordsSurviveWhole(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 3, 2))
	batch := []message.Message{
		data(""),
		{Type: message.TypeData, Payload: []byte{0, 1, 0xff, '\n'}, VChannel: "v", TimeTick: 77, TxnID: 9,
			LastConfirmed: message.Uint64ID(1), Properties: map[string]string{"": "", "k": "v\x00", "_reserved": "x"}},
		{Type: message.TypeTimeTick, TimeTick: 78, Term: 99, Incarnation: 99, ID: message.Uint64ID(500)},
		{Type: message.Type(4242), Payload: []byte("a type of a later version")},
	}
	ids, err := w.Append(testContext(t), batch)
	must(t, err)
	must(t, o.Close(context.Background()))

	w = mustOpen(t, s.opener(), ro("c"))
	got := readAll(t, w)[1:]
	for i, m := range got {
		want := batch[i]
		want.ID, want.Term, want.Incarnation = ids[i], 3, 2
		if len(want.Payload) == 0 {
			want.Payload, m.Payload = nil, bytes.TrimSpace(m.Payload)[:0:0]
			m.Payload = nil
		}
		if !reflect.DeepEqual(m, want) {
			t.Errorf("record %d: got %+v, want %+v", i, m, want)
		}
	}
}

func TestFenceRecordCarriesThePairAndNothingElse(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 4, 7))
	got := readAll(t, w)
	want := []message.Message{{ID: message.Uint64ID(1), Type: message.TypeFence, Term: 4, Incarnation: 7, Payload: []byte{}}}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	ch := w.Channel()
	if ch.Name != "c" || ch.Pair != (walimpls.Pair{Term: 4, Incarnation: 7}) || len(ch.StoreID) != 32 {
		t.Fatalf("channel %+v", ch)
	}
}

func TestPairAtOrBelowTheHighestIsFenced(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 5, 3))
	for i := range 100 {
		for _, pair := range [][2]int64{{5, 3}, {5, 2}, {4, 9}, {1, 1}, {4, 0}} {
			_, err := o.Open(testContext(t), rw("c", pair[0], pair[1]))
			var fenced *walimpls.FencedError
			if !errors.As(err, &fenced) || fenced.Highest != (walimpls.Pair{Term: 5, Incarnation: 3}) {
				t.Fatalf("open %v: %v", pair, err)
			}
		}
		mustAppend(t, w, fmt.Sprint(i)) // the owner was not disturbed
	}
	must(t, o.Close(context.Background()))
	_, err := s.opener().Open(testContext(t), rw("c", 5, 3))
	wantIs(t, err, walimpls.ErrFenced)
}

func TestIncarnationZeroTakesTheNext(t *testing.T) {
	o := newMemStore(t).opener()
	for _, c := range []struct{ term, want int64 }{{2, 1}, {2, 2}, {2, 3}, {7, 1}, {7, 2}} {
		w := mustOpen(t, o, rw("c", c.term, 0))
		if got := w.Channel().Pair; got != (walimpls.Pair{Term: c.term, Incarnation: c.want}) {
			t.Fatalf("term %d: got pair %v, want incarnation %d", c.term, got, c.want)
		}
	}
}

func TestEarlierHandlesAreFenced(t *testing.T) {
	o := newMemStore(t).opener()
	first := mustOpen(t, o, rw("c", 1, 1))
	ids := mustAppend(t, first, "a")
	zombie := mustOpen(t, o, rw("c", 1, 2)) // of the same term
	mustAppend(t, zombie, "b")
	owner := mustOpen(t, o, rw("c", 2, 1))
	for _, w := range []walimpls.WAL{first, zombie} {
		_, err := w.Append(testContext(t), batchOf("lost"))
		wantIs(t, err, walimpls.ErrFenced)
		if got := walimpls.Outcomes("c", 1, nil, err)[0].State; got != walimpls.NotStored {
			t.Fatalf("a fenced append is %v, want not stored", got)
		}
		wantIs(t, w.Truncate(testContext(t), ids[0]), walimpls.ErrFenced)
		wantPayloads(t, readAll(t, w), "a", "b") // reads go on
	}
	mustAppend(t, owner, "c")
	wantPayloads(t, readAll(t, owner), "a", "b", "c")
}

func TestPairsNeverDecreaseUnderConcurrentOpensAndAppends(t *testing.T) {
	o := newMemStore(t).opener()
	ctx := testContext(t)
	w := mustOpen(t, o, rw("c", 1, 1))
	stored := make(chan map[message.ID]string, 4)
	stop := make(chan struct{})
	current := make(chan walimpls.WAL, 4)
	for g := range 4 {
		go func() {
			mine := map[message.ID]string{}
			defer func() { stored <- mine }()
			w := w
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case w = <-current:
				default:
				}
				text := fmt.Sprintf("%d-%d", g, i)
				if ids, err := w.Append(ctx, batchOf(text)); err == nil {
					mine[ids[0]] = text
				} else if !errors.Is(err, walimpls.ErrFenced) {
					t.Errorf("append: %v", err)
					return
				}
			}
		}()
	}
	for i := range int64(50) {
		w := mustOpen(t, o, rw("c", 1+i/5, 2+i))
		for range 4 {
			select {
			case current <- w:
			default:
			}
		}
	}
	close(stop)
	want := map[message.ID]string{}
	for range 4 {
		for id, text := range <-stored {
			want[id] = text
		}
	}
	highest := walimpls.Pair{}
	for _, m := range readAll(t, w) {
		pair := walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		if pair.Compare(highest) < 0 {
			t.Fatalf("record %s has pair %v behind %v", m.ID, pair, highest)
		}
		highest = pair
		if m.Type != message.TypeFence {
			if want[m.ID] != string(m.Payload) {
				t.Fatalf("record %s is %q, acknowledged as %q", m.ID, m.Payload, want[m.ID])
			}
			delete(want, m.ID)
		}
	}
	if len(want) > 0 {
		t.Fatalf("%d acknowledged records are missing", len(want))
	}
}

func TestReadOnlyOpenCreatesAndFencesNothing(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	_, err := o.Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrNotFound)
	must(t, o.Drop(testContext(t), "c", 1))
	if names, _ := s.fs.List("/"); len(names) != 0 {
		t.Fatalf("a read-only open made %v", names)
	}

	w := mustOpen(t, o, rw("c", 2, 1))
	_, err = o.Open(testContext(t), ro("other"))
	wantIs(t, err, walimpls.ErrNotFound)
	r := mustOpen(t, o, ro("c"))
	if got := r.Channel(); got.Pair != w.Channel().Pair || got.StoreID != w.Channel().StoreID || got.Access != walimpls.AccessReadOnly {
		t.Fatalf("channel %+v", got)
	}
	_, err = r.Append(testContext(t), batchOf("x"))
	wantIs(t, err, walimpls.ErrReadOnly)
	ids := mustAppend(t, w, "a")
	wantIs(t, r.Truncate(testContext(t), ids[0]), walimpls.ErrReadOnly)
	wantPayloads(t, readAll(t, r), "a")
}

func TestBadOpenOptionsAreRefused(t *testing.T) {
	o := newMemStore(t).opener()
	for _, opt := range []walimpls.OpenOptions{
		{}, rw("", 1, 1), rw("a/b", 1, 1), rw("..", 1, 1), rw("c", 0, 1), rw("c", 1, -1), {Channel: "c", Term: 1},
	} {
		_, err := o.Open(testContext(t), opt)
		wantIs(t, err, walimpls.ErrInvalidArgument)
	}
	wantIs(t, o.Drop(testContext(t), "a/b", 1), walimpls.ErrInvalidArgument)
}

// U-01, M-09: the table of start positions, before and after a restart.
func TestStartPositions(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	m := append([]message.ID{""}, mustAppend(t, w, "m1", "m2", "m3", "m4", "m5")...)
	all := []string{"m1", "m2", "m3", "m4", "m5"}
	starts := []struct {
		start walimpls.Start
		want  int
	}{
		{walimpls.FromAll(), 5}, {walimpls.FromLatest(), 0},
		{walimpls.StartFrom(m[1]), 5}, {walimpls.StartFrom(m[3]), 3}, {walimpls.StartFrom(m[5]), 1},
		{walimpls.StartAfter(m[1]), 4}, {walimpls.StartAfter(m[3]), 2}, {walimpls.StartAfter(m[5]), 0},
		{walimpls.StartFrom(message.Uint64ID(1)), 5}, {walimpls.StartAfter(message.Uint64ID(1)), 5}, // the fence record
	}
	check := func(w walimpls.WAL, next string) {
		t.Helper()
		for _, c := range starts {
			t.Run(fmt.Sprintf("%s %d %s", next, c.start.Policy, c.start.ID), func(t *testing.T) {
				sc := mustRead(t, w, c.start)
				defer sc.Close()
				want := all[len(all)-c.want:]
				if c.want > 0 {
					b, err := w.Bounds(testContext(t))
					must(t, err)
					wantPayloads(t, readUpTo(t, sc, b.Latest), want...)
				}
				nothingComes(t, sc)
			})
		}
		// All scanners stand at the end; one record reaches each.
		var scanners []walimpls.Scanner
		for _, c := range starts {
			scanners = append(scanners, mustRead(t, w, c.start))
		}
		id := mustAppend(t, w, next)[0]
		for i, sc := range scanners {
			got := payloads(readUpTo(t, sc, id))
			if want := starts[i].want + 1; len(got) != want || got[len(got)-1] != next {
				t.Fatalf("start %+v: got %q, want %d records", starts[i].start, got, want)
			}
			must(t, sc.Close())
		}
	}
	check(w, "m6")
	must(t, o.Close(context.Background()))

	// The table again, with the ids stored and reloaded; m6 and the second
	// fence record lie behind m5 now.
	o = s.opener()
	w = mustOpen(t, o, rw("c", 2, 1))
	all = append(all, "m6")
	for i := range starts {
		if starts[i].start.Policy != walimpls.PolicyLatest {
			starts[i].want++
		}
		starts[i].start.ID = message.ID(bytes.Clone([]byte(starts[i].start.ID)))
	}
	check(w, "m7")
}

func TestStartsThatDoNotExistAreRefusedAtOnce(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	ids := mustAppend(t, w, "a", "b", "c")
	must(t, w.Truncate(testContext(t), ids[1]))
	lost := func(start walimpls.Start) {
		t.Helper()
		_, err := w.Read(testContext(t), walimpls.ReadOptions{Start: start})
		var e *walimpls.PositionLostError
		if !errors.As(err, &e) || e.Earliest != ids[1] || e.Latest != ids[2] {
			t.Fatalf("start %+v: %v", start, err)
		}
	}
	lost(walimpls.StartFrom(ids[0]))
	// The record just below the earliest is gone too: whoever starts after it
	// might have missed it, and is told so.
	lost(walimpls.StartAfter(ids[0]))
	lost(walimpls.StartFrom(message.Uint64ID(5)))
	lost(walimpls.StartAfter(message.Uint64ID(5)))
	lost(walimpls.StartFrom(message.Uint64ID(^uint64(0))))
	lost(walimpls.StartAfter(message.Uint64ID(^uint64(0))))
	for _, id := range []message.ID{"", "\x00", message.Uint64ID(0), "abc", message.ID(make([]byte, 16))} {
		for _, start := range []walimpls.Start{walimpls.StartFrom(id), walimpls.StartAfter(id)} {
			_, err := w.Read(testContext(t), walimpls.ReadOptions{Start: start})
			wantIs(t, err, walimpls.ErrInvalidArgument)
		}
	}
	_, err := w.Read(testContext(t), walimpls.ReadOptions{})
	wantIs(t, err, walimpls.ErrInvalidArgument)
}

func TestScannerWakesForTheNextRecordAndOnlyThat(t *testing.T) {
	o := newMemStore(t).opener()
	w, other := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("other", 1, 1))
	s := mustRead(t, w, walimpls.FromLatest())
	type result struct {
		records []message.Message
		err     error
	}
	got := make(chan result, 1)
	next := func() {
		records, err := s.Next(testContext(t))
		got <- result{records, err}
	}
	go next()
	mustAppend(t, other, "x")
	mustAppend(t, w, "a", "b")
	r := <-got
	must(t, r.err)
	wantPayloads(t, r.records, "a", "b")

	go next()
	must(t, s.Close())
	must(t, s.Close())
	wantIs(t, (<-got).err, walimpls.ErrClosed)
}

func TestNextGivesUpWithItsContextAndLosesNothing(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	s := mustRead(t, w, walimpls.FromLatest())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Next(ctx)
	wantIs(t, err, context.Canceled)
	id := mustAppend(t, w, "a")[0]
	wantPayloads(t, readUpTo(t, s, id), "a")
}

func TestReadBufferBoundsOneNext(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	big := string(make([]byte, 10_000))
	mustAppend(t, w, "a", "b", "c", big, big, "d")
	sizes := func(opt walimpls.ReadOptions) (sizes []int) {
		opt.Start = walimpls.StartAfter(message.Uint64ID(1))
		s, err := w.Read(testContext(t), opt)
		must(t, err)
		for n := 0; n < 6; {
			records, err := s.Next(testContext(t))
			must(t, err)
			n += len(records)
			sizes = append(sizes, len(records))
		}
		return sizes
	}
	if got := sizes(walimpls.ReadOptions{BufferRecords: 2}); !slices.Equal(got, []int{2, 2, 2}) {
		t.Errorf("by records: %v", got)
	}
	if got := sizes(walimpls.ReadOptions{BufferBytes: 100}); !slices.Equal(got, []int{3, 1, 1, 1}) {
		t.Errorf("by bytes: %v", got)
	}
}

func TestTruncateKeepsTheIDAndSurvivesRestart(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	ids := mustAppend(t, w, "a", "b", "c", "d")
	for _, id := range []message.ID{ids[1], ids[1], ids[0], message.Uint64ID(1)} { // again, and behind
		must(t, w.Truncate(testContext(t), id))
		wantPayloads(t, readAll(t, w), "b", "c", "d")
	}
	for _, id := range []message.ID{message.Uint64ID(6), message.Uint64ID(^uint64(0)), "", message.Uint64ID(0), "x"} {
		wantIs(t, w.Truncate(testContext(t), id), walimpls.ErrInvalidArgument)
	}
	b, err := w.Bounds(testContext(t))
	must(t, err)
	if b != (walimpls.Bounds{Earliest: ids[1], Latest: ids[3], LatestRecord: ids[3]}) {
		t.Fatalf("bounds %+v", b)
	}
	must(t, o.Close(context.Background()))

	o = s.opener()
	r := mustOpen(t, o, ro("c"))
	wantPayloads(t, readAll(t, r), "b", "c", "d")
	w = mustOpen(t, o, rw("c", 2, 1))
	next := mustAppend(t, w, "e")
	if v, _ := next[0].Uint64(); v != 7 {
		t.Fatalf("the next id is %d, want 7 behind the second fence record", v)
	}
}

func TestIDsAreNotUsedAgainAfterEverythingWasTruncated(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 3, 4))
	ids := mustAppend(t, w, "a", "b")
	must(t, w.Truncate(testContext(t), ids[1]))
	must(t, o.Close(context.Background()))
	o = s.opener()
	_, err := o.Open(testContext(t), rw("c", 3, 4))
	wantIs(t, err, walimpls.ErrFenced) // the newest record, and its pair, stay
	w = mustOpen(t, o, rw("c", 3, 5))
	b, err := w.Bounds(testContext(t))
	must(t, err)
	if b.Earliest != ids[1] || b.Latest != message.Uint64ID(4) || b.LatestRecord != ids[1] {
		t.Fatalf("bounds %+v", b)
	}
	must(t, w.Truncate(testContext(t), b.Latest))
	b, err = w.Bounds(testContext(t))
	must(t, err)
	if b.Earliest != b.Latest || b.LatestRecord != "" || b.Empty {
		t.Fatalf("bounds of a log with a fence record alone: %+v", b)
	}
}

func TestScannerBelowTheTruncationPointLosesItsPosition(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	ids := mustAppend(t, w, "a", "b", "c")
	fromAll, fromFirst := mustRead(t, w, walimpls.FromAll()), mustRead(t, w, walimpls.StartFrom(ids[0]))
	atTheID := mustRead(t, w, walimpls.StartFrom(ids[2]))
	must(t, w.Truncate(testContext(t), ids[2]))
	for _, s := range []walimpls.Scanner{fromAll, fromFirst} {
		for range 2 { // the error is final
			_, err := s.Next(testContext(t))
			var lost *walimpls.PositionLostError
			if !errors.As(err, &lost) || lost.Earliest != ids[2] || lost.Latest != ids[2] {
				t.Fatalf("got %v", err)
			}
		}
	}
	wantPayloads(t, readUpTo(t, atTheID, ids[2]), "c")
}

func TestDropDeletesTheLogAndFencesItsHandles(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 5, 1))
	ids := mustAppend(t, w, "a")
	old := w.Channel().StoreID
	scanner := mustRead(t, w, walimpls.FromLatest())
	ended := make(chan error, 1)
	go func() {
		_, err := scanner.Next(testContext(t))
		ended <- err
	}()
	var fenced *walimpls.FencedError
	if err := o.Drop(testContext(t), "c", 4); !errors.As(err, &fenced) || fenced.Highest.Term != 5 {
		t.Fatalf("drop with a lower term: %v", err)
	}
	mustAppend(t, w, "b") // nothing happened
	must(t, <-ended)
	for range 3 {
		must(t, o.Drop(testContext(t), "c", 5))
	}
	_, err := scanner.Next(testContext(t))
	wantIs(t, err, walimpls.ErrNotFound)
	_, err = w.Append(testContext(t), batchOf("x"))
	wantIs(t, err, walimpls.ErrFenced)
	wantIs(t, w.Truncate(testContext(t), ids[0]), walimpls.ErrFenced)
	_, err = w.Bounds(testContext(t))
	wantIs(t, err, walimpls.ErrNotFound)
	_, err = o.Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrNotFound)

	w = mustOpen(t, o, rw("c", 1, 1)) // the terms went with the log
	if w.Channel().StoreID == old {
		t.Fatal("a log that was made again has the old store id")
	}
	mustAppend(t, w, "new")
	must(t, o.Close(context.Background()))
	wantPayloads(t, readAll(t, mustOpen(t, s.opener(), ro("c"))), "new")
}

func TestCloseEndsTheHandleOnly(t *testing.T) {
	o := newMemStore(t).opener()
	w, other := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("d", 1, 1))
	r := mustOpen(t, o, ro("c"))
	ids := mustAppend(t, w, "a")
	mine, theirs := mustRead(t, w, walimpls.FromLatest()), mustRead(t, r, walimpls.FromLatest())
	for range 2 {
		must(t, w.Close(testContext(t)))
	}
	_, err := mine.Next(testContext(t))
	wantIs(t, err, walimpls.ErrClosed)
	_, err = w.Append(testContext(t), batchOf("x"))
	wantIs(t, err, walimpls.ErrClosed)
	wantIs(t, w.Truncate(testContext(t), ids[0]), walimpls.ErrClosed)
	_, err = w.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.FromAll()})
	wantIs(t, err, walimpls.ErrClosed)
	_, err = w.Bounds(testContext(t))
	wantIs(t, err, walimpls.ErrClosed)

	mustAppend(t, other, "y")
	id := mustAppend(t, mustOpen(t, o, rw("c", 1, 2)), "b")[0]
	wantPayloads(t, readUpTo(t, theirs, id), "b")

	must(t, o.Close(testContext(t)))
	_, err = theirs.Next(testContext(t))
	wantIs(t, err, walimpls.ErrClosed)
	_, err = o.Open(testContext(t), rw("c", 2, 1))
	wantIs(t, err, walimpls.ErrClosed)
	wantIs(t, o.Drop(testContext(t), "c", 2), walimpls.ErrClosed)
	must(t, o.Close(testContext(t)))
}

func TestTooLargeRecordIsRefusedAloneAndAtOnce(t *testing.T) {
	s := newMemStore(t)
	s.tune = func(s *settings) { s.limits.MaxMessageBytes, s.limits.MaxBatchBytes = 1000, 4000 }
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	big := message.Message{Type: message.TypeData, Payload: make([]byte, 990), Properties: map[string]string{"key": "12345678"}}
	_, err := w.Append(testContext(t), []message.Message{data("a"), big, data("b"), {Payload: []byte("no type")}, {Type: message.TypeFence}, data("c")})
	var batch *walimpls.BatchError
	if !errors.As(err, &batch) {
		t.Fatal(err)
	}
	var stored []message.ID
	for i, want := range []error{nil, walimpls.ErrTooLarge, nil, walimpls.ErrInvalidArgument, walimpls.ErrInvalidArgument, nil} {
		o := batch.Outcomes[i]
		if want == nil {
			if o.State != walimpls.Stored {
				t.Fatalf("record %d: %+v", i, o)
			}
			stored = append(stored, o.ID)
		} else if o.State != walimpls.NotStored || !errors.Is(o.Err, want) {
			t.Fatalf("record %d: %+v", i, o)
		}
	}
	got := readAll(t, w)[1:]
	wantPayloads(t, got, "a", "b", "c")
	for i, m := range got {
		if m.ID != stored[i] {
			t.Fatalf("record %d has id %s, acknowledged as %s", i, m.ID, stored[i])
		}
	}
	_, err = w.Append(testContext(t), batchOf(string(make([]byte, 1001))))
	wantIs(t, err, walimpls.ErrTooLarge)
	five := make([]message.Message, 5)
	for i := range five {
		five[i] = data(string(make([]byte, 900)))
	}
	_, err = w.Append(testContext(t), five)
	wantIs(t, err, walimpls.ErrTooLarge)
	_, err = w.Append(testContext(t), make([]message.Message, maxBatchRecords+1))
	wantIs(t, err, walimpls.ErrTooLarge)
	ids, err := w.Append(testContext(t), nil)
	if len(ids) != 0 || err != nil {
		t.Fatalf("an empty batch: %v, %v", ids, err)
	}
}

func TestAppendWithAnEndedContextStoresNothing(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	_, err := w.Append(ctx, batchOf("x"))
	wantIs(t, err, context.DeadlineExceeded)
	if walimpls.Outcomes("c", 1, nil, err)[0].State != walimpls.NotStored {
		t.Fatalf("got %v", err)
	}
	wantPayloads(t, readAll(t, w))
	mustAppend(t, w, "a") // the handle lives
}
