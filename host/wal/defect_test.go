package wal

import (
	"context"
	"fmt"
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

// faulty wraps an opener that keeps the contract and breaks one of its rules.
type faulty struct {
	walimpls.Opener
	defect string

	mu     sync.Mutex // guards all below
	shared walimpls.WAL
	on     bool // the defect shows from now on
	times  int  // how often it showed
	late   []message.Message
	landed bool               // the late records
	leave  context.CancelFunc // of the caller whose record it is
}

func (o *faulty) showing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.on
}

func (o *faulty) switchOn() { o.mu.Lock(); o.on = true; o.mu.Unlock() }

// once reports true the first time that the defect may show.
func (o *faulty) once() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.on || o.times > 0 {
		return false
	}
	o.times++
	return true
}

func (o *faulty) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	if opt.Access == walimpls.AccessReadOnly {
		return o.Opener.Open(ctx, opt)
	}
	o.mu.Lock()
	shared := o.shared
	o.mu.Unlock()
	if o.defect == "openDoesNotFence" && shared != nil {
		return &faultyWAL{WAL: shared, o: o, pair: opt.Pair()}, nil
	}
	h, err := o.Opener.Open(ctx, opt)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.shared = h
	late := o.late
	o.late = nil
	o.mu.Unlock()
	if len(late) > 0 && o.defect == "landsBehindTheBarrier" {
		go func() { // behind the read-back, which must not be needed any more
			time.Sleep(100 * time.Millisecond)
			_, _ = h.Append(context.Background(), late)
			o.mu.Lock()
			o.landed = true
			o.mu.Unlock()
		}()
	}
	return &faultyWAL{WAL: h, o: o, pair: opt.Pair()}, nil
}

type faultyWAL struct {
	walimpls.WAL
	o    *faulty
	pair walimpls.Pair
}

func (w *faultyWAL) Channel() walimpls.Channel {
	c := w.WAL.Channel()
	c.Pair = w.pair
	return c
}

func (w *faultyWAL) Close(ctx context.Context) error {
	if w.o.defect == "openDoesNotFence" {
		return nil // the handle is shared; the opener closes it
	}
	return w.WAL.Close(ctx)
}

func isData(batch []message.Message) bool { return batch[0].Type == message.TypeData }

func (w *faultyWAL) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	switch {
	case w.o.defect == "ackWithoutStoring" && isData(batch) && w.o.once():
		b, err := w.WAL.Bounds(ctx)
		if err != nil {
			return nil, err
		}
		ids := make([]message.ID, len(batch))
		for i := range ids {
			ids[i] = b.Latest
		}
		return ids, nil
	case w.o.defect == "failsAfterStoring" && isData(batch) && w.o.once():
		if _, err := w.WAL.Append(ctx, batch); err != nil {
			return nil, err
		}
		return nil, walimpls.BatchFailure(testChannel, len(batch), walimpls.NotStored, walimpls.Errorf(walimpls.CodeInternal, testChannel, "no"))
	case w.o.defect == "landsBehindTheBarrier" && isData(batch) && w.o.once():
		w.o.mu.Lock()
		w.o.late = append(w.o.late, batch...)
		w.o.leave()
		w.o.mu.Unlock()
		time.Sleep(30 * time.Millisecond) // the caller is told that it left
		return nil, walimpls.BatchFailure(testChannel, len(batch), walimpls.Unknown, walimpls.Errorf(walimpls.CodeUnknownOutcome, testChannel, "lost"))
	case w.o.defect == "storesTwice":
		if _, err := w.WAL.Append(ctx, batch); err != nil {
			return nil, err
		}
	}
	return w.WAL.Append(ctx, batch)
}

func (w *faultyWAL) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	b, err := w.WAL.Bounds(ctx)
	if w.o.defect == "boundsBehind" && w.o.showing() {
		b.Latest, b.LatestRecord = b.Earliest, b.Earliest
	}
	return b, err
}

func (w *faultyWAL) Truncate(ctx context.Context, before message.ID) error {
	if w.o.defect == "truncAboveCheckpoint" {
		b, err := w.WAL.Bounds(ctx)
		if err != nil {
			return err
		}
		before = b.LatestRecord
	}
	return w.WAL.Truncate(ctx, before)
}

func (w *faultyWAL) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	s, err := w.WAL.Read(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &faultyScanner{Scanner: s, o: w.o}, nil
}

