package rmq

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/walimpls"
)

// writer is the end of the store's log. Only the committer uses it, and before
// it runs, the opening.
type writer struct {
	segment *segment
	file    vfs.File
	end     int64  // where the next frame goes
	synced  int64  // everything before it is durable
	chain   uint32 // header checksum of the last frame
	// records: the segment holds more than the frames it began with.
	records bool

	// The frames of the commit that is being made: they begin at base.
	base   int64
	buf    []byte
	frames []newFrame
}

// newFrame is a frame of the commit that is being made.
type newFrame struct {
	frame
	pos int64
	log *logState // of records
	req *request  // of moved records
}

// begin starts a commit behind the last one.
func (w *writer) begin() { w.base, w.buf, w.frames = w.end, w.buf[:0], w.frames[:0] }

// at returns the position of the commit's end.
func (w *writer) at() int64 { return w.base + int64(len(w.buf)) }

// open makes room for a header; its frame's body is appended to buf next.
func (w *writer) open() (start int) {
	start = len(w.buf)
	w.buf = append(w.buf, make([]byte, frameHeaderLen)...)
	return start
}

// close ends the frame that open began.
func (w *writer) close(start int, f newFrame) {
	body := w.buf[start+frameHeaderLen:]
	f.length, f.body = len(body), checksum(body)
	for len(w.buf)%frameAlign != 0 {
		w.buf = append(w.buf, 0)
	}
	f.prev, f.synced, f.pos = w.chain, w.synced, w.base+int64(start)
	f.put(w.buf[start:], w.segment.num, f.pos)
	w.chain = f.sum
	w.frames = append(w.frames, f)
}

// bare appends a frame without a body.
func (w *writer) bare(f newFrame) { w.close(w.open(), f) }

// write puts the commit into the file, in one write.
func (w *writer) write() error {
	n, err := w.file.WriteAt(w.buf, w.base)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", w.segment.path, err)
	}
	w.end = w.at()
	return nil
}

// sync makes everything that was written durable.
func (w *writer) sync() error {
	if err := w.file.SyncData(); err != nil {
		return fmt.Errorf("sync %q: %w", w.segment.path, err)
	}
	w.synced = w.end
	return nil
}

// into moves the writer to a fresh segment, which begins with a snapshot. The
// old file stays open; the caller closes it.
func (w *writer) into(p *prepared, encode func(b []byte) []byte) {
	w.segment, w.file = p.segment, p.file
	w.end, w.synced, w.chain, w.records = 0, 0, 0, false
	w.begin()
	start := w.open()
	w.buf = encode(w.buf)
	w.close(start, newFrame{frame: frame{kind: frameSnapshot}})
}

// opening appends the frame that every opening of the store begins with. Its
// random number keeps frames that were cut off from ever fitting behind it.
func (w *writer) opening() {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	w.bare(newFrame{frame: frame{kind: frameOpen, first: binary.LittleEndian.Uint64(b[:])}})
}

// data appends frames with the records of requests of one log and pair, and
// returns the id behind the last. A frame ends where it is large enough.
func (w *writer) data(kind frameKind, l *logState, pair walimpls.Pair, first uint64, records []recordsOf) uint64 {
	le := binary.LittleEndian
	for len(records) > 0 {
		// What goes into this frame: whole requests, or parts of them.
		take, count, size := 0, 0, 0
		cut := 0 // records of the last request taken
		for _, r := range records {
			cut = 0
			for cut < r.count() && (count == 0 || size+r.size(cut) <= frameBody) {
				size += r.size(cut)
				cut++
				count++
			}
			take++
			if cut < r.count() {
				break
			}
		}
		start := w.open()
		table := len(w.buf)
		w.buf = append(w.buf, make([]byte, 4*count)...)
		end, at := uint32(0), table
		for i, r := range records[:take] {
			n := r.count()
			if i == take-1 {
				n = cut
			}
			if n == 0 {
				continue
			}
			for k := range n {
				le.PutUint32(w.buf[at:], end+uint32(r.ends[k]-r.begin))
				at += 4
			}
			end += uint32(r.ends[n-1] - r.begin)
			w.buf = append(w.buf, r.data[r.begin:r.ends[n-1]]...)
		}
		w.close(start, newFrame{frame: frame{kind: kind, log: l.num, first: first, count: count, pair: pair}, log: l})
		first += uint64(count)
		if cut < records[take-1].count() {
			rest := records[take-1].after(cut)
			records = records[take-1:]
			records[0] = rest
		} else {
			records = records[take:]
		}
	}
	w.records = true
	return first
}

// recordsOf is a stretch of encoded records: those that end at ends, the first
// of which begins at begin.
type recordsOf struct {
	data  []byte
	begin int
	ends  []int
}

func (r recordsOf) count() int { return len(r.ends) }

func (r recordsOf) size(i int) int {
	if i == 0 {
		return r.ends[0] - r.begin
	}
	return r.ends[i] - r.ends[i-1]
}

func (r recordsOf) after(n int) recordsOf {
	if n == 0 {
		return r
	}
	return recordsOf{data: r.data, begin: r.ends[n-1], ends: r.ends[n:]}
}
