package wal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestStartsFollowTheirRules(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	r := mustAppend(t, w, "m1", "m2", "m3", "m4", "m5")
	check := func(name string, opt scanner.Options, want string) {
		t.Helper()
		if got := fmt.Sprint(texts(readUntilCaughtUp(t, w, opt))); got != want {
			t.Errorf("%s: read %s, want %s", name, got, want)
		}
	}
	table := func() {
		t.Helper()
		check("all", scanner.Options{Start: scanner.All}, "[m1 m2 m3 m4 m5]")
		check("latest", scanner.Options{Start: scanner.Latest}, "[]")
		check("from m1", scanner.Options{Start: scanner.FromID, ID: r[0].ID}, "[m1 m2 m3 m4 m5]")
		check("from m3", scanner.Options{Start: scanner.FromID, ID: r[2].ID}, "[m3 m4 m5]")
		check("from m5", scanner.Options{Start: scanner.FromID, ID: r[4].ID}, "[m5]")
		check("after m1", scanner.Options{Start: scanner.AfterID, ID: r[0].ID}, "[m2 m3 m4 m5]")
		check("after m5", scanner.Options{Start: scanner.AfterID, ID: r[4].ID}, "[]")
		check("checkpoint of m2", scanner.Options{Start: scanner.Checkpoint, Checkpoint: r[1].Checkpoint}, "[m3 m4 m5]")
	}
	table()
	_ = w.Close(context.Background())
	w = f.open(nil)
	table()

	for name, opt := range map[string]scanner.Options{
		"an id above the latest":      {Start: scanner.FromID, ID: message.Uint64ID(1 << 40)},
		"a checkpoint of another log": {Start: scanner.Checkpoint, Checkpoint: message.Checkpoint{StoreID: "other", ID: r[0].ID, Term: 1, Tick: 1}},
	} {
		_, err := w.Read(within(t, 5*time.Second), opt)
		var lost *walimpls.PositionLostError
		if !errors.As(err, &lost) {
			t.Errorf("%s: %v, want PositionLostError", name, err)
		}
	}
	if _, err := w.Read(within(t, 5*time.Second), scanner.Options{Start: scanner.FromID}); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("an empty id: %v, want ErrInvalidArgument", err)
	}
}

func TestLatestReadersGetWhatComesNextFromTheBufferAlone(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.WABAge = time.Minute })
	mustAppend(t, w, "before")
	reads := f.rules.Stats().Calls["read"]
	var readers []*liveReader
	for i := range 100 {
		readers = append(readers, startReader(t, w, scanner.Options{Name: fmt.Sprint("r", i), Start: scanner.Latest}))
	}
	mustAppend(t, w, "one", "two")
	for _, r := range readers {
		waitFor(t, func() bool { return r.scanner.Status().Checkpoint.Tick > 0 })
	}
	waitFor(t, func() bool { return w.Status().Readers != nil && len(w.Status().Readers) == 100 })
	time.Sleep(20 * time.Millisecond)
	for _, r := range readers {
		r.stop()
		if got := fmt.Sprint(texts(r.units)); got != "[one two]" {
			t.Fatalf("a reader got %s", got)
		}
	}
	if more := f.rules.Stats().Calls["read"] - reads; more > 1 {
		t.Errorf("100 tailing readers cost the backend %d reads, want one at most", more)
	}
}

