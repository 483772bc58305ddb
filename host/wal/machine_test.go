package wal

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var machineRuns = flag.Int("machine-runs", 40, "how many random sequences of operations to play")

// machine drives real WALs through a random sequence of operations and holds
// them against the expected log: the units in the order of their answers. As
// operations follow each other, that order is the order of their ticks.
type machine struct {
	t      *rapid.T
	failed *bool
	trace  []string

	store *faultbackend.Store
	rules *faultbackend.Controller
	back  walimpls.Opener
	row   catalog.Catalog
	skew  time.Duration // of the next owner's clock
	w     WAL
	old   []WAL // zombies, and owners that were closed
	term  int64
	n     int

	log   []expected
	txns  map[uint64]*[]string
	cps   []message.Checkpoint
	reads []*liveReader
}

// expected is a unit of the expected log: stored for sure, or perhaps.
type expected struct {
	text  string
	maybe bool
	tick  message.Tick
	term  int64
}

// note writes one line of the trace that is printed when something is wrong.
func (m *machine) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *machine) fatalf(format string, args ...any) {
	m.t.Helper()
	if m.failed != nil {
		*m.failed = true
	}
	m.t.Fatalf("%s\nwhat was done:\n  %s\nthe log:\n%s", fmt.Sprintf(format, args...), strings.Join(m.trace, "\n  "), m.render())
}

// render prints the log in short: a line a handle.
func (m *machine) render() string {
	var b strings.Builder
	base := message.Tick(0)
	for _, r := range m.store.Records(testChannel) {
		switch {
		case r.Type == message.TypeFence:
			fmt.Fprintf(&b, "\n  %d.%d:", r.Term, r.Incarnation)
			continue
		case base == 0:
			base = r.TimeTick
		}
		lc, _ := r.LastConfirmed.Uint64()
		id, _ := r.ID.Uint64()
		fmt.Fprintf(&b, " %s%s@%d(lc %d)", r.Type, r.Payload, id, lc)
	}
	return b.String()
}

func newMachine(t *rapid.T) *machine {
	m := &machine{t: t, store: faultbackend.NewStore(), rules: faultbackend.NewController(), row: catalog.NewMemory(), txns: map[uint64]*[]string{}}
	var err error
	if m.back, err = faultbackend.NewBuilder(faultbackend.WithStore(m.store), faultbackend.WithController(m.rules)).Build(context.Background(), walimpls.Config{}, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	if err := m.row.Create(context.Background(), catalog.Row{Channel: testChannel, Plugin: "fault", Backend: faultbackend.Name}); err != nil {
		t.Fatal(err)
	}
	m.open()
	return m
}

func (m *machine) open() {
	desc := faultbackend.NewBuilder().Describe()
	skew := m.skew
	m.term++
	w, err := NewOpener(Options{
		Catalog: m.row, Backend: func(string) (Backend, error) { return backend{m.back, desc}, nil },
		Now:          func() time.Time { return time.Now().Add(skew) },
		TickInterval: 2 * time.Millisecond, WABBytes: 2 << 10, WABAge: 5 * time.Millisecond, TxnKeepalive: time.Minute,
	}).Open(context.Background(), testChannel, m.term)
	if err != nil {
		m.fatalf("term %d does not open: %v", m.term, err)
	}
	if m.w != nil {
		m.old = append(m.old, m.w)
	}
	m.w, m.txns = w, map[uint64]*[]string{}
}

func (m *machine) close() {
	_ = m.rules.SetRules("")
	for _, r := range m.reads {
		r.stop() // again, if the run was given up
	}
	for _, w := range append(m.old, m.w) {
		_ = w.Close(context.Background())
	}
	_ = m.back.Close(context.Background())
	_ = m.store.Close()
}

func (m *machine) name() string {
	m.n++
	return fmt.Sprintf("r%d", m.n)
}

// told takes the answer about a unit.
func (m *machine) told(what, unit string, r Result) {
	m.note("%s %s: %s", what, unit, r.State)
	switch r.State {
	case walimpls.Stored:
		m.cps = append(m.cps, r.Checkpoint)
		m.log = append(m.log, expected{text: unit, tick: r.Tick, term: r.Term})
	case walimpls.Unknown:
		m.log = append(m.log, expected{text: unit, maybe: true})
	}
}

func (m *machine) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}

