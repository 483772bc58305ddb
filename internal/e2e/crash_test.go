package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var rounds = flag.Int("rounds", 10, "how many rounds the crash tests run")

func roundsNow() int {
	if testing.Short() {
		return min(*rounds, 2)
	}
	return *rounds
}

// ledger is what the writers were told, by payload.
type ledger struct {
	mu       sync.Mutex
	outcomes map[string]walimpls.State
	inFlight atomic.Int64
}

// write appends numbered records through successive streams until stop closes.
// dial returns a client of the present host.
func (l *ledger) write(writer int, dial func() *client.Client, stop <-chan struct{}) {
	for n := 0; ; {
		a, err := dial().NewAppender(context.Background(), "orders", client.AppenderOptions{RequestRecords: 64, MaxBytes: 64 << 10})
		for err == nil {
			select {
			case <-stop:
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				_ = a.Close(ctx)
				cancel()
				return
			default:
			}
			payload := fmt.Sprintf("%d %d", writer, n)
			n++
			l.inFlight.Add(1)
			f := a.Append(client.Record{Payload: []byte(payload)})
			go l.settle(payload, f)
			err = a.Err()
		}
		if a != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
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

func (l *ledger) settle(payload string, f *client.Future) {
	<-f.Done()
	l.inFlight.Add(-1)
	r := f.Result()
	l.mu.Lock()
	l.outcomes[payload] = r.State
	l.mu.Unlock()
}

func (l *ledger) count(s walimpls.State) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, o := range l.outcomes {
		if o == s {
			n++
		}
	}
	return n
}

// judge reads the channel and holds it against the ledger.
func (l *ledger) judge(t *testing.T, c *client.Client) {
	t.Helper()
	r, err := c.NewReader(context.Background(), "orders", client.ReadOptions{From: "all"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx := timeout(t, 2*time.Minute)
	seen := map[string]int{}
	next := map[string]int{}
	var term int64
	var tick message.Tick
	for {
		m, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d records: %v", len(seen), err)
		}
		if m.Term < term || (m.Term == term && m.TimeTick <= tick) {
			t.Errorf("record %s of (%d, %d) is read behind (%d, %d)", m.ID, m.Term, m.TimeTick, term, tick)
		}
		term, tick = m.Term, m.TimeTick
		payload := string(m.Payload)
		seen[payload]++
		writer, number, _ := strings.Cut(payload, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("nobody wrote %q", payload)
		}
		if n < next[writer] {
			t.Errorf("writer %s: record %d is read behind %d", writer, n, next[writer]-1)
		}
		next[writer] = n + 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for payload, state := range l.outcomes {
		n := seen[payload]
		if (state == walimpls.Stored && n != 1) || (state == walimpls.NotStored && n != 0) || n > 1 {
			t.Errorf("%q was reported %s and is read %d times", payload, state, n)
		}
		delete(seen, payload)
	}
	for payload := range seen {
		t.Errorf("%q is read and nobody was told of it", payload)
	}
}

func (l *ledger) report(t *testing.T, rounds int) {
	t.Logf("%d rounds: %d stored, %d not stored, %d unknown", rounds,
		l.count(walimpls.Stored), l.count(walimpls.NotStored), l.count(walimpls.Unknown))
}

// killInFlight waits a random time, and then for the moment at which records
// are in flight, and calls kill. It reports how many were.
func (l *ledger) killInFlight(t *testing.T, kill func()) int64 {
	t.Helper()
	time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond)
	var n int64
	eventually(t, 30*time.Second, "records are in flight", func() bool {
		n = l.inFlight.Load()
		return n > 0
	})
	kill()
	return n
}

func TestKilledPluginLosesNothing(t *testing.T) {
	h := startHost(t, t.TempDir(), 30*time.Second)
	c := h.client()
	if _, _, err := c.CreateChannel(timeout(t, 20*time.Second), "orders", client.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l := &ledger{outcomes: map[string]walimpls.State{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for writer := range 4 {
		wg.Go(func() { l.write(writer, func() *client.Client { return c }, stop) })
	}
	for range roundsNow() {
		pid := pluginPID(t, c)
		n := l.killInFlight(t, func() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		})
		if n == 0 {
			t.Error("nothing was in flight")
		}
		eventually(t, 20*time.Second, "the plugin runs again", func() bool {
			now := pluginPID(t, c)
			return now != 0 && now != pid
		})
		stored := l.count(walimpls.Stored)
		eventually(t, 20*time.Second, "records are stored again", func() bool { return l.count(walimpls.Stored) > stored })
	}
	close(stop)
	wg.Wait()
	eventually(t, 20*time.Second, "every record is answered", func() bool { return l.inFlight.Load() == 0 })
	l.judge(t, c)
	l.report(t, roundsNow())
}

func TestKilledHostLosesNothing(t *testing.T) {
	dir := t.TempDir()
	h := startHost(t, dir, 30*time.Second)
	var present atomic.Pointer[client.Client]
	present.Store(h.client())
	if _, _, err := present.Load().CreateChannel(timeout(t, 20*time.Second), "orders", client.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l := &ledger{outcomes: map[string]walimpls.State{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for writer := range 4 {
		wg.Go(func() { l.write(writer, present.Load, stop) })
	}
	for range roundsNow() {
		stored := l.count(walimpls.Stored)
		eventually(t, 20*time.Second, "records are stored", func() bool { return l.count(walimpls.Stored) > stored })
		pid := pluginPID(t, present.Load())
		if n := l.killInFlight(t, h.kill); n == 0 {
			t.Error("nothing was in flight")
		}
		eventually(t, 2*time.Second, "the dead host's plugin is gone", func() bool { return !alive(pid) })
		h = startHost(t, dir, 10*time.Second)
		present.Store(h.client())
	}
	close(stop)
	wg.Wait()
	eventually(t, 20*time.Second, "every record is answered", func() bool { return l.inFlight.Load() == 0 })
	l.judge(t, present.Load())
	l.report(t, roundsNow())
}
