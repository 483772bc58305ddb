package faultbackend

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

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

func TestATornExitLeavesATornFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	session(t, file, 1, func(_ walimpls.Opener, w walimpls.WAL) { appendAll(t, w, "a") })
	size := len(readFile(t, file))
	o := buildOpener(t, walimpls.Config{"file": file, "rules": "append exit torn"})
	w := mustOpen(t.Context(), t, o, 2, 1)
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