// TestCatchUpEndsOnAnIdleAndTruncatedLog is M-16: the buffer has evicted all it
// may, the log is cut to its last record, and nothing is written.
func TestCatchUpEndsOnAnIdleAndTruncatedLog(t *testing.T) {
	for _, start := range []scanner.Policy{scanner.All, scanner.FromID} {
		t.Run(fmt.Sprint("start=", start), func(t *testing.T) {
			f := newFixture(t)
			w := f.open(func(o *Options) { o.WABBytes, o.WABAge = 1, time.Millisecond })
			r := mustAppend(t, w, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
			waitFor(t, func() bool { return w.Status().LastConfirmed > r[9].ID })
			if err := w.Truncate(within(t, 5*time.Second), r[9].ID); err != nil {
				t.Fatal(err)
			}
			s, err := w.Read(within(t, 5*time.Second), scanner.Options{Start: start, ID: r[9].ID})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if got := fmt.Sprint(texts(drain(t, s))); got != "[9]" {
				t.Errorf("read %s", got)
			}
			if mode := s.Status().Mode; mode != scanner.Tailing {
				t.Errorf("it has caught up and is in mode %s", mode)
			}
			mustAppend(t, w, "next")
			for ctx := within(t, time.Second); ; {
				units, err := s.Next(ctx)
				if err != nil {
					t.Fatalf("the next record: %v", err)
				}
				if got := texts(units); len(got) > 0 {
					if got[0] != "next" {
						t.Errorf("read %v", got)
					}
					return
				}
			}
		})
	}
}

func TestEmptyLogIsCaughtUp(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	for _, start := range []scanner.Policy{scanner.All, scanner.Latest} {
		if got := readUntilCaughtUp(t, w, scanner.Options{Start: start}); len(got) != 0 {
			t.Errorf("start %d read %v", start, texts(got))
		}
	}
}

// TestSwitchingHasNoGapAndNoRepeat is M-17.
func TestSwitchingHasNoGapAndNoRepeat(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.WABBytes, o.WABAge, o.TickBytes = 16<<10, 10*time.Millisecond, 4<<10 })
	const records = 3000
	first := mustAppend(t, w, "0")[0]
	var mu sync.Mutex
	results := []Result{first}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; i < records; i++ {
			r := w.Append(context.Background(), data(fmt.Sprint(i)))[0]
			mu.Lock()
			results = append(results, r)
			mu.Unlock()
		}
	})
	for i := range 20 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			mu.Lock()
			from := results[rng.IntN(len(results))]
			mu.Unlock()
			s, err := w.Read(context.Background(), scanner.Options{Start: scanner.FromID, ID: from.ID})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			next := -1
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			for next < records {
				units, err := s.Next(ctx)
				if err != nil {
					t.Errorf("at %d: %v", next, err)
					return
				}
				for _, u := range units {
					for _, m := range u.Messages {
						var n int
						_, _ = fmt.Sscan(string(m.Payload), &n)
						if next >= 0 && n != next {
							t.Errorf("record %d follows %d", n, next-1)
							return
						}
						next = n + 1
					}
				}
				if i < 5 && rng.IntN(20) == 0 {
					time.Sleep(30 * time.Millisecond) // it falls out of the buffer
				}
			}
		})
	}
	wg.Wait()
}

// TestBuffersDoNotDeadlock is M-18: more records than any buffer takes come
// without a time tick, and the consumer is slow.
func TestBuffersDoNotDeadlock(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.TickInterval, o.Window = 300*time.Millisecond, time.Minute; o.TickBytes = 1 << 30 })
	s, err := w.Read(context.Background(), scanner.Options{Start: scanner.All, MaxBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var want []string
	for i := range 50 {
		var batch []string
		for j := range 100 {
			batch = append(batch, fmt.Sprint(i*100+j))
		}
		mustAppend(t, w, batch...)
		want = append(want, batch...)
	}
	var got []string
	for len(got) < len(want) {
		units, err := s.Next(within(t, 10*time.Second))
		if err != nil {
			t.Fatalf("after %d records: %v", len(got), err)
		}
		got = append(got, texts(units)...)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatal("the order is lost")
	}
}

// TestReaderThatNeverReadsHoldsNothing states the bound: a scanner holds what
// one Next returned and one batch of the backend, whatever is written.
func TestReaderThatNeverReadsHoldsNothing(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.WABBytes = 1 << 20 })
	for i := range 20 {
		s, err := w.Read(context.Background(), scanner.Options{Name: fmt.Sprint(i), Start: scanner.All})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	payload := string(make([]byte, 16<<10))
	before := heap()
	const bytes = 32 << 20
	for range bytes / (16 << 10) / 32 {
		var batch []string
		for range 32 {
			batch = append(batch, payload)
		}
		mustAppend(t, w, batch...)
	}
	// The store in memory holds every record once; the host may add the buffer's
	// bound and what is under way.
	if grown := heap() - before; grown > bytes+24<<20 {
		t.Errorf("the heap grew by %d MiB while %d MiB were stored", grown>>20, bytes>>20)
	}
}

