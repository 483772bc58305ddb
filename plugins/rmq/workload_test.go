package rmq

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// M-07: 64 callers of one handle, some of whose records are refused; each gets
// its own result and nobody else's.
func TestEachCallerGetsItsOwnResult(t *testing.T) {
	const callers, appends, every = 64, 200, 50
	s := newMemStore(t)
	s.tune = func(s *settings) { s.limits.MaxMessageBytes = 100 }
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	var mu sync.Mutex
	want := map[message.ID]string{}
	var refused int
	var callersDone sync.WaitGroup
	for g := range callers {
		callersDone.Go(func() {
			for i := range appends {
				text := fmt.Sprintf("%d-%d", g, i)
				fails := (g*appends+i)%every == 0
				m := data(text)
				if fails {
					m.Payload = append(m.Payload, make([]byte, 100)...)
				}
				ids, err := w.Append(testContext(t), []message.Message{m})
				mu.Lock()
				switch {
				case fails && errors.Is(err, walimpls.ErrTooLarge):
					refused++
				case fails || err != nil:
					t.Errorf("%s: refused on purpose %v, got %v", text, fails, err)
				case want[ids[0]] != "":
					t.Errorf("id %s was given to %s and to %s", ids[0], want[ids[0]], text)
				default:
					want[ids[0]] = text
				}
				mu.Unlock()
			}
		})
	}
	callersDone.Wait()
	if refused != callers*appends/every || len(want) != callers*appends-refused {
		t.Fatalf("%d stored, %d refused", len(want), refused)
	}
	for _, m := range readAll(t, w)[1:] {
		if want[m.ID] != string(m.Payload) {
			t.Fatalf("record %s is %q, its caller appended %q", m.ID, m.Payload, want[m.ID])
		}
		delete(want, m.ID)
	}
	if len(want) > 0 {
		t.Fatalf("%d records are missing", len(want))
	}
}

// M-14: sizes around the limit; each is stored whole or refused at once, and
// the record after it is stored in any case.
func checkSizes(t *testing.T, w walimpls.WAL, limit int, sizes []int) {
	type stored struct {
		sum  [32]byte
		size int
	}
	want := map[message.ID]stored{}
	payload := bytes.Repeat(randomPayload(64<<10+1), slices.Max(sizes)/(64<<10)+1)
	ctx := context.Background()
	for n, size := range sizes {
		m := message.Message{Type: message.TypeData, Payload: payload[:size]}
		began := time.Now()
		ids, err := w.Append(ctx, []message.Message{m})
		switch {
		case size <= limit:
			must(t, err)
			want[ids[0]] = stored{sha256.Sum256(m.Payload), size}
		case !errors.Is(err, walimpls.ErrTooLarge) || walimpls.Outcomes("", 1, ids, err)[0].State != walimpls.NotStored:
			t.Fatalf("size %d: got %v", size, err)
		case time.Since(began) > time.Second:
			t.Fatalf("size %d was refused after %v", size, time.Since(began))
		}
		mustAppend(t, w, fmt.Sprintf("ok-%d", n))
	}
	s, err := w.Read(ctx, walimpls.ReadOptions{Start: walimpls.FromAll()})
	must(t, err)
	defer s.Close()
	b, err := w.Bounds(ctx)
	must(t, err)
	for last := message.ID(""); last != b.Latest; {
		records, err := s.Next(ctx)
		must(t, err)
		for _, m := range records {
			last = m.ID
			if s, ok := want[m.ID]; ok {
				if len(m.Payload) != s.size || sha256.Sum256(m.Payload) != s.sum {
					t.Fatalf("the record of %d bytes came back changed", s.size)
				}
				delete(want, m.ID)
			}
		}
	}
	if len(want) > 0 {
		t.Fatalf("%d records are missing", len(want))
	}
}

func TestRecordsAroundTheLimit(t *testing.T) {
	const limit = 1 << 20
	s := newMemStore(t)
	s.tune = func(s *settings) { s.limits.MaxMessageBytes, s.limits.MaxBatchBytes = limit, limit }
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	var sizes []int
	for d := -200; d <= 200; d += 20 {
		sizes = append(sizes, limit+d)
	}
	checkSizes(t, w, limit, append(sizes, limit+1, 8*limit, limit/2, 32<<10, 32<<10-1, 0))

	// Properties count, too.
	m := message.Message{Type: message.TypeData, Payload: make([]byte, limit-64<<10), Properties: map[string]string{"k": string(make([]byte, 64<<10-1))}}
	_, err := w.Append(testContext(t), []message.Message{m})
	must(t, err)
	m.Properties["k"] += "x"
	_, err = w.Append(testContext(t), []message.Message{m})
	wantIs(t, err, walimpls.ErrTooLarge)
}

func TestRecordOfTheDeclaredLimitIsStored(t *testing.T) {
	if testing.Short() {
		t.Skip("it moves 32 MiB records through the race detector; TestRecordsAroundTheLimit does the same with a small limit")
	}
	d := NewBuilder().Describe()
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	checkSizes(t, w, d.Limits.MaxMessageBytes, []int{d.Limits.MaxMessageBytes, d.Limits.MaxMessageBytes + 1})
}

