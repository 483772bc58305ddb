// Package tso is the hybrid logical clock of an owner: it gives out ticks inside
// windows that the catalog row grants.
//
//  1. Ticks only grow, over restarts, takeovers and jumps of the wall clock in
//     either direction: they start above a floor (the row's bound and the
//     highest tick in the log), and a clock that stands behind is overtaken by
//     the logical part.
//  2. No tick is given out at or above the window's bound. The bound is raised
//     in the row first, then here.
//  3. It has no goroutine, no I/O and no lock: the owner's lock guards it.
package tso

import (
	"math"
	"time"

	"github.com/walrig/walrig/sdk/message"
)

// Clock gives out ticks. It is not safe for concurrent use.
type Clock struct {
	now   func() time.Time
	last  message.Tick // the last tick given out, or the floor
	bound message.Tick // no tick at or above it
}

// New returns a clock without a window whose ticks are all above floor.
func New(now func() time.Time, floor message.Tick) *Clock {
	return &Clock{now: now, last: floor}
}

// Take gives out n contiguous ticks and returns the first; ok is false when the
// window does not hold them.
func (c *Clock) Take(n int) (first message.Tick, ok bool) {
	first = c.next()
	last := first + message.Tick(n) - 1
	// The ticks of 64 bits end; they must never begin again.
	if first <= c.last || last < first || last >= c.bound {
		return 0, false
	}
	c.last = last
	return first, true
}

// next is the lowest tick that may be given out now.
func (c *Clock) next() message.Tick {
	return max(c.last+1, message.NewTick(max(c.now().UnixMilli(), 0), 0))
}

// Observe makes every later tick higher than t.
func (c *Clock) Observe(t message.Tick) { c.last = max(c.last, t) }

// Want returns the bound of a window that lasts for length from now on and
// holds at least n ticks; due is false while half of such a window is left.
func (c *Clock) Want(length time.Duration, n int) (bound message.Tick, due bool) {
	next := c.next()
	span := max(message.NewTick(length.Milliseconds(), 0), message.Tick(n)*2)
	if next+span < next {
		return math.MaxUint64, true
	}
	return next + span, c.bound < next+span/2
}

// Extend raises the window's bound; a lower one is ignored.
func (c *Clock) Extend(bound message.Tick) { c.bound = max(c.bound, bound) }
