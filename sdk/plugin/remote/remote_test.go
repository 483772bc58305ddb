package remote_test

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/plugintest"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is a bound that only a hanging test reaches.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func configured(t testing.TB, b *membackend.Backend) *plugintest.Harness {
	t.Helper()
	h := plugintest.Start(t, b)
	if err := h.Client.Configure(soon(t), nil); err != nil {
		t.Fatalf("Configure: %v", err)
	}
	return h
}

func open(t testing.TB, c *remote.Client, channel string, term, incarnation int64) *remote.WAL {
	t.Helper()
	w, err := c.Open(soon(t), walimpls.OpenOptions{Channel: channel, Term: term, Incarnation: incarnation, Access: walimpls.AccessReadWrite})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return w.(*remote.WAL)
}

func data(payload string) message.Message {
	return message.Message{Type: message.TypeData, Payload: []byte(payload)}
}

func TestAppendedRecordsAreReadBack(t *testing.T) {
	h := configured(t, &membackend.Backend{})
	w := open(t, h.Client, "orders", 3, 1)
	ids, err := w.Append(soon(t), []message.Message{data("a"), data("b")})
	if err != nil || len(ids) != 2 {
		t.Fatalf("Append: %v %v", ids, err)
	}
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.StartFrom(ids[0])})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Next(soon(t))
	if err != nil || len(got) != 2 || string(got[1].Payload) != "b" || got[0].ID != ids[0] || got[0].Term != 3 {
		t.Fatalf("Next: %+v %v", got, err)
	}
}

// shortDir is t.TempDir for sockets, whose paths must be short.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "walrig")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
