package message

import (
	"bytes"
	"strings"
)

// Message is one record of a log.
//
// Ownership: whoever appends a Message hands over Payload and Properties and
// must not write to them until Append has returned; whoever reads one may keep
// it for as long as it likes but must never write to it.
type Message struct {
	// ID is the position in the log; empty until the record is stored.
	ID ID
	// Type says what the record is. Applications append TypeData.
	Type Type
	// VChannel is the stream inside the pchannel; "" means every vchannel.
	VChannel string
	// Term and Incarnation are the pair of the handle that stored the record.
	// The backend sets them from its Open; what the appender put here is
	// ignored. Along a log the pair never decreases.
	Term        int64
	Incarnation int64
	// TimeTick is the record's hybrid logical time, given by the owner.
	TimeTick Tick
	// LastConfirmed is a position from which a reader meets every record with
	// a tick at or above this record's, and the first record of every
	// transaction still open at it. Empty: the record's own id.
	LastConfirmed ID
	// TxnID names the transaction that the record is a part of; 0 is none.
	TxnID uint64
	// Properties are the application's key-value pairs, nil for none. Keys
	// that start with ReservedPrefix belong to walrig. Keys and values are text:
	// what is not valid UTF-8 is refused at the process boundary.
	Properties map[string]string
	// Payload is the application's bytes; it may be empty and may hold any byte.
	Payload []byte
}

// ReservedPrefix starts the property keys that applications may not use. A
// producer's idempotency key (producer and sequence) is reserved under it.
const ReservedPrefix = "_"

// Size is the size in bytes that limits are compared with: the payload, the
// vchannel's name, and every property's key and value. What a backend adds to
// store a record (header, checksum, framing) is not counted; a backend leaves
// room for it above the MaxMessageBytes that it declares.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.VChannel)
	for k, v := range m.Properties {
		n += len(k) + len(v)
	}
	return n
}

// Clone returns a copy that shares no memory with m, for who keeps a record long
// after its neighbours.
func (m *Message) Clone() Message {
	c := *m
	c.ID, c.LastConfirmed = ID(strings.Clone(string(m.ID))), ID(strings.Clone(string(m.LastConfirmed)))
	c.VChannel, c.Payload = strings.Clone(m.VChannel), bytes.Clone(m.Payload)
	if m.Properties != nil {
		c.Properties = make(map[string]string, len(m.Properties))
		for k, v := range m.Properties {
			c.Properties[strings.Clone(k)] = strings.Clone(v)
		}
	}
	return c
}

// ReservedKey returns the first property key that applications may not use, or "".
func (m *Message) ReservedKey() string {
	first := ""
	for k := range m.Properties {
		if strings.HasPrefix(k, ReservedPrefix) && (first == "" || k < first) {
			first = k
		}
	}
	return first
}
