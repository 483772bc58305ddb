package flusher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// bubble runs a test with a clock of its own, and ends the flusher.
func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f(t, w)
		if w.f != nil {
			w.stop()
		}
	})
}

// eventually polls with the test's own clock.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 10_000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func TestEachRecordIsFlushedOnceToItsVChannelInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1", "v2")
		w.start()
		want := map[string][]string{}
		for i := range 1000 {
			v := []string{"v1", "v2", ""}[i%3]
			w.data(v, fmt.Sprint(i))
			want[v] = append(want[v], fmt.Sprint(i))
		}
		w.flushed("")
		for v, rows := range want {
			w.same(v, rows)
		}
	})
}

func TestRowsWaitForSizeAgeOrAFlushRecord(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.opt.MaxBytes, w.opt.MaxAge = 10_000, time.Minute
		w.create("v1", "v2")
		w.start()
		w.data("v1", "old")
		time.Sleep(50 * time.Second)
		w.same("v1", nil)
		w.data("v2", strings.Repeat("x", 20_000))
		time.Sleep(time.Second)
		if n := len(w.sink.payloads("v2")); n != 1 {
			t.Fatalf("%d rows after more than MaxBytes", n)
		}
		w.same("v1", nil)
		time.Sleep(15 * time.Second)
		w.same("v1", []string{"old"})
		w.data("v1", "now")
		w.flushed("v1")
		w.same("v1", []string{"old", "now"})
	})
}

func TestRestartNeitherLosesNorRepeatsWhateverWasSaved(t *testing.T) {
	for seed := range 20 {
		bubble(t, func(t *testing.T, w *world) {
			rng := rand.New(rand.NewPCG(uint64(seed), 8))
			w.opt.MaxBytes, w.opt.MaxMemory, w.opt.MaxAge = 4000, 20_000, 300*time.Millisecond
			w.create("v1", "v2", "v3")
			want := map[string][]string{}
			for range 12 {
				w.start()
				for range rng.IntN(60) {
					v := []string{"v1", "v2", "v3", ""}[rng.IntN(4)]
					p := fmt.Sprint(v, "-", len(want[v]), strings.Repeat("x", rng.IntN(300)))
					want[v] = append(want[v], p)
					w.data(v, p)
					if rng.IntN(8) == 0 {
						time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
					}
					if rng.IntN(15) == 0 {
						w.sink.fail([]string{"v1", "v2", "v3", ""}[rng.IntN(4)], errors.New("no luck"))
					}
					if rng.IntN(5) == 0 {
						for _, v := range []string{"v1", "v2", "v3", ""} {
							w.sink.fail(v, nil)
						}
					}
				}
				w.stop()
				w.log.term++
				w.store.term = w.log.term
				w.log.beat()
			}
			for _, v := range []string{"v1", "v2", "v3", ""} {
				w.sink.fail(v, nil)
			}
			w.start()
			w.flushed("")
			for _, v := range []string{"v1", "v2", "v3", ""} {
				w.same(v, want[v])
			}
		})
	}
}

func TestIdleVChannelsDoNotHoldTheCheckpointBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("busy", "idle", "few", "gone")
		w.start()
		for i := range 3 {
			w.data("few", fmt.Sprint(i))
		}
		w.log.append(message.TypeDropVChannel, "gone", "")
		for i := range 200 {
			w.data("busy", fmt.Sprint(i))
			w.log.beat()
			time.Sleep(50 * time.Millisecond)
		}
		w.flushed("")
		time.Sleep(3 * w.f.opt.SaveEvery)
		st := w.f.Status(false)
		if lag := w.log.LastTick().Physical() - st.Saved.Tick.Physical(); lag > 3000 {
			t.Fatalf("the saved checkpoint is %d ms behind", lag)
		}
		if row := w.store.get(); len(row.VChannels) != 3 {
			t.Fatalf("the tombstone of the dropped vchannel is still there: %+v", row.VChannels)
		}
		// Nothing is written after a restart, and the log still gets shorter.
		w.stop()
		w.log.term++
		w.store.term = w.log.term
		w.log.beat()
		w.start()
		time.Sleep(10 * w.f.opt.SaveEvery)
		cuts := w.log.cuts()
		if last := cuts[len(cuts)-1]; last.ID != w.log.records[len(w.log.records)-1].ID {
			t.Fatalf("truncated to %v, the log ends at %d", last, len(w.log.records))
		}
	})
}

