package faultbackend

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// wantEnded checks contract rule 3: the handle takes nothing more and says so.
func wantEnded(t *testing.T, w walimpls.WAL) {
	t.Helper()
	out := appendOne(context.Background(), w, "after the end")
	if out.State != walimpls.NotStored || !errors.Is(out.Err, walimpls.ErrUnavailable) {
		t.Fatalf("an ended handle answered %v, %v", out.State, out.Err)
	}
}

func TestBlockHoldsAppendsUntilReleased(t *testing.T) {
	for name, c := range map[string]struct {
		release func(f *fixture, w walimpls.WAL, cancel func())
		want    walimpls.State
		err     error
	}{
		"by the rules":  {func(f *fixture, _ walimpls.WAL, _ func()) { _ = f.ctl.SetRules("read error corrupt") }, walimpls.Stored, nil},
		"by its caller": {func(_ *fixture, _ walimpls.WAL, cancel func()) { cancel() }, walimpls.NotStored, context.Canceled},
		"by Close":      {func(f *fixture, w walimpls.WAL, _ func()) { _ = w.Close(f.ctx) }, walimpls.NotStored, walimpls.ErrClosed},
		"by the opener": {func(f *fixture, _ walimpls.WAL, _ func()) { _ = f.Close(f.ctx) }, walimpls.NotStored, walimpls.ErrClosed},
		"too late": {func(f *fixture, _ walimpls.WAL, _ func()) {
			_, _ = f.Open(f.ctx, rw(channel, 2, 1))
			_ = f.ctl.SetRules("")
		}, walimpls.NotStored, walimpls.ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "append block until released")
			w := f.open(t, 1, 1)
			ctx, cancel := context.WithCancel(f.ctx)
			defer cancel()
			got := make(chan walimpls.Outcome)
			go func() { got <- appendOne(ctx, w, "a") }()
			f.waiting(t, OpAppend, 1)
			wantPayloads(t, f.stored())
			c.release(f, w, cancel)
			out := <-got
			if out.State != c.want || c.err != nil && !errors.Is(out.Err, c.err) {
				t.Fatalf("%v, %v", out.State, out.Err)
			}
			if c.want == walimpls.Stored {
				wantPayloads(t, f.stored(), "a")
			} else {
				wantPayloads(t, f.stored())
			}
			f.waiting(t, OpAppend, 0)
		})
	}
}

func TestBlockAckHoldsTheAnswerOfAStoredRecord(t *testing.T) {
	for name, c := range map[string]struct {
		release func(f *fixture, w walimpls.WAL, cancel func())
		want    walimpls.State
	}{
		"by the rules":  {func(f *fixture, _ walimpls.WAL, _ func()) { _ = f.ctl.SetRules("") }, walimpls.Stored},
		"by its caller": {func(_ *fixture, _ walimpls.WAL, cancel func()) { cancel() }, walimpls.Unknown},
		"by Close":      {func(f *fixture, w walimpls.WAL, _ func()) { _ = w.Close(f.ctx) }, walimpls.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "append block-ack")
			w := f.open(t, 1, 1)
			ctx, cancel := context.WithCancel(f.ctx)
			defer cancel()
			got := make(chan walimpls.Outcome)
			go func() { got <- appendOne(ctx, w, "a") }()
			f.waiting(t, OpAppend, 1)
			wantPayloads(t, f.stored(), "a")
			c.release(f, w, cancel)
			out := <-got
			if out.State != c.want || c.want == walimpls.Unknown && !errors.Is(out.Err, walimpls.ErrUnknownOutcome) {
				t.Fatalf("%v, %v", out.State, out.Err)
			}
			if name == "by its caller" {
				wantEnded(t, w)
			}
			wantPayloads(t, f.stored(), "a")
		})
	}
}

func TestFailBeforeWriteStoresNothing(t *testing.T) {
	f := newFixture(t, `append fail-before-write not_stored "no luck" every=2 count=2`)
	w := f.open(t, 1, 1)
	ids, err := w.Append(t.Context(), data("a", "b", "c", "d", "e", "f"))
	out := walimpls.Outcomes(channel, 6, ids, err)
	for i, o := range out {
		want := walimpls.Stored
		if i == 1 || i == 3 {
			want = walimpls.NotStored
		}
		if o.State != want {
			t.Errorf("record %d: %v, %v", i, o.State, o.Err)
		}
	}
	wantErr(t, err, walimpls.ErrUnavailable)
	if !strings.Contains(err.Error(), "no luck") {
		t.Errorf("%v", err)
	}
	wantPayloads(t, f.stored(), "a", "c", "e", "f")
	appendAll(t, w, "g") // the handle lives on

	check(t, f.ctl.SetRules("append fail-before-write unknown count=1"))
	if o := appendOne(t.Context(), w, "h"); o.State != walimpls.Unknown || !errors.Is(o.Err, walimpls.ErrUnknownOutcome) {
		t.Fatalf("%v, %v", o.State, o.Err)
	}
	wantEnded(t, w)
	wantPayloads(t, f.stored(), "a", "c", "e", "f", "g")
}

