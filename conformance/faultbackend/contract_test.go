package faultbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/plugintest"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestDescriptionIsValid(t *testing.T) {
	check(t, NewBuilder().Describe().Validate())
	if got := NewBuilder().Name(); got != NewBuilder().Describe().Backend {
		t.Fatalf("the builder is called %q", got)
	}
}

func TestBadConfigurationIsRefusedWithEveryKey(t *testing.T) {
	_, err := NewBuilder().Build(t.Context(), walimpls.Config{"rulez": "x", "fsync": "maybe"}, nil)
	wantErr(t, err, walimpls.ErrInvalidArgument)
	for _, part := range []string{`"rulez"`, `"fsync"`, `"rules"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not mention %s", err, part)
		}
	}
	_, err = NewBuilder().Build(t.Context(), walimpls.Config{"rules": "append blok"}, nil)
	wantErr(t, err, walimpls.ErrInvalidArgument)
	if !strings.Contains(err.Error(), "line 1") || !strings.Contains(err.Error(), `"blok"`) {
		t.Errorf("%v names neither line nor token", err)
	}
	_, err = NewBuilder(WithStore(NewStore())).Build(t.Context(), walimpls.Config{"file": "x"}, nil)
	wantErr(t, err, walimpls.ErrInvalidArgument)
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 3, 1)
	in := []message.Message{
		{Type: message.TypeData, VChannel: "v", TimeTick: 7, LastConfirmed: message.Uint64ID(1), TxnID: 9,
			Properties: map[string]string{"k": "v", "": "\x00"}, Payload: []byte{0, 255}, Term: 99, Incarnation: 99, ID: "x"},
		{Type: message.TypeTimeTick, TimeTick: 8},
	}
	ids, err := w.Append(t.Context(), in)
	check(t, err)
	in[0].Payload[0], in[0].Properties["k"] = 1, "changed" // they are the caller's again
	out := next(t, scan(t, w, walimpls.FromAll()), 2)
	got := out[0]
	if got.ID != ids[0] || got.Term != 3 || got.Incarnation != 1 || got.VChannel != "v" || got.TimeTick != 7 || got.TxnID != 9 ||
		got.LastConfirmed != message.Uint64ID(1) || got.Properties["k"] != "v" || got.Properties[""] != "\x00" || !bytes.Equal(got.Payload, []byte{0, 255}) {
		t.Fatalf("read %+v", got)
	}
	if out[1].Type != message.TypeTimeTick || len(out[1].Payload) != 0 {
		t.Fatalf("read %+v", out[1])
	}
}

func TestIdsCountFromOne(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	ids := appendAll(t, w, "a", "b")
	if ids[0] != message.Uint64ID(2) || ids[1] != message.Uint64ID(3) {
		t.Fatalf("ids %v behind the fence record 1", ids)
	}
	b, err := w.Bounds(t.Context())
	check(t, err)
	if b.Empty || b.Earliest != message.Uint64ID(1) || b.Latest != ids[1] || b.LatestRecord != ids[1] {
		t.Fatalf("bounds %+v", b)
	}
}

// M-07, in process and over the protocol.
func TestNoCallerGetsAnothersResult(t *testing.T) {
	const rule = `append fail-before-write not_stored "mine" 1/50`
	t.Run("in process", func(t *testing.T) {
		f := newFixture(t, rule)
		checkResults(f.ctx, t, f.open(t, 1, 1), f.ctl)
	})
	t.Run("served", func(t *testing.T) {
		ctl := NewController()
		client := plugintest.Serve(t, NewBuilder(WithController(ctl)))
		check(t, client.Configure(testContext(t), walimpls.Config{"rules": rule}))
		checkResults(testContext(t), t, mustOpen(testContext(t), t, client, 1, 1), ctl)
	})
}

func checkResults(ctx context.Context, t *testing.T, w walimpls.WAL, ctl *Controller) {
	const callers, each = 64, 200
	var mu sync.Mutex
	byID := map[message.ID]string{}
	failed := 0
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			for i := range each {
				payload := fmt.Sprintf("%d-%d", g, i)
				out := appendOne(ctx, w, payload)
				mu.Lock()
				switch out.State {
				case walimpls.Stored:
					if byID[out.ID] != "" {
						t.Errorf("id %s was given twice", out.ID)
					}
					byID[out.ID] = payload
				case walimpls.NotStored:
					failed++
				default:
					t.Errorf("%s: %v", payload, out.Err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != callers*each/50 || len(byID) != callers*each-failed {
		t.Fatalf("%d failed, %d stored of %d", failed, len(byID), callers*each)
	}
	for _, m := range next(t, scan(t, w, walimpls.FromAll()), len(byID)) {
		if byID[m.ID] != string(m.Payload) {
			t.Fatalf("id %s holds %q, its caller wrote %q", m.ID, m.Payload, byID[m.ID])
		}
	}
	if got := ctl.Stats(); got.Records != callers*each || got.Calls[OpAppend] > callers*each {
		t.Fatalf("stats %+v", got)
	}
}

// M-14.
func TestATooLargeRecordDisturbsNobody(t *testing.T) {
	f := newFixture(t, "", WithLimits(walimpls.Limits{MaxMessageBytes: 10, MaxBatchRecords: 4, MaxBatchBytes: 20}))
	w := f.open(t, 1, 1)
	ids, err := w.Append(t.Context(), data("ok-1", strings.Repeat("x", 11), "ok-2"))
	wantErr(t, err, walimpls.ErrTooLarge)
	out := walimpls.Outcomes(channel, 3, ids, err)
	if out[0].State != walimpls.Stored || out[1].State != walimpls.NotStored || out[2].State != walimpls.Stored {
		t.Fatalf("outcomes %+v", out)
	}
	_, err = w.Append(t.Context(), data("1", "2", "3", "4", "5"))
	wantErr(t, err, walimpls.ErrTooLarge)
	_, err = w.Append(t.Context(), data("1234567890", "1234567890", "1"))
	wantErr(t, err, walimpls.ErrTooLarge)
	_, err = w.Append(t.Context(), []message.Message{{Type: message.TypeFence}})
	wantErr(t, err, walimpls.ErrInvalidArgument)
	appendAll(t, w, "1234567890")
	wantPayloads(t, f.stored(), "ok-1", "ok-2", "1234567890")
}

func TestAppendOfNothingIsANoOp(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	ids, err := w.Append(t.Context(), nil)
	if ids != nil || err != nil {
		t.Fatalf("%v, %v", ids, err)
	}
}

func TestAHigherPairFencesEveryEarlierHandle(t *testing.T) {
	for _, c := range []struct{ first, second walimpls.Pair }{
		{walimpls.Pair{Term: 1, Incarnation: 1}, walimpls.Pair{Term: 1, Incarnation: 2}}, // a zombie of the same term
		{walimpls.Pair{Term: 1, Incarnation: 9}, walimpls.Pair{Term: 2, Incarnation: 1}},
	} {
		f := newFixture(t, "")
		zombie := f.open(t, c.first.Term, c.first.Incarnation)
		appendAll(t, zombie, "a")
		other := f.build(t, nil) // another opener, as on another host
		w := mustOpen(f.ctx, t, other, c.second.Term, c.second.Incarnation)
		_, err := zombie.Append(t.Context(), data("late"))
		wantErr(t, err, walimpls.ErrFenced)
		wantErr(t, zombie.Truncate(t.Context(), message.Uint64ID(2)), walimpls.ErrFenced)
		appendAll(t, w, "b")
		wantPayloads(t, f.stored(), "a", "b")
		wantPayloads(t, payloads(next(t, scan(t, zombie, walimpls.FromAll()), 2)), "a", "b") // reads may go on
		check(t, other.Close(t.Context()))
	}
}

func TestALateLowerOpenHarmsNobody(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 2, 3)
	for _, pair := range []walimpls.Pair{{Term: 1, Incarnation: 9}, {Term: 1}, {Term: 2, Incarnation: 2}, {Term: 2, Incarnation: 3}} {
		_, err := f.Open(t.Context(), rw(channel, pair.Term, pair.Incarnation))
		wantErr(t, err, walimpls.ErrFenced)
		var fenced *walimpls.FencedError
		if !errors.As(err, &fenced) || fenced.Highest != (walimpls.Pair{Term: 2, Incarnation: 3}) {
			t.Fatalf("%v", err)
		}
	}
	appendAll(t, w, "still mine")
	if n := len(f.store.Records(channel)); n != 2 {
		t.Fatalf("the log holds %d records: a refused open wrote", n)
	}
	// A tool that does not know the incarnation gets the next one.
	tool, err := f.Open(t.Context(), rw(channel, 2, 0))
	check(t, err)
	if got := tool.Channel().Pair; got != (walimpls.Pair{Term: 2, Incarnation: 4}) {
		t.Fatalf("pair %s", got)
	}
}

func TestBadOpensAreRefused(t *testing.T) {
	f := newFixture(t, "")
	for _, opt := range []walimpls.OpenOptions{
		rw("", 1, 1), rw("no/slash", 1, 1), rw(channel, 0, 1), rw(channel, 1, -1), {Channel: channel, Term: 1},
	} {
		_, err := f.Open(t.Context(), opt)
		wantErr(t, err, walimpls.ErrInvalidArgument)
	}
	wantErr(t, f.Drop(t.Context(), "no/slash", 1), walimpls.ErrInvalidArgument)
}

func TestAReadOnlyHandleReadsAndChangesNothing(t *testing.T) {
	f := newFixture(t, "")
	_, err := f.Open(t.Context(), ro(channel))
	wantErr(t, err, walimpls.ErrNotFound)
	w := f.open(t, 4, 2)
	appendAll(t, w, "a")
	r, err := f.Open(t.Context(), ro(channel))
	check(t, err)
	if c := r.Channel(); c.Pair != w.Channel().Pair || c.StoreID != w.Channel().StoreID || c.Access != walimpls.AccessReadOnly {
		t.Fatalf("channel %+v", c)
	}
	_, err = r.Append(t.Context(), data("x"))
	wantErr(t, err, walimpls.ErrReadOnly)
	wantErr(t, r.Truncate(t.Context(), message.Uint64ID(2)), walimpls.ErrReadOnly)
	sc := scan(t, r, walimpls.FromAll())
	appendAll(t, w, "b") // not fenced
	wantPayloads(t, payloads(next(t, sc, 2)), "a", "b")
}

func TestTruncateKeepsTheRecordAtTheId(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	ids := appendAll(t, w, "a", "b", "c")
	behind, ahead := scan(t, w, walimpls.FromAll()), scan(t, w, walimpls.StartFrom(ids[1]))
	for _, before := range []message.ID{ids[1], ids[1], ids[0], message.Uint64ID(0)} { // idempotent; behind is a no-op
		check(t, w.Truncate(t.Context(), before))
	}
	wantErr(t, w.Truncate(t.Context(), message.Uint64ID(5)), walimpls.ErrInvalidArgument)
	wantErr(t, w.Truncate(t.Context(), ""), walimpls.ErrInvalidArgument)
	wantPayloads(t, f.stored(), "b", "c")
	_, err := behind.Next(t.Context())
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) || lost.Earliest != ids[1] {
		t.Fatalf("a scanner below the truncation point got %v", err)
	}
	_, err = behind.Next(t.Context())
	if !errors.As(err, &lost) {
		t.Fatalf("the error is not final: %v", err)
	}
	wantPayloads(t, payloads(next(t, ahead, 2)), "b", "c")

	// Only fence records are left: there is a latest id, but of no record.
	w = f.open(t, 2, 1)
	check(t, w.Truncate(t.Context(), message.Uint64ID(5)))
	b, err := w.Bounds(t.Context())
	check(t, err)
	if b.Empty || b.Earliest != message.Uint64ID(5) || b.Latest != b.Earliest || b.LatestRecord != "" {
		t.Fatalf("bounds %+v", b)
	}
}

func TestDropDeletesTheLogAndFencesItsHandles(t *testing.T) {
	f := newFixture(t, "")
	check(t, f.Drop(t.Context(), channel, 1)) // a missing log is success
	w := f.open(t, 5, 1)
	appendAll(t, w, "a")
	sc := scan(t, w, walimpls.FromLatest())
	wantErr(t, f.Drop(t.Context(), channel, 4), walimpls.ErrFenced)
	appendAll(t, w, "b")
	next(t, sc, 1)
	check(t, f.Drop(t.Context(), channel, 5))
	check(t, f.Drop(t.Context(), channel, 5))
	_, err := w.Append(t.Context(), data("c"))
	wantErr(t, err, walimpls.ErrFenced)
	_, err = sc.Next(t.Context())
	wantErr(t, err, walimpls.ErrNotFound)
	_, err = w.Bounds(t.Context())
	wantErr(t, err, walimpls.ErrNotFound)
	_, err = w.Read(t.Context(), walimpls.ReadOptions{Start: walimpls.FromAll()})
	wantErr(t, err, walimpls.ErrNotFound)
	again := f.open(t, 1, 1) // the pairs went with the log
	if again.Channel().StoreID == w.Channel().StoreID {
		t.Fatal("the new log has the old one's store id")
	}
	_, err = w.Append(t.Context(), data("c"))
	wantErr(t, err, walimpls.ErrFenced)
	wantPayloads(t, f.stored())
}

func TestCloseEndsEverythingOfTheHandle(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	sc := scan(t, w, walimpls.FromLatest())
	blocked := make(chan error)
	go func() {
		_, err := sc.Next(context.Background())
		blocked <- err
	}()
	check(t, w.Close(t.Context()))
	wantErr(t, <-blocked, walimpls.ErrClosed)
	check(t, w.Close(t.Context()))
	check(t, sc.Close())
	_, err := w.Append(t.Context(), data("x"))
	wantErr(t, err, walimpls.ErrClosed)
	_, err = w.Read(t.Context(), walimpls.ReadOptions{Start: walimpls.FromAll()})
	wantErr(t, err, walimpls.ErrClosed)
	_, err = w.Bounds(t.Context())
	wantErr(t, err, walimpls.ErrClosed)
	wantErr(t, w.Truncate(t.Context(), message.Uint64ID(1)), walimpls.ErrClosed)
	if s := f.ctl.Stats(); s.Scanners != 0 || s.Handles[channel] != 0 || s.MaxHandles[channel] != 1 {
		t.Fatalf("stats %+v", s)
	}
}

func TestCloseOfTheOpenerClosesItsHandles(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	check(t, f.Close(t.Context()))
	check(t, f.Close(t.Context()))
	_, err := w.Append(t.Context(), data("x"))
	wantErr(t, err, walimpls.ErrClosed)
	_, err = f.Open(t.Context(), rw(channel, 2, 1))
	wantErr(t, err, walimpls.ErrClosed)
	wantErr(t, f.Drop(t.Context(), channel, 2), walimpls.ErrClosed)
}

func TestACloseWithADeadContextStillCloses(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, w.Close(ctx))
	_, err := w.Append(t.Context(), data("x"))
	wantErr(t, err, walimpls.ErrClosed)
}

func TestACancelledCallDoesNothing(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.Append(ctx, data("x"))
	wantErr(t, err, context.Canceled)
	if out := walimpls.Outcomes(channel, 1, nil, err); out[0].State != walimpls.NotStored {
		t.Fatalf("outcome %v", out[0])
	}
	_, err = f.Open(ctx, rw(channel, 2, 1))
	wantErr(t, err, context.Canceled)
	appendAll(t, w, "a")
	wantPayloads(t, f.stored(), "a")
}
