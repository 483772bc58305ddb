package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/walrig/walrig/sdk/message"
)

// metaHeader is the key of the first header of every record. What a Kafka record
// has no field for is in its value.
const metaHeader = "_walrig"

// metaVersion is the first byte of the meta header's value.
const metaVersion = 1

// openNonce tells the fence records of two Opens with one pair apart.
type openNonce [8]byte

var (
	// errForeign says that a record was not written by this backend.
	errForeign = errors.New("the record has no " + metaHeader + " header: walrig did not write it")
	errMeta    = errors.New("the record's " + metaHeader + " header is damaged")
)

// record is a decoded record of the log.
type record struct {
	offset int64
	msg    message.Message
	tag    storeTag
	// nonce is set for fence records.
	nonce openNonce
}

// hidden reports whether the record exists to keep producer state alive only.
func (r *record) hidden() bool { return r.msg.Type == message.TypeInvalid }

// appendBody appends a record as it is in a batch, but for its length and its
// offset delta, which are known when the batch is cut:
//
//	key | value | header count | _walrig header | properties by key
//
// The key is the vchannel, null for ""; the value is the payload; each property is
// a header. All lengths and counts are signed varints.
func appendBody(b []byte, m *message.Message, tag storeTag, nonce *openNonce) []byte {
	if m.VChannel == "" {
		b = append(b, 1) // null
	} else {
		b = binary.AppendVarint(b, int64(len(m.VChannel)))
		b = append(b, m.VChannel...)
	}
	b = binary.AppendVarint(b, int64(len(m.Payload)))
	b = append(b, m.Payload...)
	b = binary.AppendVarint(b, int64(1+len(m.Properties)))

	b = binary.AppendVarint(b, int64(len(metaHeader)))
	b = append(b, metaHeader...)
	var room [128]byte
	meta := appendMeta(room[:0], m, tag, nonce)
	b = binary.AppendVarint(b, int64(len(meta)))
	b = append(b, meta...)

	if len(m.Properties) > 0 {
		keys := make([]string, 0, len(m.Properties))
		for k := range m.Properties {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			b = binary.AppendVarint(b, int64(len(k)))
			b = append(b, k...)
			v := m.Properties[k]
			b = binary.AppendVarint(b, int64(len(v)))
			b = append(b, v...)
		}
	}
	return b
}

// appendMeta appends the value of the meta header, all numbers as unsigned varints:
//
//	01 | store tag (8 bytes) | type | term | incarnation | tick | txn id | length, last confirmed | nonce (8 bytes, fence records only)
func appendMeta(b []byte, m *message.Message, tag storeTag, nonce *openNonce) []byte {
	b = append(b, metaVersion)
	b = append(b, tag[:]...)
	b = binary.AppendUvarint(b, uint64(m.Type))
	b = binary.AppendUvarint(b, uint64(m.Term))
	b = binary.AppendUvarint(b, uint64(m.Incarnation))
	b = binary.AppendUvarint(b, uint64(m.TimeTick))
	b = binary.AppendUvarint(b, m.TxnID)
	b = binary.AppendUvarint(b, uint64(len(m.LastConfirmed)))
	b = append(b, m.LastConfirmed...)
	if nonce != nil {
		b = append(b, nonce[:]...)
	}
	return b
}

// decodeMeta fills in what the meta header holds.
func (r *record) decodeMeta(value []byte) error {
	if len(value) > 0 && value[0] != metaVersion {
		return fmt.Errorf("%w: format version %d, this build reads version %d", errMeta, value[0], metaVersion)
	}
	w := wireReader{b: value}
	w.i8()
	copy(r.tag[:], w.take(len(r.tag)))
	typ, term, incarnation := w.uvarint(), w.uvarint(), w.uvarint()
	r.msg.TimeTick = message.Tick(w.uvarint())
	r.msg.TxnID = w.uvarint()
	if n := w.uvarint(); n <= uint64(len(w.b)) {
		r.msg.LastConfirmed = message.ID(w.take(int(n)))
	} else {
		w.fail()
	}
	if w.err != nil || typ > math.MaxUint32 || term > math.MaxInt64 || incarnation > math.MaxInt64 {
		return errMeta
	}
	r.msg.Type, r.msg.Term, r.msg.Incarnation = message.Type(typ), int64(term), int64(incarnation)
	if r.msg.Type == message.TypeFence {
		copy(r.nonce[:], w.take(len(r.nonce)))
	}
	if w.err != nil || len(w.b) > 0 {
		return errMeta
	}
	return nil
}

// decodeRecord reads the record at the front of r, whose batch starts at base. The
// payload is a part of the input.
func decodeRecord(r *wireReader, base int64) (record, error) {
	var rec record
	size := r.varint()
	if size < 0 || size > int64(len(r.b)) {
		return rec, errShort
	}
	w := wireReader{b: r.take(int(size))}
	w.i8()     // attributes
	w.varint() // timestamp delta
	rec.offset = base + w.varint()
	rec.msg.VChannel = string(w.varBytes())
	rec.msg.Payload = w.varBytes()
	headers := w.varint()
	if w.err != nil {
		return rec, w.err
	}
	// A header takes two bytes at least: a count above that is a lie.
	if headers < 1 || headers > int64(len(w.b)/2) || string(w.varBytes()) != metaHeader {
		return rec, errForeign
	}
	meta := w.varBytes()
	if w.err != nil {
		return rec, w.err
	}
	if err := rec.decodeMeta(meta); err != nil {
		return rec, err
	}
	if headers > 1 {
		rec.msg.Properties = make(map[string]string, headers-1)
		for range headers - 1 {
			k := string(w.varBytes())
			rec.msg.Properties[k] = string(w.varBytes())
		}
	}
	if w.err != nil {
		return rec, w.err
	}
	if len(w.b) > 0 {
		return rec, errShort
	}
	rec.msg.ID = message.Uint64ID(uint64(rec.offset))
	return rec, nil
}

// varBytes reads bytes with a signed varint as length; null becomes nil.
func (r *wireReader) varBytes() []byte {
	n := r.varint()
	if n < 0 {
		return nil
	}
	if n > int64(len(r.b)) {
		r.fail()
		return nil
	}
	return r.take(int(n))
}