// TestMemoryIsBoundedWithoutTicksAndWithALargeTransaction states the bound of
// the rest: without time ticks a reader holds what the owner may leave unticked
// (TickBytes and what is unresolved), and the transactions that are open.
func TestMemoryIsBoundedWithoutTicksAndWithALargeTransaction(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) {
		o.WABBytes, o.TickInterval, o.TickBytes, o.TxnKeepalive = 1<<20, time.Hour, 4<<20, time.Minute
	})
	var readers []*liveReader
	for range 3 {
		readers = append(readers, startReader(t, w, scanner.Options{Start: scanner.All, Types: []message.Type{message.TypeFlush}}))
	}
	before := heap()
	id := begin(t, w)
	payload := string(make([]byte, 4<<10))
	stored := int64(0)
	write := func(batch []message.Message) {
		t.Helper()
		for _, r := range w.Append(within(t, 10*time.Second), batch) {
			if r.State != walimpls.Stored {
				t.Fatal(r.Err)
			}
		}
		stored += int64(len(batch)) * int64(len(payload))
	}
	for range 100 {
		part := make([]string, 30)
		for i := range part {
			part[i] = payload
		}
		write(body(id, part...))
		write(data(part...))
		write(data(part...))
	}
	const txnBytes, slack = 3000 * 4 << 10, 24 << 20
	if grown := heap() - before; grown > stored+int64(len(readers)+1)*(txnBytes+8<<20)+slack {
		t.Errorf("the heap grew by %d MiB while %d MiB were stored", grown>>20, stored>>20)
	}
	if r := w.Commit(within(t, 10*time.Second), id); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	for _, r := range readers {
		r.stop()
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestFilterLetsTheCheckpointFollowTheTicks(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	s, err := w.Read(context.Background(), scanner.Options{Start: scanner.All, VChannel: "v2", ProgressEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	batch := data("x")
	batch[0].VChannel = "v1"
	r := w.Append(within(t, 5*time.Second), batch)[0]
	for {
		units, err := s.Next(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		u := units[len(units)-1]
		if len(u.Messages) > 0 {
			t.Fatalf("the filter let %v pass", texts(units))
		}
		if u.Checkpoint.Covers(r.Term, r.Tick) {
			return
		}
	}
}

func TestTruncatedStartsAreJudgedByWhatTheyMissed(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	r := mustAppend(t, w, "a", "b")
	waitFor(t, func() bool { return w.Status().LastConfirmed > r[1].ID })
	rest := mustAppend(t, w, "c", "d")
	waitFor(t, func() bool { return w.Status().LastConfirmed > rest[1].ID })
	if err := w.Truncate(within(t, 5*time.Second), rest[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Read(within(t, 5*time.Second), scanner.Options{Start: scanner.Checkpoint, Checkpoint: r[0].Checkpoint}); err == nil {
		t.Error("a checkpoint that missed b was accepted")
	} else if lost := new(walimpls.PositionLostError); !errors.As(err, &lost) {
		t.Errorf("%v, want PositionLostError", err)
	}
	if got := fmt.Sprint(texts(readUntilCaughtUp(t, w, scanner.Options{Start: scanner.FromID, ID: rest[0].ID}))); got != "[c d]" {
		t.Errorf("from the record at the truncation point: %s", got)
	}
	if got := fmt.Sprint(texts(readUntilCaughtUp(t, w, scanner.Options{}))); got != "[c d]" {
		t.Errorf("all: %s", got)
	}
	for _, id := range []message.ID{rest[0].ID, r[0].ID} {
		if err := w.Truncate(within(t, 5*time.Second), id); err != nil {
			t.Errorf("again, and behind: %v", err)
		}
	}
	if err := w.Truncate(within(t, 5*time.Second), message.Uint64ID(1<<40)); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("above the latest id: %v", err)
	}
}

func TestReadersEndWithTheirOwner(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	r := startReader(t, w, scanner.Options{Start: scanner.Latest})
	f.open(nil)
	w.Append(within(t, 5*time.Second), data("x"))
	select {
	case <-r.done:
	case <-time.After(5 * time.Second):
		t.Fatal("the reader of a fenced owner goes on")
	}
	if !errors.Is(r.err, walimpls.ErrTermExpired) {
		t.Fatalf("it ended with %v", r.err)
	}
}
