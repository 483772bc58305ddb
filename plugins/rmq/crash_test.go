package rmq

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// crashFS is a file system that can lose its power. It keeps a crash away from
// the two calls of MemFS that take its clone lock twice, and would wait for
// ever for a crash that waits between the two.
type crashFS struct {
	*vfs.MemFS
	mu sync.RWMutex // held for reading by those calls, for writing by a crash
}

func newCrashFS() *crashFS { return &crashFS{MemFS: vfs.NewCrashableMem()} }

// crash returns the disk as it may be after a power loss now; percent of what
// was not synced is on it.
func (f *crashFS) crash(percent int, rng *rand.Rand) *crashFS {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &crashFS{MemFS: f.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})}
}

func (f *crashFS) Lock(name string) (io.Closer, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.MemFS.Lock(name)
}

func (f *crashFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.MemFS.ReuseForWrite(oldname, newname, c)
}

// crashPoint is a disk as a power loss left it, and what was promised before.
type crashPoint struct {
	fs    *crashFS
	acked map[message.ID]string
	// pair is the highest that an Open returned before.
	pair walimpls.Pair
	// before is the id of the last truncation that returned before, after the
	// highest one that was asked for.
	before, after uint64
}

// check opens what the crash left and compares it with the promises.
func (p crashPoint) check(t *testing.T, attempted *sync.Map) {
	t.Helper()
	s := newMemStore(t)
	s.fs, s.cfg = p.fs, walimpls.Config{"segment_size": "256KiB"}
	o := s.opener()
	next := walimpls.Pair{Term: p.pair.Term, Incarnation: p.pair.Incarnation + 100}
	if p.pair.Term == 0 {
		next.Term = 1
	} else {
		_, err := o.Open(testContext(t), rw("c", p.pair.Term, p.pair.Incarnation))
		wantIs(t, err, walimpls.ErrFenced) // the pair was durable before Open returned
	}
	w := mustOpen(t, o, rw("c", next.Term, next.Incarnation))
	last := mustAppend(t, w, "after the crash")[0]

	records := readAll(t, w)
	first, _ := records[0].ID.Uint64()
	if first < p.before || first > max(p.after, 1) {
		t.Fatalf("the log begins at %d; it was truncated to %d, at most to %d was asked for", first, p.before, p.after)
	}
	seen := map[string]bool{}
	lastOf := map[string]int{}
	var highest walimpls.Pair
	for i, m := range records {
		if id, _ := m.ID.Uint64(); id != first+uint64(i) {
			t.Fatalf("there is a hole: id %d at place %d behind %d", id, i, first)
		}
		pair := walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		if pair.Compare(highest) < 0 {
			t.Fatalf("pair %v behind %v", pair, highest)
		}
		highest = pair
		if m.Type == message.TypeFence || m.ID == last {
			continue
		}
		text := string(m.Payload)
		if want, ok := p.acked[m.ID]; ok && want != text {
			t.Fatalf("record %s is %q, acknowledged as %q", m.ID, text, want)
		}
		if _, ok := attempted.Load(text); !ok || seen[text] {
			t.Fatalf("record %q is there twice, or was never appended", text)
		}
		seen[text] = true
		var writer, n int
		if _, err := fmt.Sscanf(text, "%d-%d", &writer, &n); err == nil {
			if key := fmt.Sprint(writer); n <= lastOf[key] {
				t.Fatalf("writer %d: %d behind %d", writer, n, lastOf[key])
			} else {
				lastOf[key] = n
			}
		}
	}
	for id, text := range p.acked {
		if v, _ := id.Uint64(); v >= first && !seen[text] {
			t.Fatalf("the acknowledged record %s %q is lost", id, text)
		}
	}
	must(t, o.Close(context.Background()))
}

// W-06: a power loss at any moment, with any part of what was not synced:
// acknowledged ⊆ read, each once, in each writer's order; and the store works.
func TestAcknowledgedSurvivesPowerLossAtAnyMoment(t *testing.T) {
	points := 200
	if testing.Short() {
		points = 40
	}
	const writers, perRound = 8, 20
	rng := rand.New(rand.NewPCG(1, 2))
	for done := 0; done < points; {
		fs := newCrashFS()
		s := newMemStore(t)
		s.fs = fs
		s.tune = func(s *settings) { s.segmentSize = 64 << 10 } // roll logs and flush tables often
		o := s.opener()

		var attempted sync.Map
		var mu sync.Mutex
		acked := map[message.ID]string{}
		var pair walimpls.Pair
		stop := make(chan struct{})
		var running sync.WaitGroup
		snapshot := func() crashPoint {
			mu.Lock()
			defer mu.Unlock()
			p := crashPoint{acked: make(map[message.ID]string, len(acked)), pair: pair}
			for id, text := range acked {
				p.acked[id] = text
			}
			// What is promised is taken before the disk, never after.
			p.fs = fs.crash(rng.IntN(5)*25, rng)
			return p
		}
		// The first points lie inside the very first Open.
		var crashes []crashPoint
		opened := make(chan walimpls.WAL)
		go func() {
			w, err := o.Open(context.Background(), rw("c", 1, 1))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			pair = walimpls.Pair{Term: 1, Incarnation: 1}
			mu.Unlock()
			opened <- w
		}()
		var w walimpls.WAL
		for w == nil {
			select {
			case w = <-opened:
			default:
				if len(crashes) < 10 {
					crashes = append(crashes, snapshot())
				}
			}
		}
		progress := make(chan struct{}, 1)
		for g := range writers {
			running.Go(func() {
				pad := strings.Repeat("x", 10+g*200)
				for n := 1; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					text := fmt.Sprintf("%d-%d-%s", g, n, pad)
					attempted.Store(text, true)
					ids, err := w.Append(context.Background(), batchOf(text))
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					mu.Lock()
					acked[ids[0]] = text
					mu.Unlock()
					select {
					case progress <- struct{}{}:
					default:
					}
				}
			})
		}
		for range perRound {
			for range rng.IntN(30) {
				<-progress
			}
			crashes = append(crashes, snapshot())
		}
		close(stop)
		running.Wait()
		must(t, o.Close(context.Background()))
		for _, p := range crashes {
			p.check(t, &attempted)
			done++
		}
	}
}

