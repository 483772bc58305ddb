package scanner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// sim is a pchannel made of the pure cores alone: the owner's, the write-ahead
// buffer and the scanner's, around a log in a slice, driven by a seed. What the
// shells do between them (send, land, answer, re-open, read back, switch) is
// done here step by step, so that a defect can be put in between: see defects.
type sim struct {
	defect    string
	fenceLost bool // records of fenced handles may land, as where the backend cannot fence
	rng       *rand.Rand
	trace     []string

	log     []message.Message
	pair    walimpls.Pair
	core    *owner.Core
	buffer  *wab.Buffer
	next    message.Tick
	bytes   int // of the buffer
	flights []*flight
	zombies []*flight                   // of fenced handles; they land only when fencing is lost
	known   map[*owner.Batch]message.ID // when its tick was taken
	told    map[string]owner.State
	given   map[message.Checkpoint]bool
	readers []*simReader
	bad     string
}

// flight is a record that was handed to the backend and is not answered.
type flight struct {
	batch  *owner.Batch
	index  int
	m      message.Message
	pair   walimpls.Pair
	landed message.ID
}

func simulate(seed uint64, steps int, defect string, fenceLost bool) *sim {
	s := &sim{
		defect: defect, fenceLost: fenceLost, rng: rand.New(rand.NewPCG(seed, 7)), next: 10,
		known: map[*owner.Batch]message.ID{}, told: map[string]owner.State{}, given: map[message.Checkpoint]bool{},
	}
	s.bytes = []int{1, 1 << 20}[s.rng.IntN(2)]
	s.newTerm()
	for range steps {
		if s.bad != "" {
			return s
		}
		s.step()
	}
	s.finish()
	return s
}

func (s *sim) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *sim) fail(format string, args ...any) {
	if s.bad == "" {
		s.bad = fmt.Sprintf(format, args...)
	}
}

func (s *sim) take() message.Tick {
	s.next++
	return s.next - 1
}

func (s *sim) put(m message.Message, pair walimpls.Pair) message.ID {
	m.ID = message.Uint64ID(uint64(len(s.log) + 1))
	m.Term, m.Incarnation = pair.Term, pair.Incarnation
	s.log = append(s.log, m)
	s.note("  + %s", line(&m))
	return m.ID
}

func line(m *message.Message) string {
	id, _ := m.ID.Uint64()
	lc, _ := m.LastConfirmed.Uint64()
	return fmt.Sprintf("%s@%d(%d.%d t%d lc%d x%d)", m.Type, id, m.Term, m.Incarnation, m.TimeTick, lc, m.TxnID)
}

func (s *sim) newTerm() {
	s.zombies = append(s.zombies, s.flights...)
	s.flights = nil
	s.pair = walimpls.Pair{Term: s.pair.Term + 1, Incarnation: 1}
	s.note("term %d", s.pair.Term)
	fence := s.put(message.Message{Type: message.TypeFence}, s.pair)
	if s.defect == "windowFromRowOnly" && len(s.log) > 4 {
		s.next -= 4 // the row is lost, and nobody looked into the log
	}
	m := message.Message{Type: message.TypeTimeTick, TimeTick: s.take(), LastConfirmed: fence}
	m.ID = s.put(m, s.pair)
	m.Term, m.Incarnation = s.pair.Term, s.pair.Incarnation
	s.core = owner.New(s.pair.Term, m)
	s.buffer = wab.New(wab.Options{MaxBytes: s.bytes, MaxAge: time.Hour}, m)
	for _, r := range s.readers {
		r.restart(s, r.c.at)
	}
}

// accept gives a batch its ticks; the defects of last confirmed ids are here.
func (s *sim) accept(batch ...message.Message) *owner.Batch {
	known := s.core.Known()
	for i := range batch {
		batch[i].Payload = append(batch[i].Payload, fmt.Sprint(s.next+message.Tick(i))...)
		if batch[i].Type == message.TypeCommitTxn {
			batch[i].Payload = batch[i].Payload[:1]
		}
	}
	var b *owner.Batch
	switch t := batch[0].Type; t {
	case message.TypeBeginTxn:
		_, b = s.core.Begin(batch[0], s.next)
	case message.TypeTimeTick:
		b = s.core.AcceptTick(s.next)
	default:
		b = s.core.Accept(batch, s.next, true)
	}
	s.next += message.Tick(len(batch))
	s.known[b] = known
	for i := range b.Messages {
		m := &b.Messages[i]
		switch s.defect {
		case "lcIsLastAcked":
			m.LastConfirmed = known
		case "commitUnpinsAtSend":
			m.LastConfirmed = s.lcWithout(known, b, func(t *owner.Txn) bool { return t.State == owner.TxnEndSent && t.ID != m.TxnID })
		case "txnDoesNotPin":
			m.LastConfirmed = s.lcWithout(known, b, func(*owner.Txn) bool { return true })
		}
	}
	s.note("accept %s", line(&b.Messages[0]))
	return b
}

