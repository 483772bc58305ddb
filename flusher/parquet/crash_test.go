package parquet

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
)

// collectAll runs the background work once, in the open.
func collectAll(s *Sink) error {
	for _, o := range s.owners() {
		if err := o.collect(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// A process flushes this many chunks of ticks.
const (
	chunk  = 4
	chunks = 3
)

// crashWorkload is a process's life. It stops at the first error, as if killed,
// and returns the tick up to which a flush of both vchannels was acknowledged.
func crashWorkload(s *Sink, term int64, cut message.Tick) (acked message.Tick) {
	ctx := context.Background()
	busy, err := s.Open(ctx, testKey("busy", term))
	if err != nil {
		return cut
	}
	early, err := s.Open(ctx, testKey("early", term))
	if err != nil {
		return cut
	}
	acked = cut
	for range chunks {
		next := max(acked, busy.Checkpoint().Tick) + chunk
		from, to := dataTicks("early", early.Checkpoint().Tick, next)
		if from <= to {
			if _, err := early.Flush(ctx, testRows("early", from, to), testCheckpoint(1, next)); err != nil {
				return acked
			}
		}
		from, to = dataTicks("busy", busy.Checkpoint().Tick, next)
		if _, err := busy.Flush(ctx, testRows("busy", from, to), testCheckpoint(1, next)); err != nil {
			return acked
		}
		acked = next
		if collectAll(s) != nil {
			return acked
		}
	}
	return acked
}

// A process dies at its n-th operation on the store, for every n, with the
// operation done or not; the next one dies likewise; then one lives. At each
// start, and at the end, what is listed is right.
func TestCrashAtEveryStepNeitherLosesNorRepeats(t *testing.T) {
	t.Parallel()
	steps := 0
	for n := 1; ; n++ {
		ended := true
		for _, effect := range []bool{false, true} {
			m := newMemStore()
			var cut message.Tick
			for term := int64(1); term <= 3; term++ {
				var ops atomic.Int64
				dies := func(context.Context, string, string) (bool, error) {
					switch i := ops.Add(1); {
					case term == 3 || i < int64(n):
						return true, nil
					case i == int64(n):
						return effect, errInjected
					}
					return false, errInjected // it is dead
				}
				s := testSink(m, dies)
				cut = crashWorkload(s, term, cut)
				if term < 3 && ops.Load() >= int64(n) {
					ended = false
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				after := testSink(m.clone(), open)
				for _, v := range []string{"busy", "early"} {
					out, err := after.Open(context.Background(), testKey(v, 9))
					if err != nil {
						t.Fatalf("step %d, effect %v, term %d: %v", n, effect, term, err)
					}
					checkOutput(t, after.st.(*gatedStore).memStore, out, v, cut)
				}
				if err := after.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if cut < chunk*chunks {
				t.Fatalf("step %d: the last process got to %d only", n, cut)
			}
			checkNoGarbage(t, m)
		}
		if steps = n; ended {
			break
		}
	}
	if steps < 60 {
		t.Fatalf("only %d steps: the workload is too small", steps)
	}
}

func (s *memStore) clone() *memStore {
	c := newMemStore()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range s.objects {
		c.objects[k] = v
	}
	return c
}

// checkNoGarbage takes the log over once more, collects, and counts what is left.
func checkNoGarbage(t *testing.T, m *memStore) {
	t.Helper()
	ctx := context.Background()
	s := testSink(m, open)
	defer func() { _ = s.Close() }()
	want := map[string]bool{}
	for _, v := range []string{"busy", "early"} {
		out, err := s.Open(ctx, testKey(v, 10))
		if err != nil {
			t.Fatal(err)
		}
		files, err := out.Files(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			want[f.Path] = true
		}
		o := out.(*vchannelSink).o
		_, pages, err := o.walk(ctx, out.(*vchannelSink).st.m, position{})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range pages {
			want[key] = true
		}
		if newest := out.(*vchannelSink).st.newest; !newest.At.isZero() {
			want[o.l.manifest(v, newest)] = true
		}
		want[o.l.claim(o.id)], want[o.l.intent(o.id)] = true, true
	}
	time.Sleep(time.Millisecond) // what is left over has to be a little old
	if err := collectAll(s); err != nil {
		t.Fatal(err)
	}
	for key := range m.objects {
		if !want[key] {
			t.Errorf("left over: %s", key)
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("missing: %s", key)
	}
	if t.Failed() {
		t.FailNow()
	}
}
