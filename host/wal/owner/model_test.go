package owner

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// naive is a second implementation of the core that remembers every record for
// ever and computes each answer anew from all of them.
type naive struct {
	core    *Core
	known   message.ID
	next    message.Tick // the next tick
	nextID  uint64
	records []*naiveRecord
	batches []*Batch
	txns    map[uint64]*naiveTxn
	given   []message.Message // what Release returned
	idle    message.Tick
	// reopened is the highest tick given out at the last re-open.
	reopened message.Tick
	ends     map[uint64]message.Tick
	// promises are last confirmed ids and the tick from which they hold.
	promises []promise
}

type promise struct {
	tick message.Tick
	lc   message.ID
}

type naiveRecord struct {
	batch  *Batch
	index  int
	tick   message.Tick
	known  message.ID // when the tick was taken
	lc     message.ID
	kind   message.Type
	txn    uint64
	size   int
	landed message.ID // its place in the log, "" while it has none
	state  State
}

type naiveTxn struct {
	id        uint64
	vchannel  string
	known     message.ID
	asked     string // "", "commit", "rollback"
	sent      bool   // the end has a tick
	doomed    bool
	unreached int // bodies counted in that never got a tick
}

func (r *naiveRecord) resolved() bool { return r.state == Stored || r.state == Failed }

func newNaive() *naive {
	opening := message.Message{Type: message.TypeTimeTick, TimeTick: 100, ID: message.Uint64ID(2), Term: 1}
	return &naive{core: New(1, opening), known: opening.ID, next: 101, nextID: 3, txns: map[uint64]*naiveTxn{}, ends: map[uint64]message.Tick{}, idle: 100}
}

// lc is the smallest known of everything unresolved and every open transaction.
func (n *naive) lc() message.ID {
	id := n.known
	for _, r := range n.records {
		if !r.resolved() {
			id = min(id, r.known)
		}
	}
	for _, t := range n.txns {
		id = min(id, t.known)
	}
	return id
}

// accepted notes a batch that the core has just given ticks; lc and known are
// what the model says that they were then.
func (n *naive) accepted(t *rapid.T, b *Batch, lc message.ID) {
	for i := range b.Messages {
		m := &b.Messages[i]
		if m.TimeTick != n.next {
			t.Fatalf("record %d of the batch has tick %d, want %d", i, m.TimeTick, n.next)
		}
		if m.LastConfirmed != lc {
			t.Fatalf("tick %d has last confirmed id %v, want %v", m.TimeTick, m.LastConfirmed, lc)
		}
		n.next++
		n.records = append(n.records, &naiveRecord{
			batch: b, index: i, tick: m.TimeTick, known: n.known, lc: lc, kind: m.Type, txn: m.TxnID, size: m.Size(),
		})
	}
	n.batches = append(n.batches, b)
}

func (n *naive) bodies(id uint64) (stored, failed, open int) {
	for _, r := range n.records {
		if r.txn != id || r.kind.IsTxn() {
			continue
		}
		switch r.state {
		case Stored:
			stored++
		case Failed:
			failed++
		default:
			open++
		}
	}
	return stored, failed + n.txns[id].unreached, open
}

func (n *naive) begun(id uint64) State {
	for _, r := range n.records {
		if r.txn == id && r.kind == message.TypeBeginTxn {
			return r.state
		}
	}
	return Queued
}

// resolve tells the core what became of a record, and the model too.
func (n *naive) resolve(r *naiveRecord, stored bool) {
	if stored {
		if r.landed == "" {
			r.landed = message.Uint64ID(n.nextID)
			n.nextID++
		}
		r.state = Stored
		n.known = max(n.known, r.landed)
		n.core.SetStored(r.batch, r.index, r.landed, 1, 1)
	} else {
		r.state = Failed
		n.core.SetFailed(r.batch, r.index)
	}
	switch r.kind {
	case message.TypeBeginTxn:
		if !stored {
			delete(n.txns, r.txn)
		}
	case message.TypeCommitTxn, message.TypeRollbackTxn:
		if tx := n.txns[r.txn]; stored {
			delete(n.txns, r.txn)
			n.ends[r.txn] = r.tick
		} else {
			tx.asked, tx.sent = "", false
		}
	}
}

