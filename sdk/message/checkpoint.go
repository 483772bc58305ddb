package message

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// Checkpoint says how far a reader got in a pchannel: resume from the id, and
// skip every unit whose (term, tick) is at or below the checkpoint's. It is
// valid across terms, hosts and restarts, for as long as the log is the one
// that StoreID names.
type Checkpoint struct {
	// StoreID names the log.
	StoreID string
	// ID is a last confirmed id. Empty or all-zero: the earliest record.
	ID ID
	// Term and Tick are compared in that order with a unit's.
	Term int64
	Tick Tick
}

// Covers reports whether the checkpoint is at or behind a unit of (term, tick):
// a reader that resumes from it skips the unit.
func (c Checkpoint) Covers(term int64, tick Tick) bool {
	return term < c.Term || (term == c.Term && tick <= c.Tick)
}

// ErrBadCheckpoint is wrapped by every error of ParseCheckpoint.
var ErrBadCheckpoint = errors.New("bad checkpoint")

// checkpointVersion is the first byte of a token.
const checkpointVersion = 1

const maxCheckpointBytes = 1 << 10

// String returns the checkpoint as a token: URL-safe base64 of a version byte,
// the fields (varints, and strings behind their length) and a CRC-32C of all
// that, so that a mangled token is refused instead of read from a wrong place.
func (c Checkpoint) String() string { return string(c.AppendToken(nil)) }

// AppendToken appends what String returns.
func (c Checkpoint) AppendToken(dst []byte) []byte {
	var scratch [128]byte
	b := append(scratch[:0], checkpointVersion)
	b = appendString(b, c.StoreID)
	b = appendString(b, string(c.ID))
	b = binary.AppendUvarint(b, uint64(c.Term))
	b = binary.AppendUvarint(b, uint64(c.Tick))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.AppendEncode(dst, b)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ParseCheckpoint is the inverse of String. It never panics.
func ParseCheckpoint(token string) (Checkpoint, error) {
	if len(token) > maxCheckpointBytes {
		return Checkpoint{}, fmt.Errorf("%w: %d characters are too many", ErrBadCheckpoint, len(token))
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrBadCheckpoint, err)
	}
	if len(b) < 5 {
		return Checkpoint{}, fmt.Errorf("%w: too short", ErrBadCheckpoint)
	}
	if b[0] != checkpointVersion {
		return Checkpoint{}, fmt.Errorf("%w: format version %d, this build reads version %d", ErrBadCheckpoint, b[0], checkpointVersion)
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return Checkpoint{}, fmt.Errorf("%w: the checksum does not fit; copy the whole token", ErrBadCheckpoint)
	}
	d := decoder{rest: body[1:]}
	c := Checkpoint{StoreID: d.string("store id"), ID: ID(d.string("id"))}
	term := d.uvarint("term")
	c.Tick = Tick(d.uvarint("tick"))
	if d.err != nil || term > math.MaxInt64 || len(d.rest) > 0 {
		return Checkpoint{}, fmt.Errorf("%w: damaged fields", ErrBadCheckpoint)
	}
	c.Term = int64(term)
	return c, nil
}
