package wal

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var update = flag.Bool("update", false, "write what the scenarios print into testdata")

// TestScenarios plays testdata/*.txt against real WALs of two hosts, A and B,
// that share a store. "== name" begins a scenario, every other line is an event,
// the indented lines below it are what it prints; -update writes them anew.
//
//	A open               the host claims the next term and opens it; late opens go on behind
//	A rules RULES        fault rules of this host's backend (conformance/faultbackend)
//	A append x y         one append a name, none is waited for
//	A begin t            begins transaction t; A body t x appends to it
//	A commit t           not waited for; also rollback
//	A await x t          waits, and prints the outcomes
//	A deadline x         the caller of x leaves
//	A tick               writes a time tick; A expire t lets t's time run out
//	A stop               the host ends in good order
//	A live               starts a reader of all; "A lives" prints what it was given
//	A truncate x         before record x
//	A over               waits until the host's term has ended
//	A fired 1            waits until that many faults happened
//	landed x.y           waits until x and y are in the log, side by side
//	new catalog          the row is lost; the next open adopts the log
//	log                  prints the log
//	read                 writes a time tick, reads the log through the newest owner, and again from
//	                     every checkpoint that anybody was given
func TestScenarios(t *testing.T) {
	for _, file := range []string{"resolution", "model"} {
		t.Run(file, func(t *testing.T) { playFile(t, "testdata/"+file+".txt") })
	}
}

