package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/walrig/walrig/sdk/message"
)

// Field numbers of walv1.ReadResponse and walv1.ReadRecord.
const (
	fieldPageRecords    = 1
	fieldPageCaughtUp   = 2
	fieldPageResume     = 3
	fieldPageEnd        = 4
	fieldPageCheckpoint = 5

	fieldDeliveryID         = 1
	fieldDeliveryCheckpoint = 2
	fieldDeliveryRecord     = 3
	fieldDeliveryUnitEnd    = 4
)

// Page is a walv1.ReadResponse as a client receives it.
type Page struct {
	Records    []Delivery
	CaughtUp   bool
	Resume     string
	End        string
	Checkpoint string
}

// Delivery is a walv1.ReadRecord: a record on its way to a client.
type Delivery struct {
	// ID is the text form.
	ID         string
	Checkpoint string
	UnitEnd    bool
	Message    message.Message
}

// UnmarshalWire implements Unmarshaler.
func (p *Page) UnmarshalWire(data []byte) error {
	*p = Page{Records: make([]Delivery, 0, countFields(data, fieldPageRecords))}
	b := batchDecoder{left: len(data)}
	d := decoder{rest: data}
	for {
		more, err := d.next()
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
		var raw []byte
		switch d.num {
		case fieldPageRecords:
			if raw, err = d.bytes(); err == nil {
				b.left = len(d.rest) + len(raw)
				n := len(p.Records)
				p.Records = p.Records[:n+1]
				if err = b.delivery(raw, &p.Records[n]); err != nil {
					err = fmt.Errorf("record %d of %d: %w", n+1, cap(p.Records), err)
				}
			}
		case fieldPageCaughtUp:
			var v uint64
			if v, err = d.uint(); err == nil {
				p.CaughtUp = v != 0
			}
		case fieldPageResume:
			err = d.string(&p.Resume)
		case fieldPageEnd:
			err = d.string(&p.End)
		case fieldPageCheckpoint:
			err = d.string(&p.Checkpoint)
		default:
			err = d.skip()
		}
		if err = d.unknown(err); err != nil {
			return err
		}
	}
}

// string sets s to a text that has an allocation of its own.
func (d *decoder) string(s *string) error {
	raw, err := d.text()
	if err == nil {
		*s = string(raw)
	}
	return err
}

func (b *batchDecoder) delivery(data []byte, r *Delivery) error {
	d := decoder{rest: data}
	for {
		more, err := d.next()
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
		var raw []byte
		switch d.num {
		case fieldDeliveryID:
			if raw, err = d.text(); err == nil {
				r.ID = b.string(raw)
			}
		case fieldDeliveryCheckpoint:
			if raw, err = d.text(); err == nil {
				r.Checkpoint = b.string(raw)
			}
		case fieldDeliveryRecord:
			if raw, err = d.bytes(); err == nil {
				err = b.record(raw, &r.Message)
			}
		case fieldDeliveryUnitEnd:
			var v uint64
			if v, err = d.uint(); err == nil {
				r.UnitEnd = v != 0
			}
		default:
			err = d.skip()
		}
		if err = d.unknown(err); err != nil {
			return err
		}
	}
}

// PageWriter builds the walv1.ReadResponses of one stream, each record encoded as
// it comes. It is for one goroutine.
type PageWriter struct {
	buffers Buffers
	dst     []byte
	records int
	// reserve is what a page begins with: a little more than the last one took.
	reserve int
}

// Len is the number of records in the page.
func (p *PageWriter) Len() int { return p.records }

// Size is the number of their bytes on the wire.
func (p *PageWriter) Size() int { return len(p.dst) }

// Add adds a record, with tick as its time tick. id and checkpoint are texts; all
// is copied.
func (p *PageWriter) Add(m *message.Message, tick message.Tick, id, checkpoint []byte, unitEnd bool) {
	if p.dst == nil {
		p.dst = p.buffers.Lend(max(p.reserve, 2*recordBound(m)))
	}
	size := recordSize(m, tick)
	n := stringSize(len(id)) + stringSize(len(checkpoint)) + 1 + protowire.SizeBytes(size)
	if unitEnd {
		n += 2
	}
	dst := protowire.AppendTag(p.dst, fieldPageRecords, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(n))
	if len(id) > 0 {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldDeliveryID, protowire.BytesType), id)
	}
	if len(checkpoint) > 0 {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldDeliveryCheckpoint, protowire.BytesType), checkpoint)
	}
	dst = protowire.AppendTag(dst, fieldDeliveryRecord, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = appendRecord(dst, m, tick)
	if unitEnd {
		dst = appendUint(dst, fieldDeliveryUnitEnd, 1)
	}
	p.dst = dst
	p.records++
}

// Finish returns the message with everything that was added, and begins the next.
func (p *PageWriter) Finish(caughtUp bool, resume, end, checkpoint string) *Raw {
	dst := p.dst
	if dst == nil {
		dst = p.buffers.Lend(len(resume) + len(end) + len(checkpoint) + 32)
	}
	if caughtUp {
		dst = appendUint(dst, fieldPageCaughtUp, 1)
	}
	dst = appendString(dst, fieldPageResume, resume)
	dst = appendString(dst, fieldPageEnd, end)
	dst = appendString(dst, fieldPageCheckpoint, checkpoint)
	p.reserve = len(dst) + len(dst)/8
	p.dst, p.records = nil, 0
	return p.buffers.Raw(dst)
}