func TestWithoutVChannelsTheCheckpointFollowsTheTick(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1")
		w.start()
		w.data("v1", "x")
		w.log.append(message.TypeDropVChannel, "v1", "")
		w.log.beat()
		eventually(t, "the log is cut behind the drop", func() bool {
			cuts := w.log.cuts()
			return len(cuts) > 0 && cuts[len(cuts)-1].ID == message.Uint64ID(4)
		})
		w.same("v1", []string{"x"})
		if !w.sink.out("v1").dropped {
			t.Fatal("the manifest has no tombstone")
		}
	})
}

func TestBlockedVChannelHoldsBackTheTruncationAndNobodyElse(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			w.opt.MaxBytes, w.opt.MaxMemory, w.opt.FlushTimeout = 5000, 100_000, 5*time.Second
			w.create("v1", "v2", "v3")
			w.start()
			w.flushed("")
			w.sink.deaf = deaf
			release := w.sink.block("v2")
			defer release()
			want := map[string][]string{}
			for i := range 2000 {
				v := []string{"v1", "v2", "v3"}[i%3]
				want[v] = append(want[v], fmt.Sprint(i))
				w.data(v, fmt.Sprint(i))
				if i%50 == 0 {
					time.Sleep(300 * time.Millisecond)
				}
			}
			w.flushed("v1")
			w.flushed("v3")
			w.same("v1", want["v1"])
			w.same("v3", want["v3"])
			w.same("v2", nil)
			st := w.f.Status(true)
			if st.Counters.Detached == 0 || st.VChannels[2].State != "detached" {
				t.Fatalf("v2 is not detached: %+v", st.VChannels)
			}
			time.Sleep(5 * time.Second)
			for _, cut := range w.log.cuts() {
				if cut.ID > message.Uint64ID(6) {
					t.Fatalf("the log was cut to %v above what v2 has not flushed", cut)
				}
			}
			release()
			w.flushed("v2")
			w.same("v2", want["v2"])
			w.data("v2", "after")
			w.flushed("v2")
			w.same("v2", append(want["v2"], "after"))
			if st := w.f.Status(true); st.Counters.Rejoins == 0 || st.VChannels[2].State != "idle" {
				t.Fatalf("v2 has not rejoined: %+v", st)
			}
			eventually(t, "the log is cut", func() bool {
				cuts := w.log.cuts()
				return len(cuts) > 0 && cuts[len(cuts)-1].ID > message.Uint64ID(1900)
			})
		})
	}
}

func TestServiceCatchesUpWhileRecordsCome(t *testing.T) {
	for seed := range 10 {
		bubble(t, func(t *testing.T, w *world) {
			rng := rand.New(rand.NewPCG(uint64(seed), 4))
			w.opt.MaxBytes, w.opt.MaxMemory, w.opt.StallAfter = 2000, 12_000, time.Second
			w.create("v1", "v2")
			w.start()
			want := map[string][]string{}
			release := func() {}
			for i := range 1500 {
				v := []string{"v1", "v2", ""}[rng.IntN(3)]
				want[v] = append(want[v], fmt.Sprint(i))
				w.data(v, fmt.Sprint(i))
				switch rng.IntN(100) {
				case 0:
					release()
					release = w.sink.block([]string{"v1", "v2", ""}[rng.IntN(3)])
				case 1:
					release()
				case 2, 3, 4, 5, 6:
					time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
				}
			}
			release()
			w.flushed("")
			for v, rows := range want {
				w.same(v, rows)
			}
		})
	}
}

func TestMemoryStaysBelowItsBound(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.opt.MaxBytes, w.opt.MaxMemory, w.opt.StallAfter, w.opt.FlushTimeout = 100_000, 400_000, time.Second, 3*time.Second
		var names []string
		var releases []func()
		for i := range 20 {
			names = append(names, fmt.Sprint("v", i))
		}
		w.create(names...)
		w.start()
		w.flushed("")
		for _, n := range names[:10] {
			releases = append(releases, w.sink.block(n))
		}
		want := map[string][]string{}
		for i := range 4000 {
			v := names[i%20]
			p := fmt.Sprintf("%06d%s", i, strings.Repeat("x", 2000))
			want[v] = append(want[v], p)
			w.data(v, p)
			if i%100 == 0 {
				time.Sleep(200 * time.Millisecond)
			}
		}
		for _, n := range names[10:] {
			w.flushed(n)
			w.same(n, want[n])
		}
		st := w.f.Status(false)
		if limit := w.f.opt.sharedMemory(); st.MemoryPeak > limit {
			t.Fatalf("%d bytes were held, the bound is %d", st.MemoryPeak, limit)
		}
		for _, release := range releases {
			release()
		}
		for _, n := range names {
			w.flushed(n)
			w.same(n, want[n])
		}
	})
}

