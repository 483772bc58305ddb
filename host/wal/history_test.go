package wal

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var (
	seeds    = flag.Int("seeds", 20, "how many seeds of the history test to run")
	seedBase = flag.Uint64("seed", 1, "the first seed of the history test")
)

// history is what the writers were told.
type history struct {
	mu    sync.Mutex
	units map[string]walimpls.State // by the unit's text
	pos   map[string]message.Checkpoint
	ops   map[string]int
	cps   []message.Checkpoint
}

func newHistory() *history {
	return &history{units: map[string]walimpls.State{}, pos: map[string]message.Checkpoint{}, ops: map[string]int{}}
}

func (h *history) note(op, unit string, r Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[op+" "+r.State.String()]++
	h.units[unit] = r.State
	if r.State == walimpls.Stored {
		h.pos[unit] = r.Checkpoint
		h.cps = append(h.cps, r.Checkpoint)
	}
}

func (h *history) checkpoint(c message.Checkpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cps = append(h.cps, c)
}

func (h *history) count(op string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[op]++
}

// TestEveryReaderSeesTheSameHistory is the framework test: on three pchannels
// and over five terms, writers of plain records and transactions, faults of
// every kind, and readers that begin live and from every checkpoint that anybody
// was given. The store is in process, so that many seeds are cheap.
func TestEveryReaderSeesTheSameHistory(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 3)
	}
	for i := range n {
		seed := *seedBase + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runHistory(t, newFixture(t), seed) })
	}
}

// TestEveryReaderSeesTheSameHistoryThroughAPlugin is the same with the store in
// a plugin process, which is also killed now and then.
func TestEveryReaderSeesTheSameHistoryThroughAPlugin(t *testing.T) {
	n := max(2, *seeds/5)
	if testing.Short() {
		n = 1
	}
	for i := range n {
		seed := *seedBase + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runHistory(t, newPluginFixture(t), seed) })
	}
}

// faults are the rules of one term.
func faults(f *fixture, rng *rand.Rand) string {
	rules := fmt.Sprintf(`
append fail-before-write not_stored prob=0.004 seed=%[1]d name=before
append fail-after-write unknown prob=0.004 seed=%[1]d name=after
append late 5ms prob=0.004 seed=%[1]d name=late
append permanent prob=0.004 seed=%[1]d name=permanent
append lose-connection prob=0.002 seed=%[1]d name=lose
open error unavailable prob=0.2 seed=%[1]d count=3 name=open
next error unavailable prob=0.02 seed=%[1]d name=next`, rng.IntN(1<<30))
	if f.plugin != nil {
		rules += fmt.Sprintf("\nappend exit 3 half prob=0.002 count=1 seed=%d name=exit", rng.IntN(1<<30))
	}
	return rules
}

func runHistory(t *testing.T, f *fixture, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	const terms = 5
	channels := []string{testChannel, "invoices", "stock"}
	histories := make([]*history, len(channels))
	last := make([]WAL, len(channels))
	live := make([][]*liveReader, len(channels))
	for i, channel := range channels {
		histories[i] = newHistory()
		if channel != testChannel {
			f.create(f.catalog, channel)
		}
	}
	for term := 1; term <= terms; term++ {
		f.setRules("")
		var wg sync.WaitGroup
		for i, channel := range channels {
			if last[i] != nil && rng.IntN(3) > 0 {
				_ = last[i].Close(context.Background())
			}
			last[i] = f.openChannel(channel, func(o *Options) {
				o.WABBytes, o.WABAge = 4<<10, 20*time.Millisecond
				o.TickBytes = 2 << 10
				o.TxnKeepalive = 500 * time.Millisecond
			})
			live[i] = append(live[i], startReader(t, last[i], scanner.Options{Name: "live", Start: scanner.All}))
		}
		f.setRules(faults(f, rng))
		for i := range channels {
			seed := rng.Uint64()
			wg.Go(func() { writeTerm(t, last[i], histories[i], term, seed) })
		}
		wg.Wait()
	}
	f.setRules("")
	for i, h := range histories {
		if last[i].Err() != nil {
			// A permanent error met the barrier of a re-open: that ends a term.
			h.count("term ended")
			last[i] = f.openChannel(channels[i], nil)
		}
		truth := readUntilCaughtUp(t, last[i], scanner.Options{Start: scanner.All})
		judge(t, h, truth)
		for _, r := range live[i] {
			r.stop()
			checkPrefix(t, h, r.units, truth)
			for _, c := range r.checkpoints {
				h.checkpoint(c)
			}
		}
		resumeEverywhere(t, last[i], h, truth)
		t.Logf("seed %d, %s: %d units, %d checkpoints; %s", seed, channels[i], len(truth), len(h.cps), h.counts())
	}
	if f.rules != nil {
		t.Logf("faults %v", f.rules.Stats().Faults)
	}
}

