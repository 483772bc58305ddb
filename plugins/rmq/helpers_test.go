package rmq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// These make the test binary a process that holds a store's folder, or one that
// appends to it until it is killed.
const (
	lockHelperEnv   = "WALRIG_TEST_RMQ_HOLD"
	appendHelperEnv = "WALRIG_TEST_RMQ_APPEND"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(lockHelperEnv); dir != "" {
		holdFolder(dir)
		return
	}
	if dir := os.Getenv(appendHelperEnv); dir != "" {
		appendUntilKilled(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait of the tests.
const testTimeout = 20 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// store is a folder with its file system, which openers come and go on.
type store struct {
	t    testing.TB
	fs   vfs.FS
	dir  string
	tune func(*settings)
	cfg  walimpls.Config
}

func newMemStore(t testing.TB) *store { return &store{t: t, fs: vfs.NewMem(), dir: "/store"} }

func newDiskStore(t testing.TB) *store {
	return &store{t: t, dir: filepath.Join(t.TempDir(), "store")}
}

// opener returns a new opener of the folder. It is closed with the test.
func (s *store) opener() walimpls.Opener {
	s.t.Helper()
	cfg := walimpls.Config{"dir": s.dir, "segment_size": "1MiB", "open_timeout": "5s"}
	for k, v := range s.cfg {
		cfg[k] = v
	}
	o, err := Builder{fs: s.fs, tune: s.tune}.Build(context.Background(), cfg, zap.NewNop())
	must(s.t, err)
	s.t.Cleanup(func() { closeOpener(s.t, o) })
	return o
}

func closeOpener(t testing.TB, o walimpls.Opener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := o.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
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

func mustOpen(t testing.TB, o walimpls.Opener, opt walimpls.OpenOptions) walimpls.WAL {
	t.Helper()
	w, err := o.Open(testContext(t), opt)
	must(t, err)
	return w
}

func data(payload string) message.Message {
	return message.Message{Type: message.TypeData, Payload: []byte(payload)}
}

func batchOf(payloads ...string) []message.Message {
	batch := make([]message.Message, len(payloads))
	for i, p := range payloads {
		batch[i] = data(p)
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
	return s
}

// readUpTo returns the records of a scanner up to and with the id.
func readUpTo(t testing.TB, s walimpls.Scanner, last message.ID) []message.Message {
	t.Helper()
	ctx := testContext(t)
	var all []message.Message
	for len(all) == 0 || all[len(all)-1].ID.Less(last) {
		records, err := s.Next(ctx)
		must(t, err)
		all = append(all, records...)
	}
	return all
}

// readAll returns everything that is in the log now, fence records included.
func readAll(t testing.TB, w walimpls.WAL) []message.Message {
	t.Helper()
	b, err := w.Bounds(testContext(t))
	must(t, err)
	s := mustRead(t, w, walimpls.FromAll())
	defer s.Close()
	return readUpTo(t, s, b.Latest)
}

// payloads returns the payloads of the records that are no fence records.
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
	if got := payloads(records); fmt.Sprint(got) != fmt.Sprint(append([]string{}, want...)) {
		t.Fatalf("got records %q, want %q", got, want)
	}
}

// nothingComes fails if the scanner has a record now. It cannot prove that
// none comes later, and need not: what is durable is returned without waiting.
func nothingComes(t testing.TB, s walimpls.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if records, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %d records and error %v, want to wait", len(records), err)
	}
}
