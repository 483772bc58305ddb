package flusher

import (
	"time"

	"github.com/walrig/walrig/sdk/message"
)

// maxRemembered bounds the pchannel checkpoints in a row.
const maxRemembered = 16

// oldEnough reports whether everything up to the checkpoint is older than age.
// Behind a restart ticks run ahead of the clock for a while; without an age
// that does not matter.
func oldEnough(s Saved, now time.Time, age time.Duration) bool {
	return age <= 0 || now.Sub(s.Tick.Time()) >= age
}

// Remember adds a checkpoint to the remembered ones, oldest first, and forgets
// those that no truncation will need: all below the newest that is old enough.
// Of the younger ones it keeps some, spread over the age, and the newest always.
func Remember(list []Saved, s Saved, now time.Time, age time.Duration) []Saved {
	out := make([]Saved, 0, len(list)+1)
	for _, o := range list {
		if o.Term < s.Term || (o.Term == s.Term && o.Tick < s.Tick) {
			out = append(out, o)
		}
	}
	// A checkpoint that follows the one before too closely replaces it, unless
	// that is the only one that is old enough.
	spacing := age / (maxRemembered / 2)
	if n := len(out); n > 1 && out[n-1].Tick.Time().Sub(out[n-2].Tick.Time()) < spacing && !oldEnough(out[n-1], now, age) {
		out = out[:n-1]
	}
	out = append(out, s)
	first := 0
	for i := range out {
		if oldEnough(out[i], now, age) {
			first = i
		}
	}
	out = out[first:]
	for len(out) > maxRemembered {
		out = append(out[:1], out[2:]...)
	}
	return out
}

// Target returns the checkpoint to truncate to: the newest that is older than
// age and not above any pinned position. ok is false if there is none above
// the present truncation point.
func Target(list []Saved, truncated message.ID, now time.Time, age time.Duration, pinned []message.ID) (Saved, bool) {
	for i := len(list) - 1; i >= 0; i-- {
		s := list[i]
		if s.ID <= truncated {
			return Saved{}, false
		}
		if oldEnough(s, now, age) && !anyBelow(pinned, s.ID) {
			return s, true
		}
	}
	return Saved{}, false
}

func anyBelow(ids []message.ID, id message.ID) bool {
	for _, p := range ids {
		if p < id {
			return true
		}
	}
	return false
}

// Pins says which readers hold a truncation back. Each does so for at most a
// given time in a row, counted from when it first stood in the way.
//
// It is plain state: no clock, no lock, no I/O.
type Pins struct {
	since map[uint64]time.Time
}

// Held returns the positions that pin, of the readers that stand below the id
// that a truncation wants to reach.
func (p *Pins) Held(readers []ReaderPosition, want message.ID, now time.Time, maxAge time.Duration) []message.ID {
	since := make(map[uint64]time.Time, len(readers))
	var held []message.ID
	for _, r := range readers {
		if r.ID >= want {
			continue
		}
		start, ok := p.since[r.Number]
		if !ok {
			start = now
		}
		since[r.Number] = start
		if now.Sub(start) < maxAge {
			held = append(held, r.ID)
		}
	}
	p.since = since
	return held
}
