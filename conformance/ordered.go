package conformance

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// owner writes a log as a host does, record by record: ticks and last confirmed
// ids are taken in windows of records that are under way at once, and the records
// of a window land in any order. It keeps a naive model of what a reader gets.
type owner struct {
	*T
	h     *handle
	tick  message.Tick
	known message.ID
	open  []*openTxn
	txns  uint64
	count int
	// repeats: a record may land twice.
	repeats bool

	raw   []message.Message // as appended, with their ids
	units []unit            // what a reader gets, in any order
}

// openTxn is a transaction that has begun and not ended.
type openTxn struct {
	id     uint64
	pin    message.ID
	bodies []message.Message
}

// unit is what the host's scanner hands out at once.
type unit struct {
	term  int64
	tick  message.Tick
	txn   uint64
	parts []message.Message
}

func (u unit) String() string {
	return fmt.Sprintf("unit %d.%d txn %d %s", u.term, u.tick, u.txn, showBatch(u.parts))
}

// newOwner opens a new log and writes its opening time tick.
func (t *T) newOwner() *owner {
	o := &owner{T: t, tick: 100}
	o.take(t.open(t.channel(), 1, 1))
	return o
}

// take goes on with a handle of a new term: what older terms left open is gone.
func (o *owner) take(h *handle) {
	o.h, o.open = h, nil
	o.known = h.bounds().Latest // its fence record, before which no record of this term lies
	o.timeTick()
}

// takeOver opens the log with a higher pair: another term, or another incarnation
// of this one, whose transactions go on behind a barrier.
func (o *owner) takeOver(term, incarnation int64) {
	old := o.h
	sameTerm := term == old.ch.Pair.Term
	h := o.T.open(old.ch.Name, term, incarnation)
	if !sameTerm {
		o.take(h)
	} else {
		o.h = h
		o.window(message.Message{Type: message.TypeBarrier})
	}
	old.close()
}

// stamp gives records their ticks and last confirmed ids in one step.
func (o *owner) stamp(ms []message.Message) {
	for i := range ms {
		m := &ms[i]
		o.tick += message.Tick(1 + o.intn(5))
		m.TimeTick = o.tick
		if m.Type == message.TypeBeginTxn {
			o.open = append(o.open, &openTxn{id: m.TxnID, pin: o.known})
		}
		m.LastConfirmed = o.known
		for _, x := range o.open {
			m.LastConfirmed = min(m.LastConfirmed, x.pin)
		}
	}
}

// store appends records in batches of any size.
func (o *owner) store(ms []message.Message) {
	for len(ms) > 0 {
		n := 1 + o.intn(min(len(ms), 4))
		ids := o.h.append(ms[:n]...)
		for i := range n {
			m := ms[i]
			m.ID, m.Term, m.Incarnation = ids[i], o.h.ch.Pair.Term, o.h.ch.Pair.Incarnation
			o.raw = append(o.raw, m)
		}
		ms = ms[n:]
	}
}

// window writes records that are under way at once: they land in any order.
func (o *owner) window(ms ...message.Message) {
	o.stamp(ms)
	o.model(ms)
	landed := slices.Clone(ms)
	for i := range ms {
		if o.repeats && o.intn(6) == 0 {
			landed = append(landed, ms[i])
		}
	}
	for i := len(landed) - 1; i > 0; i-- {
		k := o.intn(i + 1)
		landed[i], landed[k] = landed[k], landed[i]
	}
	o.store(landed)
	for i := range o.raw {
		o.known = max(o.known, o.raw[i].ID)
	}
}

// model notes what a reader will get of a window.
func (o *owner) model(ms []message.Message) {
	term := o.h.ch.Pair.Term
	for i := range ms {
		m := ms[i]
		switch m.Type {
		case message.TypeData:
			if m.TxnID == 0 {
				o.units = append(o.units, unit{term: term, tick: m.TimeTick, parts: []message.Message{m}})
				continue
			}
			x := o.txn(m.TxnID)
			x.bodies = append(x.bodies, m)
		case message.TypeCommitTxn:
			if x := o.txn(m.TxnID); len(x.bodies) > 0 { // an empty one is nothing that a reader sees
				o.units = append(o.units, unit{term: term, tick: m.TimeTick, txn: m.TxnID, parts: x.bodies})
			}
			o.end(m.TxnID)
		case message.TypeRollbackTxn:
			o.end(m.TxnID)
		}
	}
}

func (o *owner) txn(id uint64) *openTxn {
	return o.open[slices.IndexFunc(o.open, func(x *openTxn) bool { return x.id == id })]
}

