package rmq

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/walrig/walrig/sdk/walimpls"
)

// sampleSegment is a segment with a frame of each kind.
func sampleSegment() []byte {
	state := newRows()
	w := writer{segment: &segment{num: 3}}
	w.begin()
	start := w.open()
	w.buf = snapshot{prevSegment: 2, prevEnd: 800, state: state}.encode(w.buf, func(func(*row)) {})
	w.close(start, newFrame{frame: frame{kind: frameSnapshot}})
	w.opening()
	pair := walimpls.Pair{Term: 1, Incarnation: 1}
	start = w.open()
	w.buf = encodeCreate(w.buf, "c", "store")
	w.close(start, newFrame{frame: frame{kind: frameCreate, log: 1, first: 1, count: 1, pair: pair}})
	w.end, w.synced = w.at(), w.at()
	l := &logState{row: row{num: 1}}
	w.data(frameData, l, pair, 2, []recordsOf{{data: []byte("onetwo"), ends: []int{3, 6}}})
	w.bare(newFrame{frame: frame{kind: frameTruncate, log: 1, first: 2}})
	w.bare(newFrame{frame: frame{kind: frameClose}})
	return w.buf
}

// FuzzScanSegment: no bytes make it panic, frames lie one behind the other
// inside the file, and what is cut off at any place ends there without damage.
func FuzzScanSegment(f *testing.F) {
	sample := sampleSegment()
	f.Add(sample, int64(-1))
	f.Add(sample[:100], int64(-1))
	f.Add(append(bytes.Clone(sample), 1, 2, 3), int64(len(sample)))
	f.Add([]byte{}, int64(10))
	f.Fuzz(func(t *testing.T, b []byte, limit int64) {
		if limit < -1 {
			limit = -1
		}
		s := scanSegment(b, 3, limit)
		at := int64(0)
		for _, p := range s.frames {
			if p.pos < at || p.pos+p.size() > int64(len(b)) || p.synced > p.pos {
				t.Fatalf("frame %+v behind %d of %d bytes", p, at, len(b))
			}
			at = p.pos + p.size()
			if p.kind == frameData {
				for i := range p.count {
					p.recordAt(p.bodyOf(b), i)
				}
			}
			if p.kind == frameSnapshot {
				_, _ = decodeSnapshot(p.bodyOf(b))
			}
		}
		if s.end != at && len(s.frames) > 0 {
			t.Fatalf("the end is %d, the last frame's %d", s.end, at)
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	f.Add(sampleSegment()[:frameHeaderLen], uint64(3), int64(0))
	f.Add([]byte{}, uint64(0), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, segment uint64, pos int64) {
		h, ok := decodeHeader(b, segment, pos)
		if !ok {
			return
		}
		again := make([]byte, frameHeaderLen)
		h.put(again, segment, pos)
		if !bytes.Equal(again[4:], b[4:frameHeaderLen]) {
			t.Fatalf("%x is read as %+v, which is written as %x", b, h, again)
		}
	})
}

func FuzzDecodeSnapshot(f *testing.F) {
	state := newRows()
	state.nextLog = 3
	r := &row{num: 2, name: "c", storeID: "s", first: 4, next: 9, lastRecord: 8, pair: walimpls.Pair{Term: 1, Incarnation: 2}, lost: []idRange{{5, 6}}}
	one := func(yield func(*row)) { yield(r) }
	f.Add(snapshot{prevSegment: 1, prevEnd: 64, state: state}.encode(nil, one))
	f.Add([]byte{1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSnapshot(b)
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		again, err := decodeSnapshot(s.encode(nil, func(yield func(*row)) {
			for _, r := range s.state.logs {
				yield(r)
			}
		}))
		if err != nil || len(again.state.logs) != len(s.state.logs) || again.prevEnd != s.prevEnd {
			t.Fatalf("%+v comes back as %+v, %v", s, again, err)
		}
		_, _, _ = decodeCreate(b)
	})
}

func FuzzDecodeIndex(f *testing.F) {
	runs := []*run{{log: 1, first: 2, last: 9, bytes: 300, frames: []frameRef{{2, 8, 16}, {5, 40, 9}}}}
	b, _ := encodeIndex(7, 640, runs)
	f.Add(b)
	f.Add(b[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		end, runs, err := decodeIndex(b, 7)
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		for _, r := range runs {
			if r.list.offset+int64(r.list.length) <= int64(len(b)) {
				r.frames, err = decodeList(b[r.list.offset:][:r.list.length], r.list)
				if err != nil && !errors.Is(err, errDamaged) {
					t.Fatalf("untyped error %v", err)
				}
			}
		}
		_ = end
	})
}

func TestIndexRoundTrips(t *testing.T) {
	runs := []*run{
		{log: 1, first: 2, last: 9, bytes: 300, frames: []frameRef{{2, 8, 16}, {5, 40, 9}}},
		{log: 300, first: 1 << 40, last: 1 << 40, bytes: 72, frames: []frameRef{{1 << 40, 70, 9}}},
	}
	b, _ := encodeIndex(7, 640, runs)
	end, got, err := decodeIndex(b, 7)
	must(t, err)
	if end != 640 || len(got) != len(runs) {
		t.Fatalf("end %d, %d runs", end, len(got))
	}
	for i, r := range got {
		refs, err := decodeList(b[r.list.offset:][:r.list.length], r.list)
		must(t, err)
		if r.log != runs[i].log || r.first != runs[i].first || r.last != runs[i].last || !slices.Equal(refs, runs[i].frames) {
			t.Fatalf("run %d comes back as %+v with %v", i, r, refs)
		}
	}
}
