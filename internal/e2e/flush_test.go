package e2e

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pq "github.com/parquet-go/parquet-go"

	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The figures of the design are a million records and 30 kills.
var (
	flushRecords = flag.Int("flush-records", 60_000, "how many records the flush test stores at least")
	flushKills   = flag.Int("flush-kills", 6, "how often it kills the host")
)

const flushVChannels = 50

// flushWriter appends numbered records to random vchannels, one to all now and
// then, until stop closes.
func (l *ledger) flushWriter(writer int, names []string, dial func() *client.Client, stop <-chan struct{}) {
	rng := rand.New(rand.NewPCG(uint64(writer), 1))
	for n := 0; ; {
		a, err := dial().NewAppender(context.Background(), "orders", client.AppenderOptions{})
		for err == nil {
			select {
			case <-stop:
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				_ = a.Close(ctx)
				cancel()
				return
			default:
			}
			v := names[rng.IntN(len(names))]
			payload := fmt.Sprintf("%s %d %d", v, writer, n)
			n++
			l.inFlight.Add(1)
			f := a.Append(client.Record{VChannel: v, Payload: []byte(payload)})
			go l.settle(payload, f)
			for l.inFlight.Load() > 20_000 {
				time.Sleep(time.Millisecond)
			}
			err = a.Err()
		}
		if a != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			_ = a.Close(ctx)
			cancel()
		}
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// bucket is a folder behind a link that can be made to lead nowhere, so that
// every write fails and nothing that was there is lost.
type bucket struct {
	t          *testing.T
	link, real string
}

func newBucket(t *testing.T) *bucket {
	dir := t.TempDir()
	b := &bucket{t: t, link: filepath.Join(dir, "link"), real: filepath.Join(dir, "real")}
	if err := os.Mkdir(b.real, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.point("real")
	return b
}

// point makes the link lead to a name beside it, in one step.
func (b *bucket) point(name string) {
	next := b.link + ".next"
	if err := os.Symlink(name, next); err != nil {
		b.t.Error(err)
	}
	if err := os.Rename(next, b.link); err != nil {
		b.t.Error(err)
	}
}

func (b *bucket) url() string { return "file://" + b.link + "/bucket" }

// TestKilledHostFlushesEveryRecordOnce kills the host at random moments, with
// faults of the sink in between. What the files hold in the end is what was
// acknowledged, each once, and the log is short.
func TestKilledHostFlushesEveryRecordOnce(t *testing.T) {
	dir, files := t.TempDir(), newBucket(t)
	args := []string{"--set", "flusher.bucket=" + files.url(), "--set", "flusher.max_age=300ms", "--set", "flusher.max_bytes=1MiB",
		"--set", "flusher.max_memory=16MiB", "--set", "flusher.checkpoint_every=200ms"}
	h := startHost(t, dir, 30*time.Second, args...)
	var present atomic.Pointer[client.Client]
	present.Store(h.client())
	c := present.Load()
	if _, _, err := c.CreateChannel(timeout(t, 20*time.Second), "orders", client.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	names := []string{""}
	for i := range flushVChannels - 1 {
		names = append(names, fmt.Sprintf("v%02d", i))
	}
	if _, err := c.CreateVChannels(timeout(t, 60*time.Second), "orders", names[1:], false); err != nil {
		t.Fatal(err)
	}
	l := &ledger{outcomes: map[string]walimpls.State{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for writer := range 4 {
		wg.Go(func() { l.flushWriter(writer, names, present.Load, stop) })
	}
	for kill := range *flushKills {
		want := *flushRecords * (kill + 1) / (*flushKills + 1)
		eventually(t, 5*time.Minute, "records are stored", func() bool { return l.count(walimpls.Stored) >= want })
		if kill%2 == 1 {
			files.point("file")
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		}
		l.killInFlight(t, h.kill)
		if kill%4 == 1 {
			files.point("real")
		}
		h = startHost(t, dir, 60*time.Second, args...)
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		files.point("real")
		present.Store(h.client())
	}
	eventually(t, 10*time.Minute, "all records are stored", func() bool { return l.count(walimpls.Stored) >= *flushRecords })
	close(stop)
	wg.Wait()
	eventually(t, 60*time.Second, "every record is answered", func() bool { return l.inFlight.Load() == 0 })
	c = present.Load()
	if _, err := c.FlushNow(timeout(t, 3*time.Minute), "orders", "", true); err != nil {
		t.Fatalf("%v\n%s", err, h.log)
	}
	seen := map[string]int{}
	listed := 0
	for _, v := range names {
		list, err := c.ListFiles(timeout(t, time.Minute), "orders", v)
		if err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		for _, f := range list {
			listed++
			rows, err := pq.ReadFile[parquet.Row](f.GetPath())
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				if name, _, _ := strings.Cut(string(row.Payload), " "); name != v || row.VChannel != v {
					t.Fatalf("%q of %q is in a file of %q", row.Payload, row.VChannel, v)
				}
				if row.TimeTick <= last {
					t.Fatalf("vchannel %q: tick %d follows %d", v, row.TimeTick, last)
				}
				last = row.TimeTick
				seen[string(row.Payload)]++
			}
		}
	}
	l.holdAgainst(t, seen)
	l.report(t, *flushKills)
	eventually(t, 30*time.Second, "the log is cut", func() bool {
		st, err := c.FlushStatus(timeout(t, 10*time.Second), "orders")
		return err == nil && st.GetFlush().GetTruncatedBefore() == st.GetFlush().GetSavedId() && st.GetFlush().GetLagBytes() == 0
	})
	// Nothing is unflushed, so one segment of the store is what may be left.
	size, segment := diskUse(t, filepath.Join(dir, "rmq")), int64(64<<20)
	t.Logf("%d rows in %d files; the log takes %d KiB", len(seen), listed, size>>10)
	if size > segment {
		t.Errorf("the log takes %d bytes although everything is flushed", size)
	}
}

// holdAgainst compares what was read, by payload, with what was told.
func (l *ledger) holdAgainst(t *testing.T, seen map[string]int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for payload, state := range l.outcomes {
		n := seen[payload]
		if (state == walimpls.Stored && n != 1) || (state == walimpls.NotStored && n != 0) || n > 1 {
			t.Errorf("%q was reported %s and is in the files %d times", payload, state, n)
		}
	}
	for payload := range seen {
		if _, told := l.outcomes[payload]; !told {
			t.Errorf("%q is in a file and nobody was told of it", payload)
		}
	}
}

func diskUse(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a file that has just gone takes nothing
		}
		if info, err := d.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}
