package wal

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func begin(t *testing.T, w WAL) uint64 {
	t.Helper()
	txn, err := w.Begin(within(t, 5*time.Second), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return txn.ID
}

func body(id uint64, payloads ...string) []message.Message {
	batch := data(payloads...)
	for i := range batch {
		batch[i].TxnID = id
	}
	return batch
}

func hasCode(err error, code walimpls.Code) bool {
	return err != nil && walimpls.AsError(err).Code == code
}

func TestTransactionIsDeliveredWholeAtItsCommit(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	id := begin(t, w)
	w.Append(within(t, 5*time.Second), body(id, "t1"))
	mustAppend(t, w, "between")
	w.Append(within(t, 5*time.Second), body(id, "t2"))
	dead := begin(t, w)
	w.Append(within(t, 5*time.Second), body(dead, "dropped"))
	if r := w.Rollback(within(t, 5*time.Second), dead); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	if r := w.Commit(within(t, 5*time.Second), id); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	mustAppend(t, w, "behind")
	const want = "[between [t1 t2] behind]"
	if got := fmt.Sprint(texts(readUntilCaughtUp(t, w, scanner.Options{}))); got != want {
		t.Errorf("read %s, want %s", got, want)
	}
	units := readUntilCaughtUp(t, w, scanner.Options{})
	if u := units[1]; u.Before.Tick >= u.Tick || u.Checkpoint.Tick != u.Tick || u.Before.Tick != units[0].Tick && !u.Before.Covers(units[0].Term, units[0].Tick) {
		t.Errorf("the transaction's checkpoints are %+v and %+v", u.Before, u.Checkpoint)
	}
}

func TestEndedAndUnknownTransactionsAreTypedErrors(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	id := begin(t, w)
	w.Append(within(t, 5*time.Second), body(id, "x"))
	if r := w.Commit(within(t, 5*time.Second), id); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	for name, r := range map[string]Result{
		"a second commit":      w.Commit(within(t, 5*time.Second), id),
		"a rollback behind":    w.Rollback(within(t, 5*time.Second), id),
		"an unknown id":        w.Commit(within(t, 5*time.Second), 12345),
		"a body behind":        w.Append(within(t, 5*time.Second), body(id, "late"))[0],
		"a body of a stranger": w.Append(within(t, 5*time.Second), body(777, "late"))[0],
	} {
		if r.State != walimpls.NotStored || !hasCode(r.Err, walimpls.CodeTxnNotFound) {
			t.Errorf("%s: %v %v", name, r.State, r.Err)
		}
	}
	if _, err := w.Begin(within(t, 5*time.Second), "", time.Nanosecond); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("a keepalive of 1 ns: %v", err)
	}
}

// TestFailingBodyWedgesNothing is M-20.
func TestFailingBodyWedgesNothing(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, f *fixture, w WAL, id uint64){
		"too large": func(t *testing.T, f *fixture, w WAL, id uint64) {
			batch := body(id, "")
			batch[0].Payload = make([]byte, f.limits().MaxMessageBytes+1)
			if r := w.Append(within(t, 5*time.Second), batch)[0]; r.State != walimpls.NotStored {
				t.Fatal(r.State)
			}
		},
		"backend error": func(t *testing.T, f *fixture, w WAL, id uint64) {
			f.setRules("append permanent count=1")
			if r := w.Append(within(t, 5*time.Second), body(id, "b"))[0]; r.State != walimpls.NotStored {
				t.Fatal(r.State)
			}
		},
		"cancelled": func(t *testing.T, f *fixture, w WAL, id uint64) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if r := w.Append(ctx, body(id, "c"))[0]; r.State != walimpls.NotStored {
				t.Fatal(r.State)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			w := f.open(func(o *Options) { o.TxnKeepalive = 300 * time.Millisecond })
			id := begin(t, w)
			w.Append(within(t, 5*time.Second), body(id, "good"))
			fail(t, f, w, id)
			start := time.Now()
			r := w.Commit(within(t, 5*time.Second), id)
			if took := time.Since(start); took > time.Second {
				t.Errorf("commit took %v", took)
			}
			if !hasCode(r.Err, walimpls.CodeTxnRolledBack) {
				t.Errorf("commit: %v %v", r.State, r.Err)
			}
			w.Rollback(within(t, time.Second), id)
			next := begin(t, w)
			w.Append(within(t, 5*time.Second), body(next, "n"))
			if r := w.Commit(within(t, 5*time.Second), next); r.State != walimpls.Stored {
				t.Fatalf("the next transaction: %v", r.Err)
			}
			tail := mustAppend(t, w, "plain")[0]
			waitFor(t, func() bool { return w.Status().LastConfirmed > tail.ID })
			if open := w.Status().OpenTxns; open != 0 {
				t.Errorf("%d transactions are open", open)
			}
		})
	}
}

