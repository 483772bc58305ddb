package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// ErrBadRecord is wrapped by every error of RecordFromProto.
var ErrBadRecord = errors.New("bad record on the wire")

// RecordToProto returns m for the wire. The result shares Payload and
// Properties with m: m must not be written to while the result is in use.
func RecordToProto(m *message.Message) *typesv1.Record {
	r := new(typesv1.Record)
	SetRecord(r, m)
	return r
}

// RecordsToProto is RecordToProto for a batch, with one allocation for all records.
func RecordsToProto(batch []message.Message) []*typesv1.Record {
	slab := make([]typesv1.Record, len(batch))
	out := make([]*typesv1.Record, len(batch))
	for i := range batch {
		SetRecord(&slab[i], &batch[i])
		out[i] = &slab[i]
	}
	return out
}

// SetRecord fills the empty record r with m, sharing Payload and Properties.
func SetRecord(r *typesv1.Record, m *message.Message) {
	r.Id = idToProto(m.ID)
	r.Type = uint32(m.Type)
	r.Vchannel = m.VChannel
	r.Term = m.Term
	r.Incarnation = m.Incarnation
	r.TimeTick = uint64(m.TimeTick)
	r.LastConfirmed = idToProto(m.LastConfirmed)
	r.TxnId = m.TxnID
	r.Properties = m.Properties
	r.Payload = m.Payload
}

// RecordFromProto is the inverse of RecordToProto. The result takes over r's
// payload and properties; r must not be used afterwards.
func RecordFromProto(r *typesv1.Record) (message.Message, error) {
	if r == nil {
		return message.Message{}, fmt.Errorf("%w: missing", ErrBadRecord)
	}
	if r.Term < 0 || r.Incarnation < 0 {
		return message.Message{}, fmt.Errorf("%w: pair %d.%d is negative", ErrBadRecord, r.Term, r.Incarnation)
	}
	m := message.Message{
		ID:            message.ID(r.Id),
		Type:          message.Type(r.Type),
		VChannel:      r.Vchannel,
		Term:          r.Term,
		Incarnation:   r.Incarnation,
		TimeTick:      message.Tick(r.TimeTick),
		LastConfirmed: message.ID(r.LastConfirmed),
		TxnID:         r.TxnId,
		Properties:    r.Properties,
		Payload:       r.Payload,
	}
	if len(m.Properties) == 0 {
		m.Properties = nil
	}
	return m, nil
}

// RecordsFromProto is RecordFromProto for a batch; the error names the first
// record that is wrong.
func RecordsFromProto(records []*typesv1.Record) ([]message.Message, error) {
	out := make([]message.Message, len(records))
	for i, r := range records {
		m, err := RecordFromProto(r)
		if err != nil {
			return nil, fmt.Errorf("record %d of %d: %w", i+1, len(records), err)
		}
		out[i] = m
	}
	return out, nil
}

// CheckRecord returns ErrInvalidArgument for a record that cannot cross a
// process boundary, nil for all others. It does not look at any limit.
func CheckRecord(channel string, m *message.Message) error {
	bad := ""
	if !utf8.ValidString(m.VChannel) {
		bad = "its vchannel"
	}
	for k, v := range m.Properties {
		if !utf8.ValidString(k) {
			bad = fmt.Sprintf("property key %q", k)
		} else if !utf8.ValidString(v) {
			bad = fmt.Sprintf("the value of property %q", k)
		}
	}
	if bad == "" {
		return nil
	}
	e := walimpls.Errorf(walimpls.CodeInvalidArgument, channel, "record: %s is not valid UTF-8", bad)
	e.Hint = "put binary data into the payload, or encode it as text"
	return e
}

// TooLarge returns the ErrTooLarge of a record of size bytes, where limit is the
// backend's MaxMessageBytes.
func TooLarge(channel string, size, limit int) error {
	e := walimpls.Errorf(walimpls.CodeTooLarge, channel, "a record of %d bytes exceeds the backend's limit of %d", size, limit)
	e.Hint = "split the record, or raise the backend's limit in its configuration if it has one"
	return e
}

// idToProto returns nil for the empty id, so that "none" takes no bytes.
func idToProto(id message.ID) []byte {
	if id == "" {
		return nil
	}
	return []byte(id)
}
