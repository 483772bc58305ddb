package server

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// readUnits renders units as their payloads, joined by +.
func readUnits(t *testing.T, c *client.Client, opt client.ReadOptions) []string {
	t.Helper()
	r, err := c.NewReader(testContext(t), "orders", opt)
	must(t, err)
	defer r.Close()
	out := []string{}
	for unit, err := range r.Units(testContext(t)) {
		must(t, err)
		text := ""
		for i, m := range unit {
			if i > 0 {
				text += "+"
			}
			text += string(m.Payload)
		}
		out = append(out, text)
	}
	return out
}

func TestTransactionsOverTheAPI(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	txn, err := c.BeginTxn(ctx, "orders", client.TxnOptions{Keepalive: time.Minute})
	must(t, err)
	_, err = txn.Append(ctx, texts("a")...)
	must(t, err)
	appendAll(t, c, "orders", "plain")
	// Another client goes on with it, over a stream.
	a, err := h.client().Txn("orders", txn.ID()).NewAppender(ctx, client.AppenderOptions{})
	must(t, err)
	body := a.Append(client.Record{Payload: []byte("b")}).Result()
	must(t, body.Err)
	must(t, a.Close(ctx))
	if got := readUnits(t, c, client.ReadOptions{}); !slices.Equal(got, []string{"plain"}) {
		t.Fatalf("before the commit: %q", got)
	}
	r, err := txn.Commit(ctx)
	must(t, err)
	if got := readUnits(t, c, client.ReadOptions{}); !slices.Equal(got, []string{"plain", "a+b"}) {
		t.Fatalf("after the commit: %q", got)
	}
	for name, token := range map[string]string{"the body's": body.Checkpoint, "the commit's": r.Checkpoint} {
		want := map[string][]string{"the body's": {"plain", "a+b"}, "the commit's": {}}[name]
		if got := readUnits(t, c, client.ReadOptions{From: "cp:" + token}); !slices.Equal(got, want) {
			t.Errorf("from %s checkpoint: %q, want %q", name, got, want)
		}
	}
	if _, err := txn.Commit(ctx); walimpls.AsError(err).Code != walimpls.CodeTxnNotFound {
		t.Errorf("a second commit: %v", err)
	}
}

// TestRefusedRecordForbidsTheCommit whatever refused it, and over both ways in.
func TestRefusedRecordForbidsTheCommit(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	for name, refuse := range map[string]func(txn *client.Txn){
		"a reserved key": func(txn *client.Txn) {
			_, err := txn.Append(ctx, client.Record{Properties: map[string]string{"_x": "y"}})
			mustBe(t, err, walimpls.ErrInvalidArgument)
		},
		"a stream's record": func(txn *client.Txn) {
			a, err := txn.NewAppender(ctx, client.AppenderOptions{})
			must(t, err)
			mustBe(t, a.Append(client.Record{VChannel: "no name"}).Result().Err, walimpls.ErrInvalidArgument)
			_ = a.Close(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			txn, err := c.BeginTxn(ctx, "orders", client.TxnOptions{})
			must(t, err)
			_, err = txn.Append(ctx, texts("good")...)
			must(t, err)
			refuse(txn)
			if _, err := txn.Commit(ctx); walimpls.AsError(err).Code != walimpls.CodeTxnRolledBack {
				t.Errorf("commit: %v", err)
			}
		})
	}
	if got := readUnits(t, c, client.ReadOptions{}); len(got) != 0 {
		t.Errorf("read %q", got)
	}
}

// TestReaderThatLosesItsConnectionInsideATransactionGetsItOnce cuts a large
// transaction, which takes many messages.
func TestReaderThatLosesItsConnectionInsideATransactionGetsItOnce(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	txn, err := c.BeginTxn(ctx, "orders", client.TxnOptions{})
	must(t, err)
	for i := range 6 {
		var batch []client.Record
		for j := range 500 {
			batch = append(batch, client.Record{Payload: fmt.Appendf(nil, "%d", i*500+j)})
		}
		_, err := txn.Append(ctx, batch...)
		must(t, err)
	}
	_, err = txn.Commit(ctx)
	must(t, err)
	p := newProxy(t, h.addr)
	through, err := client.Dial(ctx, p.lis.Addr().String())
	must(t, err)
	defer through.Close()
	r, err := through.NewReader(context.Background(), "orders", client.ReadOptions{Follow: true})
	must(t, err)
	defer r.Close()
	p.cut()
	unit, err := r.NextUnit(ctx)
	must(t, err)
	if len(unit) != 3000 || string(unit[2999].Payload) != "2999" {
		t.Fatalf("%d records", len(unit))
	}
	appendAll(t, c, "orders", "next")
	if unit, err = r.NextUnit(ctx); err != nil || string(unit[0].Payload) != "next" {
		t.Fatalf("%v %v", unit, err)
	}
}
