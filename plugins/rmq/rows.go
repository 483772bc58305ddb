package rmq

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/walimpls"
)

// errDamaged is wrapped by every error of what was read and cannot be right.
var errDamaged = errors.New("damaged")

// snapshotVersion is the first byte of a snapshot.
const snapshotVersion = 1

// row is what the store knows about one log besides where its records lie.
type row struct {
	num     uint64 // the log's number in frames
	name    string
	storeID string
	first   uint64 // the earliest id that is not truncated
	next    uint64 // the id of the next record
	// lastRecord is the newest id that is no fence record, 0 for none.
	lastRecord uint64
	pair       walimpls.Pair // of the newest record
	// lost are ids that a repair gave up, in order; a reader steps over them.
	lost []idRange
}

// idRange is first to last, both included.
type idRange struct{ first, last uint64 }

// lostAt returns the id behind the lost range that holds id; ok is false if
// the id is not lost.
func (r *row) lostAt(id uint64) (next uint64, ok bool) {
	for _, l := range r.lost {
		if l.first <= id && id <= l.last {
			return l.last + 1, true
		}
	}
	return 0, false
}

// rows is the state of all logs, which the frames of a log change one by one.
type rows struct {
	nextLog uint64
	logs    map[uint64]*row
}

func newRows() *rows { return &rows{nextLog: 1, logs: map[uint64]*row{}} }

// apply changes the state as the frame says. body is needed for frameCreate
// alone. An error means that the frame does not fit what lies before it.
func (s *rows) apply(f *frame, body []byte) error {
	switch f.kind {
	case frameSnapshot, frameOpen, frameClose, frameMovedData, frameMovedFence:
		return nil
	case frameCreate:
		name, storeID, err := decodeCreate(body)
		if err != nil {
			return err
		}
		if f.log < s.nextLog || f.first != 1 {
			return fmt.Errorf("%w: log number %d is made twice", errDamaged, f.log)
		}
		s.nextLog = f.log + 1
		s.logs[f.log] = &row{num: f.log, name: name, storeID: storeID, first: 1, next: 2, pair: f.pair}
		return nil
	}
	r := s.logs[f.log]
	if r == nil {
		return fmt.Errorf("%w: a %s frame of log number %d, which does not exist", errDamaged, f.kind, f.log)
	}
	switch f.kind {
	case frameFence, frameData:
		if f.first != r.next || f.pair.Compare(r.pair) < 0 {
			return fmt.Errorf("%w: a %s frame of %q begins at id %d with pair %s, behind id %d with pair %s", errDamaged, f.kind, r.name, f.first, f.pair, r.next-1, r.pair)
		}
		r.next, r.pair = f.last()+1, f.pair
		if f.kind == frameData {
			r.lastRecord = f.last()
		}
	case frameTruncate:
		if f.first >= r.next {
			return fmt.Errorf("%w: %q is truncated to id %d, above its end", errDamaged, r.name, f.first)
		}
		r.first = max(r.first, f.first)
	case frameDrop:
		delete(s.logs, f.log)
	default:
		return fmt.Errorf("%w: a frame of kind %d, which this build does not know", errDamaged, f.kind)
	}
	return nil
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func encodeCreate(b []byte, name, storeID string) []byte {
	return appendText(appendText(b, name), storeID)
}

func decodeCreate(b []byte) (name, storeID string, err error) {
	d := fields{rest: b}
	name, storeID = d.text(), d.text()
	if d.bad || len(d.rest) > 0 || name == "" || storeID == "" {
		return "", "", fmt.Errorf("%w: the row of a new log", errDamaged)
	}
	return name, storeID, nil
}

// snapshot is the state at the start of a segment, and where the one before it
// ended (0, 0 in the first).
type snapshot struct {
	prevSegment uint64
	prevEnd     int64
	state       *rows
}

// encode appends the snapshot to b. Logs come in the order that each yields.
func (s snapshot) encode(b []byte, each func(yield func(*row))) []byte {
	b = append(b, snapshotVersion)
	b = binary.AppendUvarint(b, s.prevSegment)
	b = binary.AppendUvarint(b, uint64(s.prevEnd))
	b = binary.AppendUvarint(b, s.state.nextLog)
	each(func(r *row) {
		b = binary.AppendUvarint(b, r.num)
		b = appendText(b, r.name)
		b = appendText(b, r.storeID)
		b = binary.AppendUvarint(b, r.first)
		b = binary.AppendUvarint(b, r.next)
		b = binary.AppendUvarint(b, r.lastRecord)
		b = binary.AppendUvarint(b, uint64(r.pair.Term))
		b = binary.AppendUvarint(b, uint64(r.pair.Incarnation))
		b = binary.AppendUvarint(b, uint64(len(r.lost)))
		for _, l := range r.lost {
			b = binary.AppendUvarint(b, l.first)
			b = binary.AppendUvarint(b, l.last)
		}
	})
	return b
}

func decodeSnapshot(b []byte) (snapshot, error) {
	bad := fmt.Errorf("%w: the snapshot", errDamaged)
	if len(b) == 0 {
		return snapshot{}, bad
	}
	if b[0] != snapshotVersion {
		return snapshot{}, fmt.Errorf("%w: a snapshot of version %d, this build reads version %d", errDamaged, b[0], snapshotVersion)
	}
	d := fields{rest: b[1:]}
	s := snapshot{prevSegment: d.number(), prevEnd: int64(d.number()), state: newRows()}
	s.state.nextLog = d.number()
	for len(d.rest) > 0 && !d.bad {
		r := &row{num: d.number(), name: d.text(), storeID: d.text(), first: d.number(), next: d.number(), lastRecord: d.number()}
		r.pair = walimpls.Pair{Term: int64(d.number()), Incarnation: int64(d.number())}
		n := d.number()
		if n > uint64(len(d.rest)/2) {
			return snapshot{}, bad
		}
		for range n {
			r.lost = append(r.lost, idRange{d.number(), d.number()})
		}
		if r.first == 0 || r.first >= r.next || r.num >= s.state.nextLog || s.state.logs[r.num] != nil {
			return snapshot{}, bad
		}
		s.state.logs[r.num] = r
	}
	if d.bad || s.prevEnd < 0 || s.state.nextLog == 0 {
		return snapshot{}, bad
	}
	return s, nil
}

// fields reads varints and texts until the first that is not whole.
type fields struct {
	rest []byte
	bad  bool
}

func (d *fields) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *fields) text() string {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}