func (n *naive) open() []uint64 {
	var ids []uint64
	for id := range n.txns {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check compares everything that the core answers.
func (n *naive) check(t *rapid.T) {
	c := n.core
	if got, want := c.LastConfirmed(), n.lc(); got != want {
		t.Fatalf("last confirmed id %v, want %v", got, want)
	}
	bytes, ticks, unticked, untickedBytes := 0, 0, 0, 0
	persisted, released := message.Tick(0), n.idle
	for _, r := range n.records {
		if r.kind == message.TypeTimeTick && r.state == Stored {
			persisted = r.tick
		}
	}
	front := true
	var sendable *Batch
	var ready []message.Tick
	for _, b := range n.batches {
		if !b.Resolved() {
			bytes += b.Bytes
			if b.IsTick() {
				ticks++
			}
			if front && b.IsTick() && b.States[0] == Queued {
				sendable = b
			}
			front = false
		}
		if front {
			released = max(released, b.Last())
		}
		for i := range b.Messages {
			if b.States[i] != Stored {
				continue
			}
			if front {
				ready = append(ready, b.Messages[i].TimeTick)
			}
			if !b.IsTick() && b.Messages[i].TimeTick > persisted {
				unticked++
				untickedBytes += b.Messages[i].Size()
			}
		}
	}
	if c.UnresolvedBytes() != bytes {
		t.Fatalf("%d unresolved bytes, want %d", c.UnresolvedBytes(), bytes)
	}
	if c.TickPending() != (ticks > 0) || c.SendableTick() != sendable {
		t.Fatalf("a tick is pending: %v, want %v; sendable %v, want %v", c.TickPending(), ticks > 0, c.SendableTick(), sendable)
	}
	if n.reopened > persisted {
		unticked++
	}
	if records, size := c.Unticked(); records != unticked || size != untickedBytes {
		t.Fatalf("unticked: %d records of %d bytes, want %d of %d", records, size, unticked, untickedBytes)
	}
	got, tick := c.Release()
	n.given = append(n.given, got...)
	if tick != released {
		t.Fatalf("released up to %d, want %d", tick, released)
	}
	var given []message.Tick
	for _, m := range n.given {
		given = append(given, m.TimeTick)
	}
	if !slices.Equal(given, ready) {
		t.Fatalf("released %v, want %v", given, ready)
	}
	confirmed := n.lc()
	for _, r := range n.records {
		if e := n.ends[r.txn]; r.kind == message.TypeBeginTxn && r.state == Stored && r.tick <= released && e > released {
			confirmed = min(confirmed, r.known)
		}
	}
	if got := c.Confirmed(); got != confirmed {
		t.Fatalf("the last confirmed id of the released tick is %v, want %v", got, confirmed)
	}
	n.promises = append(n.promises, promise{released + 1, confirmed})
	from, some := message.ID(""), false
	for _, r := range n.records {
		r.state = r.batch.States[r.index]
		if r.state == Unknown && (!some || r.lc < from) {
			from, some = r.lc, true
		}
	}
	if id, ok := c.ReadBackFrom(); ok != some || id != from {
		t.Fatalf("read back from %v (%v), want %v (%v)", id, ok, from, some)
	}
	n.checkTxns(t)
}

func (n *naive) checkTxns(t *rapid.T) {
	var open, ending []uint64
	for _, tx := range n.core.Txns() {
		open = append(open, tx.ID)
	}
	if want := n.open(); !slices.Equal(open, want) {
		t.Fatalf("open transactions %v, want %v", open, want)
	}
	for _, id := range open {
		tx, want := n.core.Txn(id), n.txns[id]
		stored, failed, left := n.bodies(id)
		if tx.Bodies != stored || tx.Failed != failed {
			t.Fatalf("transaction %d: %d bodies, %d failed, want %d and %d", id, tx.Bodies, tx.Failed, stored, failed)
		}
		if n.begun(id) != Stored {
			left++
		}
		if want.asked != "" && !want.sent && left == 0 {
			ending = append(ending, id)
		}
	}
	if got := n.core.Ending(); !slices.Equal(got, ending) {
		t.Fatalf("ending transactions %v, want %v", got, ending)
	}
}

// lastConfirmedPromise holds every last confirmed id against the finished log:
// a reader from there meets every record with a tick at or above, and the first
// record of every transaction that was open.
func (n *naive) lastConfirmedPromise(t *rapid.T) {
	for _, r := range n.records {
		n.promises = append(n.promises, promise{r.tick, r.lc})
	}
	for _, m := range n.promises {
		for _, x := range n.records {
			if x.state != Stored || x.landed >= m.lc {
				continue
			}
			if x.tick >= m.tick {
				t.Fatalf("a reader from the last confirmed id %v of tick %d misses tick %d at %v", m.lc, m.tick, x.tick, x.landed)
			}
			if e, ended := n.ends[x.txn]; x.kind == message.TypeBeginTxn && x.tick < m.tick && (!ended || e >= m.tick) {
				t.Fatalf("a reader from the last confirmed id %v of tick %d misses the begin of open transaction %d at %v", m.lc, m.tick, x.txn, x.landed)
			}
		}
	}
}

func pick[T any](t *rapid.T, what string, from []T) (T, bool) {
	var none T
	if len(from) == 0 {
		return none, false
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, what)], true
}

// TestCoreAnswersLikeANaiveImplementation drives the core through any order of
// appends, answers, lost handles and transactions.
func TestCoreAnswersLikeANaiveImplementation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := newNaive()
		unresolved := func(ok func(*naiveRecord) bool) (list []*naiveRecord) {
			for _, r := range n.records {
				if !r.resolved() && ok(r) {
					list = append(list, r)
				}
			}
			return list
		}
		// mayBeSent: a persisted time tick is sent only from the front.
		mayBeSent := func(r *naiveRecord) bool {
			return r.kind != message.TypeTimeTick || n.core.SendableTick() == r.batch || r.state != Queued
		}
		vchannel := rapid.SampledFrom([]string{"", "v1", "v2"})
		txn := func(t *rapid.T) (uint64, bool) { return pick(t, "txn", n.open()) }
		t.Repeat(map[string]func(*rapid.T){
			"": n.check,
			"append": func(t *rapid.T) {
				lc := n.lc()
				batch := make([]message.Message, rapid.IntRange(1, 3).Draw(t, "records"))
				for i := range batch {
					batch[i] = message.Message{Type: message.TypeData, Payload: make([]byte, rapid.IntRange(0, 9).Draw(t, "size"))}
				}
				n.accepted(t, n.core.Accept(batch, n.next, true), lc)
			},
			"tick": func(t *rapid.T) {
				if n.core.TickPending() {
					t.Skip("one at a time")
				}
				lc := n.lc()
				n.accepted(t, n.core.AcceptTick(n.next), lc)
			},
			"idle": func(t *rapid.T) {
				settled := len(unresolved(func(*naiveRecord) bool { return true })) == 0
				if n.core.Settled() != settled || n.core.Idle(n.next) != settled {
					t.Fatalf("idle: want %v", settled)
				}
				if settled {
					n.idle = n.next
					n.next++
				}
			},
			"send": func(t *rapid.T) {
				if r, ok := pick(t, "record", unresolved(func(r *naiveRecord) bool { return r.state == Queued && mayBeSent(r) })); ok {
					r.batch.States[r.index], r.state = Sent, Sent
				}
			},
			"land": func(t *rapid.T) { // stored, not acknowledged yet
				r, ok := pick(t, "record", unresolved(func(r *naiveRecord) bool { return r.state != Queued && r.landed == "" }))
				if ok {
					r.landed = message.Uint64ID(n.nextID)
					n.nextID++
				}
			},
			"stored": func(t *rapid.T) {
				if r, ok := pick(t, "record", unresolved(func(r *naiveRecord) bool { return r.state != Queued })); ok {
					n.resolve(r, true)
				}
			},
			"failed": func(t *rapid.T) {
				if r, ok := pick(t, "record", unresolved(func(r *naiveRecord) bool { return r.landed == "" })); ok {
					n.resolve(r, false)
				}
			},
			"lose": func(*rapid.T) {
				n.core.Lose()
				for _, r := range n.records {
					if r.state == Sent {
						r.state = Unknown
					}
				}
			},
			"reopen": func(t *rapid.T) {
				// Unresolved ticks are settled before, as the WAL does.
				for _, r := range n.records {
					if r.kind == message.TypeTimeTick && !r.resolved() {
						n.resolve(r, r.landed != "")
					}
				}
				n.core.Reopened()
				n.reopened = n.next
				n.next++
			},
			"begin": func(t *rapid.T) {
				lc, known, v := n.lc(), n.known, vchannel.Draw(t, "vchannel")
				tx, b := n.core.Begin(message.Message{VChannel: v}, n.next)
				n.txns[tx.ID] = &naiveTxn{id: tx.ID, vchannel: v, known: known}
				n.accepted(t, b, lc)
			},
			"body": func(t *rapid.T) {
				id, ok := txn(t)
				if !ok {
					t.Skip("no transaction")
				}
				err := n.core.AddBodies("p", id, 1, 5, 0)
				tx := n.txns[id]
				if refused := tx.asked != "" || tx.sent; refused != (err != nil) {
					t.Fatalf("a body of transaction %d (%+v): %v", id, tx, err)
				}
				if err != nil {
					return
				}
				if rapid.IntRange(0, 5).Draw(t, "never accepted") == 0 {
					n.core.FailBodies(id, 1, 5)
					tx.unreached++
					return
				}
				lc := n.lc()
				n.accepted(t, n.core.Accept([]message.Message{{Type: message.TypeData, TxnID: id, Payload: make([]byte, 5)}}, n.next, true), lc)
			},
			"ask for the end": func(t *rapid.T) {
				id, ok := txn(t)
				if !ok {
					t.Skip("no transaction")
				}
				how, tx := rapid.SampledFrom([]string{"commit", "rollback"}).Draw(t, "how"), n.txns[id]
				err := n.core.AskEnd("p", id, how == "commit")
				if refused := tx.asked != ""; refused != (err != nil) {
					t.Fatalf("%s of transaction %d (%+v): %v", how, id, tx, err)
				}
				if err == nil {
					tx.asked = how
				}
			},
			"end": func(t *rapid.T) {
				id, ok := pick(t, "txn", n.core.Ending())
				if !ok {
					t.Skip("none is ready")
				}
				tx := n.txns[id]
				stored, failed, _ := n.bodies(id)
				e, lc := n.core.EndReady(id), n.lc()
				refused := tx.asked == "commit" && (failed > 0 || tx.doomed)
				if e.Refused != refused {
					t.Fatalf("end of %+v with %d failed bodies: refused %v", tx, failed, e.Refused)
				}
				if commit := e.Message.Type == message.TypeCommitTxn; commit != (tx.asked == "commit" && !refused) {
					t.Fatalf("end of %+v is a %v", tx, e.Message.Type)
				} else if count, ok := BodyCount(&e.Message); commit && (!ok || count != uint64(stored)) {
					t.Fatalf("the commit counts %d bodies, %d are stored", count, stored)
				}
				tx.sent = true
				n.accepted(t, n.core.Accept([]message.Message{e.Message}, n.next, true), lc)
			},
			"exclusive": func(t *rapid.T) {
				v := vchannel.Draw(t, "vchannel")
				n.core.Doom(v)
				for _, tx := range n.txns {
					if v != "" && tx.vchannel != "" && tx.vchannel != v {
						continue
					}
					tx.doomed = true
					if !tx.sent && tx.asked == "" {
						tx.asked = "rollback"
					}
				}
			},
		})
		n.lastConfirmedPromise(t)
	})
}