// counts lists what was done, by name.
func (h *history) counts() string {
	var ops []string
	for op, n := range h.ops {
		ops = append(ops, fmt.Sprintf("%s=%d", op, n))
	}
	slices.Sort(ops)
	return strings.Join(ops, " ")
}

// writeTerm runs ten writers on one term.
func writeTerm(t *testing.T, w WAL, h *history, term int, seed uint64) {
	var wg sync.WaitGroup
	for writer := range 10 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(writer)))
			for i := range 4 {
				name := fmt.Sprintf("%d-%d-%d", term, writer, i)
				if rng.IntN(3) > 0 {
					r := appendOne(w, rng, message.Message{Type: message.TypeData, Payload: []byte(name)})
					h.note("plain", name, r)
				} else {
					writeTxn(w, h, rng, name)
				}
			}
		})
	}
	wg.Wait()
}

// appendOne appends with a deadline that is short at times.
func appendOne(w WAL, rng *rand.Rand, m message.Message) Result {
	d := 20 * time.Second
	if rng.IntN(20) == 0 {
		d = time.Duration(rng.IntN(3000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return w.Append(ctx, []message.Message{m})[0]
}

func writeTxn(w WAL, h *history, rng *rand.Rand, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	txn, err := w.Begin(ctx, "", 0)
	if err != nil {
		h.count("begin failed")
		return
	}
	var bodies []string
	for i := range rng.IntN(5) {
		body := fmt.Sprintf("%s.%d", name, i)
		r := appendOne(w, rng, message.Message{Type: message.TypeData, TxnID: txn.ID, Payload: []byte(body)})
		h.mu.Lock()
		if r.State == walimpls.Stored {
			h.cps = append(h.cps, r.Checkpoint)
		}
		h.mu.Unlock()
		if r.State != walimpls.NotStored {
			bodies = append(bodies, body)
		}
	}
	unit := fmt.Sprint(bodies)
	switch rng.IntN(5) {
	case 0:
		r := w.Rollback(ctx, txn.ID)
		h.count("rollback " + r.State.String())
		h.mu.Lock()
		if len(bodies) > 0 {
			h.units[unit] = walimpls.NotStored
		}
		h.mu.Unlock()
	case 1:
		h.count("left to expire")
		h.mu.Lock()
		if len(bodies) > 0 {
			h.units[unit] = walimpls.NotStored
		}
		h.mu.Unlock()
	default:
		r := w.Commit(ctx, txn.ID)
		if len(bodies) == 0 {
			// A transaction without records hands nothing out.
			h.count("empty commit " + r.State.String())
			return
		}
		h.note("commit", unit, r)
	}
}

// judge holds the full scan against what the writers were told.
func judge(t *testing.T, h *history, truth []scanner.Unit) {
	t.Helper()
	seen := map[string]int{}
	for i, u := range truth {
		seen[texts(truth[i : i+1])[0]]++
		if i > 0 && !before(truth[i-1], u) {
			t.Errorf("unit %d (%d, %d) does not follow (%d, %d)", i, u.Term, u.Tick, truth[i-1].Term, truth[i-1].Tick)
		}
	}
	for unit, state := range h.units {
		n := seen[unit]
		switch {
		case state == walimpls.Stored && n != 1:
			t.Errorf("%s was acknowledged and is read %d times", unit, n)
		case state == walimpls.NotStored && n != 0:
			t.Errorf("%s failed for sure and is read %d times", unit, n)
		case n > 1:
			t.Errorf("%s is read %d times", unit, n)
		}
		delete(seen, unit)
	}
	for unit := range seen {
		t.Errorf("%s is read and nobody wrote it", unit)
	}
}

func before(a, b scanner.Unit) bool {
	return a.Term < b.Term || (a.Term == b.Term && a.Tick < b.Tick)
}

// checkPrefix holds what a live reader saw against the truth.
func checkPrefix(t *testing.T, h *history, got, truth []scanner.Unit) {
	t.Helper()
	for i, u := range got {
		if i >= len(truth) || u.Term != truth[i].Term || u.Tick != truth[i].Tick || fmt.Sprint(texts(got[i:i+1])) != fmt.Sprint(texts(truth[i:i+1])) {
			t.Fatalf("a live reader's unit %d is (%d, %d) %v, the truth is %v", i, u.Term, u.Tick, texts(got[i:i+1]), texts(truth[min(i, len(truth)):min(i+1, len(truth))]))
		}
	}
	h.count("live reader")
}

// resumeEverywhere reads again from every checkpoint that anybody was given.
func resumeEverywhere(t *testing.T, w WAL, h *history, truth []scanner.Unit) {
	t.Helper()
	done := map[message.Checkpoint]bool{}
	var wg sync.WaitGroup
	limit := make(chan struct{}, 8)
	for _, c := range h.cps {
		if done[c] {
			continue
		}
		done[c] = true
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			s, err := w.Read(context.Background(), scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
			if err != nil {
				t.Errorf("resume at %+v: %v", c, err)
				return
			}
			defer s.Close()
			got, err := drainErr(s)
			if err != nil {
				t.Errorf("resume at %+v: %v", c, err)
				return
			}
			i := 0
			for i < len(truth) && c.Covers(truth[i].Term, truth[i].Tick) {
				i++
			}
			if a, b := fmt.Sprint(texts(got)), fmt.Sprint(texts(truth[i:])); a != b {
				t.Errorf("resume at (%d, %d, %s): got %d units, want %d\n got %.300s\nwant %.300s", c.Term, c.Tick, c.ID, len(got), len(truth)-i, a, b)
			}
		})
	}
	wg.Wait()
}

func drainErr(s *scanner.Scanner) ([]scanner.Unit, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var all []scanner.Unit
	for {
		units, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		for _, u := range units {
			if len(u.Messages) > 0 {
				all = append(all, u)
			}
			if u.CaughtUp {
				return all, nil
			}
		}
	}
}

// liveReader reads while the writers write.
type liveReader struct {
	scanner     *scanner.Scanner
	done        chan struct{}
	units       []scanner.Unit
	checkpoints []message.Checkpoint
	err         error
}

func startReader(t *testing.T, w WAL, opt scanner.Options) *liveReader {
	t.Helper()
	s, err := w.Read(within(t, 10*time.Second), opt)
	if err != nil {
		t.Fatal(err)
	}
	r := &liveReader{scanner: s, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for {
			units, err := s.Next(context.Background())
			if err != nil {
				r.err = err
				return
			}
			for _, u := range units {
				r.checkpoints = append(r.checkpoints, u.Checkpoint)
				if len(u.Messages) > 0 {
					r.units = append(r.units, u)
				}
			}
		}
	}()
	return r
}

func (r *liveReader) stop() {
	_ = r.scanner.Close()
	<-r.done
}