func (o *owner) end(id uint64) {
	o.open = slices.DeleteFunc(o.open, func(x *openTxn) bool { return x.id == id })
}

// timeTick writes a time tick record: nothing at or below it comes any more.
func (o *owner) timeTick() {
	m := []message.Message{{Type: message.TypeTimeTick}}
	o.stamp(m)
	o.store(m)
	o.known = max(o.known, o.raw[len(o.raw)-1].ID)
}

// plain, begin, body and commit make records.
func (o *owner) plain() message.Message {
	o.count++
	return message.Message{
		Type: message.TypeData, VChannel: []string{"", "v1", "v2"}[o.intn(3)], Payload: fmt.Appendf(nil, "p%d", o.count),
		Properties: map[string]string{"n": fmt.Sprint(o.count)},
	}
}

func (o *owner) begin() message.Message {
	o.txns++
	return message.Message{Type: message.TypeBeginTxn, VChannel: "v1", TxnID: o.txns}
}

func (o *owner) body(x *openTxn) message.Message {
	m := o.plain()
	m.TxnID, m.VChannel = x.id, "v1"
	return m
}

func (o *owner) commit(x *openTxn) message.Message {
	return message.Message{Type: message.TypeCommitTxn, VChannel: "v1", TxnID: x.id, Payload: binary.AppendUvarint(nil, uint64(len(x.bodies)))}
}

// work writes n windows: plain records and, if txns says so, interleaved
// transactions, with a time tick now and then and one at the end.
func (o *owner) work(n int, txns bool) {
	for range n {
		var ms []message.Message
		if txns {
			for _, x := range slices.Clone(o.open) {
				switch k := o.intn(6); {
				case k < 3:
					for range 1 + o.intn(2) {
						ms = append(ms, o.body(x))
					}
				case k == 3:
					ms = append(ms, o.commit(x))
				case k == 4 && o.intn(2) == 0:
					ms = append(ms, message.Message{Type: message.TypeRollbackTxn, VChannel: "v1", TxnID: x.id})
				}
			}
			if len(o.open) < 4 {
				ms = append(ms, o.begin())
			}
		}
		for range 1 + o.intn(4) {
			ms = append(ms, o.plain())
		}
		o.window(ms...)
		if o.intn(3) > 0 {
			o.timeTick()
		}
	}
	o.timeTick()
}

// want returns the units that a reader gets behind a checkpoint, in their order.
func (o *owner) want(behind message.Checkpoint) []unit {
	var out []unit
	for _, u := range o.units {
		if !behind.Covers(u.term, u.tick) {
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.term, b.term), cmp.Compare(a.tick, b.tick))
	})
	return out
}

// expectRaw fails unless the backend returns every record as it was appended, the
// repeated ones included.
func (o *owner) expectRaw() {
	s := o.h.read(walimpls.FromAll())
	defer s.close()
	ids := make([]message.ID, len(o.raw))
	for i := range o.raw {
		ids[i] = o.raw[i].ID
	}
	got := s.take(len(o.raw))
	o.expectLog(got, o.raw, ids, "the log as the backend returns it")
	for i := range got {
		o.expect(got[i].Term == o.raw[i].Term && got[i].Incarnation == o.raw[i].Incarnation, "message %d carries the pair %d.%d with which it was appended; got %d.%d",
			i, o.raw[i].Term, o.raw[i].Incarnation, got[i].Term, got[i].Incarnation)
	}
}

// source lets the host's scanner read a handle. It has no write-ahead buffer, so
// that everything comes from the backend.
type source struct {
	h    *handle
	term int64
	tick message.Tick
}

func (s *source) Channel() (name, storeID string) { return s.h.ch.Name, s.h.ch.StoreID }
func (s *source) Read(ctx context.Context, start walimpls.Start) (walimpls.Scanner, error) {
	return s.h.wal.Read(ctx, walimpls.ReadOptions{Name: "conformance", Start: start})
}
func (s *source) Truncation(context.Context) (*catalog.Checkpoint, error) { return nil, nil }
func (s *source) Now() (message.Checkpoint, bool) {
	return message.Checkpoint{StoreID: s.h.ch.StoreID, Term: s.term, Tick: s.tick}, false
}
func (s *source) Buffer() *wab.Buffer   { return nil }
func (s *source) Term() int64           { return s.term }
func (s *source) Done() <-chan struct{} { return nil }
func (s *source) Err() error            { return nil }

