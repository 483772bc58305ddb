package pulsar

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/walimpls"
)

// What needs a broker of its own: one that may be killed, or that has small ledgers.
func TestOnAPrivateBroker(t *testing.T) {
	broker := brokers.StartPulsar(t, brokers.PulsarOptions{HeapMB: 512, Conf: map[string]string{
		"managedLedgerMaxEntriesPerLedger":              "20",
		"brokerDeduplicationSnapshotFrequencyInSeconds": "2", // 120 by default; data is held until then
	}})
	t.Run("TruncatedLedgersGo", func(t *testing.T) { testTruncatedLedgersGo(t, newStore(t, broker.PulsarEndpoint)) })
	t.Run("WhatOthersDeletedIsPositionLost", func(t *testing.T) { testJump(t, newStore(t, broker.PulsarEndpoint)) })
	t.Run("KilledBrokerLosesAndRepeatsNothing", func(t *testing.T) { testKilledBroker(t, broker) })
}

func mustLayout(t testing.TB, o *opener, channel string) *layout {
	t.Helper()
	l, err := o.admin.layout(testContext(t), topicOf(channel))
	must(t, err)
	return l
}

func testTruncatedLedgersGo(t *testing.T, s *store) {
	o := s.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	var want []string
	const middle = 150
	ids := mustAppend(t, h, "first")
	for i := range 200 {
		want = append(want, fmt.Sprint("m", i))
		ids = append(ids, mustAppend(t, h, want[i])...)
	}
	if n := len(mustLayout(t, o, "c").ledgers); n < 5 {
		t.Fatalf("%d ledgers: the broker does not roll them as the test needs", n)
	}
	// Nothing goes by itself, though the namespace retains nothing.
	time.Sleep(2 * time.Second)
	wantPayloads(t, readAll(t, h), append([]string{"first"}, want...)...)

	slow := mustRead(t, h, walimpls.StartFrom(ids[0]))
	if _, err := slow.Next(testContext(t)); err != nil {
		t.Fatal(err)
	}
	must(t, h.Truncate(testContext(t), ids[middle]))
	until(t, "the truncated ledgers are deleted", func() bool {
		e, _, _ := parseID(ids[middle])
		// Deduplication holds what it has not snapshotted; the broker trims when a
		// ledger rolls over.
		mustAppend(t, h, "tick")
		return mustLayout(t, o, "c").first().ledger == e.ledger
	})
	log := payloads(readAll(t, h))
	if len(log) == 0 || log[0] != want[middle-1] {
		t.Fatalf("the log begins with %q, want %q", log[:min(1, len(log))], want[middle-1])
	}
	for {
		if _, err := slow.Next(testContext(t)); err != nil {
			lost := wantLost(t, err)
			if lost.Earliest != ids[middle] {
				t.Errorf("earliest is %s, want %s", text(lost.Earliest), text(ids[middle]))
			}
			break
		}
	}
	// The point outlives the handle, and new ids are larger.
	must(t, h.Close(context.Background()))
	next := mustOpen(t, s.opener(), rw("c", 2, 1))
	b, err := next.Bounds(testContext(t))
	must(t, err)
	if b.Earliest != ids[middle] || b.Latest <= ids[len(ids)-1] {
		t.Errorf("bounds %s to %s after a restart", text(b.Earliest), text(b.Latest))
	}
}

func testJump(t *testing.T, s *store) {
	o := s.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	ids := mustAppend(t, h, "a", "b")
	reading := mustRead(t, h, walimpls.StartFrom(ids[0]))
	if _, err := reading.Next(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mustAppend(t, h, fmt.Sprint("more-", i))
	}
	// Somebody deletes everything behind walrig's back.
	_, err := o.admin.call(testContext(t), http.MethodDelete, o.admin.topicPath(topicOf("c"), "truncate"), "", nil)
	must(t, err)
	first, _, _ := parseID(ids[1])
	until(t, "the ledgers are deleted", func() bool {
		mustAppend(t, h, "tick")
		return mustLayout(t, o, "c").first().ledger > first.ledger
	})
	_, err = h.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.StartFrom(ids[1])})
	lost := wantLost(t, err)
	if lost.Earliest <= ids[1] || lost.Latest < lost.Earliest {
		t.Errorf("bounds %s to %s", text(lost.Earliest), text(lost.Latest))
	}
	// The scanner that was there before has read ahead; then it meets the jump.
	must(t, o.admin.unload(testContext(t), topicOf("c")))
	for {
		if _, err = reading.Next(testContext(t)); err != nil {
			wantLost(t, err)
			break
		}
	}
}

func testKilledBroker(t *testing.T, broker *brokers.PulsarBroker) {
	s := newStore(t, broker.PulsarEndpoint)
	s.cfg[keyAppendTimeout] = "2m"
	s.cfg[keyOpenTimeout] = "2m"
	o := s.opener()
	truth := newOracle()
	h := mustOpen(t, o, rw("c", 1, 1))
	incarnation := int64(1)
	for round := range rounds(1, 5) {
		ws := truth.write(h, fmt.Sprint("r", round), 8)
		before := truth.stored()
		until(t, "appends", func() bool { return truth.stored() >= before+200 })
		must(t, broker.Kill())
		must(t, broker.Restart())
		// The handle goes on by itself, or has ended with an unknown outcome.
		deadline := time.Now().Add(testTimeout)
		for before = truth.stored(); truth.stored() < before+50 && h.app.refusal("append") == nil; {
			if time.Now().After(deadline) {
				t.Fatal("appends neither go on nor fail after a restart of the broker")
			}
			time.Sleep(20 * time.Millisecond)
		}
		ws.end()
		t.Logf("round %d: %s", round+1, truth)
		if h.app.refusal("append") != nil {
			incarnation++
			h = mustOpen(t, o, rw("c", 1, incarnation))
		}
		truth.verify(t, readAll(t, h))
	}
	truth.verify(t, readAll(t, mustOpen(t, s.opener(), rw("c", 2, 1))))
}