// M-23: scanners come and go on many goroutines while a writer appends.
func TestScannersComeAndGoWhileAWriterAppends(t *testing.T) {
	o := newMemStore(t).opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	stop, writerDone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(writerDone)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := w.Append(context.Background(), batchOf(fmt.Sprint(i))); err != nil {
				t.Errorf("append: %v", err)
				return
			}
		}
	}()
	starts := []walimpls.Start{walimpls.FromAll(), walimpls.FromLatest(), walimpls.StartFrom(message.Uint64ID(1))}
	var readers sync.WaitGroup
	for g := range 50 {
		readers.Go(func() {
			for i := range 20 {
				s := mustRead(t, w, starts[(g+i)%len(starts)])
				var last message.ID
				for n := 0; n < 10; {
					records, err := s.Next(testContext(t))
					if err != nil {
						t.Errorf("next: %v", err)
						return
					}
					for _, m := range records {
						if !last.Less(m.ID) {
							t.Errorf("%s behind %s", m.ID, last)
						}
						last = m.ID
					}
					n += len(records)
				}
				must(t, s.Close())
			}
		})
	}
	readers.Wait()
	close(stop)
	<-writerDone
}

// U-02: ids survive storage and sort as the log does, as bytes and as text.
func TestIDsRoundTripAndSortInLogOrder(t *testing.T) {
	w := mustOpen(t, newMemStore(t).opener(), rw("c", 1, 1))
	layout := NewBuilder().Describe().IDLayout
	ids := make([]message.ID, 400)
	var appends sync.WaitGroup
	for i := range 200 {
		appends.Go(func() { ids[i] = mustAppend(t, w, fmt.Sprint(i))[0] })
	}
	appends.Wait()
	for i := 200; i < 400; i++ {
		ids[i] = mustAppend(t, w, fmt.Sprint(i))[0]
	}
	for i, id := range ids {
		text, err := layout.Format(id)
		must(t, err)
		back, err := layout.Parse(text)
		must(t, err)
		s := mustRead(t, w, walimpls.StartFrom(back))
		records, err := s.Next(testContext(t))
		must(t, err)
		if back != id || records[0].ID != id || string(records[0].Payload) != fmt.Sprint(i) {
			t.Fatalf("id %s (%s) leads to record %s %q, want %d", id, text, records[0].ID, records[0].Payload, i)
		}
		must(t, s.Close())
	}
	if sorted := slices.Sorted(slices.Values(ids)); len(slices.Compact(sorted)) != len(ids) {
		t.Fatal("an id was given twice")
	}
}

// Whatever waits, of all channels, is one commit.
func TestAppendsOfAllChannelsShareACommit(t *testing.T) {
	s, f := newFaultyStore(t)
	var largest atomic.Int64
	s.tune = func(s *settings) {
		s.onCommit = func(n int) { largest.Store(max(largest.Load(), int64(n))) }
	}
	o := s.opener()
	const channels = 10
	var handles [channels]walimpls.WAL
	for i := range handles {
		handles[i] = mustOpen(t, o, rw(fmt.Sprint("c", i), 1, 1))
	}
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	var appends sync.WaitGroup
	appends.Go(func() { mustAppend(t, handles[0], "first") })
	<-reached
	for _, w := range handles {
		appends.Go(func() { mustAppend(t, w, "x") })
	}
	e := handles[0].(*handle).engine
	waitFor(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue.requests) == channels
	})
	release()
	appends.Wait()
	if largest.Load() != channels {
		t.Fatalf("the largest commit had %d requests, want %d", largest.Load(), channels)
	}
}

