package rmq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// F-001: a store that was truncated wholly and is idle keeps the active segment
// and the prepared one, and nothing else.
func TestIdleTruncatedStoreKeepsTwoSegments(t *testing.T) {
	s := newMemStore(t)
	const segment = 256 << 10
	s.tune = func(s *settings) {
		s.segmentSize, s.reclaimDelay, s.idleAfter = segment, time.Millisecond, 20*time.Millisecond
	}
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	var last message.ID
	for range 200 {
		last = mustAppend(t, w, strings.Repeat("x", 16<<10))[0]
	}
	must(t, w.Truncate(testContext(t), last))
	waitFor(t, func() bool { return folderBytes(t, s, "/store") <= 2*segment+8<<10 })
	wantPayloads(t, readAll(t, w), strings.Repeat("x", 16<<10))
}

// A channel with one record in each segment does not keep the truncated rest:
// its records move, are read where they are now, by a reader under way too, and
// survive a restart and a power loss.
func TestRecordsMoveOutOfTruncatedSegments(t *testing.T) {
	fs := newCrashFS()
	s := newMemStore(t)
	s.fs = fs
	const segment = 64 << 10
	s.tune = func(s *settings) { s.segmentSize, s.reclaimDelay = segment, time.Millisecond }
	o := s.opener()
	busy, kept := mustOpen(t, o, rw("busy", 1, 1)), mustOpen(t, o, rw("kept", 1, 1))
	reader := mustRead(t, kept, walimpls.FromAll())
	var want []string
	for i := range 40 {
		var last message.ID
		for range 8 {
			last = mustAppend(t, busy, strings.Repeat("x", 8<<10))[0]
		}
		text := fmt.Sprint("kept ", i)
		want = append(want, text)
		mustAppend(t, kept, text)
		must(t, busy.Truncate(testContext(t), last))
	}
	waitFor(t, func() bool { return folderBytes(t, s, "/store") < 12*segment })
	bounds, err := kept.Bounds(testContext(t))
	must(t, err)
	wantPayloads(t, readUpTo(t, reader, bounds.Latest), want...)
	more := fmt.Sprint("kept ", len(want))
	want = append(want, more)
	mustAppend(t, kept, more)
	lost := fs.crash(0, nil)
	for _, f := range []*crashFS{fs, lost} {
		if f == fs {
			must(t, o.Close(context.Background()))
		}
		again := newMemStore(t)
		again.fs = f
		o := again.opener()
		wantPayloads(t, readAll(t, mustOpen(t, o, ro("kept"))), want...)
		must(t, o.Close(context.Background()))
		if r := mustVerify(t, f, "/store"); r.Damaged() || len(r.Residue) > 0 {
			t.Fatalf("%+v", r)
		}
	}
}

// countingFS counts the bytes that are written.
type countingFS struct {
	vfs.FS
	written *atomic.Int64
}

type countingFile struct {
	vfs.File
	written *atomic.Int64
}

func (f countingFile) Write(p []byte) (int, error) {
	f.written.Add(int64(len(p)))
	return f.File.Write(p)
}

func (f countingFile) WriteAt(p []byte, off int64) (int, error) {
	f.written.Add(int64(len(p)))
	return f.File.WriteAt(p, off)
}

func (c countingFS) count(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return countingFile{f, c.written}, nil
}

func (c countingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return c.count(c.FS.Create(name, category))
}

func (c countingFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return c.count(c.FS.OpenReadWrite(name, category, opts...))
}

// Bytes written to disk per payload byte over a run with truncation, one record
// a call, which is the worst: at most 1.2.
func TestEachByteIsWrittenOnce(t *testing.T) {
	written := &atomic.Int64{}
	s := newDiskStore(t)
	s.fs = countingFS{vfs.Default, written}
	s.tune = func(s *settings) { s.segmentSize, s.syncInterval = 1<<20, 50*time.Millisecond }
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	batch := []message.Message{{Type: message.TypeData, Payload: randomPayload(1024)}}
	const records = 40 << 10
	for i := range records {
		ids, err := w.Append(context.Background(), batch)
		must(t, err)
		if i%2000 == 0 {
			must(t, w.Truncate(context.Background(), ids[0]))
		}
	}
	factor := float64(written.Load()) / (records * 1024)
	t.Logf("%.3f bytes written per payload byte", factor)
	if factor > 1.2 {
		t.Fatalf("%.3f bytes were written per payload byte", factor)
	}
}

