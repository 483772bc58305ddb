package faultbackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// M-09 and U-01.
func TestEveryStartBeginsWhereItSays(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		t.Run(fmt.Sprintf("reopened=%t", reopened), func(t *testing.T) {
			f := newFixture(t, "")
			w := f.open(t, 1, 1)
			ids := appendAll(t, w, "m1", "m2", "m3", "m4", "m5")
			if reopened {
				check(t, f.Close(t.Context()))
				f.Opener = f.build(t, nil)
				w = f.open(t, 2, 1)
			}
			type row struct {
				start walimpls.Start
				skip  int // records that lie ahead of the start
			}
			rows := []row{
				{walimpls.FromAll(), 0}, {walimpls.FromLatest(), 5},
				{walimpls.StartFrom(ids[0]), 0}, {walimpls.StartFrom(ids[2]), 2}, {walimpls.StartFrom(ids[4]), 4},
				{walimpls.StartAfter(ids[0]), 1}, {walimpls.StartAfter(ids[2]), 3}, {walimpls.StartAfter(ids[4]), 5},
			}
			all := []string{"m1", "m2", "m3", "m4", "m5", "m6"}
			scanners := make([]walimpls.Scanner, len(rows))
			for i, r := range rows {
				scanners[i] = scan(t, w, r.start)
				wantPayloads(t, payloads(next(t, scanners[i], 5-r.skip)), all[r.skip:5]...)
			}
			appendAll(t, w, "m6")
			for i := range rows {
				wantPayloads(t, payloads(next(t, scanners[i], 1)), "m6")
			}
		})
	}
}

func TestAllAndLatestOfAnEmptyLogMeetTheFirstRecord(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	b, err := w.Bounds(t.Context())
	check(t, err)
	if b.Empty || b.LatestRecord != "" {
		t.Fatalf("bounds %+v: there is a fence record and nothing else", b)
	}
	all, latest := scan(t, w, walimpls.FromAll()), scan(t, w, walimpls.FromLatest())
	appendAll(t, w, "m1")
	wantPayloads(t, payloads(next(t, all, 1)), "m1")
	wantPayloads(t, payloads(next(t, latest, 1)), "m1")
}

func TestABadStartIsAnErrorAndNeverAWait(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	ids := appendAll(t, w, "a", "b", "c")
	check(t, w.Truncate(t.Context(), ids[1]))
	for name, c := range map[string]struct {
		start walimpls.Start
		want  error
	}{
		"empty":            {walimpls.StartFrom(""), walimpls.ErrInvalidArgument},
		"zero":             {walimpls.StartAfter(message.Uint64ID(0)), walimpls.ErrInvalidArgument},
		"one byte":         {walimpls.StartFrom("\x01"), walimpls.ErrInvalidArgument},
		"a megabyte":       {walimpls.StartFrom(message.ID(strings.Repeat("x", 1<<20))), walimpls.ErrInvalidArgument},
		"no policy":        {walimpls.Start{}, walimpls.ErrInvalidArgument},
		"truncated":        {walimpls.StartFrom(ids[0]), nil},
		"truncated, after": {walimpls.StartAfter(ids[0]), nil},
		"above":            {walimpls.StartFrom(message.Uint64ID(99)), nil},
		"just above":       {walimpls.StartAfter(message.Uint64ID(5)), nil},
	} {
		_, err := w.Read(t.Context(), walimpls.ReadOptions{Start: c.start})
		var lost *walimpls.PositionLostError
		if c.want == nil { // lost
			if !errors.As(err, &lost) || lost.Earliest != ids[1] || lost.Latest != ids[2] {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

func TestLatestIsPinnedWhenReadReturns(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	appendAll(t, w, "old")
	sc := scan(t, w, walimpls.FromLatest())
	appendAll(t, w, "a", "b")
	wantPayloads(t, payloads(next(t, sc, 2)), "a", "b")
}

func TestAScannerWakesForTheNextRecordWithoutOtherTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "")
		w := f.open(t, 1, 1)
		sc := scan(t, w, walimpls.FromLatest())
		got := make(chan []message.Message)
		go func() {
			recs, _ := sc.Next(context.Background())
			got <- recs
		}()
		synctest.Wait() // Next is blocked and nothing else is: a poll would be a timer
		begin := time.Now()
		appendAll(t, w, "a")
		wantPayloads(t, payloads(<-got), "a")
		if d := time.Since(begin); d != 0 {
			t.Fatalf("it took %s", d)
		}
	})
}

func TestNextThatGaveUpLosesNothing(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	sc := scan(t, w, walimpls.FromLatest())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := sc.Next(ctx)
	wantErr(t, err, context.Canceled)
	appendAll(t, w, "a")
	wantPayloads(t, payloads(next(t, sc, 1)), "a")
}

func TestReadsKeepToTheirBuffer(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	appendAll(t, w, "12345", "12345", "123456789", "1")
	sc, err := w.Read(t.Context(), walimpls.ReadOptions{Start: walimpls.StartFrom(message.Uint64ID(2)), BufferRecords: 2, BufferBytes: 8})
	check(t, err)
	defer func() { _ = sc.Close() }()
	for i, want := range []int{1, 1, 1, 1} {
		recs, err := sc.Next(t.Context())
		check(t, err)
		if len(recs) != want {
			t.Fatalf("read %d: %d records, want %d", i, len(recs), want)
		}
	}
}

// M-23.
func TestScannersOpenAndCloseSideBySide(t *testing.T) {
	f := newFixture(t, "")
	w := f.open(t, 1, 1)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				if out := appendOne(f.ctx, w, fmt.Sprint(i)); out.State != walimpls.Stored {
					t.Error(out.Err)
					return
				}
				runtime.Gosched()
			}
		}
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				sc, err := w.Read(f.ctx, walimpls.ReadOptions{Start: walimpls.FromLatest()})
				if err != nil {
					t.Error(err)
					return
				}
				for n := 0; n < 10; {
					recs, err := sc.Next(f.ctx)
					if err != nil {
						t.Error(err)
						break
					}
					n += len(recs)
				}
				_ = sc.Close()
			}
		})
	}
	wg.Wait()
	close(stop)
	writer.Wait()
	if s := f.ctl.Stats(); s.Scanners != 0 || s.Calls[OpRead] != 1000 {
		t.Fatalf("%d scanners are registered, %d were opened", s.Scanners, s.Calls[OpRead])
	}
}

// U-03.
func TestAStuckReaderDisturbsNobody(t *testing.T) {
	f := newFixture(t, "next block count=1")
	w := f.open(t, 1, 1)
	stuck, free := scan(t, w, walimpls.FromLatest()), scan(t, w, walimpls.FromLatest())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = stuck.Next(f.ctx)
	}()
	appendAll(t, w, "a")
	f.waiting(t, OpNext, 1)
	appendAll(t, w, "b")
	wantPayloads(t, payloads(next(t, free, 2)), "a", "b")
	check(t, stuck.Close())
	<-done
}
