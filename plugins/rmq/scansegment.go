package rmq

import (
	"encoding/binary"
	"fmt"
)

// placed is a frame and where it lies.
type placed struct {
	frame
	pos    int64
	broken bool // its body is not what was written
}

// body returns the frame's body out of the segment's bytes.
func (p *placed) bodyOf(b []byte) []byte {
	from := p.pos + frameHeaderLen
	return b[from : from+int64(p.length)]
}

// damage is a place of a segment that holds something else than was written.
type damage struct {
	pos  int64
	size int64
	why  string
	// header: not even the frame's header can be read, so what it said is not
	// known, and the frames in its place are not either.
	header bool
}

// scanned is what a segment's bytes say.
type scanned struct {
	frames []placed
	end    int64 // of the last frame
	// tail is where the last commit begins: all before it was durable when that
	// was written, it itself perhaps is not.
	tail   int64
	chain  uint32 // header checksum of the last frame
	damage []damage
	// torn: behind end lies something that is no frame, and that no later
	// frame proves to have been one that was durable.
	torn bool
}

// started reports whether anything was ever committed to the segment.
func (s *scanned) started() bool { return len(s.frames) > 0 || len(s.damage) > 0 }

// scanSegment reads the frames of a segment from the start. limit is where it
// ends if that is known from elsewhere, else -1: then it ends at the first
// thing that is no frame, unless a later frame says that it was durable by
// then, which makes it damage. So a torn tail of any form is an end, and
// nothing else is. It never panics.
func scanSegment(b []byte, num uint64, limit int64) scanned {
	var s scanned
	if limit > int64(len(b)) {
		s.damage = append(s.damage, damage{pos: int64(len(b)), size: limit - int64(len(b)), header: true,
			why: fmt.Sprintf("the file has %d bytes, and had %d", len(b), limit)})
		limit = int64(len(b))
	}
	inside := func(pos int64) bool {
		if limit >= 0 {
			return pos < limit
		}
		return provenDurable(b, num, pos)
	}
	pos := int64(0)
	for limit < 0 || pos < limit {
		f, ok := frameAt(b, num, pos)
		if ok && (f.prev != s.chain || f.synced < s.tail) {
			ok = false // left over from a commit that was cut off
		}
		if !ok {
			if !inside(pos) {
				break
			}
			next := nextFrame(b, num, pos+frameAlign)
			if limit >= 0 {
				next = min(next, limit)
			}
			s.damage = append(s.damage, damage{pos: pos, size: next - pos, header: true, why: "no frame begins here"})
			pos = next
			if f, ok = frameAt(b, num, pos); !ok {
				break
			}
		}
		p := placed{frame: f, pos: pos}
		if !f.bodyIs(p.bodyOf(b)) {
			if !inside(pos) {
				break
			}
			p.broken = true
			s.damage = append(s.damage, damage{pos: pos, size: f.size(), why: fmt.Sprintf("the checksum of a %s frame does not fit", f.kind)})
		}
		s.frames = append(s.frames, p)
		s.chain, s.tail = f.sum, f.synced
		pos += f.size()
		s.end = pos
	}
	if len(s.frames) == 0 {
		s.end = 0
	}
	s.torn = !allZero(b[min(s.end, int64(len(b))):])
	return s
}

// frameAt returns the frame at pos if it is there with all of its body.
func frameAt(b []byte, num uint64, pos int64) (frame, bool) {
	if pos < 0 || pos > int64(len(b)) {
		return frame{}, false
	}
	f, ok := decodeHeader(b[pos:], num, pos)
	if !ok || pos+f.size() > int64(len(b)) {
		return frame{}, false
	}
	return f, true
}

// headersFrom yields every position from pos on where a header of this segment is.
func headersFrom(b []byte, num uint64, pos int64, yield func(int64, frame) bool) {
	for pos = aligned(pos); pos+frameHeaderLen <= int64(len(b)); pos += frameAlign {
		if binary.LittleEndian.Uint64(b[pos+8:]) != num {
			continue
		}
		if f, ok := decodeHeader(b[pos:], num, pos); ok && !yield(pos, f) {
			return
		}
	}
}

// provenDurable reports whether a header behind pos says that pos was durable
// when it was written. Headers of a commit that was cut off never do: they were
// written while nothing from the cut on was durable.
func provenDurable(b []byte, num uint64, pos int64) (proven bool) {
	headersFrom(b, num, pos+frameAlign, func(_ int64, f frame) bool {
		proven = f.synced > pos
		return !proven
	})
	return proven
}

// nextFrame returns the position of the first whole frame from pos on, or the
// end of b.
func nextFrame(b []byte, num uint64, pos int64) int64 {
	found := int64(len(b))
	headersFrom(b, num, pos, func(at int64, _ frame) bool {
		if _, ok := frameAt(b, num, at); ok {
			found = at
			return false
		}
		return true
	})
	return found
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
