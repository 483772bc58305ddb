package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/walrig/walrig/sdk/message"
)

// Field numbers of typesv1.Record.
const (
	fieldID            = 1
	fieldType          = 2
	fieldVChannel      = 3
	fieldTerm          = 4
	fieldIncarnation   = 5
	fieldTimeTick      = 6
	fieldLastConfirmed = 7
	fieldTxnID         = 8
	fieldProperties    = 9
	fieldPayload       = 10
)

// mapKey and mapValue are the fields of a map's entry.
const (
	mapKey   = 1
	mapValue = 2
)

// AppendRecordsField appends field num, once for each record of batch: a repeated
// typesv1.Record. The records must have passed CheckRecord.
func AppendRecordsField(dst []byte, num protowire.Number, batch []message.Message) []byte {
	for i := range batch {
		m := &batch[i]
		dst = protowire.AppendTag(dst, num, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(recordSize(m, m.TimeTick)))
		dst = appendRecord(dst, m, m.TimeTick)
	}
	return dst
}

// RecordsFieldSize bounds what AppendRecordsField appends for batch.
func RecordsFieldSize(batch []message.Message) int {
	n := 0
	for i := range batch {
		n += recordBound(&batch[i])
	}
	return n
}

// recordBound bounds the size of a record with its tag and length. It is cheaper
// than recordSize, which it spares where only memory is reserved.
func recordBound(m *message.Message) int {
	return m.Size() + len(m.ID) + len(m.LastConfirmed) + 96 + 16*len(m.Properties)
}

// appendRecord appends the encoding of m as typesv1.Record, with tick as its time
// tick. Zero values take no bytes, as in all of proto3.
func appendRecord(dst []byte, m *message.Message, tick message.Tick) []byte {
	dst = appendString(dst, fieldID, string(m.ID))
	dst = appendUint(dst, fieldType, uint64(m.Type))
	dst = appendString(dst, fieldVChannel, m.VChannel)
	dst = appendUint(dst, fieldTerm, uint64(m.Term))
	dst = appendUint(dst, fieldIncarnation, uint64(m.Incarnation))
	dst = appendUint(dst, fieldTimeTick, uint64(tick))
	dst = appendString(dst, fieldLastConfirmed, string(m.LastConfirmed))
	dst = appendUint(dst, fieldTxnID, m.TxnID)
	for k, v := range m.Properties {
		dst = protowire.AppendTag(dst, fieldProperties, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(entrySize(k, v)))
		dst = protowire.AppendString(protowire.AppendTag(dst, mapKey, protowire.BytesType), k)
		dst = protowire.AppendString(protowire.AppendTag(dst, mapValue, protowire.BytesType), v)
	}
	if len(m.Payload) > 0 {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldPayload, protowire.BytesType), m.Payload)
	}
	return dst
}

// recordSize is the number of bytes that appendRecord appends.
func recordSize(m *message.Message, tick message.Tick) int {
	n := stringSize(len(m.ID)) + uintSize(uint64(m.Type)) + stringSize(len(m.VChannel)) +
		uintSize(uint64(m.Term)) + uintSize(uint64(m.Incarnation)) + uintSize(uint64(tick)) +
		stringSize(len(m.LastConfirmed)) + uintSize(m.TxnID) + stringSize(len(m.Payload))
	for k, v := range m.Properties {
		n += 1 + protowire.SizeBytes(entrySize(k, v))
	}
	return n
}

// Both sides of a map's entry are written, empty ones too, as the generated code
// does.
func entrySize(k, v string) int {
	return 2 + protowire.SizeBytes(len(k)) + protowire.SizeBytes(len(v))
}

// The tags of fields below 16 take one byte.

func stringSize(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

func uintSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func appendString(dst []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return dst
	}
	return protowire.AppendString(protowire.AppendTag(dst, num, protowire.BytesType), s)
}

func appendUint(dst []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, num, protowire.VarintType), v)
}
