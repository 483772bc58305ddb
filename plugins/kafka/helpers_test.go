package kafka

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is what no call of a test may exceed.
const bound = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// uniquePrefix keeps the topics of a test apart from those of others.
func uniquePrefix() string {
	var b [5]byte
	_, _ = rand.Read(b[:])
	return "t" + hex.EncodeToString(b[:]) + "-"
}

// config is a configuration for a shared broker.
func config(addrs []string) walimpls.Config {
	return walimpls.Config{keyBrokers: addrs, keyTopicPrefix: uniquePrefix()}
}

// shared returns a configuration for the broker that all tests share.
func shared(t testing.TB) walimpls.Config {
	t.Helper()
	return config(brokers.Kafka(t).Addrs)
}

func with(cfg walimpls.Config, kv ...any) walimpls.Config {
	out := walimpls.Config{}
	for k, v := range cfg {
		out[k] = v
	}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i].(string)] = kv[i+1]
	}
	return out
}

// build returns an opener that is closed with the test.
func build(t testing.TB, cfg walimpls.Config, tune ...func(*settings)) *opener {
	t.Helper()
	b := Builder{}
	if len(tune) > 0 {
		b.tune = tune[0]
	}
	o, err := b.Build(context.Background(), cfg, zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)))
	must(t, err)
	t.Cleanup(func() { must(t, o.Close(context.Background())) })
	return o.(*opener)
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
		t.Fatalf("got %v, want %v", err, target)
	}
}

func rw(channel string, term, incarnation int64) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: channel, Term: term, Incarnation: incarnation, Access: walimpls.AccessReadWrite}
}

func ro(channel string) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: channel, Access: walimpls.AccessReadOnly}
}

func mustOpen(t testing.TB, o walimpls.Opener, opt walimpls.OpenOptions) walimpls.WAL {
	t.Helper()
	w, err := o.Open(testContext(t), opt)
	must(t, err)
	return w
}

func data(text string) message.Message {
	return message.Message{Type: message.TypeData, Payload: []byte(text)}
}

func batchOf(texts ...string) []message.Message {
	out := make([]message.Message, len(texts))
	for i := range texts {
		out[i] = data(texts[i])
	}
	return out
}

func mustAppend(t testing.TB, w walimpls.WAL, texts ...string) []message.ID {
	t.Helper()
	ids, err := w.Append(testContext(t), batchOf(texts...))
	must(t, err)
	return ids
}

// readAll returns the records that the log holds now, fence records included.
func readAll(t testing.TB, w walimpls.WAL) []message.Message {
	t.Helper()
	b, err := w.Bounds(testContext(t))
	must(t, err)
	if b.Empty {
		return nil
	}
	s, err := w.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.FromAll()})
	must(t, err)
	defer s.Close()
	var out []message.Message
	for {
		recs, err := s.Next(testContext(t))
		must(t, err)
		out = append(out, recs...)
		if !out[len(out)-1].ID.Less(b.Latest) {
			return out
		}
	}
}

// texts are the payloads of the records that are no fence records.
func texts(recs []message.Message) (out []string) {
	for _, m := range recs {
		if m.Type != message.TypeFence {
			out = append(out, string(m.Payload))
		}
	}
	return out
}
