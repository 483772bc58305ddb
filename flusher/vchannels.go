package flusher

import "github.com/walrig/walrig/sdk/message"

// Verdict is what becomes of a record.
type Verdict int

// The verdicts.
const (
	// Ignore: the record is of a vchannel that was dropped since, or says what
	// is known already.
	Ignore Verdict = iota
	// Deliver it to its vchannel's service.
	Deliver
	// Create the vchannel: save it before the next record is looked at.
	Create
	// DropIt flushes what the vchannel has and drops it.
	DropIt
	// Unknown: the vchannel was never declared, or is not any more and left no
	// tombstone that covers the record. That cannot happen, so it is an error.
	Unknown
)

// Set is what is known about the vchannels of a pchannel: those that are
// declared, and the tombstones of dropped ones. A log is replayed from an older
// checkpoint again and again, so records may tell of vchannels that are gone.
//
// It is plain state: no clock, no lock, no I/O.
type Set struct {
	live       map[string]message.Tick // its start
	tombstones map[string]message.Tick // its drop
}

// NewSet returns the set that a row holds.
func NewSet(list []VChannel) *Set {
	s := &Set{live: map[string]message.Tick{}, tombstones: map[string]message.Tick{}}
	for _, v := range list {
		if v.Declared() {
			s.live[v.Name] = v.Start
		}
		if v.Dropped > 0 {
			s.tombstones[v.Name] = v.Dropped
		}
	}
	return s
}

// Judge says what becomes of a record. Nothing changes: Created and Dropped do
// that when it is done.
func (s *Set) Judge(t message.Type, vchannel string, tick message.Tick) Verdict {
	if vchannel == "" {
		return Deliver
	}
	if tick <= s.tombstones[vchannel] {
		return Ignore
	}
	start, live := s.live[vchannel]
	switch t {
	case message.TypeCreateVChannel:
		if live {
			return Ignore
		}
		return Create
	case message.TypeDropVChannel:
		if live && tick > start {
			return DropIt
		}
		return Ignore
	case message.TypeFlush:
		if live {
			return Deliver
		}
		return Ignore
	}
	if live && tick > start {
		return Deliver
	}
	return Unknown
}

// Created notes a vchannel that the record of the tick created.
func (s *Set) Created(vchannel string, tick message.Tick) { s.live[vchannel] = tick - 1 }

// Dropped notes that the record of the tick dropped a vchannel.
func (s *Set) Dropped(vchannel string, tick message.Tick) {
	delete(s.live, vchannel)
	s.tombstones[vchannel] = max(tick, s.tombstones[vchannel])
}

// Forget drops the tombstones that the pchannel checkpoint has passed.
func (s *Set) Forget(passed message.Tick) {
	for name, tick := range s.tombstones {
		if tick <= passed {
			delete(s.tombstones, name)
		}
	}
}

// prune is Forget for the row's list.
func prune(list []VChannel, passed message.Tick) []VChannel {
	out := list[:0]
	for _, v := range list {
		declared := v.Declared()
		if v.Dropped <= passed {
			v.Dropped = 0
		}
		if declared || v.Dropped > 0 {
			out = append(out, v)
		}
	}
	return out
}
