package rmq

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Key prefixes; see doc.go for the layout.
const (
	prefixHeader byte = 0x00
	prefixRow    byte = 0x01
	prefixRecord byte = 0x02

	// rowVersion is the first byte of the header's and of every row's value.
	rowVersion = 1

	recordKeyLen = 1 + 8 + 8
)

var errBadRow = errors.New("bad log row")

func headerKey() []byte { return []byte{prefixHeader} }

func encodeHeader(nextLog uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{rowVersion}, nextLog)
}

func decodeHeader(b []byte) (nextLog uint64, err error) {
	if err := checkVersion(b); err != nil {
		return 0, err
	}
	if len(b) != 1+8 {
		return 0, fmt.Errorf("%w: header of %d bytes", errBadRow, len(b))
	}
	return binary.BigEndian.Uint64(b[1:]), nil
}

// row is what is stored once a log; everything else is read off its records.
type row struct {
	num     uint64 // the log's number in record keys
	first   uint64 // id of the earliest record that was not truncated
	storeID string
}

func rowKey(name string) []byte { return append([]byte{prefixRow}, name...) }

func (r row) encode() []byte {
	b := make([]byte, 0, 1+8+8+len(r.storeID))
	b = append(b, rowVersion)
	b = binary.BigEndian.AppendUint64(b, r.num)
	b = binary.BigEndian.AppendUint64(b, r.first)
	return append(b, r.storeID...)
}

func decodeRow(b []byte) (row, error) {
	if err := checkVersion(b); err != nil {
		return row{}, err
	}
	if len(b) <= 1+8+8 {
		return row{}, fmt.Errorf("%w: %d bytes", errBadRow, len(b))
	}
	r := row{
		num:     binary.BigEndian.Uint64(b[1:]),
		first:   binary.BigEndian.Uint64(b[9:]),
		storeID: string(b[17:]),
	}
	if r.first == 0 {
		return row{}, fmt.Errorf("%w: its first id is 0", errBadRow)
	}
	return r, nil
}

func checkVersion(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: empty", errBadRow)
	}
	if b[0] != rowVersion {
		return fmt.Errorf("%w: format version %d, this build reads version %d", errBadRow, b[0], rowVersion)
	}
	return nil
}

// appendRecordKey appends the key of the record with the id in log num. The
// key of id 0, which no record has, is the lower bound of the log's records.
func appendRecordKey(dst []byte, num, id uint64) []byte {
	dst = append(dst, prefixRecord)
	dst = binary.BigEndian.AppendUint64(dst, num)
	return binary.BigEndian.AppendUint64(dst, id)
}

func recordKey(num, id uint64) []byte {
	return appendRecordKey(make([]byte, 0, recordKeyLen), num, id)
}

func decodeRecordKey(b []byte) (num, id uint64, ok bool) {
	if len(b) != recordKeyLen || b[0] != prefixRecord {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]), true
}