func TestExpiryIsWrittenToTheLogAndUnpins(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.TxnKeepalive = 30 * time.Millisecond })
	id := begin(t, w)
	w.Append(within(t, 5*time.Second), body(id, "x"))
	tail := mustAppend(t, w, "plain")[0]
	if lc := w.Status().LastConfirmed; lc > message.Uint64ID(3) {
		t.Errorf("an open transaction does not pin the last confirmed id: %s", lc)
	}
	waitFor(t, func() bool { return w.Status().LastConfirmed > tail.ID })
	if r := w.Commit(within(t, 5*time.Second), id); !hasCode(r.Err, walimpls.CodeTxnNotFound) {
		t.Errorf("commit of an expired transaction: %v %v", r.State, r.Err)
	}
	found := false
	for _, m := range f.store.Records(testChannel) {
		found = found || (m.Type == message.TypeRollbackTxn && m.TxnID == id)
	}
	if !found {
		t.Error("the log holds no rollback of the expired transaction")
	}
}

func TestTransactionSurvivesAReopenWithinItsTerm(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	id := begin(t, w)
	w.Append(within(t, 5*time.Second), body(id, "a"))
	f.setRules("append lose-connection after count=1")
	if r := w.Append(within(t, 5*time.Second), body(id, "b"))[0]; r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	f.setRules("append fail-after-write unknown count=1")
	if r := w.Commit(within(t, 5*time.Second), id); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	if got := fmt.Sprint(texts(readUntilCaughtUp(t, w, scanner.Options{}))); got != "[[a b]]" {
		t.Fatalf("read %s", got)
	}
}

func TestTransactionOfAnOlderTermNeverCommits(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	id := begin(t, w)
	w.Append(within(t, 5*time.Second), body(id, "a"))
	next := f.open(nil)
	if r := w.Commit(within(t, 5*time.Second), id); r.State == walimpls.Stored {
		t.Fatal("a fenced owner committed")
	}
	if r := next.Commit(within(t, 5*time.Second), id); !hasCode(r.Err, walimpls.CodeTxnNotFound) {
		t.Fatalf("the new owner: %v %v", r.State, r.Err)
	}
	if got := texts(readUntilCaughtUp(t, next, scanner.Options{})); len(got) != 0 {
		t.Fatalf("read %v", got)
	}
}

func TestLargeTransactionsWork(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	many := begin(t, w)
	for range 20 {
		batch := make([]string, 500)
		if r := w.Append(within(t, 10*time.Second), body(many, batch...)); r[499].State != walimpls.Stored {
			t.Fatal(r[499].Err)
		}
	}
	if r := w.Commit(within(t, 10*time.Second), many); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	big := begin(t, w)
	payload := string(make([]byte, 1<<20))
	for range 20 {
		if r := w.Append(within(t, 10*time.Second), body(big, payload)); r[0].State != walimpls.Stored {
			t.Fatal(r[0].Err)
		}
	}
	if r := w.Commit(within(t, 10*time.Second), big); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	units := readUntilCaughtUp(t, w, scanner.Options{})
	if len(units) != 2 || len(units[0].Messages) != 10000 || len(units[1].Messages) != 20 {
		t.Fatalf("%d units", len(units))
	}
}

func TestTransactionAboveItsLimitIsRefused(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.MaxTxnBytes = 10 })
	id := begin(t, w)
	if r := w.Append(within(t, 5*time.Second), body(id, "12345"))[0]; r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	if r := w.Append(within(t, 5*time.Second), body(id, "123456"))[0]; !errors.Is(r.Err, walimpls.ErrTooLarge) {
		t.Fatalf("%v %v", r.State, r.Err)
	}
}

func TestExclusiveRecordEndsTransactionsOnItsVChannel(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	here, err := w.Begin(within(t, 5*time.Second), "v1", 0)
	if err != nil {
		t.Fatal(err)
	}
	there, err := w.Begin(within(t, 5*time.Second), "v2", 0)
	if err != nil {
		t.Fatal(err)
	}
	drop := []message.Message{{Type: message.TypeDropVChannel, VChannel: "v1"}}
	if r := w.Append(within(t, 5*time.Second), drop)[0]; r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	if r := w.Commit(within(t, 5*time.Second), here.ID); r.State == walimpls.Stored {
		t.Error("a transaction committed across an exclusive record")
	}
	if r := w.Commit(within(t, 5*time.Second), there.ID); r.State != walimpls.Stored {
		t.Errorf("a transaction on another vchannel: %v", r.Err)
	}
}

func TestBarrierTickIsBelowWhatWaitsForIt(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	first := mustAppend(t, w, "a")[0]
	barrier := first.Tick + 1000
	r := w.AppendAfter(within(t, 5*time.Second), barrier, data("b"))[0]
	if r.State != walimpls.Stored || r.Tick <= barrier {
		t.Fatalf("%v %v, tick %d, barrier %d", r.State, r.Err, r.Tick, barrier)
	}
}
