package faultbackend

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
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
	do(o, mustOpen(t, testContext(t), o, term, 1))
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
		w := mustOpen(t, ctx, o, 3, 2)
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
		w = mustOpen(t, ctx, o, 3, 3)
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

// W-01.
func TestATornTailIsCutBeforeTheNextWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) { appendAll(t, w, "a", "b") })
	whole := readFile(t, file)
	frame := recordsFrame(nil, &chanLog{no: 1, first: 4}, []message.Message{{Type: message.TypeData, Term: 1, Incarnation: 1, Payload: []byte("torn")}})
	var tails [][]byte
	for n := range len(frame) {
		tails = append(tails, frame[:n])
	}
	wrong := bytes.Clone(frame)
	wrong[len(wrong)-1]++
	junk := make([]byte, 333)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range junk {
		junk[i] = byte(rnd.Uint32())
	}
	tails = append(tails, wrong, make([]byte, 1), make([]byte, 512), make([]byte, 4096), junk)
	for i, tail := range tails {
		check(t, os.WriteFile(file, append(bytes.Clone(whole), tail...), 0o600))
		session(t, file, 2, func(_ walimpls.Opener, w walimpls.WAL) { appendAll(t, w, "c", "d") })
		session(t, file, 3, func(_ walimpls.Opener, w walimpls.WAL) {
			sc := scan(t, w, walimpls.FromAll())
			wantPayloads(t, payloads(next(t, sc, 4)), "a", "b", "c", "d")
			b, err := w.Bounds(t.Context())
			check(t, err)
			if b.Latest != message.Uint64ID(7) {
				t.Fatalf("tail %d: bounds %+v", i, b)
			}
		})
	}
	// Killed while it wrote the very first bytes.
	for n := range headerSize {
		check(t, os.WriteFile(file, whole[:n], 0o600))
		session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) { appendAll(t, w, "a") })
		session(t, file, 2, func(_ walimpls.Opener, w walimpls.WAL) { wantLog(t, w, "a") })
	}
}

func TestDamageAheadOfTheTailIsCorruptAndLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) {
		appendAll(t, w, "first")
		appendAll(t, w, "second")
	})
	whole := readFile(t, file)
	flipped := bytes.Clone(whole)
	flipped[bytes.Index(whole, []byte("first"))]++
	newer := bytes.Clone(whole)
	newer[len(journalMagic)] = 9
	for name, c := range map[string]struct {
		content []byte
		says    string
	}{
		"a flipped bit":   {flipped, "bad checksum at offset"},
		"another version": {newer, "format version 9, this build reads version 1"},
		"another file":    {[]byte("hello, this is something else"), "does not begin as"},
		"a short one":     {[]byte("hi"), "does not begin as"},
	} {
		check(t, os.WriteFile(file, c.content, 0o600))
		o := buildOpener(t, walimpls.Config{"file": file})
		_, err := o.Open(t.Context(), rw(channel, 2, 1))
		if !errors.Is(err, walimpls.ErrCorrupt) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
		if walimpls.AsError(err).Channel != channel {
			t.Errorf("%s: %v names no channel", name, err)
		}
		check(t, o.Close(t.Context()))
		if !bytes.Equal(readFile(t, file), c.content) {
			t.Errorf("%s: the file changed", name)
		}
	}
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
		appendAll(t, mustOpen(t, t.Context(), first, 1, 1), "a")
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
		wantLog(t, mustOpen(t, t.Context(), second, 2, 1), "a")
		check(t, second.Close(t.Context()))
	})
}

func TestCloseEndsAnOpenThatWaitsForTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := walimpls.Config{"file": filepath.Join(t.TempDir(), "log"), "lock_timeout": "1h"}
		first, second := buildOpener(t, cfg), buildOpener(t, cfg)
		mustOpen(t, t.Context(), first, 1, 1)
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
			w := mustOpen(t, t.Context(), o, 1, 1)
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

func TestATornExitLeavesATornFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) { appendAll(t, w, "a") })
	size := len(readFile(t, file))
	o := buildOpener(t, walimpls.Config{"file": file, "rules": "append exit torn"})
	w := mustOpen(t, t.Context(), o, 2, 1)
	size = len(readFile(t, file)) - size // of the fence record
	before := len(readFile(t, file))
	if out := appendOne(t.Context(), w, strings.Repeat("b", 100)); out.State != walimpls.Unknown {
		t.Fatalf("%v", out.State)
	}
	if torn := len(readFile(t, file)) - before; torn < size || torn > 100 {
		t.Fatalf("%d bytes were written", torn)
	}
	check(t, o.Close(t.Context()))
	session(t, file, 3, func(_ walimpls.Opener, w walimpls.WAL) {
		appendAll(t, w, "c")
		wantLog(t, w, "a", "c")
	})
}

func TestLateRecordsAndAllFaultsWorkWithAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "log")
		o := buildOpener(t, walimpls.Config{"file": file, "rules": "append late 1s term=1 count=1; append fail-after-write unknown term=1 count=1"})
		w := mustOpen(t, t.Context(), o, 1, 1)
		appendOne(t.Context(), w, "late")
		time.Sleep(2 * time.Second)
		w = mustOpen(t, t.Context(), o, 1, 2)
		appendOne(t.Context(), w, "unknown")
		check(t, o.Close(t.Context()))
		session(t, file, 2, func(_ walimpls.Opener, w walimpls.WAL) { wantLog(t, w, "late", "unknown") })
	})
}

func TestTheFrameInThePackageCommentIsTrue(t *testing.T) {
	frame := dropFrame(nil, &chanLog{no: 1})
	doc := readFile(t, "doc.go")
	h := hex.EncodeToString(frame)
	var groups []string
	for i := 0; i < len(h); i += 2 {
		groups = append(groups, h[i:i+2])
	}
	want := strings.Join(groups[:4], " ") + " | " + strings.Join(groups[4:8], " ") + " | " + strings.Join(groups[8:], " ")
	if !strings.Contains(string(doc), want) {
		t.Errorf("doc.go does not show %s", want)
	}
}

func FuzzDecodeJournal(f *testing.F) {
	l := newChanLog(1, channel, "fault-x")
	b := createFrame(journalHeader(), l, &message.Message{Type: message.TypeFence, Term: 1, Incarnation: 1})
	f.Add(b)
	l.add([]message.Message{{Type: message.TypeFence, Term: 1, Incarnation: 1}})
	b = recordsFrame(b, l, []message.Message{{Type: message.TypeData, Term: 1, Incarnation: 1, Payload: []byte("x")}})
	b = truncateFrame(b, l, 2)
	f.Add(b)
	f.Add(dropFrame(b, l))
	f.Add(b[:len(b)-3])
	f.Add([]byte("T\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		checkDecode(t, b)
		if len(b) > 0 { // and behind a log that is there, with a checksum that is right
			framed := createFrame(journalHeader(), newChanLog(1, channel, "fault-x"), &message.Message{Type: message.TypeFence, Term: 1, Incarnation: 1})
			checkDecode(t, appendFrame(framed, b[0], func(dst []byte) []byte { return append(dst, b[1:]...) }))
		}
	})
}

func checkDecode(t *testing.T, b []byte) {
	img, good, err := decodeJournal(b)
	if err != nil {
		return
	}
	if good < 0 || good > len(b) {
		t.Fatalf("%d intact bytes of %d", good, len(b))
	}
	again, good2, err := decodeJournal(b[:good]) // as after the cut
	if err != nil || good2 != good || len(again.logs) != len(img.logs) {
		t.Fatalf("what is left after the cut is not readable: %d of %d bytes, %v", good2, good, err)
	}
	for name, l := range img.logs {
		if len(l.recs) != len(again.logs[name].recs) || l.bounds().Empty {
			t.Fatalf("log %q has %d records, then %d", name, len(l.recs), len(again.logs[name].recs))
		}
	}
}
