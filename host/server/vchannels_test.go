package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestRecordOfAnUndeclaredVChannelIsRefusedForGoodBeforeItGetsATick(t *testing.T) {
	for _, flushes := range []bool{false, true} {
		h := newHost(t, Options{})
		if flushes {
			h = newFlushingHost(t)
		}
		c, ctx := h.create("orders"), testContext(t)
		refused := func(v string) {
			t.Helper()
			results, err := c.Append(ctx, "orders", client.Record{Payload: []byte("for all")}, client.Record{VChannel: v})
			if err == nil {
				err = results[1].Err
			}
			if !errors.Is(err, walimpls.ErrNotFound) || walimpls.AsError(err).Retryable {
				t.Fatalf("append to %q: %v", v, err)
			}
			if results[0].State != walimpls.Stored || results[1].State != walimpls.NotStored || results[1].TimeTick != 0 {
				t.Fatalf("%+v", results)
			}
		}
		refused("v1")
		_, err := c.BeginTxn(ctx, "orders", client.TxnOptions{VChannel: "v1"})
		mustBe(t, err, walimpls.ErrNotFound)
		declare(t, c, "orders", "v1", "v2")
		_, err = c.CreateVChannels(ctx, "orders", []string{"v1"}, false)
		mustBe(t, err, walimpls.ErrAlreadyExists)
		again, err := c.CreateVChannels(ctx, "orders", []string{"v1", "v3"}, false)
		must(t, err)
		if len(again) != 1 || again[0] != "v3" {
			t.Fatalf("created %q", again)
		}
		must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v1"})))
		must(t, c.DropVChannel(ctx, "orders", "v1"))
		refused("v1")
		if err := c.DropVChannel(ctx, "orders", "v1"); err != nil || !flushes { // one that is still being flushed is dropped again
			mustBe(t, err, walimpls.ErrNotFound)
		}
		h.restart()
		h.awaitReady()
		c = h.client()
		refused("v1")
		must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v2"})))
		// It can come back, when what it held is flushed.
		declare(t, c, "orders", "v1")
		must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v1"})))
	}
}

func appendErr(results []client.Result, err error) error {
	if err == nil && len(results) > 0 {
		return results[0].Err
	}
	return err
}

func TestTransactionStaysOnItsVChannel(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	declare(t, c, "orders", "v1", "v2")
	txn, err := c.BeginTxn(ctx, "orders", client.TxnOptions{VChannel: "v1"})
	must(t, err)
	must(t, appendErr(txn.Append(ctx, client.Record{VChannel: "v1"})))
	mustBe(t, appendErr(txn.Append(ctx, client.Record{VChannel: "v2"})), walimpls.ErrInvalidArgument)
	_, err = txn.Commit(ctx)
	mustBe(t, err, walimpls.AsError(err))
	if walimpls.AsError(err).Code != walimpls.CodeTxnRolledBack {
		t.Fatalf("commit: %v", err)
	}
	// One for all may write to several, and a drop of any of them ends it.
	txn, err = c.BeginTxn(ctx, "orders", client.TxnOptions{})
	must(t, err)
	must(t, appendErr(txn.Append(ctx, client.Record{VChannel: "v1"})))
	must(t, appendErr(txn.Append(ctx, client.Record{VChannel: "v2"})))
	declare(t, c, "orders", "v3") // which a creation does not
	_, err = txn.Commit(ctx)
	must(t, err)
	txn, err = c.BeginTxn(ctx, "orders", client.TxnOptions{})
	must(t, err)
	must(t, appendErr(txn.Append(ctx, client.Record{VChannel: "v2"})))
	must(t, c.DropVChannel(ctx, "orders", "v2"))
	if _, err = txn.Commit(ctx); err == nil {
		t.Fatal("a transaction outlived a drop")
	}
}

func TestFlushNowReturnsWhenEverythingBeforeItIsInFiles(t *testing.T) {
	h := newFlushingHost(t)
	c, ctx := h.create("orders"), testContext(t)
	declare(t, c, "orders", "v1", "v2")
	for i := range 100 {
		must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v1", Payload: fmt.Append(nil, i)}, client.Record{Payload: []byte("all")})))
	}
	txn, err := c.BeginTxn(ctx, "orders", client.TxnOptions{VChannel: "v2"})
	must(t, err)
	must(t, appendErr(txn.Append(ctx, client.Record{VChannel: "v2"}, client.Record{VChannel: "v2"})))
	_, err = txn.Commit(ctx)
	must(t, err)
	_, err = c.FlushNow(ctx, "orders", "", true)
	must(t, err)
	for v, want := range map[string]int64{"v1": 100, "v2": 2, "": 100} {
		files, err := c.ListFiles(ctx, "orders", v)
		must(t, err)
		if rows := rowsOf(files); rows != want {
			t.Fatalf("vchannel %q has %d rows in %d files, want %d", v, rows, len(files), want)
		}
	}
	_, err = c.FlushNow(ctx, "orders", "never", true)
	mustBe(t, err, walimpls.ErrNotFound)
	// The files of a dropped one stay, and the log gets shorter.
	must(t, c.DropVChannel(ctx, "orders", "v1"))
	until(t, "v1 is gone", func() bool {
		list, err := c.ListVChannels(ctx, "orders")
		must(t, err)
		return len(list) == 1 && list[0].GetName() == "v2"
	})
	files, err := c.ListFiles(ctx, "orders", "v1")
	must(t, err)
	if rows := rowsOf(files); rows != 100 {
		t.Fatalf("%d rows are left", rows)
	}
	until(t, "the log is cut behind all that", func() bool {
		st, err := c.DescribeChannel(ctx, "orders")
		must(t, err)
		return st.GetFlush().GetState() == "working" && len(readAll(t, c, "orders", client.ReadOptions{})) == 0
	})
	st, err := c.FlushStatus(ctx, "orders")
	must(t, err)
	if f := st.GetFlush(); f.GetRows() != 202 || f.GetFailures() != 0 || f.GetLagBytes() != 0 || f.GetTruncatedBefore() == "" || len(st.GetVchannels()) != 2 {
		t.Fatalf("%v", st)
	}
}