func TestEndedTransactionsAreReportedOnce(t *testing.T) {
	n := newNaive()
	tx, b := n.core.Begin(message.Message{}, 101)
	n.core.SetStored(b, 0, message.Uint64ID(3), 1, 1)
	if err := n.core.AskEnd("p", tx.ID, true); err != nil {
		t.Fatal(err)
	}
	end := n.core.Accept([]message.Message{n.core.EndReady(tx.ID).Message}, 102, true)
	if got := n.core.TakeEnded(); len(got) != 0 {
		t.Fatalf("ended before its commit is stored: %v", got)
	}
	n.core.SetStored(end, 0, message.Uint64ID(4), 1, 1)
	if got := fmt.Sprint(n.core.TakeEnded(), n.core.TakeEnded()); got != "[101] []" {
		t.Fatalf("ended: %s", got)
	}
}

// TestCommitThatFailedAcrossAnExclusiveRecordIsRefusedLater: the commit had its
// tick below the exclusive record's, but was not stored; another try would get
// one above it.
func TestCommitThatFailedAcrossAnExclusiveRecordIsRefusedLater(t *testing.T) {
	c := newNaive().core
	tx, b := c.Begin(message.Message{VChannel: "v1"}, 101)
	c.SetStored(b, 0, message.Uint64ID(3), 1, 1)
	_ = c.AskEnd("p", tx.ID, true)
	commit := c.Accept([]message.Message{c.EndReady(tx.ID).Message}, 102, true)
	c.Doom("v1")
	c.SetFailed(commit, 0)
	if err := c.AskEnd("p", tx.ID, true); err != nil {
		t.Fatal(err)
	}
	if e := c.EndReady(tx.ID); !e.Refused || e.Message.Type != message.TypeRollbackTxn {
		t.Fatalf("the second commit is a %v, want a refusal", e.Message.Type)
	}
}