func TestCloseIsBoundedWithAHungSink(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.sink.deaf = true
		release := w.sink.block("v1")
		w.create("v1")
		w.start()
		w.data("v1", "x")
		time.Sleep(3 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begun := time.Now()
		if err := w.f.Close(ctx); !errors.Is(err, walimpls.ErrTimeout) {
			t.Fatalf("close: %v", err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Fatalf("close took %v", took)
		}
		release()
	})
}

func TestStaleOwnerEndsAndWhatItWritesLateCountsForNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1")
		w.start()
		w.flushed("")
		stale := w.f
		w.sink.deaf = true
		release := w.sink.block("v1")
		w.data("v1", "one")
		time.Sleep(2 * time.Second) // the stale owner's flush hangs with "one"
		log := newFakeLog()
		log.records, log.term, log.tick = append(log.records, w.log.records...), 2, w.log.tick
		store := &fakeStore{log: log, term: 2, row: w.store.get()}
		w.store.mu.Lock()
		w.store.term = 2 // the row is claimed: the stale owner's compare-and-set fails
		w.store.mu.Unlock()
		w.sink.mu.Lock()
		delete(w.sink.hang, "v1")
		w.sink.mu.Unlock()
		newer := &world{t: t, log: log, store: store, sink: w.sink, opt: w.opt}
		newer.start()
		newer.data("v1", "two")
		newer.flushed("")
		release()
		eventually(t, "the stale owner ends", func() bool { return stale.Status(false).State == Ended })
		if err := stale.Status(false).Err; !errors.Is(err, walimpls.ErrFenced) && !errors.Is(err, walimpls.ErrTermExpired) {
			t.Fatalf("it ended with %v", err)
		}
		newer.same("v1", []string{"one", "two"})
		newer.stop()
	})
}

func TestReplayOfALogThatNamesVanishedVChannels(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		// The catalog says that v1 was dropped, the checkpoint is before all of it.
		w.data("v1", "before create")
		w.create("v1", "v1", "v2")
		var want []string
		for i := range 10 {
			w.data("v1", "gone")
			w.data("v2", fmt.Sprint(i))
			want = append(want, fmt.Sprint(i))
		}
		drop := w.log.append(message.TypeDropVChannel, "v1", "")
		w.store.row.VChannels = []VChannel{{Name: "v2"}, {Name: "v1", Dropped: drop.TimeTick}}
		w.start()
		w.flushed("")
		w.same("v2", want)
		w.same("v1", nil)
		if w.sink.out("v1").term != 0 {
			t.Fatal("v1 has a service")
		}
		// A drop that is in the log twice changes nothing.
		w.log.append(message.TypeDropVChannel, "v1", "")
		w.data("v2", "more")
		w.flushed("")
		w.same("v2", append(want, "more"))
	})
}

func TestVChannelIsSavedBeforeItsRecordsAreLookedAt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start()
		w.store.mu.Lock()
		w.store.err = walimpls.Errorf(walimpls.CodeUnavailable, testLog, "the catalog is away")
		w.store.mu.Unlock()
		w.create("v1")
		w.data("v1", "x")
		time.Sleep(time.Minute)
		w.same("v1", nil)
		w.store.mu.Lock()
		w.store.err = nil
		w.store.mu.Unlock()
		w.flushed("v1")
		w.same("v1", []string{"x"})
	})
}

func TestVChannelThatWasDroppedCanBeCreatedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1")
		w.start()
		w.data("v1", "first life")
		w.log.append(message.TypeDropVChannel, "v1", "")
		w.create("v1")
		w.data("v1", "second life")
		w.flushed("v1")
		w.same("v1", []string{"first life", "second life"})
	})
}

func TestDropOfADetachedVChannelFlushesWhatItHolds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.opt.MaxBytes = 2000
		w.create("v1")
		w.start()
		w.flushed("")
		release := w.sink.block("v1")
		var want []string
		for i := range 300 {
			w.data("v1", fmt.Sprint(i))
			want = append(want, fmt.Sprint(i))
			if i%20 == 0 {
				time.Sleep(time.Second)
			}
		}
		w.log.append(message.TypeDropVChannel, "v1", "")
		time.Sleep(time.Minute)
		release()
		w.flushed("")
		w.same("v1", want)
		if !w.sink.out("v1").dropped {
			t.Fatal("the manifest has no tombstone")
		}
	})
}

