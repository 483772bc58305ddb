package rmq

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Sizes of a frame's parts; see doc.go for the layout.
const (
	frameHeaderLen = 64
	frameAlign     = 8
	// frameBody is how large the body of a frame grows before the records
	// behind it get one of their own: what a reader checks at once, and the
	// buffer that its records share.
	frameBody = 256 << 10
	// maxFrameBody bounds what a header may claim: the largest record, with room.
	maxFrameBody = maxMessageBytes*2 + 1<<20
	maxFrames    = 1<<24 - 1 // records of one frame
)

// frameKind says what a frame holds. The numbers are on disks.
type frameKind uint8

const (
	frameSnapshot  frameKind = 1 + iota // the state of all logs; the first frame of each segment
	frameOpen                           // an opening of the store; its first id is random
	frameClose                          // an orderly end
	frameCreate                         // a log's row, and its first fence record
	frameFence                          // a fence record
	frameData                           // records
	frameTruncate                       // the earliest id that is left
	frameDrop                           // the log is gone
	frameMovedData                      // copies of records out of an older segment
	frameMovedFence
	frameKinds // their number
)

func (k frameKind) String() string {
	if k == 0 || k >= frameKinds {
		return "unknown"
	}
	return [...]string{"", "snapshot", "open", "close", "create", "fence", "data", "truncate", "drop", "moved data", "moved fence"}[k]
}

// records reports whether the frame holds records of a log.
func (k frameKind) records() bool {
	switch k {
	case frameCreate, frameFence, frameData, frameMovedData, frameMovedFence:
		return true
	}
	return false
}

// frame is a frame's header.
type frame struct {
	kind frameKind
	// synced: everything before this position of the segment was durable when
	// the frame was written. It tells a torn tail from damage.
	synced int64
	length int    // of the body
	count  int    // of records
	log    uint64 // the log's number
	first  uint64 // the first record's id; see the kinds
	pair   walimpls.Pair
	prev   uint32 // header checksum of the frame before it in the segment
	body   uint32 // checksum of the body
	sum    uint32 // checksum of this header
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

func aligned(n int64) int64 { return (n + frameAlign - 1) &^ (frameAlign - 1) }

// size is what the frame takes of its segment.
func (f *frame) size() int64 { return frameHeaderLen + aligned(int64(f.length)) }

func (f *frame) last() uint64 { return f.first + uint64(f.count) - 1 }

// headerSum covers the header and, without storing it, its position: a header
// that is found anywhere else is none.
func headerSum(b []byte, pos int64) uint32 {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(pos))
	return crc32.Update(checksum(at[:]), castagnoli(), b[4:frameHeaderLen])
}

// put writes the header of a frame at pos of a segment into b, and sets sum.
func (f *frame) put(b []byte, segment uint64, pos int64) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], f.body)
	le.PutUint64(b[8:], segment)
	le.PutUint32(b[16:], f.prev)
	le.PutUint32(b[20:], uint32(f.synced/frameAlign))
	le.PutUint32(b[24:], uint32(f.length))
	le.PutUint32(b[28:], uint32(f.kind)<<24|uint32(f.count))
	le.PutUint64(b[32:], f.log)
	le.PutUint64(b[40:], f.first)
	le.PutUint64(b[48:], uint64(f.pair.Term))
	le.PutUint64(b[56:], uint64(f.pair.Incarnation))
	f.sum = headerSum(b, pos)
	le.PutUint32(b, f.sum)
}

// decodeHeader reads the header at the start of b, which lies at pos of a
// segment. ok is false for anything that this segment's writer did not put
// exactly there.
func decodeHeader(b []byte, segment uint64, pos int64) (f frame, ok bool) {
	le := binary.LittleEndian
	if len(b) < frameHeaderLen || le.Uint64(b[8:]) != segment {
		return frame{}, false
	}
	f.sum = le.Uint32(b)
	if f.sum != headerSum(b, pos) {
		return frame{}, false
	}
	f.body = le.Uint32(b[4:])
	f.prev = le.Uint32(b[16:])
	f.synced = int64(le.Uint32(b[20:])) * frameAlign
	f.length = int(le.Uint32(b[24:]))
	f.kind = frameKind(b[31])
	f.count = int(le.Uint32(b[28:]) & maxFrames)
	f.log = le.Uint64(b[32:])
	f.first = le.Uint64(b[40:])
	f.pair = walimpls.Pair{Term: int64(le.Uint64(b[48:])), Incarnation: int64(le.Uint64(b[56:]))}
	if f.kind == 0 || f.length > maxFrameBody && f.kind != frameSnapshot || f.synced > pos {
		return frame{}, false
	}
	if f.kind.records() && (f.count == 0 || f.first == 0 || f.last() < f.first) {
		return frame{}, false
	}
	return f, true
}

// bodyIs reports whether b is the body that the header was written for.
func (f *frame) bodyIs(b []byte) bool { return checksum(b) == f.body }

// recordAt returns record i of a data body: count ends, u32, then the records.
func (f *frame) recordAt(body []byte, i int) ([]byte, bool) {
	table := 4 * f.count
	if i >= f.count || table > len(body) {
		return nil, false
	}
	begin, end := 0, int(binary.LittleEndian.Uint32(body[4*i:]))
	if i > 0 {
		begin = int(binary.LittleEndian.Uint32(body[4*i-4:]))
	}
	if begin > end || end > len(body)-table {
		return nil, false
	}
	return body[table+begin : table+end : table+end], true
}