func (m *machine) append(w WAL, what string, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	name := m.name()
	m.told(what, name, w.Append(ctx, data(name))[0])
}

func (m *machine) txn() (uint64, *[]string) {
	if len(m.txns) == 0 {
		m.t.Skip("no transaction")
	}
	var ids []uint64
	for id := range m.txns {
		ids = append(ids, id)
	}
	lowest := ids[0]
	for _, id := range ids {
		lowest = min(lowest, id)
	}
	return lowest, m.txns[lowest]
}

// matches compares what was read with the expected log from a checkpoint on.
func (m *machine) matches(what string, got []scanner.Unit, from message.Checkpoint) {
	i := 0
	for _, u := range got {
		text := texts([]scanner.Unit{u})[0]
		for i < len(m.log) && m.log[i].text != text && (m.log[i].maybe || from.Covers(m.log[i].term, m.log[i].tick)) {
			i++
		}
		if i == len(m.log) || m.log[i].text != text {
			m.fatalf("%s: %s is not what follows; read %v, expected %+v", what, text, texts(got), m.log)
		}
		if e := m.log[i]; !e.maybe && (e.tick != u.Tick || e.term != u.Term) {
			m.fatalf("%s: %s is read at (%d, %d) and was acknowledged at (%d, %d)", what, text, u.Term, u.Tick, e.term, e.tick)
		}
		i++
	}
	for ; i < len(m.log); i++ {
		if e := m.log[i]; !e.maybe && !from.Covers(e.term, e.tick) {
			m.fatalf("%s: %s is missing; read %v", what, e.text, texts(got))
		}
	}
}

func (m *machine) read(what string, opt scanner.Options) {
	ctx, cancel := m.ctx()
	defer cancel()
	s, err := m.w.Read(ctx, opt)
	if err != nil {
		m.fatalf("%s: %v", what, err)
	}
	defer s.Close()
	got, err := drainErr(s)
	if err != nil {
		m.fatalf("%s: %v", what, err)
	}
	m.matches(what, got, opt.Checkpoint)
	for _, u := range got {
		m.cps = append(m.cps, u.Before, u.Checkpoint)
	}
}

