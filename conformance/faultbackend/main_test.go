package faultbackend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) {
	if file := os.Getenv("WALRIG_TEST_FAULT_CHILD"); file != "" {
		childMain(file)
		return
	}
	goleak.VerifyTestMain(m)
}

const channel = "orders"

// testBound ends a test that hangs.
const testBound = 20 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testBound)
	t.Cleanup(cancel)
	return ctx
}

// fixture is a backend with its controller and store.
type fixture struct {
	walimpls.Opener
	ctl   *Controller
	store *Store
	ctx   context.Context
}

// newFixture builds a backend that the test closes. rules may be "".
func newFixture(t testing.TB, rules string, opts ...Option) *fixture {
	t.Helper()
	f := &fixture{ctl: NewController(), store: NewStore(), ctx: testContext(t)}
	cfg := walimpls.Config{}
	if rules != "" {
		cfg["rules"] = rules
	}
	f.Opener = f.build(t, cfg, opts...)
	t.Cleanup(func() {
		_ = f.ctl.SetRules("")
		check(t, f.Opener.Close(context.Background()))
		check(t, f.store.Close())
	})
	return f
}

// build makes one more opener over the same store and controller.
func (f *fixture) build(t testing.TB, cfg walimpls.Config, opts ...Option) walimpls.Opener {
	t.Helper()
	opts = append([]Option{WithStore(f.store), WithController(f.ctl)}, opts...)
	return buildOpener(t, cfg, opts...)
}

func buildOpener(t testing.TB, cfg walimpls.Config, opts ...Option) walimpls.Opener {
	t.Helper()
	o, err := NewBuilder(opts...).Build(context.Background(), cfg, zap.NewNop())
	check(t, err)
	return o
}

func (f *fixture) open(t testing.TB, term, incarnation int64) walimpls.WAL {
	t.Helper()
	return mustOpen(f.ctx, t, f.Opener, term, incarnation)
}

func mustOpen(ctx context.Context, t testing.TB, o walimpls.Opener, term, incarnation int64) walimpls.WAL {
	t.Helper()
	w, err := o.Open(ctx, rw(channel, term, incarnation))
	check(t, err)
	return w
}

func rw(name string, term, incarnation int64) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: name, Term: term, Incarnation: incarnation, Access: walimpls.AccessReadWrite}
}

func ro(name string) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: name, Access: walimpls.AccessReadOnly}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
}

// data makes one data record a payload.
func data(payloads ...string) []message.Message {
	out := make([]message.Message, len(payloads))
	for i, p := range payloads {
		out[i] = message.Message{Type: message.TypeData, Payload: []byte(p)}
	}
	return out
}

func appendAll(t testing.TB, w walimpls.WAL, payloads ...string) []message.ID {
	t.Helper()
	ids, err := w.Append(context.Background(), data(payloads...))
	check(t, err)
	return ids
}

// appendOne appends one record and returns its outcome.
func appendOne(ctx context.Context, w walimpls.WAL, payload string) walimpls.Outcome {
	ids, err := w.Append(ctx, data(payload))
	return walimpls.Outcomes(channel, 1, ids, err)[0]
}

func scan(t testing.TB, w walimpls.WAL, start walimpls.Start) walimpls.Scanner {
	t.Helper()
	sc, err := w.Read(context.Background(), walimpls.ReadOptions{Start: start})
	check(t, err)
	t.Cleanup(func() { _ = sc.Close() })
	return sc
}

// next reads n records that are no fence records.
func next(t testing.TB, sc walimpls.Scanner, n int) []message.Message {
	t.Helper()
	ctx := testContext(t)
	var out []message.Message
	for len(out) < n {
		recs, err := sc.Next(ctx)
		check(t, err)
		for _, m := range recs {
			if m.Type != message.TypeFence {
				out = append(out, m)
			}
		}
	}
	if len(out) > n {
		t.Fatalf("read %d records, want %d", len(out), n)
	}
	return out
}

func payloads(recs []message.Message) []string {
	out := []string{}
	for _, m := range recs {
		if m.Type != message.TypeFence {
			out = append(out, string(m.Payload))
		}
	}
	return out
}

// stored returns what the log holds without the fence records.
func (f *fixture) stored() []string { return payloads(f.store.Records(channel)) }

func wantPayloads(t testing.TB, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("records %q, want %q", got, want)
	}
}

// waiting waits until a rule holds n calls of op.
func (f *fixture) waiting(t testing.TB, op Op, n int64) {
	t.Helper()
	check(t, f.ctl.WaitFor(f.ctx, func(s Stats) bool { return s.Waiting[op] == n }))
}
