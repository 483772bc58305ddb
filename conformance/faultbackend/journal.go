package faultbackend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/walrig/walrig/sdk/message"
)

// The file of a store: a header, then frames. Layout in the package comment.
const (
	journalMagic   = "walrig-fault\n"
	journalVersion = 1
	headerSize     = len(journalMagic) + 1
	frameHead      = 8 // length and checksum
)

// The kinds of frames.
const (
	frameCreate   = 'C'
	frameRecords  = 'R'
	frameTruncate = 'T'
	frameDrop     = 'D'
)

func journalHeader() []byte { return append([]byte(journalMagic), journalVersion) }

// castagnoli makes the table; crc32 keeps it, so the call is cheap.
func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// appendFrame appends a frame whose payload is the kind and what body appends.
func appendFrame(dst []byte, kind byte, body func([]byte) []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, frameHead)...)
	dst = body(append(dst, kind))
	payload := dst[start+frameHead:]
	binary.BigEndian.PutUint32(dst[start:], uint32(len(payload)))
	binary.BigEndian.PutUint32(dst[start+4:], checksum(payload))
	return dst
}

// createFrame describes a new log and its first record.
func createFrame(dst []byte, l *chanLog, fence *message.Message) []byte {
	return appendFrame(dst, frameCreate, func(b []byte) []byte {
		b = binary.AppendUvarint(b, l.no)
		b = appendBytes(b, []byte(l.name))
		b = appendBytes(b, []byte(l.storeID))
		return appendBytes(b, message.AppendRecord(nil, fence))
	})
}

// recordsFrame describes an append at the end of l.
func recordsFrame(dst []byte, l *chanLog, recs []message.Message) []byte {
	return appendFrame(dst, frameRecords, func(b []byte) []byte {
		b = binary.AppendUvarint(b, l.no)
		b = binary.AppendUvarint(b, l.next())
		var buf []byte
		for i := range recs {
			buf = message.AppendRecord(buf[:0], &recs[i])
			b = appendBytes(b, buf)
		}
		return b
	})
}

func truncateFrame(dst []byte, l *chanLog, before uint64) []byte {
	return appendFrame(dst, frameTruncate, func(b []byte) []byte {
		return binary.AppendUvarint(binary.AppendUvarint(b, l.no), before)
	})
}

func dropFrame(dst []byte, l *chanLog) []byte {
	return appendFrame(dst, frameDrop, func(b []byte) []byte { return binary.AppendUvarint(b, l.no) })
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// image is the state that a file describes.
type image struct {
	logs   map[string]*chanLog
	byNo   map[uint64]*chanLog
	lastNo uint64
}

func newImage() *image {
	return &image{logs: map[string]*chanLog{}, byNo: map[uint64]*chanLog{}}
}

// errDamaged is wrapped by every error of decodeJournal but the version's.
var errDamaged = errors.New("the file is damaged")

// decodeJournal reads a whole file. good is where the intact part ends; what
// lies behind is the torn tail of a write that a kill cut short, which nobody
// was told of. Damage ahead of the tail is an error. The records of the image
// share b's memory. It never panics, whatever bytes it is given.
func decodeJournal(b []byte) (img *image, good int, err error) {
	img = newImage()
	header := journalHeader()
	if len(b) < len(header) {
		if string(b) != string(header[:len(b)]) {
			return nil, 0, fmt.Errorf("%w: it does not begin as a log of the fault backend", errDamaged)
		}
		return img, 0, nil
	}
	if string(b[:len(journalMagic)]) != journalMagic {
		return nil, 0, fmt.Errorf("%w: it does not begin as a log of the fault backend", errDamaged)
	}
	if v := b[len(journalMagic)]; v != journalVersion {
		return nil, 0, fmt.Errorf("format version %d, this build reads version %d: use the build that wrote the file", v, journalVersion)
	}
	good = headerSize
	for good < len(b) {
		payload, torn := nextFrame(b[good:])
		if torn {
			break
		}
		if payload == nil {
			return nil, good, fmt.Errorf("%w: bad checksum at offset %d", errDamaged, good)
		}
		if err := img.apply(payload); err != nil {
			return nil, good, fmt.Errorf("%w: frame at offset %d: %w", errDamaged, good, err)
		}
		good += frameHead + len(payload)
	}
	return img, good, nil
}

// nextFrame returns the payload of the frame at the start of b, or says that b
// is a torn tail: a frame that ends behind the file's end, one that ends with
// the file and whose checksum is wrong, or zeros to the end. nil and false is
// damage.
func nextFrame(b []byte) (payload []byte, torn bool) {
	if len(b) < frameHead {
		return nil, true
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if n == 0 {
		return nil, allZero(b)
	}
	if n > uint64(len(b)-frameHead) {
		return nil, true
	}
	payload = b[frameHead : frameHead+n]
	if checksum(payload) == binary.BigEndian.Uint32(b[4:]) {
		return payload, false
	}
	return nil, len(payload)+frameHead == len(b)
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// apply carries out one frame. It refuses what no store would have written.
func (img *image) apply(payload []byte) error {
	d := frameReader{rest: payload[1:]}
	no := d.uvarint()
	l := img.byNo[no]
	if payload[0] != frameCreate && (d.bad || l == nil || l.dropped) {
		return errors.New("it names a log that is not there")
	}
	switch payload[0] {
	case frameCreate:
		return img.create(no, &d)
	case frameRecords:
		if first := d.uvarint(); d.bad || first != l.next() {
			return errors.New("its records do not follow the log's")
		}
		var recs []message.Message
		highest := l.highest
		for len(d.rest) > 0 {
			m, err := d.record()
			if err != nil {
				return err
			}
			pair := pairOf(&m)
			if pair.Compare(highest) < 0 {
				return errors.New("a record's pair lies below the log's")
			}
			recs, highest = append(recs, m), pair
		}
		l.add(recs)
	case frameTruncate:
		before := d.uvarint()
		if d.bad || before >= l.next() {
			return errors.New("it truncates above the latest id")
		}
		l.cut(before)
	case frameDrop:
		l.drop()
		delete(img.logs, l.name)
	default:
		return fmt.Errorf("kind %q is not known", payload[0])
	}
	return nil
}

func (img *image) create(no uint64, d *frameReader) error {
	name, storeID := string(d.bytes()), string(d.bytes())
	fence, err := d.record()
	if err != nil {
		return err
	}
	if no != img.lastNo+1 || img.logs[name] != nil || fence.Type != message.TypeFence {
		return errors.New("it creates a log that cannot be")
	}
	l := newChanLog(no, name, storeID)
	l.add([]message.Message{fence})
	img.lastNo, img.logs[name], img.byNo[no] = no, l, l
	return nil
}

// frameReader reads fields until the first that does not fit.
type frameReader struct {
	rest []byte
	bad  bool
}

func (d *frameReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *frameReader) bytes() []byte {
	n := d.uvarint()
	if d.bad || n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *frameReader) record() (message.Message, error) {
	b := d.bytes()
	if d.bad {
		return message.Message{}, errors.New("a field does not fit")
	}
	return message.DecodeRecord(b)
}