// Appends wait for room in the queue instead of filling the memory; they can
// leave meanwhile, and they go on when there is room.
func TestQueueIsBounded(t *testing.T) {
	s, f := newFaultyStore(t)
	s.tune = func(s *settings) { s.queueBytes = 1000 }
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	var appends sync.WaitGroup
	appends.Go(func() { mustAppend(t, w, "first") })
	<-reached
	for range 30 {
		appends.Go(func() { mustAppend(t, w, strings.Repeat("x", 200)) })
	}
	e := w.(*handle).engine
	queued := func() (requests, bytes int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue.requests), e.queue.bytes
	}
	waitFor(t, func() bool { n, _ := queued(); return n == 4 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := w.Append(ctx, batchOf(strings.Repeat("y", 200)))
	wantIs(t, err, context.DeadlineExceeded)
	if walimpls.Outcomes("", 1, nil, err)[0].State != walimpls.NotStored {
		t.Fatalf("got %v", err)
	}
	if n, bytes := queued(); n != 4 || bytes > 1000 {
		t.Fatalf("%d requests with %d bytes are queued", n, bytes)
	}
	release()
	appends.Wait()
	mustAppend(t, w, strings.Repeat("z", 5000)) // larger than the queue: alone
	if _, bytes := queued(); bytes != 0 {
		t.Fatalf("%d bytes are left in an empty queue", bytes)
	}
	if got := len(payloads(readAll(t, w))); got != 32 {
		t.Fatalf("%d records, want 32", got)
	}
}

// Whoever waits for room is woken by the end of its handle, and by nothing less.
func TestCloseWakesAppendsThatWaitForRoom(t *testing.T) {
	s, f := newFaultyStore(t)
	s.tune = func(s *settings) { s.queueBytes = 100 }
	o := s.opener()
	w, other := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("d", 1, 1))
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	var appends sync.WaitGroup
	appends.Go(func() { mustAppend(t, other, "in flight") })
	<-reached
	appends.Go(func() { mustAppend(t, other, strings.Repeat("x", 90)) }) // the queue is full
	waitFor(t, func() bool {
		e := w.(*handle).engine
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue.requests) == 1
	})
	waiting := make(chan error, 1)
	appends.Go(func() {
		_, err := w.Append(testContext(t), batchOf(strings.Repeat("y", 90)))
		waiting <- err
	})
	appends.Go(func() { mustAppend(t, other, strings.Repeat("z", 90)) }) // of another handle: waits on
	must(t, w.Close(testContext(t)))
	wantIs(t, <-waiting, walimpls.ErrClosed)
	release()
	appends.Wait()
	wantPayloads(t, readAll(t, mustOpen(t, o, ro("c"))))
	if got := len(payloads(readAll(t, other))); got != 3 {
		t.Fatalf("%d records of the other channel, want 3", got)
	}
}

// A canceled append frees its place in the queue.
func TestCanceledAppendsFreeTheQueue(t *testing.T) {
	s, f := newFaultyStore(t)
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	hook, reached, release := hang(func(op errorfs.Op) bool { return isLog(op) && isSync(op) })
	defer release()
	f.set(hook)
	ctx, cancel := context.WithCancel(context.Background())
	var appends sync.WaitGroup
	appends.Go(func() { mustAppend(t, w, "first") })
	<-reached
	for range 10 {
		appends.Go(func() {
			_, err := w.Append(ctx, batchOf("x"))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	e := w.(*handle).engine
	waitFor(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue.requests) == 10
	})
	cancel()
	waitFor(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.queue.bytes == 0
	})
	release()
	appends.Wait()
	mustAppend(t, w, "last")
	wantPayloads(t, readAll(t, w), "first", "last")
}

// W-04: truncation really gives space back, soon, and keeps what it must.
func TestTruncationGivesSpaceBack(t *testing.T) {
	t.Run("with room", func(t *testing.T) { checkSpace(t, 1<<30, true) })
	t.Run("on a nearly full disk", func(t *testing.T) { checkSpace(t, 200<<20, false) })
}

func checkSpace(t *testing.T, free uint64, drop bool) {
	s := newMemStore(t)
	s.fs.(*vfs.MemFS).TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 30})
	s.cfg = walimpls.Config{"segment_size": "256KiB"}
	s.tune = func(s *settings) { s.reclaimDelay = 10 * time.Millisecond }
	o := s.opener()
	w, neighbour := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("d", 1, 1))
	stuck := mustRead(t, w, walimpls.FromAll()) // a reader that never goes on keeps nothing
	const size = 16 << 10
	noise := randomPayload(300 * size) // does not compress
	var ids []message.ID
	for i := range 300 {
		text := string(noise[i*size : (i+1)*size])
		ids = append(ids, mustAppend(t, w, text)...)
		if i%10 == 0 {
			mustAppend(t, neighbour, text)
		}
	}
	before := folderBytes(t, s, "/store")
	must(t, w.Truncate(testContext(t), ids[len(ids)-10]))
	// The segments that are in use or ready for it.
	const retained, segment = (10 + 30) * size, 2 << 20
	defer func() {
		if t.Failed() {
			t.Logf("%s", s.fs)
		}
	}()
	waitFor(t, func() bool { return folderBytes(t, s, "/store") < 2*retained+segment })
	t.Logf("%d bytes before, %d after", before, folderBytes(t, s, "/store"))
	if got := len(payloads(readAll(t, w))); got != 10 {
		t.Fatalf("%d records are left, want 10", got)
	}
	if got := len(payloads(readAll(t, neighbour))); got != 30 {
		t.Fatalf("%d records are left of the neighbour, want 30", got)
	}
	_, err := stuck.Next(testContext(t))
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) {
		t.Fatalf("got %v", err)
	}

	if !drop {
		return
	}
	must(t, o.Drop(testContext(t), "d", 1))
	waitFor(t, func() bool { return folderBytes(t, s, "/store") < segment })
}

// folderBytes is the size of all files below the folder.
func folderBytes(t *testing.T, s *store, dir string) (total int64) {
	names, err := s.fs.List(dir)
	must(t, err)
	for _, name := range names {
		info, err := s.fs.Stat(s.fs.PathJoin(dir, name))
		switch {
		case err != nil: // removed meanwhile
		case info.IsDir():
			total += folderBytes(t, s, s.fs.PathJoin(dir, name))
		default:
			total += info.Size()
		}
	}
	return total
}