func TestFailAfterWriteStoresAndEndsTheHandle(t *testing.T) {
	f := newFixture(t, "append fail-after-write unknown after=1 count=1")
	w := f.open(t, 1, 1)
	ids, err := w.Append(t.Context(), data("a", "b", "c"))
	out := walimpls.Outcomes(channel, 3, ids, err)
	if out[0].State != walimpls.Stored || out[1].State != walimpls.Unknown || out[2].State != walimpls.Stored {
		t.Fatalf("%+v", out)
	}
	wantPayloads(t, f.stored(), "a", "b", "c")
	if out[2].ID != message.Uint64ID(4) {
		t.Fatalf("ids %+v", out)
	}
	wantEnded(t, w)
	wantErr(t, w.Truncate(t.Context(), message.Uint64ID(2)), walimpls.ErrUnavailable)
	next(t, scan(t, w, walimpls.FromAll()), 3) // it can still be read
	w = f.open(t, 1, 2)
	appendAll(t, w, "d")
	wantPayloads(t, f.stored(), "a", "b", "c", "d")
}

func TestAnAppendOnAnEndedHandleThatWasHeldUpIsNotStored(t *testing.T) {
	f := newFixture(t, "append block count=1\nappend fail-after-write unknown count=1")
	w := f.open(t, 1, 1)
	got := make(chan walimpls.Outcome)
	go func() { got <- appendOne(f.ctx, w, "held") }() // both rules see it: blocked, then unknown
	f.waiting(t, OpAppend, 1)
	appendAll(t, w, "a")
	check(t, f.ctl.SetRules("append fail-before-write unknown count=1"))
	if out := <-got; out.State != walimpls.Unknown {
		t.Fatalf("%v", out.State)
	}
	wantEnded(t, w)
	wantPayloads(t, f.stored(), "a", "held")
}

// M-04.
func TestPermanentAndTransientErrorsTellThemselvesApart(t *testing.T) {
	f := newFixture(t, "append permanent unrecoverable")
	w := f.open(t, 1, 1)
	out := appendOne(t.Context(), w, "a")
	if e := walimpls.AsError(out.Err); out.State != walimpls.NotStored || e.Retryable || e.Channel != channel || !strings.Contains(e.Message, "unrecoverable") {
		t.Fatalf("%v, %+v", out.State, e)
	}
	check(t, f.ctl.SetRules("append error fenced"))
	if out := appendOne(t.Context(), w, "a"); out.State != walimpls.NotStored || !errors.Is(out.Err, walimpls.ErrFenced) {
		t.Fatalf("%v, %v", out.State, out.Err)
	}
	check(t, f.ctl.SetRules("append error unavailable count=5"))
	for i := range 6 {
		out := appendOne(t.Context(), w, "a")
		if i < 5 && (out.State != walimpls.NotStored || !walimpls.AsError(out.Err).Retryable) || i == 5 && out.State != walimpls.Stored {
			t.Fatalf("append %d: %v, %v", i, out.State, out.Err)
		}
	}
	check(t, f.ctl.SetRules("append error unknown_outcome"))
	if out := appendOne(t.Context(), w, "b"); out.State != walimpls.Unknown {
		t.Fatalf("%v", out.State)
	}
	wantEnded(t, w)
	wantPayloads(t, f.stored(), "a")
}

func TestErrorsOfEveryCall(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	appendAll(t, w, "a")
	sc := scan(t, w, walimpls.FromAll())
	calls := map[Op]func() error{
		OpOpen:     func() error { _, err := f.Open(f.ctx, rw(channel, 9, 1)); return err },
		OpRead:     func() error { _, err := w.Read(f.ctx, walimpls.ReadOptions{Start: walimpls.FromAll()}); return err },
		OpNext:     func() error { _, err := sc.Next(f.ctx); return err },
		OpTruncate: func() error { return w.Truncate(f.ctx, message.Uint64ID(2)) },
		OpBounds:   func() error { _, err := w.Bounds(f.ctx); return err },
		OpDrop:     func() error { return f.Drop(f.ctx, channel, 9) },
		OpClose:    func() error { return w.Close(f.ctx) },
	}
	for _, op := range []Op{OpOpen, OpRead, OpNext, OpTruncate, OpBounds, OpDrop, OpClose} {
		check(t, f.ctl.SetRules(string(op)+` error no_space "full"`))
		err := calls[op]()
		wantErr(t, err, walimpls.ErrNoSpace)
		if e := walimpls.AsError(err); e.Channel != channel || e.Message != "full" {
			t.Errorf("%s: %+v", op, e)
		}
	}
	if recs := f.store.Records(channel); len(recs) != 2 {
		t.Fatalf("a call that failed left %d records", len(recs))
	}
	if _, err := sc.Next(f.ctx); !errors.Is(err, walimpls.ErrClosed) {
		t.Fatalf("the close that failed did not close: %v", err)
	}
}

