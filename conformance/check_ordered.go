package conformance

import (
	"errors"
	"slices"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// What a backend returns is judged by what the host's own scanner makes of it.
var reorderChecks = []check{
	{Clause: "WAL-REORD-001", Name: "order", Run: checkTickOrder},
	{Clause: "WAL-REORD-001", Name: "following", Run: checkFollowingInTickOrder},
	{Clause: "WAL-REORD-002", Name: "repeated", Run: checkRepeats},
	{Clause: "WAL-REORD-003", Name: "late", Run: checkLateRecords},
	{Clause: "WAL-REORD-004", Name: "terms", Run: checkOrderOverTerms},
	{Clause: "WAL-REORD-005", Name: "resumed", Run: checkResumes},
}

var txnChecks = []check{
	{Clause: "WAL-TXN-001", Name: "whole", Run: checkTransactions},
	{Clause: "WAL-TXN-002", Name: "terms", Run: checkTransactionsOverTerms},
	{Clause: "WAL-TXN-003", Name: "resumed", Run: checkTransactionsResumed},
}

func checkTickOrder(t *T) {
	o := t.newOwner()
	o.work(12, false)
	o.expectRaw()
	o.expectAll("records that landed out of tick order")
}

// checkFollowingInTickOrder: a scanner that was there before the records.
func checkFollowingInTickOrder(t *T) {
	o := t.newOwner()
	s := o.scan(scanner.Options{Start: scanner.All})
	defer s.close()
	got, err := s.upTo()
	t.expect(err == nil, "the host's scanner catches up on a log without messages; got %v", err)
	for range 3 {
		o.work(3, false)
		for have := len(got); !reaches(got[have:], o.tick); {
			next, err := s.next()
			t.expect(err == nil, "a scanner at the end hands out what a time tick releases; got %v", err)
			got = append(got, next...)
		}
		t.expectUnits(got, o.want(message.Checkpoint{}), "a scanner that follows")
	}
}

// reaches reports whether the restart position has come to the tick.
func reaches(units []scanner.Unit, tick message.Tick) bool {
	return len(units) > 0 && units[len(units)-1].Checkpoint.Tick >= tick
}

func checkRepeats(t *T) {
	o := t.newOwner()
	o.repeats = true
	for range 4 {
		ms := []message.Message{o.plain(), o.plain(), o.plain()}
		o.window(ms...)
		o.store(ms[:1]) // while it waits
		o.timeTick()
		o.store(ms) // after it was released
		o.timeTick()
	}
	o.expectRaw()
	o.expectResumes(o.expectAll("records that are in the log twice"))
}

func checkLateRecords(t *T) {
	o := t.newOwner()
	o.work(2, false)
	before := len(o.units)
	late := []message.Message{o.plain()}
	o.stamp(late)
	o.window(o.plain())
	o.timeTick() // above the one that is under way, which no owner does
	o.store(late)
	o.timeTick()
	o.window(o.plain())
	o.timeTick()
	o.expectRaw()

	s := o.scan(scanner.Options{Start: scanner.All, DropLate: true})
	got, err := s.upTo()
	t.expect(err == nil, "a scanner that drops late records catches up; got %v", err)
	t.expectUnits(got, o.want(message.Checkpoint{}), "a scanner that drops late records")
	t.expect(s.s.Status().Violations == 1, "one late record was dropped and counted; the count is %d", s.s.Status().Violations)
	s.close()

	s = o.scan(scanner.Options{Start: scanner.All})
	defer s.close()
	got, err = s.upTo()
	t.expect(errors.Is(err, walimpls.ErrCorrupt), "a late record ends a scanner that stops there with ErrCorrupt; got %v", err)
	// It may end as soon as it meets the record, ahead of what it has not handed out.
	n := 0
	for i := range got {
		n += min(1, len(got[i].Messages))
	}
	t.expect(n <= before+1, "a scanner that a late record ends hands out at most the %d units that lie before it; got %d", before+1, n)
	t.expectUnits(got, o.want(message.Checkpoint{})[:n], "what a scanner handed out before the late record")
}

func checkOrderOverTerms(t *T) {
	o := t.newOwner()
	o.work(3, false)
	o.window(o.plain(), o.plain()) // which no time tick of their own term covers
	o.takeOver(1, 2)
	o.work(2, false)
	o.window(o.plain())
	o.takeOver(3, 1)
	o.work(3, false)
	o.expectRaw()
	o.expectResumes(o.expectAll("records of three owners"))
}

func checkResumes(t *T) {
	o := t.newOwner()
	o.repeats = true
	o.work(10, false)
	o.expectResumes(o.expectAll("records that landed out of tick order"))
}

func checkTransactions(t *T) {
	o := t.newOwner()
	o.work(14, true)
	o.expectRaw()
	got := o.expectAll("interleaved transactions")
	t.expect(slices.ContainsFunc(got, func(u scanner.Unit) bool { return u.TxnID != 0 }), "a transaction is handed out")
}

func checkTransactionsOverTerms(t *T) {
	o := t.newOwner()
	o.work(4, true)
	// One that is open at a re-open within the term goes on.
	begin := o.begin()
	o.window(begin)
	o.window(o.body(o.txn(begin.TxnID)))
	o.takeOver(1, 2)
	o.window(o.body(o.txn(begin.TxnID)))
	o.window(o.commit(o.txn(begin.TxnID)))
	// What is open when the term ends never comes, also if its commit is missing alone.
	orphan := o.begin()
	o.window(orphan)
	o.window(o.body(o.txn(orphan.TxnID)), o.plain())
	o.takeOver(2, 1)
	o.work(4, true)
	o.expectRaw()
	o.expectResumes(o.expectAll("transactions of three owners"))
}

func checkTransactionsResumed(t *T) {
	o := t.newOwner()
	o.repeats = true
	o.work(12, true)
	o.expectResumes(o.expectAll("interleaved transactions"))
}
