package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
)

// Field numbers of pluginv1.AppendRequest and pluginv1.ReadResponse.
const (
	fieldAppendHandle   = 1
	fieldAppendSequence = 2
	fieldAppendRecords  = 3
	fieldReadResolved   = 1
	fieldReadRecords    = 2
)

// AppendBatch is a pluginv1.AppendRequest as the plugin receives it.
type AppendBatch struct {
	Handle   uint64
	Sequence uint64
	Records  []message.Message
	// Err says what is wrong with the message; it wraps ErrBadRecord.
	Err error
}

// UnmarshalWire implements Unmarshaler.
func (a *AppendBatch) UnmarshalWire(data []byte) error {
	*a = AppendBatch{}
	b := newRecordsDecoder(data, fieldAppendRecords)
	a.Records, a.Err = b.decode(data, func(d *decoder) error {
		switch d.num {
		case fieldAppendHandle:
			return d.setUint(&a.Handle)
		case fieldAppendSequence:
			return d.setUint(&a.Sequence)
		}
		return d.skip()
	})
	return nil
}

// EncodeAppend returns the pluginv1.AppendRequest with all records of batches.
func EncodeAppend(p *Buffers, sequence uint64, batches ...[]message.Message) mem.BufferSlice {
	size := 16
	for _, batch := range batches {
		size += RecordsFieldSize(batch)
	}
	dst := appendUint(p.Lend(size), fieldAppendSequence, sequence)
	for _, batch := range batches {
		dst = AppendRecordsField(dst, fieldAppendRecords, batch)
	}
	return p.Raw(dst).data
}

// ReadBatch is a pluginv1.ReadResponse as the host receives it.
type ReadBatch struct {
	// Resolved is set in the first one alone.
	Resolved *pluginv1.Start
	Records  []message.Message
	// Err says what is wrong with the message; it wraps ErrBadRecord.
	Err error
}

// UnmarshalWire implements Unmarshaler.
func (r *ReadBatch) UnmarshalWire(data []byte) error {
	*r = ReadBatch{}
	b := newRecordsDecoder(data, fieldReadRecords)
	r.Records, r.Err = b.decode(data, func(d *decoder) error {
		if d.num != fieldReadResolved {
			return d.skip()
		}
		raw, err := d.bytes()
		if err != nil {
			return err
		}
		if r.Resolved == nil {
			r.Resolved = new(pluginv1.Start)
		}
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(raw, r.Resolved); err != nil {
			return fmt.Errorf("%w: %w", ErrBadRecord, err)
		}
		return nil
	})
	return nil
}

// EncodeRead returns the pluginv1.ReadResponse with the records.
func EncodeRead(p *Buffers, records []message.Message) *Raw {
	return p.Raw(AppendRecordsField(p.Lend(RecordsFieldSize(records)), fieldReadRecords, records))
}

// recordsDecoder decodes a message that has one repeated field of records.
type recordsDecoder struct {
	batchDecoder
	field   protowire.Number
	records []message.Message
}

func newRecordsDecoder(data []byte, field protowire.Number) *recordsDecoder {
	d := &recordsDecoder{field: field, records: make([]message.Message, 0, countFields(data, field))}
	d.left = len(data)
	return d
}

// decode hands the fields that are no records to other. When it fails it returns
// no record.
func (b *recordsDecoder) decode(data []byte, other func(*decoder) error) ([]message.Message, error) {
	d := decoder{rest: data}
	for {
		more, err := d.next()
		if err != nil {
			return nil, err
		}
		if !more {
			return b.records, nil
		}
		var raw []byte
		if d.num == b.field {
			if raw, err = d.bytes(); err == nil {
				b.left = len(d.rest) + len(raw)
				n := len(b.records)
				b.records = b.records[:n+1]
				if err = b.record(raw, &b.records[n]); err != nil {
					return nil, fmt.Errorf("record %d of %d: %w", n+1, cap(b.records), err)
				}
				continue
			}
		} else {
			err = other(&d)
		}
		if err = d.unknown(err); err != nil {
			return nil, err
		}
	}
}