type faultyScanner struct {
	walimpls.Scanner
	o    *faulty
	held []message.Message
}

func (s *faultyScanner) Next(ctx context.Context) ([]message.Message, error) {
	batch, err := s.Scanner.Next(ctx)
	if err != nil || !s.o.showing() {
		return batch, err
	}
	var out []message.Message
	for _, m := range batch {
		target := m.Type == message.TypeData && string(m.Payload) == "b"
		switch {
		case s.o.defect == "losesOnRead" && target, s.o.defect == "losesABody" && string(m.Payload) == "x":
			continue
		case s.o.defect == "readsBehindTheTick" && target:
			s.held = append(s.held, m)
			continue
		case s.o.defect == "staleLands" && m.Term == 2 && m.Type == message.TypeData:
			// A record and a time tick of the fenced term, which no reader may see.
			stale := message.Message{Type: message.TypeData, Term: 1, Incarnation: 1, TimeTick: m.TimeTick + 1, ID: m.ID, LastConfirmed: m.LastConfirmed, Payload: []byte("stale")}
			tick := stale
			tick.Type, tick.TimeTick, tick.Payload = message.TypeTimeTick, m.TimeTick+(1<<40), nil
			out = append(out, stale, tick)
		}
		out = append(out, m)
		if m.Type == message.TypeTimeTick && len(s.held) > 0 && m.TimeTick > s.held[0].TimeTick {
			out, s.held = append(out, s.held...), nil
		}
	}
	if len(out) == 0 {
		return s.Next(ctx)
	}
	return out, nil
}

