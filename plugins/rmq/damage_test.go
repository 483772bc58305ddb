package rmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

const testLogDir = "/store/log"

func readFileOf(t *testing.T, f vfs.FS, path string) []byte {
	t.Helper()
	b, err := readFull(f, path)
	must(t, err)
	return b
}

func writeFileOf(t *testing.T, f vfs.FS, path string, b []byte) {
	t.Helper()
	file, err := f.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = file.Write(bytes.Clone(b)) // a race build of vfs changes what it is given
	must(t, errors.Join(err, file.Close()))
}

// copyStore copies the files of a store that nobody writes to at the moment:
// what kill -9 leaves.
func copyStore(t *testing.T, from vfs.FS) vfs.FS {
	t.Helper()
	to := vfs.NewMem()
	ok, err := vfs.Clone(from, to, "/store", "/store")
	must(t, err)
	if !ok {
		t.Fatal("there is no store to copy")
	}
	return to
}

// activeOf returns the newest segment with records, and what is in it.
func activeOf(t *testing.T, f vfs.FS) (*segment, *contents) {
	t.Helper()
	c, err := readStore(f, testLogDir)
	must(t, err)
	return c.segments[len(c.segments)-1], c
}

// wantLog reads the whole log of channel c, strictly.
func wantLog(t *testing.T, f vfs.FS, want ...string) {
	t.Helper()
	s := newMemStore(t)
	s.fs = f
	o := s.opener()
	records := readAll(t, mustOpen(t, o, ro("c")))
	wantPayloads(t, records, want...)
	for i := 1; i < len(records); i++ {
		if !records[i-1].ID.Less(records[i].ID) {
			t.Fatalf("id %s behind %s", records[i].ID, records[i-1].ID)
		}
	}
	must(t, o.Close(context.Background()))
}

