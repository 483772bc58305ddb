package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// recordVersion is the first byte of every encoded record. A reader that meets
// a higher one refuses the record and names the version.
const recordVersion = 1

// ErrBadRecord is wrapped by every error of DecodeRecord.
var ErrBadRecord = errors.New("bad record encoding")

// AppendRecord appends the encoding of m to dst and returns the longer slice.
// The ID is not encoded: a store keeps it as the record's key.
//
// Layout, version 1: all integers are unsigned varints, strings are a length
// and the bytes; properties are sorted by key, so that equal records have equal
// encodings; the payload is what remains.
//
//	01 | type | term | incarnation | tick | txn id | last confirmed | vchannel | n | n × (key value) | payload
//
// A data record "hi" of term 3, incarnation 1, without anything else:
//
//	01 01 03 01 00 00 00 00 00 68 69
func AppendRecord(dst []byte, m *Message) []byte {
	dst = append(dst, recordVersion)
	dst = binary.AppendUvarint(dst, uint64(m.Type))
	dst = binary.AppendUvarint(dst, uint64(m.Term))
	dst = binary.AppendUvarint(dst, uint64(m.Incarnation))
	dst = binary.AppendUvarint(dst, uint64(m.TimeTick))
	dst = binary.AppendUvarint(dst, m.TxnID)
	dst = appendString(dst, string(m.LastConfirmed))
	dst = appendString(dst, m.VChannel)
	dst = binary.AppendUvarint(dst, uint64(len(m.Properties)))
	if len(m.Properties) > 0 {
		keys := make([]string, 0, len(m.Properties))
		for k := range m.Properties {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			dst = appendString(dst, k)
			dst = appendString(dst, m.Properties[k])
		}
	}
	return append(dst, m.Payload...)
}

// DecodeRecord is the inverse of AppendRecord. The Payload of the result is a
// part of b: the caller must not write to b afterwards. It never panics.
func DecodeRecord(b []byte) (Message, error) {
	if len(b) == 0 {
		return Message{}, fmt.Errorf("%w: empty", ErrBadRecord)
	}
	if b[0] != recordVersion {
		return Message{}, fmt.Errorf("%w: format version %d, this build reads version %d", ErrBadRecord, b[0], recordVersion)
	}
	d := decoder{rest: b[1:]}
	var m Message
	typ := d.uvarint("type")
	if typ > math.MaxUint32 {
		d.fail("type")
	}
	m.Type = Type(typ)
	m.Term = d.int63("term")
	m.Incarnation = d.int63("incarnation")
	m.TimeTick = Tick(d.uvarint("tick"))
	m.TxnID = d.uvarint("txn id")
	m.LastConfirmed = ID(d.string("last confirmed"))
	m.VChannel = d.string("vchannel")
	n := d.uvarint("property count")
	// Two bytes is the least that a property takes: a count above that is a
	// lie, and must not become an allocation.
	if n > uint64(len(d.rest)/2) {
		d.fail("property count")
	}
	if n > 0 && d.err == nil {
		m.Properties = make(map[string]string, n)
		for range n {
			k := d.string("property key")
			m.Properties[k] = d.string("property value")
		}
		if d.err == nil && uint64(len(m.Properties)) != n {
			d.fail("property key")
		}
	}
	if d.err != nil {
		return Message{}, d.err
	}
	m.Payload = d.rest
	return m, nil
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// decoder reads fields until the first error and remembers it.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(field string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrBadRecord, field)
	}
	d.rest = nil
}

func (d *decoder) uvarint(field string) uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail(field)
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) int63(field string) int64 {
	v := d.uvarint(field)
	if v > math.MaxInt64 {
		d.fail(field)
		return 0
	}
	return int64(v)
}

func (d *decoder) string(field string) string {
	n := d.uvarint(field)
	if n > uint64(len(d.rest)) {
		d.fail(field)
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}