func rowsOf(files []*walv1.File) (n int64) {
	for _, f := range files {
		n += f.GetRows()
	}
	return n
}

func TestHostThatFlushesNothingSaysSo(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	_, err := c.FlushNow(ctx, "orders", "", true)
	if !errors.Is(err, walimpls.ErrUnsupported) || !strings.Contains(walimpls.AsError(err).Hint, "flusher.bucket") {
		t.Fatalf("%v", err)
	}
	_, err = c.ListFiles(ctx, "orders", "")
	mustBe(t, err, walimpls.ErrUnsupported)
	st, err := c.FlushStatus(ctx, "orders")
	must(t, err)
	if st.GetFlush().GetState() != "off" {
		t.Fatalf("%v", st)
	}
}

// TestReaderBelowTheTruncationPointThatMissedNothingGoesOn: a flush removes what
// it flushed, and only who has not read that has lost something.
func TestReaderBelowTheTruncationPointThatMissedNothingGoesOn(t *testing.T) {
	h := newFlushingHost(t)
	c, ctx := h.create("orders"), testContext(t)
	declare(t, c, "orders", "v1")
	results, err := c.Append(ctx, "orders", client.Record{Payload: []byte("one")}, client.Record{VChannel: "v1", Payload: []byte("two")})
	must(t, err)
	_, err = c.FlushNow(ctx, "orders", "", true)
	must(t, err)
	until(t, "the log is cut", func() bool { return len(readAll(t, c, "orders", client.ReadOptions{})) == 0 })
	must(t, appendErr(c.Append(ctx, "orders", client.Record{Payload: []byte("three")})))
	from := func(r client.Result) client.ReadOptions { return client.ReadOptions{From: "cp:" + r.Checkpoint} }
	_, err = tryRead(t, c, "orders", from(results[0]))
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) || !strings.Contains(walimpls.AsError(err).Hint, "all") {
		t.Fatalf("a reader that missed a record: %v, hint %q", err, walimpls.AsError(err).Hint)
	}
	if got := readAll(t, c, "orders", from(results[1])); len(got) > 1 || len(got) == 1 && got[0] != "three" {
		t.Fatalf("read %q", got)
	}
}

// TestAdoptedLogKnowsItsVChannels loses the catalog: what is declared follows
// from the log, and where the log was cut from the manifests.
func TestAdoptedLogKnowsItsVChannels(t *testing.T) {
	h := newFlushingHost(t)
	c, ctx := h.create("orders"), testContext(t)
	declare(t, c, "orders", "old", "gone", "young")
	must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "old", Payload: []byte("1")})))
	must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "gone", Payload: []byte("2")})))
	must(t, c.DropVChannel(ctx, "orders", "gone"))
	_, err := c.FlushNow(ctx, "orders", "", true)
	must(t, err)
	until(t, "the log is cut", func() bool { return len(readAll(t, c, "orders", client.ReadOptions{})) == 0 })
	must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "young", Payload: []byte("3")})))
	must(t, c.RemoveChannel(ctx, "orders", false))
	_, _, err = c.CreateChannel(ctx, "orders", client.CreateOptions{Adopt: true})
	must(t, err)
	for v, want := range map[string]error{"old": nil, "young": nil, "gone": walimpls.ErrNotFound, "never": walimpls.ErrNotFound} {
		if err := appendErr(c.Append(ctx, "orders", client.Record{VChannel: v, Payload: []byte("4")})); !errors.Is(err, want) {
			t.Errorf("append to %q: %v, want %v", v, err, want)
		}
	}
	_, err = c.FlushNow(ctx, "orders", "", true)
	must(t, err)
	for v, want := range map[string]int64{"old": 2, "young": 2, "gone": 1} {
		files, err := c.ListFiles(ctx, "orders", v)
		must(t, err)
		if rows := rowsOf(files); rows != want {
			t.Errorf("vchannel %q has %d rows, want %d", v, rows, want)
		}
	}
	if st, _ := c.FlushStatus(ctx, "orders"); st.GetFlush().GetLostPositions() != 0 {
		t.Errorf("%v", st.GetFlush())
	}
}

// TestDropThatWasCutShortIsFinishedByTheNextOwner: the row says "dropping", the
// record is not in the log.
func TestDropThatWasCutShortIsFinishedByTheNextOwner(t *testing.T) {
	h := newFlushingHost(t)
	c, ctx := h.create("orders"), testContext(t)
	declare(t, c, "orders", "v1")
	must(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v1", Payload: []byte("1")})))
	h.plugin().rules(t, "append fail-before-write not_stored \"no luck\"")
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := c.DropVChannel(short, "orders", "v1"); err == nil {
		t.Fatal("dropped without a record")
	}
	h.plugin().rules(t, "")
	mustBe(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v1"})), walimpls.ErrNotFound)
	h.restart()
	h.awaitReady()
	c = h.client()
	mustBe(t, appendErr(c.Append(ctx, "orders", client.Record{VChannel: "v1"})), walimpls.ErrNotFound)
	until(t, "v1 is gone", func() bool {
		list, err := c.ListVChannels(ctx, "orders")
		must(t, err)
		return len(list) == 0
	})
	files, err := c.ListFiles(ctx, "orders", "v1")
	must(t, err)
	if rows := rowsOf(files); rows != 1 {
		t.Fatalf("%d rows", rows)
	}
}