// W-01: a torn tail, of every kind, is cut off before anything is written
// behind it: opening never fails for it, and what follows is kept.
func TestTornTailIsCutOff(t *testing.T) {
	master := newMemStore(t)
	o := master.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	mustAppend(t, w, "A")
	mustAppend(t, w, "B")
	killed := copyStore(t, master.fs)
	mustAppend(t, w, "a record that is half written")
	later := copyStore(t, master.fs)
	must(t, o.Close(context.Background()))
	g, _ := activeOf(t, killed)
	whole := readFileOf(t, later, g.path)
	next, _ := activeOf(t, later)
	record := whole[g.end:next.end]

	var tails [][]byte
	for n := 1; n < len(record); n++ {
		tails = append(tails, record[:n])
	}
	for _, n := range []int{1, 512, 4096} {
		tails = append(tails, make([]byte, n))
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{1, 7, 100, 5000} {
		junk := make([]byte, n)
		for i := range junk {
			junk[i] = byte(rng.Uint32())
		}
		tails = append(tails, junk)
	}
	// A hole: the start of the record is missing, its end is there.
	tails = append(tails, append(make([]byte, len(record)/2), record[len(record)/2:]...))
	for i, tail := range tails {
		for _, short := range []bool{true, false} { // the file ends with the tail, or goes on with zeros
			if !short && (i%7 != 0 || bytes.HasPrefix(append(bytes.Clone(tail), make([]byte, len(record))...), record)) {
				continue // nothing but padding is missing: that is the whole record
			}
			f := copyStore(t, killed)
			b := bytes.Clone(readFileOf(t, f, g.path))
			b = append(b[:g.end:g.end], tail...)
			if !short {
				b = append(b, make([]byte, 9000)...)
			}
			writeFileOf(t, f, g.path, b)
			s := newMemStore(t)
			s.fs = f
			o := s.opener()
			w := mustOpen(t, o, rw("c", 2, 1))
			wantPayloads(t, readAll(t, w), "A", "B")
			mustAppend(t, w, "C", "D")
			dead := copyStore(t, f) // kill -9
			must(t, o.Close(context.Background()))
			wantLog(t, dead, "A", "B", "C", "D")
			if t.Failed() {
				t.Fatalf("tail %d", i)
			}
		}
	}
}

// What was cut off never comes back, even when what is written over its start
// ends exactly where its rest begins.
func TestCutOffFramesNeverComeBack(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	mustAppend(t, w, "A")
	must(t, o.Close(context.Background()))
	g, c := activeOf(t, s.fs)
	b := readFileOf(t, s.fs, g.path)

	// A commit of three frames, the first of them torn.
	torn := writer{segment: g, end: g.end, synced: g.end, chain: c.active.chain}
	torn.begin()
	torn.bare(newFrame{frame: frame{kind: frameOpen, first: 1}})
	torn.bare(newFrame{frame: frame{kind: frameFence, log: 1, first: 3, count: 1, pair: walimpls.Pair{Term: 1, Incarnation: 2}}})
	torn.bare(newFrame{frame: frame{kind: frameFence, log: 1, first: 4, count: 1, pair: walimpls.Pair{Term: 1, Incarnation: 3}}})
	b = append(b[:g.end:g.end], torn.buf...)
	b[g.end] ^= 1
	writeFileOf(t, s.fs, g.path, b)

	for range 3 { // each opening writes one frame of the same size
		o := s.opener()
		r := mustOpen(t, o, ro("c"))
		wantPayloads(t, readAll(t, r), "A")
		bounds, err := r.Bounds(testContext(t))
		must(t, err)
		if bounds.Latest != message.Uint64ID(2) {
			t.Fatalf("a record that was cut off is back: %+v", bounds)
		}
		must(t, o.Close(context.Background()))
	}
}

// damagedStore is a store with several segments; all records of one channel
// are small and numbered, another channel lies between them.
func damagedStore(t *testing.T) (f vfs.FS, payloads []string) {
	t.Helper()
	s := newMemStore(t)
	s.tune = func(s *settings) { s.segmentSize = 32 << 10 }
	o := s.opener()
	w, other := mustOpen(t, o, rw("c", 1, 1)), mustOpen(t, o, rw("other", 1, 1))
	for i := range 60 {
		text := fmt.Sprintf("%d-%s", i, strings.Repeat("x", 2000))
		payloads = append(payloads, text)
		mustAppend(t, w, text)
		mustAppend(t, other, text)
	}
	e := o.(*opener).engine
	waitFor(t, func() bool { // all indexes are written
		e.set.mu.RLock()
		defer e.set.mu.RUnlock()
		for _, g := range e.set.list[:len(e.set.list)-1] {
			if !g.indexed {
				return false
			}
		}
		return true
	})
	must(t, o.Close(context.Background()))
	return s.fs, payloads
}

// readUntilError reads a channel and returns what came before the error.
func readUntilError(t *testing.T, w walimpls.WAL, start walimpls.Start) (got []message.Message, err error) {
	t.Helper()
	b, err := w.Bounds(testContext(t))
	must(t, err)
	s := mustRead(t, w, start)
	defer s.Close()
	for len(got) == 0 || got[len(got)-1].ID.Less(b.Latest) {
		records, err := s.Next(testContext(t))
		if err != nil {
			return got, err
		}
		got = append(got, records...)
	}
	return got, nil
}

// Every byte of a record that was durable matters: a flipped one is ErrCorrupt
// with file and position, at that record and not before; the records behind it
// are all there, so is the other channel, and nothing is deleted.
func TestDamagedRecordIsCorruptWithFileAndPosition(t *testing.T) {
	pristine, want := damagedStore(t)
	c, err := readStore(pristine, testLogDir)
	must(t, err)
	if len(c.segments) < 4 {
		t.Fatalf("%d segments are too few", len(c.segments))
	}
	for _, place := range []string{"first segment", "middle segment", "active segment"} {
		for _, part := range []string{"header", "body"} {
			t.Run(place+" "+part, func(t *testing.T) {
				g := c.segments[0]
				switch place {
				case "middle segment":
					g = c.segments[len(c.segments)/2]
				case "active segment":
					g = c.segments[len(c.segments)-1]
				}
				f := copyStore(t, pristine)
				b := bytes.Clone(readFileOf(t, f, g.path))
				scan := scanSegment(b, g.num, -1)
				var victim placed
				for _, p := range scan.frames {
					if p.kind == frameData && p.log == 1 {
						victim = p
						break
					}
				}
				at := victim.pos + 20
				if part == "body" {
					at = victim.pos + frameHeaderLen + 100
				}
				b[at] ^= 0x10
				writeFileOf(t, f, g.path, b)
				s := newMemStore(t)
				s.fs = f
				o := s.opener()
				w, err := o.Open(testContext(t), ro("c"))
				if place == "active segment" && part == "header" {
					// What the frame said is not known, so nothing may be opened.
					for _, opt := range []walimpls.OpenOptions{ro("c"), rw("c", 2, 1)} {
						_, err = o.Open(testContext(t), opt)
						wantCorruptAt(t, err, g.path, victim.pos)
					}
					if !bytes.Equal(b, readFileOf(t, f, g.path)) {
						t.Fatal("the damaged segment was changed")
					}
					return
				}
				must(t, err)
				got, err := readUntilError(t, w, walimpls.FromAll())
				wantCorruptAt(t, err, g.path, victim.pos)
				if n := len(got); got[n-1].ID != message.Uint64ID(victim.first-1) {
					t.Fatalf("the error came behind record %s, want %d", got[n-1].ID, victim.first-1)
				}
				wantPayloads(t, got, want[:victim.first-2]...)
				// What lies behind is there.
				rest, err := readUntilError(t, w, walimpls.StartFrom(message.Uint64ID(victim.first+1)))
				must(t, err)
				wantPayloads(t, rest, want[victim.first-1:]...)
				wantPayloads(t, readAll(t, mustOpen(t, o, ro("other"))), want...)
				// And the channel can be written to.
				w = mustOpen(t, o, rw("c", 2, 1))
				mustAppend(t, w, "more")
				must(t, o.Close(context.Background()))
				o = s.opener()
				_, err = readUntilError(t, mustOpen(t, o, ro("c")), walimpls.FromAll())
				wantCorruptAt(t, err, g.path, victim.pos)
			})
		}
	}
}

func wantCorruptAt(t *testing.T, err error, path string, pos int64) {
	t.Helper()
	wantIs(t, err, walimpls.ErrCorrupt)
	if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, fmt.Sprintf("position %d", pos)) {
		t.Fatalf("the error does not name file and position %d: %v", pos, err)
	}
}