// W-05: a power loss after every single file operation of appends, truncation,
// the roll of Pebble's log, flush and drop.
func TestPowerLossAfterEveryFileOperation(t *testing.T) {
	t.Run("with room", func(t *testing.T) { crashEverywhere(t, 1<<30) })
	t.Run("on a nearly full disk", func(t *testing.T) { crashEverywhere(t, 200<<20) })
}

func crashEverywhere(t *testing.T, free uint64) {
	fs := newCrashFS()
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 30})
	faults := &faults{}
	s := newMemStore(t)
	s.fs = errorfs.Wrap(fs, errorfs.InjectorFunc(faults.maybe))
	s.tune = func(s *settings) { s.reclaimDelay, s.segmentSize = 1, 64<<10 }

	var attempted sync.Map
	var mu sync.Mutex
	var now crashPoint
	now.acked = map[message.ID]string{}
	var crashes []crashPoint
	rng := rand.New(rand.NewPCG(3, 4))
	faults.set(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileRead, errorfs.OpFileReadAt, errorfs.OpStat, errorfs.OpFileStat, errorfs.OpList, errorfs.OpOpen, errorfs.OpGetDiskUsage:
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		p := now
		p.acked = make(map[message.ID]string, len(now.acked))
		for id, text := range now.acked {
			p.acked[id] = text
		}
		p.fs = fs.crash(rng.IntN(3)*50, rng)
		crashes = append(crashes, p)
		return nil
	})
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	mu.Lock()
	now.pair = walimpls.Pair{Term: 1, Incarnation: 1}
	mu.Unlock()
	pad := strings.Repeat("x", 6_000)
	for n := 1; n <= 36; n++ {
		text := fmt.Sprintf("1-%d-%s", n, pad)
		attempted.Store(text, true)
		ids := mustAppend(t, w, text)
		mu.Lock()
		now.acked[ids[0]] = text
		mu.Unlock()
		if n%9 == 0 {
			id, _ := ids[0].Uint64()
			mu.Lock()
			now.after = id - 3
			mu.Unlock()
			must(t, w.Truncate(testContext(t), message.Uint64ID(id-3)))
			mu.Lock()
			now.before = id - 3
			mu.Unlock()
		}
	}
	must(t, o.Close(context.Background()))
	faults.set(nil)
	if testing.Short() {
		rng.Shuffle(len(crashes), func(i, j int) { crashes[i], crashes[j] = crashes[j], crashes[i] })
		crashes = crashes[:min(len(crashes), 60)]
	}
	t.Logf("%d crash points", len(crashes))
	for _, p := range crashes {
		p.check(t, &attempted)
	}
}

// A drop that a power loss met is there whole or not at all.
func TestPowerLossInsideDrop(t *testing.T) {
	fs := newCrashFS()
	faults := &faults{}
	s := newMemStore(t)
	s.fs = errorfs.Wrap(fs, errorfs.InjectorFunc(faults.maybe))
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	mustAppend(t, w, "a", "b")
	var mu sync.Mutex
	var disks []*crashFS
	rng := rand.New(rand.NewPCG(5, 6))
	faults.set(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		for _, percent := range []int{0, 50, 100} {
			disks = append(disks, fs.crash(percent, rng))
		}
		return nil
	})
	must(t, o.Drop(testContext(t), "c", 1))
	faults.set(nil)
	// The store goes on in the background.
	mu.Lock()
	points := append(disks, fs.crash(0, rng))
	mu.Unlock()
	whole, gone := 0, 0
	for _, disk := range points {
		s.fs = disk
		o := s.opener()
		r, err := o.Open(testContext(t), ro("c"))
		if err == nil {
			wantPayloads(t, readAll(t, r), "a", "b")
			whole++
		} else {
			wantIs(t, err, walimpls.ErrNotFound)
			gone++
		}
		must(t, o.Close(context.Background()))
	}
	if whole == 0 || gone == 0 {
		t.Fatalf("%d disks with the log, %d without: the points do not span the drop", whole, gone)
	}
}
