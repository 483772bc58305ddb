package rmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// faults injects what a test sets, into every operation of the file system.
type faults struct {
	mu   sync.Mutex
	hook func(op errorfs.Op) error
}

func (f *faults) set(hook func(op errorfs.Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *faults) maybe(op errorfs.Op) error {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op)
}

func newFaultyStore(t testing.TB) (*store, *faults) {
	f := &faults{}
	s := newMemStore(t)
	s.fs = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(f.maybe))

	return s, f
}

// once fails the first operation that matches.
func once(err error, matches func(op errorfs.Op) bool) func(op errorfs.Op) error {
	var done atomic.Bool
	return func(op errorfs.Op) error {
		if matches(op) && done.CompareAndSwap(false, true) {
			return err
		}
		return nil
	}
}

func isSync(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		return true
	}
	return false
}

func isLog(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".seg") }

// isActive reports that the operation is on the first segment.
func isActive(op errorfs.Op) bool { return isLog(op) && strings.HasSuffix(op.Path, "01.seg") }

// W-03: after a failed sync (write, roll, folder sync) nothing is acknowledged
// until the store was opened again, even though the disk works again; what was
// acknowledged is there then, and what is unknown is there once or not at all.
func TestAfterAFailedSyncNothingIsAcknowledgedUntilReopened(t *testing.T) {
	eio := error(syscall.EIO)
	for _, c := range []struct {
		name    string
		matches func(op errorfs.Op) bool
		roll    bool // the operation happens at a roll only
	}{
		// The next segment is prepared in the background meanwhile.
		{name: "sync of the log", matches: func(op errorfs.Op) bool { return isActive(op) && isSync(op) }},
		{name: "write of the log", matches: func(op errorfs.Op) bool { return isActive(op) && op.Kind == errorfs.OpFileWriteAt }},
		{name: "making a new segment", roll: true, matches: func(op errorfs.Op) bool { return isLog(op) && op.Kind == errorfs.OpCreate }},
		{name: "sync of the folder", roll: true, matches: func(op errorfs.Op) bool { return isSync(op) && strings.HasSuffix(op.Path, "/log") }},
		{name: "write of the next segment", roll: true, matches: func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, "3.seg")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := newFaultyStore(t)
			s.cfg = walimpls.Config{"segment_size": "256KiB"}
			o := s.opener()
			w, bystander := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("d", 1, 1))
			reader := mustRead(t, bystander, walimpls.FromLatest())
			acked := mustAppend(t, w, "before")

			fired := make(chan struct{})
			hook := once(eio, c.matches)
			f.set(func(op errorfs.Op) error {
				err := hook(op)
				if err != nil {
					close(fired)
				}
				return err
			})
			size := 10
			if c.roll {
				size = 20_000
			}
			var unknown []string
			for i := 0; ; i++ {
				text := fmt.Sprintf("%d-%s", i, strings.Repeat("x", size))
				ids, err := w.Append(testContext(t), batchOf(text))
				if err == nil {
					if !c.roll {
						t.Fatal("acknowledged without a sync")
					}
					acked = append(acked, ids...)
					continue
				}
				// The one in flight is unknown; when the failure was in the
				// background there may be none.
				if errors.Is(err, walimpls.ErrUnknownOutcome) {
					unknown = append(unknown, text)
				}
				break
			}
			<-fired
			if !c.roll && len(unknown) != 1 {
				t.Fatal("the append whose sync failed is not unknown")
			}
			for _, w := range []walimpls.WAL{w, bystander} {
				for range 3 {
					_, err := w.Append(testContext(t), batchOf("more"))
					wantIs(t, err, walimpls.ErrUnavailable)
					if walimpls.Outcomes("", 1, nil, err)[0].State != walimpls.NotStored {
						t.Fatalf("later appends are refused as not stored, got %v", err)
					}
				}
			}
			_, err := reader.Next(testContext(t))
			wantIs(t, err, walimpls.ErrUnavailable)

			again := mustOpen(t, o, rw("c", 1, 2)) // the same opener, in the same process
			mustAppend(t, again, "after")
			got := map[message.ID]string{}
			count := map[string]int{}
			for _, m := range readAll(t, again) {
				got[m.ID] = string(m.Payload)
				count[string(m.Payload)]++
			}
			for _, id := range acked {
				if _, ok := got[id]; !ok {
					t.Fatalf("the acknowledged record %s is lost", id)
				}
			}
			if count["before"] != 1 || count["after"] != 1 || count["more"] != 0 {
				t.Fatalf("got counts %v", count)
			}
			for _, text := range unknown {
				if count[text] > 1 {
					t.Fatal("an unknown record is there twice")
				}
			}
		})
	}
}