// Whole sectors of zeros in the middle are damage, too, wherever they begin.
func TestZeroedSectorsAreDamageNotAnEnd(t *testing.T) {
	pristine, want := damagedStore(t)
	g, c := activeOf(t, pristine)
	for pos := int64(0); pos+512 < c.active.tail; pos += 512 {
		f := copyStore(t, pristine)
		b := bytes.Clone(readFileOf(t, f, g.path))
		clear(b[pos : pos+512])
		writeFileOf(t, f, g.path, b)
		s := newMemStore(t)
		s.fs = f
		o := s.opener()
		w, err := o.Open(testContext(t), ro("c"))
		if err == nil {
			var got, others []message.Message
			var otherErr error
			got, err = readUntilError(t, w, walimpls.FromAll())
			others, otherErr = readUntilError(t, mustOpen(t, o, ro("other")), walimpls.FromAll())
			if err == nil {
				err = otherErr
			}
			if err == nil && (len(payloads(got)) != len(want) || len(payloads(others)) != len(want)) {
				t.Fatalf("zeros at %d: a clean end after %d and %d records", pos, len(got), len(others))
			}
		}
		if !errors.Is(err, walimpls.ErrCorrupt) {
			t.Fatalf("zeros at %d: %v", pos, err)
		}
		must(t, o.Close(context.Background()))
	}
}

// The last commit of a store that was closed in order is known to be whole.
func TestDamageToTheLastCommitOfAClosedStoreIsFound(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	mustAppend(t, mustOpen(t, o, rw("c", 1, 1)), "A", "B")
	must(t, o.Close(context.Background()))
	g, c := activeOf(t, s.fs)
	b := readFileOf(t, s.fs, g.path)
	for _, p := range c.active.frames {
		if p.kind == frameData {
			b[p.pos+frameHeaderLen+20] ^= 1
			defer func() {
				r := mustOpen(t, s.opener(), ro("c"))
				_, err := readUntilError(t, r, walimpls.FromAll())
				wantCorruptAt(t, err, g.path, p.pos)
			}()
		}
	}
	writeFileOf(t, s.fs, g.path, b)
}

// A segment file that is gone is damage, never an end: the active one keeps
// the store from being opened, another one the records in it from being read.
func TestMissingSegmentIsDamage(t *testing.T) {
	pristine, want := damagedStore(t)
	c, err := readStore(pristine, testLogDir)
	must(t, err)
	for i, g := range c.segments {
		f := copyStore(t, pristine)
		must(t, f.Remove(g.path))
		s := newMemStore(t)
		s.fs = f
		o := s.opener()
		w, err := o.Open(testContext(t), ro("c"))
		if i == len(c.segments)-1 {
			wantIs(t, err, walimpls.ErrCorrupt)
			if !strings.Contains(err.Error(), g.path) {
				t.Fatalf("the error does not name the file: %v", err)
			}
			continue
		}
		must(t, err)
		got, err := readUntilError(t, w, walimpls.FromAll())
		wantIs(t, err, walimpls.ErrCorrupt)
		if !strings.Contains(err.Error(), testLogDir) {
			t.Fatalf("the error does not name the folder: %v", err)
		}
		if n := len(payloads(got)); n >= len(want) {
			t.Fatalf("%d records are there without segment %d", n, g.num)
		}
		must(t, o.Close(context.Background()))
	}
}