func playFile(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	scenarios := strings.Split(strings.TrimRight(string(text), "\n"), "\n== ")
	out := scenarios[:1:1]
	for _, scenario := range scenarios[1:] {
		name, events, _ := strings.Cut(strings.TrimRight(scenario, "\n"), "\n")
		got := ""
		t.Run(name, func(t *testing.T) {
			if got = playEvents(newPlay(t), events); got != events && !*update {
				t.Errorf("%s, %q: got\n%s\nwant\n%s", path, name, got, events)
			}
		})
		out = append(out, name+"\n"+got+"\n")
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.TrimRight(strings.Join(out, "\n== "), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func playEvents(p *play, events string) string {
	var out []string
	for line := range strings.SplitSeq(events, "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out = append(out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, printed := range p.event(line) {
			out = append(out, "  "+printed)
		}
	}
	return strings.Join(out, "\n")
}

// play is two hosts on one store.
type play struct {
	t       *testing.T
	store   *faultbackend.Store
	row     catalog.Catalog
	hosts   map[string]*playHost
	newest  *playHost
	history *history
}

type playHost struct {
	p      *play
	rules  *faultbackend.Controller
	opener walimpls.Opener
	w      WAL
	term   int64

	mu    sync.Mutex // guards all below
	calls map[string]*playCall
	txns  map[string]uint64
	ids   map[string]message.ID
	live  *liveReader
}

// playCall is an append or an end of a transaction that goes on.
type playCall struct {
	cancel context.CancelFunc
	done   chan struct{}
	result Result
}

func newPlay(t *testing.T) *play {
	p := &play{t: t, store: faultbackend.NewStore(), row: catalog.NewMemory(), hosts: map[string]*playHost{}, history: newHistory()}
	t.Cleanup(func() { _ = p.store.Close() })
	p.create()
	return p
}

func (p *play) create() {
	if err := p.row.Create(context.Background(), catalog.Row{Channel: testChannel, Plugin: "fault", Backend: faultbackend.Name}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *play) host(name string) *playHost {
	h := p.hosts[name]
	if h == nil {
		h = &playHost{p: p, rules: faultbackend.NewController(), calls: map[string]*playCall{}, txns: map[string]uint64{}, ids: map[string]message.ID{}}
		b := faultbackend.NewBuilder(faultbackend.WithStore(p.store), faultbackend.WithController(h.rules))
		o, err := b.Build(context.Background(), walimpls.Config{}, zap.NewNop())
		if err != nil {
			p.t.Fatal(err)
		}
		h.opener = o
		p.t.Cleanup(func() { h.end(); _ = o.Close(context.Background()) })
		p.hosts[name] = h
	}
	return h
}

// end stops the host for good.
func (h *playHost) end() {
	_ = h.rules.SetRules("")
	h.mu.Lock()
	for _, c := range h.calls {
		c.cancel()
	}
	h.mu.Unlock()
	if h.live != nil {
		h.live.stop()
	}
	if h.w != nil {
		_ = h.w.Close(context.Background())
	}
	for _, c := range h.calls {
		<-c.done
	}
}

func (h *playHost) open() string {
	p := h.p
	highest := int64(0)
	for _, m := range p.store.Records(testChannel) {
		highest = max(highest, m.Term)
	}
	if row, err := p.row.Get(context.Background(), testChannel); err == nil {
		highest = max(highest, row.Term)
	}
	if h.w != nil { // the host forgets its last term; whoever waits there is told unknown
		h.end()
		h.w, h.live = nil, nil
	}
	desc := faultbackend.NewBuilder().Describe()
	o := NewOpener(Options{
		Catalog: p.row, Log: zaptest.NewLogger(p.t, zaptest.Level(zap.ErrorLevel)),
		Backend: func(string) (Backend, error) { return backend{h.opener, desc}, nil },
		// Time stands still but for the events of the scenario.
		TickInterval: time.Hour, Window: time.Hour, TxnKeepalive: time.Hour, AttemptTimeout: 10 * time.Second,
	})
	w, err := o.Open(within(p.t, 20*time.Second), testChannel, highest+1)
	if err != nil {
		return fmt.Sprintf("term %d: %s", highest+1, walimpls.AsError(err).Code)
	}
	h.w, h.term, p.newest = w, highest+1, h
	return fmt.Sprintf("term %d", h.term)
}

// call starts something that is not waited for.
func (h *playHost) call(name, op, unit string, do func(ctx context.Context) Result) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &playCall{cancel: cancel, done: make(chan struct{})}
	h.mu.Lock()
	h.calls[name] = c
	h.mu.Unlock()
	started := make(chan struct{})
	go func() {
		defer close(c.done)
		close(started)
		c.result = do(ctx)
		if op != "" {
			h.p.history.note(op, unit, c.result)
		}
		if c.result.State == walimpls.Stored {
			h.mu.Lock()
			h.ids[name] = c.result.ID
			h.mu.Unlock()
			h.p.history.checkpoint(c.result.Checkpoint)
		}
	}()
	<-started
}

// accepted waits until one more record than before has its tick, or waits for
// one because the backend is away.
func (h *playHost) accepted(do func()) {
	w := h.w.(*termWAL)
	now := func() (message.Tick, int) { w.mu.Lock(); defer w.mu.Unlock(); return w.core.Highest(), w.waiting }
	before, waited := now()
	do()
	waitFor(h.p.t, func() bool {
		highest, waiting := now()
		return highest > before || waiting > waited || w.Err() != nil
	})
}

func (h *playHost) await(name string) string {
	h.mu.Lock()
	c := h.calls[name]
	h.mu.Unlock()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		h.p.t.Fatalf("%s is not answered", name)
	}
	if c.result.Err != nil {
		return fmt.Sprintf("%s %s: %s", name, c.result.State, walimpls.AsError(c.result.Err).Code)
	}
	return fmt.Sprintf("%s %s", name, c.result.State)
}

func (p *play) event(line string) []string {
	words := strings.Fields(line)
	if len(words[0]) == 1 {
		return p.host(words[0]).event(words[1:])
	}
	switch words[0] {
	case "landed":
		waitFor(p.t, func() bool { return strings.Contains(p.log(), strings.ReplaceAll(words[1], ".", " ")) })
	case "new":
		p.row = catalog.NewMemory()
		p.create()
	case "log":
		return strings.Split(p.log(), "\n")
	case "read":
		return p.read()
	default:
		p.t.Fatalf("unknown event %q", line)
	}
	return nil
}

func (h *playHost) event(words []string) (printed []string) {
	t := h.p.t
	switch words[0] {
	case "open":
		return []string{h.open()}
	case "rules":
		if err := h.rules.SetRules(strings.Join(words[1:], " ")); err != nil {
			t.Fatal(err)
		}
	case "fired":
		waitFor(t, func() bool {
			n := int64(0)
			for _, fired := range h.rules.Stats().Faults {
				n += fired
			}
			return fmt.Sprint(n) >= words[1]
		})
	case "append":
		for _, name := range words[1:] {
			h.accepted(func() {
				h.call(name, "append", name, func(ctx context.Context) Result { return h.w.Append(ctx, data(name))[0] })
			})
		}
	case "begin":
		txn, err := h.w.Begin(within(t, 20*time.Second), "", 0)
		if err != nil {
			return []string{fmt.Sprintf("%s: %s", words[1], walimpls.AsError(err).Code)}
		}
		h.txns[words[1]] = txn.ID
	case "body":
		h.accepted(func() {
			h.call(words[2], "", "", func(ctx context.Context) Result { return h.w.Append(ctx, body(h.txns[words[1]], words[2]))[0] })
		})
	case "commit":
		h.call(words[1], "commit", fmt.Sprint(words[2:]), func(ctx context.Context) Result { return h.w.Commit(ctx, h.txns[words[1]]) })
	case "rollback":
		h.call(words[1], "", "", func(ctx context.Context) Result { return h.w.Rollback(ctx, h.txns[words[1]]) })
	case "await":
		for _, name := range words[1:] {
			printed = append(printed, h.await(name))
		}
	case "deadline":
		h.calls[words[1]].cancel()
		return []string{h.await(words[1])}
	case "tick":
		h.tick()
	case "stop":
		h.end()
		h.w, h.live = nil, nil
	case "expire":
		w := h.w.(*termWAL)
		w.mu.Lock()
		w.txns[h.txns[words[1]]].expires = time.Time{}
		w.mu.Unlock()
		w.expireTxns()
		waitFor(t, func() bool { return w.Status().OpenTxns == 0 })
	case "live":
		h.live = startReader(t, h.w, scanner.Options{Start: scanner.All, ProgressEvery: 1})
	case "lives":
		waitFor(t, func() bool {
			return h.live.scanner.Status().Checkpoint.Covers(h.term, h.w.Status().LastTick) || h.w.Err() != nil
		})
		h.live.stop()
		for _, c := range h.live.checkpoints {
			h.p.history.checkpoint(c)
		}
		return []string{fmt.Sprint(texts(h.live.units))}
	case "truncate":
		if err := h.w.Truncate(within(t, 10*time.Second), h.ids[words[1]]); err != nil {
			return []string{string(walimpls.AsError(err).Code)}
		}
	case "over":
		select {
		case <-h.w.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the term goes on")
		}
		return []string{string(walimpls.AsError(h.w.Err()).Code)}
	default:
		t.Fatalf("unknown event %q", words)
	}
	return printed
}

// tick writes a time tick if records came since the last.
func (h *playHost) tick() {
	w := h.w.(*termWAL)
	w.mu.Lock()
	w.lastPersisted = time.Time{}
	w.mu.Unlock()
	w.timeTick()
}

// log renders the log, a line a handle.
func (p *play) log() string {
	var lines []string
	names := map[uint64]string{}
	for _, h := range p.hosts {
		for name, id := range h.txns {
			names[id] = name
		}
	}
	for _, m := range p.store.Records(testChannel) {
		word := m.Type.String()
		switch {
		case m.Type == message.TypeFence:
			lines = append(lines, fmt.Sprintf("%d.%d:", m.Term, m.Incarnation))
			continue
		case m.Type == message.TypeData && m.TxnID != 0:
			word = names[m.TxnID] + ":" + string(m.Payload)
		case m.Type == message.TypeData:
			word = string(m.Payload)
		case m.Type == message.TypeTimeTick:
			word = "TICK"
		case m.Type.IsTxn():
			word = strings.TrimSuffix(word, "_txn") + "(" + names[m.TxnID] + ")"
		}
		if len(lines) == 0 {
			lines = append(lines, "(truncated)")
		}
		lines[len(lines)-1] += " " + word
	}
	return strings.Join(lines, "\n")
}

// read judges the whole history and reads again from every checkpoint.
func (p *play) read() []string {
	// A reader that begins behind the last time tick in the log waits for the
	// next one.
	p.newest.tick()
	w := p.newest.w
	truth := readUntilCaughtUp(p.t, w, scanner.Options{Start: scanner.All})
	for _, u := range truth {
		p.history.checkpoint(u.Before)
		p.history.checkpoint(u.Checkpoint)
	}
	p.history.mu.Lock()
	known := newHistory()
	for unit, state := range p.history.units {
		known.units[unit] = state
	}
	known.cps = append(known.cps, p.history.cps...)
	p.history.mu.Unlock()
	if row, err := p.row.Get(context.Background(), testChannel); err == nil && row.TruncatedBefore == nil {
		judge(p.t, known, truth)
		resumeEverywhere(p.t, w, known, truth)
	} else {
		resumeTruncated(p.t, w, known.cps, truth, row.TruncatedBefore)
	}
	return []string{fmt.Sprint(texts(truth))}
}

// resumeTruncated resumes at checkpoints of which some lie below the truncation
// point: those that missed a unit are refused, all others get what follows.
func resumeTruncated(t *testing.T, w WAL, cps []message.Checkpoint, truth []scanner.Unit, cut *catalog.Checkpoint) {
	t.Helper()
	for _, c := range cps {
		s, err := w.Read(within(t, 10*time.Second), scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
		missed := c.ID < cut.ID && !c.Covers(cut.LastUnitTerm, cut.LastUnitTick)
		if missed != (err != nil) {
			t.Errorf("resume at (%d, %d, %s) below %+v: %v", c.Term, c.Tick, c.ID, cut, err)
		}
		if err != nil {
			continue
		}
		got, err := drainErr(s)
		_ = s.Close()
		i := 0
		for i < len(truth) && c.Covers(truth[i].Term, truth[i].Tick) {
			i++
		}
		if a, b := fmt.Sprint(texts(got)), fmt.Sprint(texts(truth[i:])); err != nil || a != b {
			t.Errorf("resume at (%d, %d, %s): got %s, want %s (%v)", c.Term, c.Tick, c.ID, a, b, err)
		}
	}
}