func TestRecordOfAnUndeclaredVChannelIsAnErrorThatStopsNoOtherPchannel(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start()
		w.data("never", "x")
		eventually(t, "the flusher fails", func() bool { return w.f.Status(false).State == Failed })
		if err := w.f.Status(false).Err; !errors.Is(err, walimpls.ErrCorrupt) {
			t.Fatalf("it failed with %v", err)
		}
		reads := w.log.readCount()
		time.Sleep(time.Minute)
		if again := w.log.readCount() - reads; again > 8 {
			t.Fatalf("it tried %d times a minute", again)
		}
	})
}

func TestLostPositionIsToldAndReadingGoesOnWithTheEarliestOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1")
		w.start()
		w.data("v1", "flushed")
		w.flushed("")
		time.Sleep(3 * time.Second)
		w.stop()
		for i := range 10 {
			w.data("v1", fmt.Sprint(i))
		}
		w.log.first = message.Uint64ID(9) // cut by hand, above what is flushed
		w.log.term++
		w.store.term = w.log.term
		w.start()
		w.flushed("")
		got := w.sink.payloads("v1")
		if got[0] != "flushed" || got[len(got)-1] != "9" || len(got) >= 11 {
			t.Fatalf("flushed %q", got)
		}
		if st := w.f.Status(false); st.Counters.LostPositions != 1 || st.State != Working {
			t.Fatalf("%+v", st)
		}
	})
}

func TestTruncationWaitsForReadersAndForAge(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.opt.MinAge, w.opt.MaxPinAge = 20*time.Second, time.Minute
		w.create("v1")
		w.start()
		for i := range 100 {
			w.data("v1", fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
		}
		w.flushed("")
		time.Sleep(5 * time.Second)
		if cuts := w.log.cuts(); len(cuts) > 0 {
			t.Fatalf("cut too young: %v", cuts)
		}
		w.log.mu.Lock()
		w.log.readers = []ReaderPosition{{Number: 1, ID: message.Uint64ID(40)}}
		w.log.mu.Unlock()
		time.Sleep(40 * time.Second)
		for _, cut := range w.log.cuts() {
			if cut.ID > message.Uint64ID(40) {
				t.Fatalf("cut to %v above a reader's position", cut)
			}
		}
		time.Sleep(2 * time.Minute)
		w.log.beat()
		cuts := w.log.cuts()
		if len(cuts) == 0 || cuts[len(cuts)-1].ID < message.Uint64ID(90) {
			t.Fatalf("the reader holds the log for ever: %v", cuts)
		}
	})
}

func TestSavesBackOffAndTakeTheNewestCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1")
		w.start()
		w.flushed("")
		time.Sleep(3 * time.Second)
		w.store.mu.Lock()
		w.store.err = walimpls.Errorf(walimpls.CodeUnavailable, testLog, "the catalog is away")
		w.store.mu.Unlock()
		for range 100 {
			w.log.beat()
			time.Sleep(time.Second)
		}
		if st := w.f.Status(false); st.SaveErr == nil || st.State != Working {
			t.Fatalf("%+v", st)
		}
		w.store.mu.Lock()
		w.store.err = nil
		w.store.mu.Unlock()
		last := w.log.LastTick()
		eventually(t, "the newest is saved", func() bool {
			row := w.store.get()
			return row.Checkpoints[len(row.Checkpoints)-1].Tick == last
		})
	})
}

func TestOutputThatDoesNotOpenKeepsNobodyElseFromRecovering(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1", "v2")
		w.start()
		w.data("v1", "a")
		w.data("v2", "b")
		w.flushed("")
		w.stop()
		w.data("v1", "c")
		w.data("v2", "d")
		w.log.term++
		w.store.term = w.log.term
		hung := make(chan struct{})
		w.sink.openHang["v1"] = hung
		w.start()
		w.flushed("v2")
		w.same("v2", []string{"b", "d"})
		w.same("v1", []string{"a"})
		w.sink.mu.Lock()
		delete(w.sink.openHang, "v1")
		w.sink.mu.Unlock()
		close(hung)
		w.flushed("")
		w.same("v1", []string{"a", "c"})
	})
}

func TestWaitTellsWhyAFlushDoesNotCome(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("v1")
		w.start()
		w.flushed("")
		w.sink.fail("v1", errors.New("the bucket is gone"))
		w.data("v1", "x")
		m := w.log.append(message.TypeFlush, "v1", "")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := w.f.Wait(ctx, "v1", m.Term, m.TimeTick)
		if !errors.Is(err, walimpls.ErrTimeout) || !strings.Contains(err.Error(), "the bucket is gone") {
			t.Fatalf("%v", err)
		}
		w.sink.fail("v1", nil)
		w.flushed("v1")
	})
}