func TestTransactionRefusalsAreTyped(t *testing.T) {
	c := newNaive().core
	for name, err := range map[string]error{
		"body of none": c.AddBodies("p", 7, 1, 1, 0), "end of none": c.AskEnd("p", 7, true),
	} {
		if e := walimpls.AsError(err); e.Code != walimpls.CodeTxnNotFound || e.Channel != "p" {
			t.Errorf("%s: %v", name, err)
		}
	}
	tx, _ := c.Begin(message.Message{}, 101)
	if err := c.AddBodies("p", tx.ID, 1, 11, 10); !errors.Is(err, walimpls.ErrTooLarge) {
		t.Errorf("above the limit: %v", err)
	}
	if err := c.AddBodies("p", tx.ID, 1, 10, 10); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	_ = c.AskEnd("p", tx.ID, true)
	for name, err := range map[string]error{"a body": c.AddBodies("p", tx.ID, 1, 1, 0), "a second end": c.AskEnd("p", tx.ID, false)} {
		if walimpls.AsError(err).Code != walimpls.CodeTxnState {
			t.Errorf("%s behind the end: %v", name, err)
		}
	}
}

// FuzzBodyCount: no payload makes it panic, and what a commit carries is read back.
func FuzzBodyCount(f *testing.F) {
	f.Add([]byte{}, uint64(0))
	f.Add([]byte{0x80}, uint64(1<<63))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, uint64(10000))
	f.Add([]byte{5, 5}, uint64(127))
	f.Fuzz(func(t *testing.T, payload []byte, bodies uint64) {
		n, ok := BodyCount(&message.Message{Payload: payload})
		if !ok && len(payload) > 0 && payload[0] < 0x80 && len(payload) == 1 {
			t.Errorf("one byte %x is a count", payload)
		}
		if ok && n == 0 && len(payload) == 0 {
			t.Error("an empty payload is no count")
		}
		c := New(1, message.Message{TimeTick: 1, ID: message.Uint64ID(1)})
		tx, b := c.Begin(message.Message{}, 2)
		c.SetStored(b, 0, message.Uint64ID(2), 1, 1)
		tx.Bodies = int(bodies >> 1)
		_ = c.AskEnd("p", tx.ID, true)
		commit := c.EndReady(tx.ID).Message
		if n, ok := BodyCount(&commit); !ok || n != bodies>>1 {
			t.Errorf("%d bodies come back as %d (%v)", bodies>>1, n, ok)
		}
	})
}
