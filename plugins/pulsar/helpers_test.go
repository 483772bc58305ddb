package pulsar

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin"
	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	// serveVariable makes the test binary the plugin.
	serveVariable = "WALRIG_TEST_PULSAR_SERVE"
	// longVariable asks for the full length of the long tests, logVariable for the
	// backend's log lines.
	longVariable = "WALRIG_TEST_PULSAR_LONG"
	logVariable  = "WALRIG_TEST_PULSAR_LOG"
)

func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		plugin.Serve(NewBuilder())
		return
	}
	goleak.VerifyTestMain(m)
}

func long() bool { return os.Getenv(longVariable) != "" }

// rounds is full with WALRIG_TEST_PULSAR_LONG=1, else few.
func rounds(few, full int) int {
	if long() {
		return full
	}
	return few
}

// testTimeout bounds every wait of the tests.
const testTimeout = 60 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// store is a namespace of a broker that is the test's alone.
type store struct {
	t   testing.TB
	cfg walimpls.Config
}

func newStore(t testing.TB, at brokers.PulsarEndpoint) *store {
	var random [6]byte
	_, _ = rand.Read(random[:])
	return &store{t: t, cfg: walimpls.Config{
		keyServiceURL: at.ServiceURL, keyAdminURL: at.AdminURL, keyNamespace: "walrig-test-" + hex.EncodeToString(random[:]),
	}}
}

func sharedStore(t testing.TB) *store {
	t.Helper()
	return newStore(t, brokers.Pulsar(t))
}

// opener returns a new opener of the store, as another process would have. It is
// closed with the test.
func (s *store) opener() *opener {
	s.t.Helper()
	log := zap.NewNop()
	if os.Getenv(logVariable) != "" {
		log = zaptest.NewLogger(s.t)
	}
	built, err := NewBuilder().Build(context.Background(), s.cfg, log)
	must(s.t, err)
	o := built.(*opener)
	s.t.Cleanup(func() { closeOpener(s.t, o) })
	return o
}

func closeOpener(t testing.TB, o walimpls.Opener) {
	t.Helper()
	began := time.Now()
	if err := o.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 2*walimpls.GracePeriod {
		t.Errorf("close took %s", took)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func rw(channel string, term, incarnation int64) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: channel, Term: term, Incarnation: incarnation, Access: walimpls.AccessReadWrite}
}

func ro(channel string) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: channel, Access: walimpls.AccessReadOnly}
}

func mustOpen(t testing.TB, o walimpls.Opener, opt walimpls.OpenOptions) *handle {
	t.Helper()
	w, err := o.Open(testContext(t), opt)
	must(t, err)
	return w.(*handle)
}

func batchOf(payloads ...string) []message.Message {
	batch := make([]message.Message, len(payloads))
	for i, p := range payloads {
		batch[i] = message.Message{Type: message.TypeData, Payload: []byte(p)}
	}
	return batch
}

func mustAppend(t testing.TB, w walimpls.WAL, payloads ...string) []message.ID {
	t.Helper()
	ids, err := w.Append(testContext(t), batchOf(payloads...))
	must(t, err)
	if len(ids) != len(payloads) {
		t.Fatalf("%d ids for %d records", len(ids), len(payloads))
	}
	return ids
}

func mustRead(t testing.TB, w walimpls.WAL, start walimpls.Start) walimpls.Scanner {
	t.Helper()
	s, err := w.Read(testContext(t), walimpls.ReadOptions{Start: start})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// readAll returns everything that is in the log now, fence records included.
func readAll(t testing.TB, w walimpls.WAL) []message.Message {
	t.Helper()
	ctx := testContext(t)
	b, err := w.Bounds(ctx)
	must(t, err)
	s := mustRead(t, w, walimpls.FromAll())
	defer s.Close()
	var all []message.Message
	for len(all) == 0 || all[len(all)-1].ID < b.Latest {
		records, err := s.Next(ctx)
		must(t, err)
		all = append(all, records...)
	}
	return all
}

func payloads(records []message.Message) []string {
	out := []string{}
	for _, m := range records {
		if m.Type != message.TypeFence {
			out = append(out, string(m.Payload))
		}
	}
	return out
}

func wantPayloads(t testing.TB, records []message.Message, want ...string) {
	t.Helper()
	if got := payloads(records); !slices.Equal(got, want) {
		t.Fatalf("got records %q, want %q", got, want)
	}
}

func wantLost(t testing.TB, err error) *walimpls.PositionLostError {
	t.Helper()
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) {
		t.Fatalf("got %v, want PositionLostError", err)
	}
	return lost
}

// until polls, because what is waited for happens in another process.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", testTimeout, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// oracle remembers what became of each record, by its payload.
type oracle struct {
	mu     sync.Mutex
	states map[string]walimpls.State
	ids    map[string]message.ID
	counts [3]int
}

func newOracle() *oracle {
	return &oracle{states: map[string]walimpls.State{}, ids: map[string]message.ID{}}
}

// append appends and notes the outcomes; it reports whether all were stored.
func (o *oracle) append(ctx context.Context, w walimpls.WAL, payloads ...string) bool {
	ids, err := w.Append(ctx, batchOf(payloads...))
	all := true
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, out := range walimpls.Outcomes("", len(payloads), ids, err) {
		o.states[payloads[i]], o.ids[payloads[i]] = out.State, out.ID
		o.counts[out.State]++
		all = all && out.State == walimpls.Stored
	}
	return all
}

func (o *oracle) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprintf("%d stored, %d not stored, %d unknown", o.counts[walimpls.Stored], o.counts[walimpls.NotStored], o.counts[walimpls.Unknown])
}

// verify checks a whole log: acknowledged records once, with their ids; failed
// ones never; unknown ones at most once; ids ascending, pairs never falling.
func (o *oracle) verify(t testing.TB, log []message.Message) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[string]bool{}
	var last message.ID
	var pair walimpls.Pair
	for i := range log {
		m := &log[i]
		if i > 0 && m.ID <= last {
			t.Fatalf("id %s follows %s", text(m.ID), text(last))
		}
		last = m.ID
		p := walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		if p.Compare(pair) < 0 {
			t.Fatalf("record %s of %s lies behind one of %s", text(m.ID), p, pair)
		}
		if p != pair && m.Type != message.TypeFence {
			t.Fatalf("record %s is the first of %s and no fence record", text(m.ID), p)
		}
		pair = p
		if m.Type == message.TypeFence {
			continue
		}
		key := string(m.Payload)
		switch state, ok := o.states[key]; {
		case !ok:
			t.Fatalf("record %q was never appended", key)
		case seen[key]:
			t.Fatalf("record %q is there twice", key)
		case state == walimpls.NotStored:
			t.Fatalf("record %q was reported as not stored, and is there", key)
		case state == walimpls.Stored && o.ids[key] != m.ID:
			t.Fatalf("record %q is at %s, acknowledged as %s", key, text(m.ID), text(o.ids[key]))
		}
		seen[key] = true
	}
	for key, state := range o.states {
		if state == walimpls.Stored && !seen[key] {
			t.Fatalf("record %q at %s was acknowledged, and is not there", key, text(o.ids[key]))
		}
	}
}
