package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/segmentio/kafka-go/compress"
)

// The layout of a record batch v2; see doc.go.
const (
	batchHeader     = 61
	batchLengthAt   = 8
	batchMagicAt    = 16
	batchCRCAt      = 17
	batchAttrsAt    = 21
	batchDeltaAt    = 23
	batchPIDAt      = 43
	batchEpochAt    = 51
	batchSequenceAt = 53
	batchCountAt    = 57

	batchMagic = 2

	attrCompression = 0x07
	attrControl     = 1 << 5

	// maxInflated bounds what a compressed batch may become.
	maxInflated = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// producerID is a producer's identity in the log.
type producerID struct {
	pid   int64
	epoch int16
}

// batchBuilder cuts one record batch. Its bytes are final: a retry sends the same.
type batchBuilder struct {
	b     []byte
	count int32
}

// newBatch starts a batch; sizeHint is the expected size in bytes.
func newBatch(p producerID, sequence int32, codec compress.Compression, millis int64, sizeHint int) *batchBuilder {
	be := binary.BigEndian
	b := make([]byte, 0, batchHeader+sizeHint)
	b = be.AppendUint64(b, 0)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint32(b, math.MaxUint32) // leader epoch: the broker sets it
	b = append(b, batchMagic)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint16(b, uint16(codec))
	b = be.AppendUint32(b, 0)
	b = be.AppendUint64(b, uint64(millis))
	b = be.AppendUint64(b, uint64(millis))
	b = be.AppendUint64(b, uint64(p.pid))
	b = be.AppendUint16(b, uint16(p.epoch))
	b = be.AppendUint32(b, uint32(sequence))
	b = be.AppendUint32(b, 0)
	return &batchBuilder{b: b}
}

// add appends a record whose body was made by appendBody.
func (n *batchBuilder) add(body []byte) {
	delta := int64(n.count)
	n.b = binary.AppendVarint(n.b, int64(2+varintLen(delta)+len(body)))
	n.b = append(n.b, 0, 0) // attributes, timestamp delta
	n.b = binary.AppendVarint(n.b, delta)
	n.b = append(n.b, body...)
	n.count++
}

// finish compresses, seals and returns the batch.
func (n *batchBuilder) finish() ([]byte, error) {
	be := binary.BigEndian
	be.PutUint32(n.b[batchDeltaAt:], uint32(n.count-1))
	be.PutUint32(n.b[batchCountAt:], uint32(n.count))
	if codec := compress.Compression(n.b[batchAttrsAt+1] & attrCompression); codec != compress.None {
		packed := bytes.NewBuffer(make([]byte, 0, batchHeader+len(n.b)/2))
		packed.Write(n.b[:batchHeader])
		w := codec.Codec().NewWriter(packed)
		_, err := w.Write(n.b[batchHeader:])
		if closeErr := w.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return nil, fmt.Errorf("compress with %s: %w", codec, err)
		}
		n.b = packed.Bytes()
	}
	be.PutUint32(n.b[batchLengthAt:], uint32(len(n.b)-batchLengthAt-4))
	be.PutUint32(n.b[batchCRCAt:], crc32.Checksum(n.b[batchAttrsAt:], castagnoli))
	return n.b, nil
}

func varintLen(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for ; u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// batch is a decoded batch of the log.
type batch struct {
	producer producerID
	base     int64
	// next is the offset behind the batch; also of records that are not there any more.
	next int64
	// control batches end transactions and hold no records of ours.
	control bool
	records []record
}

// badBatchError says which batch is damaged.
type badBatchError struct {
	base int64
	err  error
}

func (e *badBatchError) Error() string {
	return fmt.Sprintf("the record batch at offset %d: %v", e.base, e.err)
}
func (e *badBatchError) Unwrap() error { return e.err }

// nextBatch decodes the batch at the front of b and returns what is behind it. ok is
// false if the batch is cut off, as the last one of a fetch may be. Records below
// `from` are left out.
func nextBatch(b []byte, from int64) (out batch, rest []byte, ok bool, err error) {
	if len(b) < batchHeader {
		return out, nil, false, nil
	}
	be := binary.BigEndian
	out.base = int64(be.Uint64(b))
	bad := func(format string, args ...any) (batch, []byte, bool, error) {
		return batch{}, nil, false, &badBatchError{base: out.base, err: fmt.Errorf(format, args...)}
	}
	length := int64(int32(be.Uint32(b[batchLengthAt:])))
	size := length + batchLengthAt + 4
	if magic := b[batchMagicAt]; magic != batchMagic {
		return bad("format %d, this build reads format 2", magic)
	}
	if size < batchHeader {
		return bad("its length %d is not possible", length)
	}
	if size > int64(len(b)) {
		return batch{}, nil, false, nil
	}
	b, rest = b[:size:size], b[size:]
	if got, want := crc32.Checksum(b[batchAttrsAt:], castagnoli), be.Uint32(b[batchCRCAt:]); got != want {
		return bad("checksum %08x, computed %08x", want, got)
	}
	attrs := be.Uint16(b[batchAttrsAt:])
	delta := int32(be.Uint32(b[batchDeltaAt:]))
	count := int32(be.Uint32(b[batchCountAt:]))
	if delta < 0 || count < 0 || out.base < 0 || out.base > math.MaxInt64-int64(delta)-1 {
		return bad("offsets or counts are negative")
	}
	out.next = out.base + int64(delta) + 1
	out.producer = producerID{pid: int64(be.Uint64(b[batchPIDAt:])), epoch: int16(be.Uint16(b[batchEpochAt:]))}
	out.control = attrs&attrControl != 0
	if out.control || out.next <= from {
		return out, rest, true, nil
	}
	body := b[batchHeader:]
	if codec := compress.Compression(attrs & attrCompression); codec != compress.None {
		if body, err = inflate(codec, body); err != nil {
			return bad("%w", err)
		}
	}
	r := wireReader{b: body}
	if int64(count) > int64(len(body)) {
		return bad("%w", errShort)
	}
	out.records = make([]record, 0, count)
	last := out.base - 1
	for range count {
		rec, err := decodeRecord(&r, out.base)
		if err != nil {
			return bad("record %d of %d: %w", len(out.records)+1, count, err)
		}
		if rec.offset <= last || rec.offset >= out.next {
			return bad("offset %d lies outside of the batch or does not ascend", rec.offset)
		}
		last = rec.offset
		if rec.offset >= from {
			out.records = append(out.records, rec)
		}
	}
	return out, rest, true, nil
}

func inflate(codec compress.Compression, body []byte) ([]byte, error) {
	c := codec.Codec()
	if c == nil {
		return nil, fmt.Errorf("compression codec %d is not known", int8(codec))
	}
	r := c.NewReader(bytes.NewReader(body))
	defer r.Close()
	out, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name(), err)
	}
	if len(out) > maxInflated {
		return nil, fmt.Errorf("%s: it becomes more than %d bytes", c.Name(), maxInflated)
	}
	return out, nil
}