// An index file is a cache: the store is the same without it, or with a bad one.
func TestIndexFilesAreOnlyACache(t *testing.T) {
	pristine, want := damagedStore(t)
	names, err := pristine.List(testLogDir)
	must(t, err)
	for _, how := range []string{"missing", "header", "list", "short", "another's"} {
		f := copyStore(t, pristine)
		for _, name := range names {
			if !strings.HasSuffix(name, ".idx") {
				continue
			}
			path := testLogDir + "/" + name
			b := bytes.Clone(readFileOf(t, f, path))
			switch how {
			case "missing":
				must(t, f.Remove(path))
				continue
			case "header":
				b[indexHeaderLen] ^= 1
			case "list":
				b[len(b)-1] ^= 1
			case "short":
				b = b[:len(b)/2]
			case "another's":
				b = bytes.Clone(readFileOf(t, pristine, testLogDir+"/"+indexName(1)))
			}
			writeFileOf(t, f, path, b)
		}
		s := newMemStore(t)
		s.fs = f
		o := s.opener()
		for _, name := range []string{"c", "other"} {
			wantPayloads(t, readAll(t, mustOpen(t, o, ro(name))), want...)
		}
		must(t, o.Close(context.Background()))
	}
}

// The old bytes of a segment that is used again are never taken for new ones,
// wherever the new ones end.
func TestOldBytesOfARecycledSegmentAreNeverTakenForNew(t *testing.T) {
	s := newMemStore(t)
	s.tune = func(s *settings) { s.segmentSize, s.reclaimDelay = 32<<10, 1 }
	o := s.opener()
	w := mustOpen(t, o, rw("c", 1, 1))
	recycled := func() bool {
		names, err := s.fs.List(testLogDir)
		must(t, err)
		return slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, ".free") })
	}
	var want []string
	var first message.ID
	for round := 0; round < 10 || !recycled(); round++ {
		want = nil
		for i := range 40 {
			text := fmt.Sprintf("%d-%d-%s", round, i, strings.Repeat("x", 1000))
			id := mustAppend(t, w, text)[0]
			if i == 0 {
				first = id
			}
			want = append(want, text)
		}
		must(t, w.Truncate(testContext(t), first))
		dead := copyStore(t, s.fs)
		wantLog(t, dead, want...)
	}
}

// A log that is damaged is refused where it is damaged; its neighbours are not.
func TestRecordOfANewerVersionIsCorruptAndHoldsUpNoOther(t *testing.T) {
	s := newMemStore(t)
	o := s.opener()
	mustAppend(t, mustOpen(t, o, rw("good", 1, 1)), "a")
	newer := mustOpen(t, o, rw("newer", 1, 1))
	e := o.(*opener).engine
	q := newRequest(requestAppend, newer.(*handle).log)
	q.handle, q.data, q.ends = newer.(*handle), []byte{2, 1}, []int{2}
	must(t, e.submit(testContext(t), q))
	must(t, e.await(testContext(t), q))
	_, err := readUntilError(t, newer, walimpls.FromAll())
	wantIs(t, err, walimpls.ErrCorrupt)
	if !strings.Contains(err.Error(), "format version 2, this build reads version 1") {
		t.Fatal(err)
	}
	wantPayloads(t, readAll(t, mustOpen(t, o, ro("good"))), "a")
}

// The worked example of doc.go.
func TestBytesAreAsDocumented(t *testing.T) {
	w := writer{segment: &segment{num: 1}}
	w.begin()
	start := w.open()
	record := message.AppendRecord(nil, &message.Message{Type: message.TypeData, Term: 3, Incarnation: 1, Payload: []byte("hi")})
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(record)))
	w.buf = append(w.buf, record...)
	w.close(start, newFrame{frame: frame{kind: frameData, log: 1, first: 2, count: 1, pair: walimpls.Pair{Term: 3, Incarnation: 1}}})
	want := []string{
		fmt.Sprintf("%x", w.buf[0:8]), "0100000000000000", "00000000" + "00000000", "0f000000" + "01000006",
		"0100000000000000", "0200000000000000", "0300000000000000", "0100000000000000",
		"0b000000" + "01010301", "0000000000686900",
	}
	if got := fmt.Sprintf("%x", w.buf); got != strings.Join(want, "") {
		t.Fatalf("got %s", got)
	}
	t.Logf("checksums %s", want[0])
}