// lcWithout computes a last confirmed id that some transactions do not pin.
func (s *sim) lcWithout(known message.ID, mine *owner.Batch, ignored func(*owner.Txn) bool) message.ID {
	lc := known
	for _, b := range s.core.Unresolved() {
		if b != mine {
			lc = min(lc, s.known[b])
		}
	}
	for _, t := range s.core.Txns() {
		for b := range s.known {
			if m := &b.Messages[0]; m.Type == message.TypeBeginTxn && m.TxnID == t.ID && !ignored(t) {
				lc = min(lc, s.known[b])
			}
		}
	}
	return lc
}

func (s *sim) step() {
	switch n := s.rng.IntN(100); {
	case n < 14:
		batch := make([]message.Message, 1+s.rng.IntN(2))
		for i := range batch {
			batch[i].Type = message.TypeData
		}
		s.accept(batch...)
	case n < 19:
		s.accept(message.Message{Type: message.TypeBeginTxn})
	case n < 29:
		s.inTxn(func(t *owner.Txn) {
			if s.core.AddBodies("p", t.ID, 1, 1, 0) == nil {
				s.accept(message.Message{Type: message.TypeData, TxnID: t.ID})
			}
		})
	case n < 35:
		s.inTxn(func(t *owner.Txn) {
			commit := s.rng.IntN(4) > 0
			if s.core.AskEnd("p", t.ID, commit) == nil {
				s.note("ask the end of %d, commit %v", t.ID, commit)
			}
		})
	case n < 41:
		if !s.core.TickPending() {
			s.accept(message.Message{Type: message.TypeTimeTick})
		}
	case n < 43:
		if s.core.Settled() {
			s.core.Idle(s.take())
		}
	case n < 60:
		s.send()
	case n < 72:
		s.land()
	case n < 84:
		s.ack()
	case n < 86:
		s.reject()
	case n < 88:
		s.reopen()
	case n < 89:
		s.newTerm()
	case n < 91:
		if len(s.readers) < 3 {
			r := &simReader{}
			r.restart(s, message.Checkpoint{StoreID: storeID})
			s.readers = append(s.readers, r)
		}
	default:
		if len(s.readers) > 0 {
			r := s.readers[s.rng.IntN(len(s.readers))]
			r.run(s, 1+s.rng.IntN(6))
			if s.rng.IntN(8) == 0 {
				r.restart(s, r.c.at)
			}
		}
	}
	s.landZombie()
	s.settle()
}

func (s *sim) inTxn(do func(*owner.Txn)) {
	if txns := s.core.Txns(); len(txns) > 0 {
		do(txns[s.rng.IntN(len(txns))])
	}
}

// settle does what the WAL's settle does: ends of transactions that are ready,
// and what became settled goes into the buffer.
func (s *sim) settle() {
	for _, id := range s.core.Ending() {
		if e := s.core.EndReady(id); e != nil {
			s.accept(e.Message)
		}
	}
	if s.defect == "commitDoesNotWait" {
		for _, t := range s.core.Txns() {
			if t.State == owner.TxnCommitting {
				s.commitEarly(t)
			}
		}
	}
	released, tick := s.core.Release()
	if tick <= s.buffer.Horizon() {
		return
	}
	progress := message.Message{Type: message.TypeTimeTick, TimeTick: tick, Term: s.pair.Term, Incarnation: s.pair.Incarnation, LastConfirmed: s.core.Confirmed()}
	if s.defect == "tickConfirmsStoredEnds" {
		progress.LastConfirmed = s.core.LastConfirmed()
	}
	if n := len(released); n > 0 && released[n-1].Type == message.TypeTimeTick {
		progress = released[n-1]
	}
	s.buffer.Append(released, progress)
}