// The recovered tail is rewritten before Open returns; an open that cannot do
// it fails, typed, and the next one tries anew.
func TestOpenThatCannotRewriteTheTailFailsAndIsRetried(t *testing.T) {
	for _, c := range []struct{ cause, want error }{
		{syscall.EIO, walimpls.ErrUnavailable}, {syscall.ENOSPC, walimpls.ErrNoSpace}, {syscall.EROFS, walimpls.ErrInvalidArgument},
	} {
		for _, name := range []string{".seg", "/log"} {
			t.Run(fmt.Sprintf("%v %s", c.cause, name), func(t *testing.T) {
				s, f := newFaultyStore(t)
				o := s.opener()
				mustAppend(t, mustOpen(t, o, rw("c", 1, 1)), "a")
				must(t, o.Close(context.Background()))
				o = s.opener()
				f.set(func(op errorfs.Op) error {
					if strings.Contains(op.Path, name) && (isSync(op) || op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpRename) {
						return c.cause
					}
					return nil
				})
				for range 2 {
					_, err := o.Open(testContext(t), rw("c", 1, 2))
					wantIs(t, err, c.want)
					if !strings.Contains(err.Error(), s.dir) {
						t.Fatalf("the error does not name the folder: %v", err)
					}
				}
				f.set(nil)
				w := mustOpen(t, o, rw("c", 1, 2))
				mustAppend(t, w, "b")
				wantPayloads(t, readAll(t, w), "a", "b")
			})
		}
	}
}

// hang blocks matching operations until release is called.
func hang(matches func(op errorfs.Op) bool) (hook func(errorfs.Op) error, reached <-chan struct{}, release func()) {
	at, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	return func(op errorfs.Op) error {
		if matches(op) {
			once.Do(func() { close(at) })
			<-gate
		}
		return nil
	}, at, sync.OnceFunc(func() { close(gate) })
}

func TestAppendWhoseCallerLeavesIsUnknownAndEndsTheHandle(t *testing.T) {
	s, f := newFaultyStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	ctx, cancel := context.WithCancel(context.Background())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.Append(ctx, batchOf("in flight"))
		first <- err
	}()
	<-reached
	go func() { // queued behind it
		_, err := w.Append(ctx, batchOf("queued"))
		second <- err
	}()
	e := w.(*handle).engine
	waitFor(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue.requests) == 1
	})
	// A scanner does not see what is not durable, although it is written.
	sc := mustRead(t, w, walimpls.StartFrom(message.Uint64ID(1)))
	readUpTo(t, sc, message.Uint64ID(1))
	nothingComes(t, sc)

	cancel()
	err := <-first
	wantIs(t, err, walimpls.ErrUnknownOutcome)
	err = <-second
	wantIs(t, err, context.Canceled)
	if walimpls.Outcomes("", 1, nil, err)[0].State != walimpls.NotStored {
		t.Fatalf("what was queued is not stored, got %v", err)
	}
	_, err = w.Append(testContext(t), batchOf("later"))
	wantIs(t, err, walimpls.ErrUnavailable)

	release()
	w = mustOpen(t, o, rw("c", 1, 2))
	wantPayloads(t, readAll(t, w), "in flight") // settled: before the new fence, or never
}

// Rule 8: Close returns within the grace whatever hangs below, nothing is
// acknowledged afterwards, and nobody else gets the folder while a write may
// still be under way.
func TestCloseIsBoundedWhileTheDiskHangs(t *testing.T) {
	s, f := newFaultyStore(t)
	s.tune = func(s *settings) { s.closeGrace, s.inFlightGrace = 200*time.Millisecond, 50*time.Millisecond }
	s.cfg = walimpls.Config{"open_timeout": "50ms"}
	o, _ := Builder{fs: s.fs, tune: s.tune}.Build(context.Background(), walimpls.Config{"dir": s.dir}, nil)
	w := mustOpen(t, o, rw("c", 1, 1))
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	appended := make(chan error, 2)
	go func() {
		_, err := w.Append(context.Background(), batchOf("a"))
		appended <- err
	}()
	<-reached
	began := time.Now()
	must(t, w.Close(context.Background()))
	wantIs(t, <-appended, walimpls.ErrUnknownOutcome)
	for range 2 {
		wantIs(t, o.Close(context.Background()), walimpls.ErrUnavailable)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Fatalf("closing took %v", took)
	}
	_, err := s.opener().Open(testContext(t), rw("c", 1, 2))
	wantIs(t, err, walimpls.ErrUnavailable) // still locked

	release()
	must(t, o.Close(context.Background()))
	mustAppend(t, mustOpen(t, s.opener(), rw("c", 1, 2)), "b")
}

func TestOpenerCloseEndsQueuedAppendsAsNotStored(t *testing.T) {
	s, f := newFaultyStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.Append(context.Background(), batchOf("a"))
		first <- err
	}()
	<-reached
	go func() {
		_, err := w.Append(context.Background(), batchOf("b"))
		second <- err
	}()
	e := w.(*handle).engine
	waitFor(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue.requests) == 1
	})
	closed := make(chan error, 1)
	go func() { closed <- o.Close(context.Background()) }()
	wantIs(t, <-second, walimpls.ErrClosed)
	release()
	must(t, <-first) // it had a little time to end, and did
	must(t, <-closed)
	wantPayloads(t, readAll(t, mustOpen(t, s.opener(), ro("c"))), "a")
}

