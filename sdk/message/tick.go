package message

import "time"

// Tick is a 64-bit hybrid logical time: Unix milliseconds in the upper 46 bits
// and a logical counter in the lower 18. 0 means "no tick" (fence records, and
// records of a backend used without a host).
type Tick uint64

// LogicalBits is the width of the logical counter inside a Tick.
const LogicalBits = 18

// NewTick returns the tick of a physical time in Unix milliseconds and a
// logical counter. Bits that do not fit are cut off.
func NewTick(unixMilli int64, logical uint32) Tick {
	return Tick(uint64(unixMilli)<<LogicalBits | uint64(logical)&(1<<LogicalBits-1))
}

// Physical returns the physical part in Unix milliseconds.
func (t Tick) Physical() int64 { return int64(t >> LogicalBits) }

// Logical returns the logical counter.
func (t Tick) Logical() uint32 { return uint32(t & (1<<LogicalBits - 1)) }

// Time returns the physical part as a time in UTC.
func (t Tick) Time() time.Time { return time.UnixMilli(t.Physical()).UTC() }