// commitEarly writes a commit that counts bodies whose outcome is open.
func (s *sim) commitEarly(t *owner.Txn) {
	open := 0
	for _, b := range s.core.Unresolved() {
		if m := b.Messages[0]; m.TxnID == t.ID && m.Type == message.TypeData {
			open++
		}
	}
	t.State = owner.TxnEndSent
	s.accept(message.Message{Type: message.TypeCommitTxn, TxnID: t.ID, Payload: []byte{byte(t.Bodies + open)}})
}

// send hands over the queued records of one batch.
func (s *sim) send() {
	var queued []*owner.Batch
	for _, b := range s.core.Unresolved() {
		if slices.Contains(b.States, owner.Queued) && (!b.IsTick() || b == s.core.SendableTick() || s.defect == "tickPassesPending") {
			queued = append(queued, b)
		}
	}
	if len(queued) == 0 {
		return
	}
	b := queued[s.rng.IntN(len(queued))]
	for i, state := range b.States {
		if state != owner.Queued {
			continue
		}
		b.States[i] = owner.Sent
		if s.defect == "lcAtSend" {
			b.Messages[i].LastConfirmed = s.lcWithout(s.core.Known(), b, func(t *owner.Txn) bool { return t.ID == b.Messages[i].TxnID })
		}
		s.flights = append(s.flights, &flight{batch: b, index: i, m: b.Messages[i], pair: s.pair})
	}
}