func TestErrorsCarryTheirDetails(t *testing.T) {
	f := newFixture(t, "open error fenced; read error position_lost")
	_, err := f.Open(f.ctx, rw(channel, 7, 2))
	var fenced *walimpls.FencedError
	if !errors.As(err, &fenced) || fenced.Highest != (walimpls.Pair{Term: 7, Incarnation: 2}) {
		t.Fatalf("%v", err)
	}
	check(t, f.ctl.SetRules("read error position_lost"))
	_, err = f.open(t, 7, 2).Read(f.ctx, walimpls.ReadOptions{Start: walimpls.FromAll()})
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) {
		t.Fatalf("%v", err)
	}
}

func TestAnErrorOfNextIsFinal(t *testing.T) {
	f := newFixture(t, "next error unavailable count=1")
	w := f.open(t, 1, 1)
	sc := scan(t, w, walimpls.FromAll())
	for range 2 {
		_, err := sc.Next(f.ctx)
		wantErr(t, err, walimpls.ErrUnavailable)
	}
	next(t, scan(t, w, walimpls.FromAll()), 0)
}

func TestAnOpenThatFailedAfterTheWriteLeavesItsPair(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	check(t, f.ctl.SetRules("open fail-after-write count=1"))
	_, err := f.Open(f.ctx, rw(channel, 1, 2))
	wantErr(t, err, walimpls.ErrUnavailable)
	_, err = w.Append(f.ctx, data("x"))
	wantErr(t, err, walimpls.ErrFenced)
	_, err = f.Open(f.ctx, rw(channel, 1, 2))
	wantErr(t, err, walimpls.ErrFenced)
	f.open(t, 1, 3)
}

// The start of M-01.
func TestAnOpenThatIsBlockedEndsWithItsContext(t *testing.T) {
	f := newFixture(t, "open block term=1")
	ctx, cancel := context.WithCancel(f.ctx)
	got := make(chan error)
	go func() {
		_, err := f.Open(ctx, rw(channel, 1, 1))
		got <- err
	}()
	f.waiting(t, OpOpen, 1)
	cancel()
	wantErr(t, <-got, context.Canceled)
	f.open(t, 2, 1) // another term is not blocked
	if s := f.ctl.Stats(); s.Handles[channel] != 1 || s.Faults["open block term=1"] != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestLateOpensLandUnlessAHigherPairWasThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "open late 1s incarnation=2")
		w := f.open(t, 1, 1)
		_, err := f.Open(f.ctx, rw(channel, 1, 2))
		wantErr(t, err, walimpls.ErrUnavailable)
		appendAll(t, w, "a") // nothing landed yet
		time.Sleep(2 * time.Second)
		_, err = w.Append(f.ctx, data("b"))
		wantErr(t, err, walimpls.ErrFenced)

		_, err = f.Open(f.ctx, rw(channel, 2, 2))
		wantErr(t, err, walimpls.ErrUnavailable)
		w = f.open(t, 3, 1)
		time.Sleep(2 * time.Second)
		appendAll(t, w, "c") // the late lower Open did no harm
		wantPayloads(t, f.stored(), "a", "c")
	})
}

func TestLoseConnectionLosesAnswersAndTheHandle(t *testing.T) {
	for how, want := range map[string][]string{
		"before": {}, "half": {"a", "b"}, "after": {"a", "b", "c", "d"}, "torn": {},
	} {
		lost := 0
		f := newFixture(t, "append lose-connection "+how+" after=2 count=1", WithLoseConnection(func() { lost++ }))
		w := f.open(t, 1, 1)
		ids, err := w.Append(t.Context(), data("a", "b", "c", "d"))
		for i, o := range walimpls.Outcomes(channel, 4, ids, err) {
			if o.State != walimpls.Unknown {
				t.Errorf("%s: record %d: %v", how, i, o.State)
			}
		}
		wantPayloads(t, f.stored(), want...)
		wantEnded(t, w)
		if lost != 1 {
			t.Errorf("%s: the connection was cut %d times", how, lost)
		}
	}
}

func TestOtherCallsLoseTheConnectionToo(t *testing.T) {
	f := newFixture(t, "bounds lose-connection")
	w := f.open(t, 1, 1)
	_, err := w.Bounds(f.ctx)
	wantErr(t, err, walimpls.ErrUnavailable)
	wantEnded(t, w)
}

func TestExitEndsTheProcessWithItsStatus(t *testing.T) {
	status := -1
	f := newFixture(t, "append exit 3 after=2", WithExit(func(n int) { status = n }))
	w := f.open(t, 1, 1)
	appendAll(t, w, "a", "b")
	if out := appendOne(t.Context(), w, "c"); status != 3 || out.State != walimpls.Unknown {
		t.Fatalf("status %d, %v", status, out.State)
	}
	wantPayloads(t, f.stored(), "a", "b")
}