// A log of 20 GiB, of sparse segments with their indexes, opens at once.
func TestLargeLogOpensFast(t *testing.T) {
	s := newDiskStore(t)
	const size, count = 16 << 20, 1280
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	must(t, o.Close(context.Background()))
	log := filepath.Join(s.dir, logName)
	must(t, os.RemoveAll(log))
	must(t, os.Mkdir(log, 0o700))
	// Each segment holds 15,000 frames of a record.
	const perSegment = 15_000
	next := uint64(1)
	for num := uint64(1); num < count; num++ {
		r := &run{log: 1, first: next, last: next + perSegment - 1, bytes: size}
		for i := range uint64(perSegment) {
			r.frames = append(r.frames, frameRef{next + i, uint32(100 + i*139), 139})
		}
		next += perSegment
		b, _ := encodeIndex(num, size, []*run{r})
		must(t, os.WriteFile(filepath.Join(log, indexName(num)), b, 0o600))
		file, err := os.Create(filepath.Join(log, segmentName(num)))
		must(t, err)
		must(t, file.Truncate(size))
		must(t, file.Close())
	}
	rows := newRows()
	rows.nextLog = 2
	rows.logs[1] = &row{num: 1, name: "c", storeID: w.Channel().StoreID, first: 1, next: next, lastRecord: next - 1, pair: walimpls.Pair{Term: 1, Incarnation: 1}}
	c := &contents{segments: []*segment{{num: count - 1, end: size}}, rows: rows}
	must(t, writeRepaired(vfs.Default, log, c))

	began := time.Now()
	o = s.opener()
	r := mustOpen(t, o, ro("c"))
	took := time.Since(began)
	b, err := r.Bounds(testContext(t))
	must(t, err)
	t.Logf("%d records in %d segments opened in %v", next-1, count, took)
	if b.Latest != message.Uint64ID(next-1) || took > 20*time.Second {
		t.Fatalf("bounds %+v after %v", b, took)
	}
}

// A pchannel that nobody uses takes little memory, also after it was used.
func TestIdleChannelsTakeLittleMemory(t *testing.T) {
	s := newDiskStore(t)
	s.tune = func(s *settings) { s.syncInterval = 50 * time.Millisecond }
	o := s.opener()
	mustOpen(t, o, rw("first", 1, 1))
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := heap()
	const channels = 1000
	wals := make([]walimpls.WAL, channels)
	for i := range wals {
		wals[i] = mustOpen(t, o, rw(fmt.Sprint("c", i), 1, 1))
		mustAppend(t, wals[i], "one", "two")
	}
	per := (int64(heap()) - int64(before)) / channels
	t.Logf("%d bytes per idle channel", per)
	if per > 64<<10 {
		t.Fatalf("%d bytes per idle channel", per)
	}
	runtime.KeepAlive(wals)
}

// With sync "interval" a power loss takes the newest records and no others, and
// only those younger than the interval; a crash of the process takes none.
func TestIntervalSyncLosesOnlyASuffix(t *testing.T) {
	fs := newCrashFS()
	s := newMemStore(t)
	s.fs = fs
	s.cfg = walimpls.Config{"sync": "interval", "sync_interval": "1m"}
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
		mustAppend(t, w, want[i])
	}
	wantPayloads(t, readAll(t, w), want...)
	killed := copyStore(t, fs)
	wantLog(t, killed, want...)
	for _, percent := range []int{0, 50, 100} {
		lost := fs.crash(percent, rand.New(rand.NewPCG(uint64(percent), 1)))
		again := newMemStore(t)
		again.fs = lost
		o := again.opener()
		r, err := o.Open(testContext(t), ro("c"))
		if err != nil {
			wantIs(t, err, walimpls.ErrNotFound) // nothing was synced yet
			continue
		}
		got := payloads(readAll(t, r))
		wantPayloads(t, readAll(t, r), want[:len(got)]...)
	}
	must(t, o.Close(context.Background())) // which syncs
	lost := fs.crash(0, nil)
	wantLog(t, lost, want...)
}

// The window is the interval: what is older is synced although nothing comes.
func TestIntervalSyncsWhileIdle(t *testing.T) {
	fs := newCrashFS()
	s := newMemStore(t)
	s.fs = fs
	s.cfg = walimpls.Config{"sync": "interval", "sync_interval": "1ms"}
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	mustAppend(t, w, "a")
	waitFor(t, func() bool {
		c, err := readStore(fs.crash(0, nil), testLogDir)
		return err == nil && c.rows.logs[1] != nil && c.rows.logs[1].next == 3
	})
}
