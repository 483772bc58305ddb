package walmanager

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The cases M-01 and M-02 of public failure reports, step by step.

// M-01: Remove must not inherit the error of an earlier, cancelled Open.
func TestM01RemoveAfterAnOpenThatLostItsDeadline(t *testing.T) {
	o := newFakeOpener()
	blocked := true
	o.onOpen = func(ctx context.Context, channel string, term int64) error {
		if blocked {
			return blockUntilCanceled(ctx, channel, term)
		}
		return nil
	}
	m := New(o, nil)

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantError(t, m.Open(short, "p", 1), context.DeadlineExceeded, "p")

	start := time.Now()
	fresh, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := m.Remove(fresh, "p", 1); err != nil {
		t.Errorf("remove with a healthy context: %v", err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("remove took %v", d)
	}
	o.check(t, 0)

	blocked = false // no open runs
	if err := m.Open(t.Context(), "p", 2); err != nil {
		t.Fatal(err)
	}
	w, err := m.Get("p", 2)
	if err != nil {
		t.Fatal(err)
	}
	if out := w.Append(t.Context(), []message.Message{{Type: message.TypeData}}); out[0].State != walimpls.Stored {
		t.Errorf("append: %+v", out)
	}
	o.check(t, 1)
	closeManager(t, m, o)
}

// M-02: the growing-term rule under concurrent Open and Remove, with lookups,
// status, closes of handed-out WALs and WALs that end by themselves in parallel.
func TestM02TermsOnlyGrowUnderConcurrentCalls(t *testing.T) {
	const seeds, workers, calls, maxTerm = 20, 16, 400, 50
	var total, opened, refused atomic.Int64
	for seed := range uint64(seeds) {
		o := newFakeOpener()
		wait := func(ctx context.Context, _ string, _ int64) error { return nap(ctx, 5*time.Millisecond) }
		o.onOpen, o.onClose = wait, wait
		m := New(o, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)

		stop := make(chan struct{})
		var watchers sync.WaitGroup
		watch := func(f func()) {
			watchers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						f()
						total.Add(1)
						_ = nap(ctx, 200*time.Microsecond)
					}
				}
			})
		}
		lastSeen := int64(0)
		watch(func() {
			w, err := m.Get("p", 0)
			if err != nil {
				return
			}
			if term := w.Channel().Term; term < lastSeen {
				t.Errorf("seed %d: get goes back from term %d to %d", seed, lastSeen, term)
			} else {
				lastSeen = term
			}
			w.Append(ctx, make([]message.Message, 1))
			_ = w.Close(ctx)
		})
		lastStatus := state{term: initialTerm}
		watch(func() {
			for _, s := range m.Status() {
				now := state{s.Term, s.State != Unavailable}
				if now.before(lastStatus) {
					t.Errorf("seed %d: status goes back from %v to %v", seed, lastStatus, now)
				}
				lastStatus = now
				if s.WAL != nil {
					_ = s.WAL.Status()
				}
			}
		})
		if seed%2 == 1 {
			watch(func() {
				if w := o.wal("p"); w != nil && rand.IntN(20) == 0 {
					w.end(walimpls.Errorf(walimpls.CodeTermExpired, "p", "taken over"))
				}
			})
		}

		var wg sync.WaitGroup
		for worker := range uint64(workers) {
			rnd := rand.New(rand.NewPCG(seed, worker)) //nolint:gosec // a repeatable test
			wg.Go(func() {
				for i := range calls / workers {
					// Terms grow on the whole, or the first 50 would be the last success.
					term := 1 + (int64(i)*maxTerm*workers/calls+rnd.Int64N(8))%maxTerm
					call := m.Open
					if rnd.IntN(3) == 0 {
						call = m.Remove
					}
					_ = nap(ctx, 6*time.Millisecond)
					err := call(ctx, "p", term)
					total.Add(1)
					switch {
					case err == nil:
						opened.Add(1)
					case errors.Is(err, walimpls.ErrTermExpired):
						refused.Add(1)
					default:
						t.Errorf("seed %d: a call of term %d gives %v", seed, term, err)
					}
				}
			})
		}
		wg.Wait()
		close(stop)
		watchers.Wait()
		// A lower term is refused at once, without waiting for anything below.
		start := time.Now()
		last := m.Status()[0].Term
		if err := m.Open(ctx, "p", last-1); !errors.Is(err, walimpls.ErrTermExpired) {
			t.Errorf("seed %d: a lower term gives %v", seed, err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("seed %d: the refusal took %v", seed, d)
		}
		if err := m.Open(ctx, "p", maxTerm+1); err != nil {
			t.Errorf("seed %d: the last open: %v", seed, err)
		}
		if w, err := m.Get("p", 0); err != nil || w.Channel().Term != maxTerm+1 {
			t.Errorf("seed %d: at the end: %v", seed, err)
		}
		o.check(t, 1)
		closeManager(t, m, o)
		cancel()
	}
	t.Logf("%d operations over %d seeds: %d of %d Open and Remove succeeded, %d were refused as expired",
		total.Load(), seeds, opened.Load(), seeds*calls, refused.Load())
}

// Close in the midst of everything: whatever was on its way ends, nothing is
// left open, and nobody waits for ever.
func TestCloseInTheMidstOfCallsLeavesNothing(t *testing.T) {
	var ops atomic.Int64
	for seed := range uint64(20) {
		o := newFakeOpener()
		wait := func(ctx context.Context, _ string, _ int64) error { return nap(ctx, 2*time.Millisecond) }
		o.onOpen, o.onClose, o.forgets = wait, wait, seed%2 == 0
		m := New(o, nil)
		var wg sync.WaitGroup
		for worker := range uint64(8) {
			rnd := rand.New(rand.NewPCG(seed, worker)) //nolint:gosec // a repeatable test
			wg.Go(func() {
				for term := int64(1); ; term++ {
					name := string(rune('a' + rnd.IntN(3)))
					var err error
					switch rnd.IntN(8) {
					case 0:
						err = m.Remove(context.Background(), name, term)
					case 1:
						_, err = m.Get(name, 0)
					case 2:
						if o.forgets {
							err = m.Forget(context.Background(), name)
							break
						}
						fallthrough
					default:
						err = m.Open(context.Background(), name, term)
					}
					ops.Add(1)
					if errors.Is(err, walimpls.ErrShutdown) {
						return
					}
				}
			})
		}
		_ = nap(context.Background(), 30*time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := m.Close(ctx); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		cancel()
		wg.Wait()
		o.check(t, 0)
	}
	t.Logf("%d operations", ops.Load())
}