// hostScan is the host's scanner over the backend, traced and bounded.
type hostScan struct {
	t *T
	n int
	s *scanner.Scanner
}

// scan starts the host's scanner on the log as it is now.
func (o *owner) scan(opt scanner.Options) *hostScan {
	s := &hostScan{t: o.T, n: o.number()}
	opt.Name, opt.ProgressEvery = "conformance", time.Nanosecond
	src := &source{h: o.h, term: o.h.ch.Pair.Term, tick: o.tick}
	err := o.call(o.ctx, o.run.opt.Bound, fmt.Sprintf("host's scanner u%d from %s", s.n, showScanStart(opt)), func(ctx context.Context) (string, error) {
		sc, err := scanner.New(ctx, src, opt, nil)
		s.s = sc
		return "started", err
	})
	o.expect(err == nil, "the host's scanner starts from %s; got %v", showScanStart(opt), err)
	return s
}

func showScanStart(opt scanner.Options) string {
	if opt.Start == scanner.Checkpoint {
		return fmt.Sprintf("checkpoint %d.%d at %s", opt.Checkpoint.Term, opt.Checkpoint.Tick, showID(opt.Checkpoint.ID))
	}
	return "all"
}

// next returns the next units, those without messages too.
func (s *hostScan) next() (units []scanner.Unit, err error) {
	err = s.t.call(s.t.ctx, s.t.run.opt.Bound, fmt.Sprintf("u%d Next()", s.n), func(ctx context.Context) (string, error) {
		units, err = s.s.Next(ctx)
		return fmt.Sprintf("%d units", len(units)), err
	})
	return units, err
}

// upTo returns everything up to the one that has caught up, or up to the error.
func (s *hostScan) upTo() (units []scanner.Unit, err error) {
	for {
		next, err := s.next()
		if err != nil {
			return units, err
		}
		units = append(units, next...)
		if next[len(next)-1].CaughtUp {
			return units, nil
		}
	}
}

func (s *hostScan) close() { _ = s.s.Close() } // it never fails

// expectUnits fails unless the units with messages are the wanted ones.
func (t *T) expectUnits(got []scanner.Unit, want []unit, what string) {
	i := 0
	for k := range got {
		u := &got[k]
		if len(u.Messages) == 0 {
			continue
		}
		g := unit{term: u.Term, tick: u.Tick, txn: u.TxnID, parts: u.Messages}
		t.expect(i < len(want), "%s: %d units; there is one more, %s", what, len(want), g)
		w := want[i]
		ok := g.term == w.term && g.tick == w.tick && g.txn == w.txn && len(g.parts) == len(w.parts)
		for p := 0; ok && p < len(w.parts); p++ {
			ok = same(&w.parts[p], &g.parts[p]) == ""
		}
		t.expect(ok, "%s: unit %d is %s; got %s", what, i, w, g)
		i++
	}
	t.expect(i == len(want), "%s: %d units; %d came, %s is missing", what, len(want), i, unit.String(at(want, i)))
}

func at(units []unit, i int) unit {
	if i < len(units) {
		return units[i]
	}
	return unit{}
}

// expectAll reads the whole log and returns what it read.
func (o *owner) expectAll(what string) []scanner.Unit {
	s := o.scan(scanner.Options{Start: scanner.All})
	defer s.close()
	got, err := s.upTo()
	o.expect(err == nil, "%s: the host's scanner catches up; got %v after %d units", what, err, len(got))
	o.expectUnits(got, o.want(message.Checkpoint{}), what)
	return got
}

// expectResumes resumes at every checkpoint that a reader was given: that of each
// unit, that of a transaction's parts, and that of progress alone.
func (o *owner) expectResumes(got []scanner.Unit) {
	seen := map[message.Checkpoint]bool{}
	var places []message.Checkpoint
	for i := range got {
		for _, c := range []message.Checkpoint{got[i].Before, got[i].Checkpoint} {
			if !seen[c] {
				seen[c] = true
				places = append(places, c)
			}
		}
	}
	o.expect(len(places) > 5, "a log of %d units has checkpoints to resume from; it has %d", len(got), len(places))
	o.parallel(4, func(w int) {
		for i := w; i < len(places); i += 4 {
			c := places[i]
			s := o.scan(scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
			again, err := s.upTo()
			s.close()
			what := fmt.Sprintf("resumed at checkpoint %d.%d, id %s", c.Term, c.Tick, showID(c.ID))
			o.expect(err == nil, "%s: the host's scanner catches up; got %v after %d units", what, err, len(again))
			o.expectUnits(again, o.want(c), what)
		}
	})
}