// inspect holds what a WAL reads against what callers were told, from the
// beginning and from every checkpoint, and returns the first thing that is wrong.
func inspect(w WAL, told map[string]walimpls.State, cps []message.Checkpoint) ([]scanner.Unit, error) {
	read := func(opt scanner.Options) ([]scanner.Unit, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s, err := w.Read(ctx, opt)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		return drainErr(s)
	}
	truth, err := read(scanner.Options{Start: scanner.All})
	if err != nil {
		return nil, err
	}
	seen := map[string]int{}
	for i := range truth {
		seen[texts(truth[i : i+1])[0]]++
		if i > 0 && !before(truth[i-1], truth[i]) {
			return truth, fmt.Errorf("%v does not follow %v", texts(truth[i:i+1]), texts(truth[i-1:i]))
		}
	}
	for unit, state := range told {
		n := seen[unit]
		if state == walimpls.Stored && n != 1 || state == walimpls.NotStored && n != 0 || n > 1 {
			return truth, fmt.Errorf("%s is %s and read %d times", unit, state, n)
		}
		delete(seen, unit)
	}
	for unit := range seen {
		return truth, fmt.Errorf("%s is read and nobody wrote it", unit)
	}
	for _, u := range truth {
		cps = append(cps, u.Before, u.Checkpoint)
	}
	done := map[message.Checkpoint]bool{}
	for _, c := range cps {
		if done[c] {
			continue
		}
		done[c] = true
		got, err := read(scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
		if err != nil {
			return truth, fmt.Errorf("resume at (%d, %d): %w", c.Term, c.Tick, err)
		}
		i := 0
		for i < len(truth) && c.Covers(truth[i].Term, truth[i].Tick) {
			i++
		}
		if a, b := fmt.Sprint(texts(got)), fmt.Sprint(texts(truth[i:])); a != b {
			return truth, fmt.Errorf("resume at (%d, %d): got %s, want %s", c.Term, c.Tick, a, b)
		}
	}
	return truth, nil
}

// runFaulty plays a short history on a faulty backend and returns what the
// judges found: two terms, the first of them a zombie, plain records, a
// transaction, an unknown outcome, and everything read again from everywhere.
func runFaulty(t *testing.T, defect string) error {
	store, rules, row := faultbackend.NewStore(), faultbackend.NewController(), catalog.NewMemory()
	defer store.Close()
	if err := row.Create(context.Background(), catalog.Row{Channel: testChannel, Plugin: "fault", Backend: faultbackend.Name}); err != nil {
		t.Fatal(err)
	}
	b := faultbackend.NewBuilder(faultbackend.WithStore(store), faultbackend.WithController(rules))
	inner, err := b.Build(context.Background(), walimpls.Config{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	o := &faulty{Opener: inner, defect: defect}
	defer inner.Close(context.Background())
	clock := time.Now
	open := func(term int64) (WAL, error) {
		w, err := NewOpener(Options{
			Catalog: row, Log: zaptest.NewLogger(t, zaptest.Level(zap.FatalLevel)), Now: clock, OpenBudget: 3 * time.Second,
			Backend: func(string) (Backend, error) { return backend{o, b.Describe()}, nil }, TickInterval: 5 * time.Millisecond,
		}).Open(context.Background(), testChannel, term)
		if err == nil {
			t.Cleanup(func() { _ = w.Close(context.Background()) })
		}
		return w, err
	}
	told := map[string]walimpls.State{}
	var cps []message.Checkpoint
	note := func(unit string, r Result) {
		told[unit] = r.State
		if r.State == walimpls.Stored {
			cps = append(cps, r.Checkpoint)
		}
	}
	put := func(w WAL, name string) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		o.mu.Lock()
		o.leave = cancel
		o.mu.Unlock()
		note(name, w.Append(ctx, data(name))[0])
	}
	ticked := func() { // everything is covered by a time tick in the log
		waitFor(t, func() bool {
			r := store.Records(testChannel)
			return r[len(r)-1].Type == message.TypeTimeTick
		})
	}
	w, err := open(1)
	if err != nil {
		return err
	}
	put(w, "a")
	if defect != "boundsBehind" && defect != "staleLands" {
		o.switchOn()
	}
	put(w, "b")
	if defect == "landsBehindTheBarrier" {
		waitFor(t, func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.landed })
	}
	txn, err := w.Begin(within(t, 5*time.Second), "", 0)
	if err != nil {
		return err
	}
	w.Append(within(t, 5*time.Second), body(txn.ID, "x"))
	put(w, "c")
	w.Append(within(t, 5*time.Second), body(txn.ID, "y"))
	note("[x y]", w.Commit(within(t, 5*time.Second), txn.ID))
	if defect != "openDoesNotFence" { // its handles cannot be replaced
		if err := rules.SetRules("append fail-after-write unknown count=1"); err != nil {
			t.Fatal(err)
		}
	}
	put(w, "d")
	ticked()
	if defect == "truncAboveCheckpoint" {
		if err := w.Truncate(within(t, 5*time.Second), cps[1].ID); err != nil {
			return err
		}
		delete(told, "a")
		cps = cps[2:]
		_, err := inspect(w, told, cps)
		return err
	}
	if defect == "boundsBehind" {
		// The next host has lost the catalog and has a clock that is behind.
		row = catalog.NewMemory()
		if err := row.Create(context.Background(), catalog.Row{Channel: testChannel, Plugin: "fault", Backend: faultbackend.Name}); err != nil {
			t.Fatal(err)
		}
		clock = func() time.Time { return time.Now().Add(-time.Hour) }
	}
	if defect == "boundsBehind" || defect == "staleLands" {
		o.switchOn()
	}
	w2, err := open(2)
	if err != nil {
		return err
	}
	put(w, "zombie")
	put(w2, "e")
	put(w2, "f")
	highest, opening := message.Tick(0), false
	for _, m := range store.Records(testChannel) {
		if m.Term == 2 && m.Type == message.TypeTimeTick && !opening {
			if opening = true; m.TimeTick <= highest {
				return fmt.Errorf("the opening tick %d is not above %d", m.TimeTick, highest)
			}
		}
		highest = max(highest, m.TimeTick)
	}
	_, err = inspect(w2, told, cps)
	return err
}

// TestBrokenBackendsAreCaught breaks one rule of the contract at a time. What
// the host is built to survive must go unnoticed; everything else the judges, or
// the host itself, must find.
func TestBrokenBackendsAreCaught(t *testing.T) {
	for defect, caught := range map[string]bool{
		"":                      false,
		"storesTwice":           false, // a repeat is dropped
		"staleLands":            false, // what landed although it was fenced is dropped
		"openDoesNotFence":      true,
		"ackWithoutStoring":     true,
		"failsAfterStoring":     true,
		"landsBehindTheBarrier": true,
		"losesOnRead":           true,
		"losesABody":            true,
		"readsBehindTheTick":    true,
		"boundsBehind":          true,
		"truncAboveCheckpoint":  true,
	} {
		t.Run("defect="+defect, func(t *testing.T) {
			err := runFaulty(t, defect)
			if (err != nil) != caught {
				t.Errorf("found: %v", err)
			}
			t.Log(err)
		})
	}
}
