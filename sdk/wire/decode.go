package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/walrig/walrig/sdk/message"
)

// ErrBadRecord is wrapped by every error of a message that holds records.
var ErrBadRecord = errors.New("bad record on the wire")

// errWireType marks a field of a known number and another type, which counts as
// unknown.
var errWireType = errors.New("another wire type")

// decoder walks through the fields of one message.
type decoder struct {
	rest []byte
	num  protowire.Number
	typ  protowire.Type
}

// next steps to the next field; false at the end.
func (d *decoder) next() (bool, error) {
	if len(d.rest) == 0 {
		return false, nil
	}
	num, typ, n := protowire.ConsumeTag(d.rest)
	if n < 0 {
		return false, fmt.Errorf("%w: %w", ErrBadRecord, protowire.ParseError(n))
	}
	if num > protowire.MaxValidNumber {
		return false, fmt.Errorf("%w: field number %d", ErrBadRecord, num)
	}
	d.num, d.typ, d.rest = num, typ, d.rest[n:]
	return true, nil
}

// skip steps over the field's value.
func (d *decoder) skip() error {
	n := protowire.ConsumeFieldValue(d.num, d.typ, d.rest)
	if n < 0 {
		return fmt.Errorf("%w: %w", ErrBadRecord, protowire.ParseError(n))
	}
	d.rest = d.rest[n:]
	return nil
}

func (d *decoder) bytes() ([]byte, error) {
	if d.typ != protowire.BytesType {
		return nil, errWireType
	}
	b, n := protowire.ConsumeBytes(d.rest)
	if n < 0 {
		return nil, fmt.Errorf("%w: %w", ErrBadRecord, protowire.ParseError(n))
	}
	d.rest = d.rest[n:]
	return b, nil
}

// text is bytes that must be UTF-8.
func (d *decoder) text() ([]byte, error) {
	b, err := d.bytes()
	if err == nil && !utf8.Valid(b) {
		err = fmt.Errorf("%w: field %d is not valid UTF-8", ErrBadRecord, d.num)
	}
	return b, err
}

func (d *decoder) uint() (uint64, error) {
	if d.typ != protowire.VarintType {
		return 0, errWireType
	}
	v, n := protowire.ConsumeVarint(d.rest)
	if n < 0 {
		return 0, fmt.Errorf("%w: %w", ErrBadRecord, protowire.ParseError(n))
	}
	d.rest = d.rest[n:]
	return v, nil
}

func (d *decoder) setUint(to *uint64) error {
	v, err := d.uint()
	if err == nil {
		*to = v
	}
	return err
}

// unknown turns errWireType into a skipped field.
func (d *decoder) unknown(err error) error {
	if errors.Is(err, errWireType) {
		return d.skip()
	}
	return err
}

// batchDecoder decodes the records of one message. It copies what it keeps into
// slabs, so that a record that is kept for long keeps little else in memory.
type batchDecoder struct {
	slab []byte
	left int // bytes of the message that are not decoded yet
	// What neighbours share is kept once.
	vchannel      string
	lastConfirmed message.ID
}

const (
	slabBytes   = 8 << 10
	slabLargest = slabBytes / 4 // above it a value has an allocation of its own
)

// room returns n bytes to write once.
func (b *batchDecoder) room(n int) []byte {
	if n > slabLargest {
		return make([]byte, n)
	}
	if n > len(b.slab) {
		b.slab = make([]byte, max(n, min(slabBytes, b.left)))
	}
	r := b.slab[:n:n]
	b.slab = b.slab[n:]
	return r
}

func (b *batchDecoder) copy(src []byte) []byte {
	if len(src) == 0 {
		return nil
	}
	r := b.room(len(src))
	copy(r, src)
	return r
}

// string is copy as a string: the bytes are written here and never again.
func (b *batchDecoder) string(src []byte) string {
	if len(src) == 0 {
		return ""
	}
	r := b.copy(src)
	return unsafe.String(&r[0], len(r))
}

// record decodes a typesv1.Record into m, which may hold fields of an earlier part
// of the same record.
func (b *batchDecoder) record(data []byte, m *message.Message) error {
	d := decoder{rest: data}
	for {
		more, err := d.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := b.field(&d, m); err != nil {
			if err = d.unknown(err); err != nil {
				return err
			}
		}
	}
	if m.Term < 0 || m.Incarnation < 0 {
		return fmt.Errorf("%w: pair %d.%d is negative", ErrBadRecord, m.Term, m.Incarnation)
	}
	return nil
}

func (b *batchDecoder) field(d *decoder, m *message.Message) error {
	var raw []byte
	var v uint64
	var err error
	switch d.num {
	case fieldID:
		if raw, err = d.bytes(); err == nil {
			m.ID = message.ID(b.string(raw))
		}
	case fieldType:
		if v, err = d.uint(); err == nil {
			m.Type = message.Type(uint32(v))
		}
	case fieldVChannel:
		if raw, err = d.text(); err == nil {
			if string(raw) != b.vchannel {
				b.vchannel = b.string(raw)
			}
			m.VChannel = b.vchannel
		}
	case fieldTerm:
		if v, err = d.uint(); err == nil {
			m.Term = int64(v)
		}
	case fieldIncarnation:
		if v, err = d.uint(); err == nil {
			m.Incarnation = int64(v)
		}
	case fieldTimeTick:
		if v, err = d.uint(); err == nil {
			m.TimeTick = message.Tick(v)
		}
	case fieldLastConfirmed:
		if raw, err = d.bytes(); err == nil {
			if string(raw) != string(b.lastConfirmed) {
				b.lastConfirmed = message.ID(b.string(raw))
			}
			m.LastConfirmed = b.lastConfirmed
		}
	case fieldTxnID:
		if v, err = d.uint(); err == nil {
			m.TxnID = v
		}
	case fieldProperties:
		if raw, err = d.bytes(); err == nil {
			err = b.property(raw, m)
		}
	case fieldPayload:
		if raw, err = d.bytes(); err == nil {
			m.Payload = b.copy(raw)
		}
	default:
		err = d.skip()
	}
	return err
}

// property decodes an entry of the map.
func (b *batchDecoder) property(data []byte, m *message.Message) error {
	d := decoder{rest: data}
	var key, value string
	for {
		more, err := d.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		var raw []byte
		switch d.num {
		case mapKey:
			if raw, err = d.text(); err == nil {
				key = b.string(raw)
			}
		case mapValue:
			if raw, err = d.text(); err == nil {
				value = b.string(raw)
			}
		default:
			err = d.skip()
		}
		if err = d.unknown(err); err != nil {
			return err
		}
	}
	if m.Properties == nil {
		m.Properties = make(map[string]string)
	}
	m.Properties[key] = value
	return nil
}

// countFields returns how often field num of type bytes is in data, so that its
// elements get one allocation. It stops at what is damaged, where decoding will
// stop too.
func countFields(data []byte, num protowire.Number) int {
	count := 0
	for len(data) > 0 {
		got, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return count
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(got, typ, data); n < 0 {
			return count
		}
		if got == num && typ == protowire.BytesType {
			count++
		}
		data = data[n:]
	}
	return count
}