// W-04: on a full disk appends are refused as not stored; opening, reading and
// truncation work, and appends again when there is room.
func TestFullDiskRefusesAppendsOnly(t *testing.T) {
	mem := vfs.NewMem()
	s := newMemStore(t)
	s.fs = mem
	s.cfg = walimpls.Config{"min_free": "1MiB"}
	usage := func(avail uint64) {
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: avail, TotalBytes: 1 << 30})
	}
	usage(1<<20 + 1000)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	ids := mustAppend(t, w, "a", "b", "c")
	usage(1<<20 - 1)
	for range 3 {
		_, err := w.Append(testContext(t), batchOf("x"))
		wantIs(t, err, walimpls.ErrNoSpace)
		if walimpls.Outcomes("", 1, nil, err)[0].State != walimpls.NotStored {
			t.Fatalf("got %v", err)
		}
	}
	must(t, o.Close(context.Background()))

	o = s.opener()
	w = mustOpen(t, o, rw("c", 1, 2))
	wantPayloads(t, readAll(t, w), "a", "b", "c")
	must(t, w.Truncate(testContext(t), ids[1]))
	_, err := w.Append(testContext(t), batchOf("x"))
	wantIs(t, err, walimpls.ErrNoSpace)
	usage(1 << 30)
	mustAppend(t, w, "d") // the handle did not end
	wantPayloads(t, readAll(t, w), "b", "c", "d")
}

// quotaFS is a file system of a fixed size.
type quotaFS struct {
	vfs.FS
	total uint64
}

func (q *quotaFS) used(dir string) (bytes uint64) {
	names, _ := q.List(dir)
	for _, name := range names {
		path := q.PathJoin(dir, name)
		if info, err := q.Stat(path); err == nil && info.IsDir() {
			bytes += q.used(path)
		} else if err == nil {
			bytes += uint64(info.Size())
		}
	}
	return bytes
}

func (q *quotaFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := min(q.used("/"), q.total)
	return vfs.DiskUsage{AvailBytes: q.total - used, TotalBytes: q.total, UsedBytes: used}, nil
}

// maybe is the injector: what grows a file over the quota fails.
func (q *quotaFS) maybe(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpCreate:
		if q.used("/") >= q.total {
			return syscall.ENOSPC
		}
	}
	return nil
}

// W-04, on a disk of 8 MiB with the default configuration: fill it, restart
// while it is full, read everything, truncate half, and again, three times.
func TestTinyDiskFillsUpAndIsTruncated(t *testing.T) {
	quota := &quotaFS{FS: vfs.NewMem(), total: 8 << 20}
	s := newMemStore(t)
	s.fs = errorfs.Wrap(quota, errorfs.InjectorFunc(quota.maybe))
	s.cfg = walimpls.Config{"segment_size": "32MiB"}
	s.tune = func(s *settings) { s.reclaimDelay = time.Millisecond }
	noise := randomPayload(1 << 20)
	var kept []message.ID
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		o := s.opener()
		w := mustOpen(t, o, rw("c", 1, 0))
		stored := 0
		for {
			m := message.Message{Type: message.TypeData, Payload: noise[stored : stored+64<<10]}
			ids, err := w.Append(testContext(t), []message.Message{m})
			if errors.Is(err, walimpls.ErrNoSpace) {
				break
			}
			must(t, err)
			kept = append(kept, ids...)
			stored++
		}
		if stored < 20 {
			t.Fatalf("only %d records went in", stored)
		}
		must(t, o.Close(context.Background()))

		o = s.opener()
		w = mustOpen(t, o, rw("c", 1, 0))
		if got := len(payloads(readAll(t, w))); got != len(kept) {
			t.Fatalf("%d records are there, want %d", got, len(kept))
		}
		kept = kept[len(kept)/2:]
		must(t, w.Truncate(testContext(t), kept[0]))
		retained := uint64(len(kept) * 64 << 10)
		waitFor(t, func() bool { return quota.used("/") < 2*retained && quota.used("/") < quota.total*3/4-1<<20 })
		must(t, o.Close(context.Background()))
	}
}

// The disk fills up under our hands, in spite of the reserve.
func TestNoSpaceInsideACommitIsUnknownThenTyped(t *testing.T) {
	s, f := newFaultyStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	mustAppend(t, w, "a")
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpCreate {
			return syscall.ENOSPC
		}
		return nil
	})
	_, err := w.Append(testContext(t), batchOf("b"))
	wantIs(t, err, walimpls.ErrUnknownOutcome)
	_, err = w.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.FromAll()})
	wantIs(t, err, walimpls.ErrNoSpace)
	_, err = o.Open(testContext(t), rw("c", 1, 2))
	wantIs(t, err, walimpls.ErrNoSpace)
	f.set(nil)
	w = mustOpen(t, o, rw("c", 1, 2))
	mustAppend(t, w, "c")
	got := payloads(readAll(t, w))
	if got[0] != "a" || got[len(got)-1] != "c" || len(got) > 3 {
		t.Fatalf("got %q", got)
	}
}

// waitFor polls a condition that another goroutine brings about.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(testTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("the condition did not come true")
		}
	}
}