func (s *sim) any(list []*flight, ok func(*flight) bool) *flight {
	var some []*flight
	for _, f := range list {
		if ok(f) {
			some = append(some, f)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[s.rng.IntN(len(some))]
}

func (s *sim) land() {
	if f := s.any(s.flights, func(f *flight) bool { return f.landed == "" }); f != nil {
		f.landed = s.put(f.m, f.pair)
	}
}

// landZombie lets a record of a fenced handle land although it was fenced.
func (s *sim) landZombie() {
	if !s.fenceLost && s.defect != "openDoesNotFence" && s.defect != "resolveWithoutOpen" || s.rng.IntN(4) > 0 {
		return
	}
	if f := s.any(s.zombies, func(f *flight) bool { return f.landed == "" }); f != nil {
		pair := f.pair
		if s.defect == "openDoesNotFence" && pair.Term == s.pair.Term || s.defect == "resolveWithoutOpen" {
			pair = s.pair // nothing marks it as late
		}
		f.landed = s.put(f.m, pair)
	}
}

func key(m *message.Message) string { return fmt.Sprintf("%d.%d", m.Term, m.TimeTick) }

func (s *sim) drop(f *flight) {
	s.flights = slices.DeleteFunc(s.flights, func(x *flight) bool { return x == f })
}

func (s *sim) ack() {
	if f := s.any(s.flights, func(f *flight) bool { return f.landed != "" }); f != nil {
		s.drop(f)
		s.stored(f.batch, f.index, f.landed, f.pair)
	}
}

func (s *sim) stored(b *owner.Batch, i int, id message.ID, pair walimpls.Pair) {
	s.core.SetStored(b, i, id, pair.Term, pair.Incarnation)
	m := &b.Messages[i]
	s.told[key(m)] = owner.Stored
	at := message.Checkpoint{StoreID: storeID, ID: m.LastConfirmed, Term: m.Term, Tick: m.TimeTick}
	if m.TxnID == 0 || m.Type == message.TypeCommitTxn {
		s.given[at] = true
	}
}

func (s *sim) reject() {
	if f := s.any(s.flights, func(f *flight) bool { return f.landed == "" }); f != nil {
		s.drop(f)
		s.failed(f.batch, f.index)
	}
}

func (s *sim) failed(b *owner.Batch, i int) {
	s.core.SetFailed(b, i)
	m := b.Messages[i]
	m.Term = s.pair.Term
	s.told[key(&m)] = owner.Failed
}

// reopen loses the handle and settles what is unknown on the next incarnation.
func (s *sim) reopen() {
	s.core.Lose()
	for _, f := range s.flights {
		if s.defect == "fencedIsDefinite" && f.landed != "" {
			s.failed(f.batch, f.index)
		}
	}
	s.zombies = append(s.zombies, s.flights...)
	s.flights = nil
	if s.defect != "resolveWithoutOpen" {
		s.pair.Incarnation++
		s.note("incarnation %d", s.pair.Incarnation)
		s.put(message.Message{Type: message.TypeFence}, s.pair)
	}
	s.core.Observe(s.put(message.Message{Type: message.TypeBarrier, TimeTick: s.take(), LastConfirmed: s.core.LastConfirmed()}, s.pair))
	from, _ := s.core.ReadBackFrom()
	var highest walimpls.Pair
	found := map[message.Tick]message.Message{}
	for _, m := range s.log {
		if m.ID < from {
			continue
		}
		pair := walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		if pair.Compare(highest) < 0 && s.defect != "readBackPlain" {
			continue
		}
		highest = pair
		if m.Term == s.pair.Term && s.defect != "notFoundIsFinal" {
			found[m.TimeTick] = m
		}
	}
	for _, b := range s.core.Unresolved() {
		for i, state := range b.States {
			m, ok := found[b.Messages[i].TimeTick]
			switch {
			case state != owner.Unknown && state != owner.Queued:
			case state == owner.Unknown && ok:
				s.stored(b, i, m.ID, walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation})
			case b.IsTick() || !b.Messages[i].Type.IsTxn() && s.rng.IntN(2) == 0:
				s.failed(b, i)
			default:
				b.States[i] = owner.Queued
			}
		}
	}
}

// finish lets everything come to its end and judges.
func (s *sim) finish() {
	for range 1000 {
		for _, t := range s.core.Txns() {
			_ = s.core.AskEnd("p", t.ID, false)
		}
		s.settle()
		s.send()
		s.land()
		s.ack()
		if s.core.Settled() && len(s.core.Txns()) == 0 {
			break
		}
	}
	s.accept(message.Message{Type: message.TypeTimeTick})
	s.send()
	s.land()
	s.ack()
	s.settle()
	s.judge()
}

// truth is what every reader of all should get, computed from the whole log.
func (s *sim) truth() []string {
	var fresh []message.Message
	var highest walimpls.Pair
	seen := map[string]bool{}
	for _, m := range s.log {
		pair := walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		if pair.Compare(highest) < 0 || m.Type != message.TypeFence && seen[key(&m)] {
			continue
		}
		highest, seen[key(&m)] = pair, true
		fresh = append(fresh, m)
	}
	slices.SortStableFunc(fresh, func(a, b message.Message) int {
		if a.Term != b.Term {
			return int(a.Term - b.Term)
		}
		return int(a.TimeTick) - int(b.TimeTick)
	})
	var units []string
	for i, m := range fresh {
		switch {
		case m.Type == message.TypeData && m.TxnID == 0:
			units = append(units, fmt.Sprintf("%d.%d %s", m.Term, m.TimeTick, m.Payload))
		case m.Type == message.TypeCommitTxn:
			var parts []string
			for _, p := range fresh[:i] {
				if p.TxnID == m.TxnID && p.Type == message.TypeData {
					parts = append(parts, string(p.Payload))
				}
			}
			if len(parts) > 0 {
				units = append(units, fmt.Sprintf("%d.%d %s", m.Term, m.TimeTick, strings.Join(parts, ",")))
			}
		}
	}
	return units
}

func (s *sim) judge() {
	truth := s.truth()
	visible := map[string]bool{}
	for _, u := range truth {
		place, _, _ := strings.Cut(u, " ")
		visible[place] = true
	}
	highest := message.Tick(0)
	types := map[string]message.Message{}
	for _, m := range s.log {
		if m.Type == message.TypeTimeTick && m.TimeTick <= highest && m.ID != "" {
			if prev := types[key(&m)]; prev.ID == "" && !s.fenceLost {
				s.fail("ticks do not grow: %s comes behind tick %d", line(&m), highest)
			}
		}
		if !s.fenceLost {
			highest = max(highest, map[bool]message.Tick{true: m.TimeTick}[m.Type == message.TypeTimeTick])
		}
		types[key(&m)] = m
	}
	for k, state := range s.told {
		m, stored := types[k]
		if state == owner.Stored && !stored {
			s.fail("%s was acknowledged and is not stored", k)
		}
		if state == owner.Failed && stored && (visible[k] || m.TxnID != 0) && !s.fenceLost {
			s.fail("%s failed for sure and is stored", k)
		}
	}
	for i, r := range s.readers {
		r.run(s, 1<<30)
		if got := r.got; s.bad == "" && !slices.Equal(got, truth) {
			s.fail("live reader %d got %v, want %v", i, got, truth)
		}
	}
	s.given[message.Checkpoint{StoreID: storeID}] = true
	for at := range s.given {
		if s.bad != "" {
			return
		}
		r := &simReader{}
		r.restart(s, at)
		r.run(s, 1<<30)
		var want []string
		for _, u := range truth {
			var term int64
			var tick message.Tick
			_, _ = fmt.Sscanf(u, "%d.%d", &term, &tick)
			if !at.Covers(term, tick) {
				want = append(want, u)
			}
		}
		if s.bad == "" && !slices.Equal(r.got, want) {
			s.fail("resumed at %s: got %v, want %v", place(at), r.got, want)
		}
	}
}

// simReader is the scanner's shell around its core.
type simReader struct {
	c    *core
	pos  int
	tail *wab.Reader
	got  []string
}

func (r *simReader) restart(s *sim, at message.Checkpoint) {
	var kept *txns
	if r.c != nil {
		kept = r.c.txns
	} else {
		r.c = newCore("p", storeID, Options{})
	}
	r.c.restart(at)
	if s.defect == "fallbackKeepsTxn" && kept != nil {
		r.c.txns = kept
	}
	if s.defect == "lateBelowCheckpoint" {
		r.c.reorder.last = at.Tick
	}
	r.tail, r.pos = nil, 0
	if id, ok := at.ID.Uint64(); ok && id > 0 {
		r.pos = int(id) - 1
	}
}

func (r *simReader) run(s *sim, steps int) {
	for range steps {
		more, err := r.step(s)
		for i := range r.c.out {
			u := &r.c.out[i]
			var parts []string
			for _, m := range u.Messages {
				parts = append(parts, string(m.Payload))
			}
			r.got = append(r.got, fmt.Sprintf("%d.%d %s", u.Term, u.Tick, strings.Join(parts, ",")))
			s.given[u.Before], s.given[u.Checkpoint] = true, true
		}
		r.c.out = nil
		s.given[r.c.at] = true
		if err != nil {
			s.fail("reader: %v", err)
		}
		if !more || s.bad != "" {
			return
		}
	}
}

func (r *simReader) step(s *sim) (more bool, err error) {
	if r.tail != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		records, err := r.tail.Next(ctx)
		switch {
		case errors.Is(err, wab.ErrEvicted) && s.defect == "noFallback":
			r.tail, err = s.buffer.ReadAfter(s.buffer.Stats().Boundary)
			return err == nil, err
		case errors.Is(err, wab.ErrEvicted):
			r.restart(s, r.c.at)
			return true, nil
		case err != nil:
			return false, nil
		}
		return true, r.c.take(records)
	}
	if r.pos >= len(s.log) {
		return false, nil
	}
	m := s.log[r.pos]
	r.pos++
	switch {
	case s.defect == "keepStale":
		r.c.highest = walimpls.Pair{}
	case s.defect == "staleByTermOnly":
		r.c.highest.Incarnation = 0
	case s.defect == "skipBodiesByTick" && m.Type != message.TypeCommitTxn && m.Type != message.TypeTimeTick && m.Type != message.TypeFence && r.c.skip.Covers(m.Term, m.TimeTick):
		return true, nil
	}
	tick, term, err := r.c.read(m)
	if err != nil {
		return false, err
	}
	switch {
	case s.defect == "switchAnywhere" && m.TimeTick > 0 && m.Term == s.pair.Term:
		tick, term = m.TimeTick, m.Term
	case s.defect == "switchAtStale" && m.Type == message.TypeTimeTick:
		tick, term = m.TimeTick, s.pair.Term
	}
	if tick == 0 || term != s.pair.Term {
		return true, nil
	}
	if covers, _, _ := s.buffer.Covers(tick); !covers {
		return true, nil
	}
	if r.tail, err = s.buffer.ReadAfter(tick); err != nil {
		return false, err
	}
	switch s.defect {
	case "switchKeepsHeap":
		waiting, _ := r.c.reorder.release(1 << 62)
		err = r.c.take(waiting)
	case "switchClearsTxn":
		r.c.txns = newTxns("p")
	}
	r.c.switched()
	return true, err
}
