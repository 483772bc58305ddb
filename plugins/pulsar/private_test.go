package pulsar

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// What needs a broker of its own: one that may be killed, or that has small ledgers.
func TestOnAPrivateBroker(t *testing.T) {
	t.Parallel() // it mostly waits for its broker
	broker := brokers.StartPulsar(t, brokers.PulsarOptions{HeapMB: 512, Conf: map[string]string{
		"managedLedgerMaxEntriesPerLedger":              "20",
		"brokerDeduplicationSnapshotFrequencyInSeconds": "2", // 120 by default; data is held until then
		"maxMessageSize":                                "1048576",
		// Who brings no token is the operator, who may do everything.
		"authenticationEnabled":   "true",
		"authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
		"tokenSecretKey":          "data:;base64," + base64.StdEncoding.EncodeToString(tokenKey),
		"authorizationEnabled":    "true",
		"anonymousUserRole":       "operator",
		"superUserRoles":          "operator",
	}})
	t.Run("TruncatedLedgersGo", func(t *testing.T) { testTruncatedLedgersGo(t, newStore(t, broker.PulsarEndpoint)) })
	t.Run("WhatOthersDeletedIsPositionLost", func(t *testing.T) { testJump(t, newStore(t, broker.PulsarEndpoint)) })
	t.Run("TheBrokersLimitIsLearned", func(t *testing.T) { testBrokersLimit(t, newStore(t, broker.PulsarEndpoint)) })
	t.Run("RightsOfTheDocumentationAreEnough", func(t *testing.T) { testRights(t, broker.PulsarEndpoint) })
	t.Run("HangingBrokerHoldsNobody", func(t *testing.T) { testHangingBroker(t, broker) })
	t.Run("KilledBrokerLosesAndRepeatsNothing", func(t *testing.T) { testKilledBroker(t, broker) })
}

func testBrokersLimit(t *testing.T, s *store) {
	s.cfg[keyBatchBytes] = "4MiB" // more than the broker takes
	h := mustOpen(t, s.opener(), rw("c", 1, 1))
	sized := func(n int) message.Message {
		return message.Message{Type: message.TypeData, Payload: bytes.Repeat([]byte{byte(n)}, n)}
	}
	sizes := []int{300 << 10, 2 << 20, 300 << 10, 300 << 10, 900 << 10, 300 << 10, 1<<20 + 1, 10}
	var batch []message.Message
	for _, n := range sizes {
		batch = append(batch, sized(n))
	}
	ids, err := h.Append(testContext(t), batch)
	var want []int
	for i, out := range walimpls.Outcomes("c", len(batch), ids, err) {
		if sizes[i] < 1<<20 {
			want = append(want, sizes[i])
			if out.State != walimpls.Stored {
				t.Errorf("a record of %d bytes is %s: %v", sizes[i], out.State, out.Err)
			}
			continue
		}
		if e := walimpls.AsError(out.Err); out.State != walimpls.NotStored || e.Code != walimpls.CodeTooLarge || e.Retryable {
			t.Errorf("a record of %d bytes is %s: %v", sizes[i], out.State, out.Err)
		}
	}
	mustAppend(t, h, "after")
	log := readAll(t, h)[1:]
	if len(log) != len(want)+1 {
		t.Fatalf("%d records are stored, want %d", len(log), len(want)+1)
	}
	for i, n := range want {
		if len(log[i].Payload) != n {
			t.Errorf("record %d has %d bytes, want %d", i, len(log[i].Payload), n)
		}
	}
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
		if _, err := reading.Next(testContext(t)); err != nil {
			if lost := wantLost(t, err); lost.Earliest <= ids[1] {
				t.Errorf("earliest is %s", text(lost.Earliest))
			}
			break
		}
	}
}

var tokenKey = []byte("a key for HS256 that is known to this test alone")

// token is a JWT of the role.
func token(role string) string {
	part := base64.RawURLEncoding.EncodeToString
	text := part([]byte(`{"alg":"HS256"}`)) + "." + part([]byte(`{"sub":"`+role+`"}`))
	mac := hmac.New(sha256.New, tokenKey)
	mac.Write([]byte(text))
	return text + "." + part(mac.Sum(nil))
}

func testRights(t *testing.T, at brokers.PulsarEndpoint) {
	operator := newStore(t, at).opener().admin
	ctx := testContext(t)
	_, err := operator.call(ctx, http.MethodPut, []string{"tenants", "logs"}, "", map[string][]string{"adminRoles": {"walrig"}, "allowedClusters": {"standalone"}})
	must(t, err)
	as := func(role string) *store {
		s := newStore(t, at)
		s.cfg[keyTenant], s.cfg[keyNamespace], s.cfg[keyToken] = "logs", "rights", token(role)
		return s
	}
	// The namespace is made, and its policies are set, by the tenant's admin.
	admin := as("walrig")
	must(t, admin.opener().admin.ensureNamespace(ctx))
	for role, rights := range map[string][]string{"walrig": {"produce", "consume"}, "reader": {"consume"}} {
		_, err = operator.call(ctx, http.MethodPost, []string{"namespaces", "logs", "rights", "permissions", role}, "", rights)
		must(t, err)
	}
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(token("walrig")+"\n"), 0o600))
	delete(admin.cfg, keyToken)
	admin.cfg[keyTokenFile] = file
	o := admin.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	ids := mustAppend(t, h, "a", "b")
	must(t, h.Truncate(ctx, ids[1]))
	wantPayloads(t, readAll(t, h), "b")

	reader := as("reader").opener()
	wantPayloads(t, readAll(t, mustOpen(t, reader, ro("c"))), "b")
	_, err = reader.Open(ctx, rw("c", 2, 1))
	if e := walimpls.AsError(err); e.Code != walimpls.CodePermissionDenied || e.Hint == "" || e.Retryable {
		t.Errorf("open for writing without the right: %+v", e)
	}
	mustAppend(t, h, "c") // the owner was not disturbed

	must(t, o.Drop(ctx, "c", 1))
}

func testHangingBroker(t *testing.T, broker *brokers.PulsarBroker) {
	s := newStore(t, broker.PulsarEndpoint)
	o := s.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	truth := newOracle()
	truth.append(testContext(t), h, "before")
	blocked := mustRead(t, h, walimpls.FromLatest())
	must(t, broker.Pause())
	resumed := false
	defer func() {
		if !resumed {
			_ = broker.Resume()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	truth.append(ctx, h, "unknown")
	if took := time.Since(began); took > 5*time.Second || truth.states["unknown"] != walimpls.Unknown {
		t.Errorf("an append with a deadline of 1s took %s and is %s", took, truth.states["unknown"])
	}
	if _, err := h.Bounds(ctx); err == nil {
		t.Error("bounds of a broker that hangs")
	}
	began = time.Now()
	must(t, h.Close(context.Background()))
	must(t, blocked.Close())
	if took := time.Since(began); took > walimpls.GracePeriod {
		t.Errorf("close took %s", took)
	}
	must(t, broker.Resume())
	resumed = true
	until(t, "an open works again", func() bool {
		w, err := o.Open(testContext(t), rw("c", 1, 0))
		if err != nil {
			return false
		}
		truth.verify(t, readAll(t, w))
		return true
	})
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