// TestRandomOperationsKeepTheExpectedLog draws operations, faults and readers.
// What it prints on failure is the shortest sequence that rapid finds, and the
// log that it left.
func TestRandomOperationsKeepTheExpectedLog(t *testing.T) {
	runs, failed := 0, false
	rapid.Check(t, func(t *rapid.T) {
		// A run with real goroutines takes long: fewer than rapid draws are
		// enough for each day, until one fails and has to be made short.
		if runs++; runs > *machineRuns && !failed {
			return
		}
		m := newMachine(t)
		m.failed = &failed
		defer m.close()
		t.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) { m.append(m.w, "append", 20*time.Second) },
			"append of a caller that leaves": func(t *rapid.T) {
				m.append(m.w, "append and leave", time.Duration(rapid.IntRange(0, 800).Draw(t, "us"))*time.Microsecond)
			},
			"append of a zombie": func(t *rapid.T) {
				if len(m.old) == 0 {
					t.Skip("no zombie")
				}
				m.append(m.old[len(m.old)-1], "append of a zombie", 20*time.Second)
			},
			"begin": func(*rapid.T) {
				ctx, cancel := m.ctx()
				defer cancel()
				if tx, err := m.w.Begin(ctx, "", 0); err == nil {
					m.note("begin %d", len(m.txns))
					m.txns[tx.ID] = &[]string{}
				} else {
					m.note("begin: %v", err)
				}
			},
			"body": func(*rapid.T) {
				id, parts := m.txn()
				ctx, cancel := m.ctx()
				defer cancel()
				name := m.name()
				r := m.w.Append(ctx, body(id, name))[0]
				m.note("body %s: %s", name, r.State)
				if r.State == walimpls.Stored {
					*parts = append(*parts, name)
					m.cps = append(m.cps, r.Checkpoint)
				}
			},
			"commit": func(*rapid.T) {
				id, parts := m.txn()
				ctx, cancel := m.ctx()
				defer cancel()
				r := m.w.Commit(ctx, id)
				if len(*parts) > 0 {
					m.told("commit", fmt.Sprint(*parts), r)
				}
				delete(m.txns, id)
			},
			"rollback": func(*rapid.T) {
				id, _ := m.txn()
				ctx, cancel := m.ctx()
				defer cancel()
				m.note("rollback: %s", m.w.Rollback(ctx, id).State)
				delete(m.txns, id)
			},
			"fault": func(t *rapid.T) {
				rule := rapid.SampledFrom([]string{
					"append fail-after-write unknown count=1", "append fail-before-write unknown count=1",
					"append fail-before-write not_stored count=1", "append permanent count=1", "append late 1ms count=1",
					"append lose-connection half count=1", "append lose-connection after count=1 after=1",
					"append fail-after-write unknown count=2; open error unavailable count=1",
					"append fail-before-write unknown count=1; open late 1ms count=1",
					"append fail-after-write unknown count=1; append fail-before-write unknown count=1 after=1 name=barrier",
					"next error unavailable count=2", "read error unavailable count=1", "",
				}).Draw(t, "rule")
				m.note("rules %q", rule)
				if err := m.rules.SetRules(rule); err != nil {
					t.Fatal(err)
				}
			},
			"time passes": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 8).Draw(t, "ms")) * time.Millisecond
				m.note("%v pass", d)
				time.Sleep(d)
			},
			"the clock jumps": func(t *rapid.T) {
				m.skew = time.Duration(rapid.IntRange(-3600, 600).Draw(t, "s")) * time.Second
			},
			"new term": func(t *rapid.T) {
				_ = m.rules.SetRules("")
				if rapid.Bool().Draw(t, "close the old") {
					_ = m.w.Close(context.Background())
				}
				m.open()
				m.note("term %d, its clock %v off", m.term, m.skew)
			},
			"read all":    func(*rapid.T) { m.read("a reader of all", scanner.Options{Start: scanner.All}) },
			"live reader": func(t *rapid.T) { m.startLive() },
			"resume": func(t *rapid.T) {
				if len(m.cps) == 0 {
					t.Skip("no checkpoint yet")
				}
				c := rapid.SampledFrom(m.cps).Draw(t, "checkpoint")
				m.read("a resumed reader", scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
			},
		})
		_ = m.rules.SetRules("")
		m.read("the last reader", scanner.Options{Start: scanner.All})
		for _, r := range m.reads {
			r.stop()
			m.inOrder(r.units)
		}
		seen := map[message.Checkpoint]bool{}
		for _, c := range append([]message.Checkpoint(nil), m.cps...) {
			if !seen[c] {
				seen[c] = true
				m.read(fmt.Sprintf("resumed at (%d, %d)", c.Term, c.Tick), scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
			}
		}
	})
}

// inOrder holds what a live reader got: units of the expected log, from some
// point on without a gap.
func (m *machine) inOrder(units []scanner.Unit) {
	var got []scanner.Unit
	for _, u := range units {
		if len(u.Messages) > 0 {
			got = append(got, u)
		}
	}
	at := -1
	for i := range got {
		text := texts(got[i : i+1])[0]
		next := at + 1
		for next < len(m.log) && m.log[next].text != text && (at < 0 || m.log[next].maybe) {
			next++
		}
		if next == len(m.log) || m.log[next].text != text {
			m.fatalf("a live reader got %v: %s does not follow", texts(got), text)
		}
		at = next
	}
}

// startLive starts a reader that reads along until its owner ends.
func (m *machine) startLive() {
	if len(m.reads) > 3 {
		m.t.Skip("enough")
	}
	ctx, cancel := m.ctx()
	defer cancel()
	s, err := m.w.Read(ctx, scanner.Options{Start: scanner.Latest})
	if err != nil {
		m.fatalf("a live reader: %v", err)
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
			r.units = append(r.units, units...)
		}
	}()
	m.reads = append(m.reads, r)
}
