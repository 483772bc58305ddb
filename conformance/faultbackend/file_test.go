package faultbackend

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// session is one life of a process over a file.
func session(t *testing.T, file string, term int64, do func(o walimpls.Opener, w walimpls.WAL)) {
	t.Helper()
	o := buildOpener(t, walimpls.Config{"file": file, "lock_timeout": "5s"})
	defer func() { check(t, o.Close(context.Background())) }()
	do(o, mustOpen(testContext(t), t, o, term, 1))
}

func wantLog(t *testing.T, w walimpls.WAL, want ...string) {
	t.Helper()
	wantPayloads(t, payloads(next(t, scan(t, w, walimpls.FromAll()), len(want))), want...)
}

func TestAFileKeepsTheLogsOverARestart(t *testing.T) {
	for _, fsync := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "log")
		cfg := walimpls.Config{"file": file, "fsync": fsync}
		ctx := testContext(t)
		o := buildOpener(t, cfg)
		if _, err := os.Stat(file); err == nil {
			t.Fatal("Build touched the store")
		}
		w := mustOpen(ctx, t, o, 3, 2)
		ids := appendAll(t, w, "a", "b", "c")
		check(t, w.Truncate(ctx, ids[1]))
		gone, err := o.Open(ctx, rw("gone", 1, 1))
		check(t, err)
		appendAll(t, gone, "x")
		check(t, o.Drop(ctx, "gone", 1))
		check(t, o.Close(ctx))

		o = buildOpener(t, cfg)
		_, err = o.Open(ctx, rw(channel, 3, 2))
		wantErr(t, err, walimpls.ErrFenced)
		r, err := o.Open(ctx, ro(channel))
		check(t, err)
		if r.Channel().StoreID != w.Channel().StoreID || r.Channel().Pair != w.Channel().Pair {
			t.Fatalf("the log was %+v and is %+v", w.Channel(), r.Channel())
		}
		wantLog(t, r, "b", "c")
		_, err = r.Read(ctx, walimpls.ReadOptions{Start: walimpls.StartFrom(ids[0])})
		var lost *walimpls.PositionLostError
		if !errors.As(err, &lost) {
			t.Fatalf("%v", err)
		}
		_, err = o.Open(ctx, ro("gone"))
		wantErr(t, err, walimpls.ErrNotFound)
		again, err := o.Open(ctx, rw("gone", 1, 1))
		check(t, err)
		if again.Channel().StoreID == gone.Channel().StoreID {
			t.Fatal("the new log has the old one's store id")
		}
		w = mustOpen(ctx, t, o, 3, 3)
		if id := appendAll(t, w, "d")[0]; id != message.Uint64ID(6) {
			t.Fatalf("id %s", id)
		}
		wantLog(t, w, "b", "c", "d")
		check(t, o.Close(ctx))
	}
}

func TestRecordsSurviveTheFileUnchanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	in := message.Message{Type: message.TypeCommitTxn, VChannel: "v", TimeTick: 7, LastConfirmed: "\x01", TxnID: 9,
		Properties: map[string]string{"k": ""}, Payload: []byte{0, 1}}
	session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) {
		_, err := w.Append(t.Context(), []message.Message{in, {Type: message.TypeData}})
		check(t, err)
	})
	session(t, file, 2, func(_ walimpls.Opener, w walimpls.WAL) {
		out := next(t, scan(t, w, walimpls.FromAll()), 2)
		m := out[0]
		v, ok := m.Properties["k"]
		if m.Type != in.Type || m.VChannel != "v" || m.TimeTick != 7 || m.LastConfirmed != "\x01" || m.TxnID != 9 || !ok || v != "" || !bytes.Equal(m.Payload, in.Payload) || m.Term != 1 || m.Incarnation != 1 {
			t.Fatalf("%+v", m)
		}
		if len(out[1].Payload) != 0 || out[1].Properties != nil {
			t.Fatalf("%+v", out[1])
		}
	})
}

func TestAReadOnlyOpenWritesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	o := buildOpener(t, walimpls.Config{"file": file})
	_, err := o.Open(t.Context(), ro(channel))
	wantErr(t, err, walimpls.ErrNotFound)
	check(t, o.Drop(t.Context(), channel, 1))
	check(t, o.Close(t.Context()))
	if _, err := os.Stat(file); err == nil {
		t.Fatal("there is a file")
	}
	session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) { appendAll(t, w, "a") })
	before := append(readFile(t, file), "torn"...)
	check(t, os.WriteFile(file, before, 0o600))
	o = buildOpener(t, walimpls.Config{"file": file})
	r, err := o.Open(t.Context(), ro(channel))
	check(t, err)
	wantLog(t, r, "a")
	check(t, o.Close(t.Context()))
	if !bytes.Equal(readFile(t, file), before) {
		t.Fatal("the file changed")
	}
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	check(t, err)
	return b
}

func TestAMissingFolderIsAnErrorThatNamesTheKey(t *testing.T) {
	o := buildOpener(t, walimpls.Config{"file": filepath.Join(t.TempDir(), "no", "such", "folder")})
	_, err := o.Open(t.Context(), rw(channel, 1, 1))
	wantErr(t, err, walimpls.ErrUnavailable)
	if e := walimpls.AsError(err); !strings.Contains(e.Hint, `"file"`) {
		t.Errorf("%+v", e)
	}
	check(t, o.Close(t.Context()))
}

func TestASecondOwnerOfTheFileWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "log")
		cfg := walimpls.Config{"file": file, "lock_timeout": "3s"}
		first, second := buildOpener(t, cfg), buildOpener(t, cfg)
		appendAll(t, mustOpen(t.Context(), t, first, 1, 1), "a")
		begin := time.Now()
		_, err := second.Open(t.Context(), rw(channel, 2, 1))
		wantErr(t, err, walimpls.ErrUnavailable)
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("it gave up after %s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = second.Open(ctx, rw(channel, 2, 1))
		wantErr(t, err, context.DeadlineExceeded)
		time.AfterFunc(time.Second, func() { _ = first.Close(context.Background()) })
		wantLog(t, mustOpen(t.Context(), t, second, 2, 1), "a")
		check(t, second.Close(t.Context()))
	})
}

func TestCloseEndsAnOpenThatWaitsForTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := walimpls.Config{"file": filepath.Join(t.TempDir(), "log"), "lock_timeout": "1h"}
		first, second := buildOpener(t, cfg), buildOpener(t, cfg)
		mustOpen(t.Context(), t, first, 1, 1)
		got := make(chan error)
		go func() {
			_, err := second.Open(context.Background(), rw(channel, 2, 1))
			got <- err
		}()
		synctest.Wait()
		check(t, second.Close(t.Context()))
		wantErr(t, <-got, walimpls.ErrClosed)
		check(t, first.Close(t.Context()))
	})
}

// brokenFile is a file that fails when it is told to.
type brokenFile struct {
	rawFile
	write, sync, truncate error
}

func (b *brokenFile) Write(p []byte) (int, error) {
	if b.write != nil {
		n, _ := b.rawFile.Write(p[:len(p)/2])
		return n, b.write
	}
	return b.rawFile.Write(p)
}

func (b *brokenFile) Sync() error {
	if b.sync != nil {
		return b.sync
	}
	return b.rawFile.Sync()
}

func (b *brokenFile) Truncate(size int64) error {
	if b.truncate != nil {
		return b.truncate
	}
	return b.rawFile.Truncate(size)
}

// W-03, W-04.
func TestAFailedWriteIsDefiniteOnlyIfItWasTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		broken brokenFile
		state  walimpls.State
		err    error
	}{
		"full":                {brokenFile{write: syscall.ENOSPC}, walimpls.NotStored, walimpls.ErrNoSpace},
		"full, not cut":       {brokenFile{write: syscall.ENOSPC, truncate: syscall.EIO}, walimpls.Unknown, walimpls.ErrUnknownOutcome},
		"not synced":          {brokenFile{sync: syscall.EIO}, walimpls.Unknown, walimpls.ErrUnknownOutcome},
		"a broken disk":       {brokenFile{write: syscall.EIO}, walimpls.NotStored, walimpls.ErrUnavailable},
		"not synced, not cut": {brokenFile{sync: syscall.EIO, truncate: syscall.EIO}, walimpls.Unknown, walimpls.ErrUnknownOutcome},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			store := NewFileStore(file, FileOptions{Fsync: true})
			o := buildOpener(t, nil, WithStore(store))
			w := mustOpen(t.Context(), t, o, 1, 1)
			appendAll(t, w, "a")
			good := store.file.f
			c.broken.rawFile = good
			store.file.f = &c.broken
			if out := appendOne(t.Context(), w, "b"); out.State != c.state || !errors.Is(out.Err, c.err) {
				t.Fatalf("%v, %v", out.State, out.Err)
			}
			store.file.f = good
			out := appendOne(t.Context(), w, "c")
			if c.state == walimpls.NotStored && out.State != walimpls.Stored || c.state == walimpls.Unknown && out.State != walimpls.NotStored {
				t.Fatalf("afterwards: %v, %v", out.State, out.Err)
			}
			want := []string{"a", "c"}
			if c.state == walimpls.Unknown {
				want = want[:1]
				_, err := o.Open(t.Context(), rw(channel, 2, 1)) // nothing is acknowledged until the file is read again
				wantErr(t, err, walimpls.ErrUnavailable)
				wantErr(t, o.Drop(t.Context(), channel, 2), walimpls.ErrUnavailable)
			}
			wantLog(t, w, want...)
			check(t, o.Close(t.Context()))
			check(t, store.Close())
			session(t, file, 3, func(_ walimpls.Opener, w walimpls.WAL) {
				got := payloads(mustRead(t, w))
				if c.state == walimpls.Unknown && len(got) == 2 && got[1] == "b" {
					return // unknown: it may be there
				}
				wantPayloads(t, got, want...)
			})
		})
	}
}

// mustRead reads to the end of the log as it is.
func mustRead(t *testing.T, w walimpls.WAL) []message.Message {
	t.Helper()
	b, err := w.Bounds(t.Context())
	check(t, err)
	sc := scan(t, w, walimpls.FromAll())
	var out []message.Message
	for len(out) == 0 || out[len(out)-1].ID.Less(b.Latest) {
		recs, err := sc.Next(t.Context())
		check(t, err)
		out = append(out, recs...)
	}
	return out
}

func TestLateRecordsAndAllFaultsWorkWithAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "log")
		o := buildOpener(t, walimpls.Config{"file": file, "rules": "append late 1s term=1 count=1; append fail-after-write unknown term=1 count=1"})
		w := mustOpen(t.Context(), t, o, 1, 1)
		appendOne(t.Context(), w, "late")
		time.Sleep(2 * time.Second)
		w = mustOpen(t.Context(), t, o, 1, 2)
		appendOne(t.Context(), w, "unknown")
		check(t, o.Close(t.Context()))
		session(t, file, 2, func(_ walimpls.Opener, w walimpls.WAL) { wantLog(t, w, "late", "unknown") })
	})
}
