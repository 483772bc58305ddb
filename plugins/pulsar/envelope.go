package pulsar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// formatVersion is the version of what is written: the properties and the payload.
const formatVersion = "1"

// The properties of every Pulsar message of a log; doc.go describes them.
const (
	propFormat = "walrig"
	propPair   = "walrig-pair"
	propFirst  = "walrig-first"
	propCount  = "walrig-count"
	propLast   = "walrig-last"
)

// maxRecords bounds the records of one Pulsar message.
const maxRecords = 4096

var (
	errForeign   = errors.New("a message that walrig did not write")
	errBadFormat = errors.New("a format that this build does not read")
)

// envelope is one Pulsar message: a run of records of one pair with consecutive
// log-wide indexes.
type envelope struct {
	pair  walimpls.Pair
	first uint64 // index of the first record, from 1 on
	count int
	// fence says that the one record is a fence record. lastRecord is then the id
	// of the newest record before it that is none, "" if there is none, so that
	// nobody has to search for it.
	fence      bool
	lastRecord message.ID
	payload    []byte
}

// next is the index behind the envelope.
func (e *envelope) next() uint64 { return e.first + uint64(e.count) }

func (e *envelope) properties() map[string]string {
	p := map[string]string{
		propFormat: formatVersion,
		propPair:   e.pair.String(),
		propFirst:  strconv.FormatUint(e.first, 10),
		propCount:  strconv.Itoa(e.count),
	}
	if e.fence {
		p[propLast] = "none"
		if e.lastRecord != "" {
			p[propLast], _ = idLayout.Format(e.lastRecord)
		}
	}
	return p
}

// appendRecord appends one encoded record to a payload.
func appendRecord(payload, record []byte) []byte {
	payload = binary.AppendUvarint(payload, uint64(len(record)))
	return append(payload, record...)
}

// cutRecord takes the first record off a payload that appendRecord made.
func cutRecord(payload []byte) (record, rest []byte) {
	n, w := binary.Uvarint(payload)
	if w <= 0 || n > uint64(len(payload)-w) {
		return nil, nil
	}
	end := w + int(n)
	return payload[w:end:end], payload[end:]
}

// fenceEnvelope is the message of an Open's fence record.
func fenceEnvelope(pair walimpls.Pair, first uint64, lastRecord message.ID) *envelope {
	m := message.Message{Type: message.TypeFence, Term: pair.Term, Incarnation: pair.Incarnation}
	return &envelope{
		pair: pair, first: first, count: 1, fence: true, lastRecord: lastRecord,
		payload: appendRecord(nil, message.AppendRecord(nil, &m)),
	}
}

// parseEnvelope is the inverse of properties and payload. It never panics; the
// records are decoded by records.
func parseEnvelope(props map[string]string, payload []byte) (*envelope, error) {
	switch v, ok := props[propFormat]; {
	case !ok:
		return nil, fmt.Errorf("%w: it has no property %q", errForeign, propFormat)
	case v != formatVersion:
		return nil, fmt.Errorf("%w: format %q, version %s of the backend reads format %s; use the version that wrote it", errBadFormat, v, Version, formatVersion)
	}
	e := &envelope{payload: payload}
	term, incarnation, ok := strings.Cut(props[propPair], ".")
	var err1, err2, err3, err4 error
	e.pair.Term, err1 = strconv.ParseInt(term, 10, 64)
	e.pair.Incarnation, err2 = strconv.ParseInt(incarnation, 10, 64)
	e.first, err3 = strconv.ParseUint(props[propFirst], 10, 64)
	e.count, err4 = strconv.Atoi(props[propCount])
	if err := errors.Join(err1, err2, err3, err4); err != nil || !ok {
		return nil, fmt.Errorf("%w: its properties are damaged: %w", message.ErrBadRecord, err)
	}
	if e.pair.Term < 1 || e.pair.Incarnation < 1 || e.first < 1 || e.first > 1<<62 || e.count < 1 || e.count > maxRecords {
		return nil, fmt.Errorf("%w: its properties are out of range", message.ErrBadRecord)
	}
	if last, ok := props[propLast]; ok {
		e.fence = true
		if last != "none" {
			if e.lastRecord, err1 = idLayout.Parse(last); err1 != nil {
				return nil, fmt.Errorf("%w: property %s: %w", message.ErrBadRecord, propLast, err1)
			}
		}
	}
	return e, nil
}

// records decodes the records of the message at. Their payloads are parts of the
// envelope's.
func (e *envelope) records(at entry) ([]message.Message, error) {
	out := make([]message.Message, 0, e.count)
	rest := e.payload
	for i := range e.count {
		var body []byte
		if body, rest = cutRecord(rest); body == nil {
			return nil, fmt.Errorf("%w: message %s ends in record %d of %d", message.ErrBadRecord, at, i, e.count)
		}
		m, err := message.DecodeRecord(body)
		if err != nil {
			return nil, fmt.Errorf("message %s, record %d: %w", at, i, err)
		}
		m.ID = at.id(i)
		out = append(out, m)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: message %s has %d bytes behind its last record", message.ErrBadRecord, at, len(rest))
	}
	return out, nil
}
