package flusher

import (
	"slices"

	"github.com/walrig/walrig/sdk/message"
)

// Bounds of what Marks remembers. Beyond maxMarks every second one is
// forgotten, so that the pchannel checkpoint is rounded down a little further.
// Beyond maxUnits neighbours are merged, so that a truncation inside them counts
// the later one as removed: a reader may be told that it lost its position
// although it missed nothing, but never the reverse.
const (
	maxMarks = 1024
	maxUnits = 1 << 15
)

// Marks remembers places that the shared scanner has passed, each with the
// (term, tick) of the last data unit that has a record before the place's id.
// Only such places become pchannel checkpoints.
//
// It is plain state: no clock, no lock, no I/O.
type Marks struct {
	// marks are in (term, tick) order; their ids never go back.
	marks []Saved
	// units are the data units that have no record before the last mark's id, in
	// the order of their ticks, without those that a later unit covers: one
	// whose first record is not above theirs. So first ids and ticks both grow.
	units []seenUnit
	// last is the last unit that has a record before the last mark's id.
	last seenUnit
}

type seenUnit struct {
	first message.ID
	term  int64
	tick  message.Tick
}

func (u seenUnit) below(o seenUnit) bool {
	return u.term < o.term || (u.term == o.term && u.tick < o.tick)
}

// NewMarks begins at the checkpoint that the scanner resumes from.
func NewMarks(from Saved) *Marks {
	return &Marks{marks: []Saved{from}, last: seenUnit{term: from.LastUnitTerm, tick: from.LastUnitTick}}
}

// Unit notes a data unit that the scanner met, skipped ones too.
func (m *Marks) Unit(first message.ID, term int64, tick message.Tick) {
	u := seenUnit{first: first, term: term, tick: tick}
	if first < m.marks[len(m.marks)-1].ID {
		if m.last.below(u) {
			m.last = u
		}
		return
	}
	// A scanner that begins again meets units a second time.
	if n := len(m.units); n > 0 && !m.units[n-1].below(u) {
		return
	}
	for n := len(m.units); n > 0 && m.units[n-1].first >= first; n-- {
		m.units = m.units[:n-1]
	}
	m.units = append(m.units, u)
	if len(m.units) > maxUnits {
		m.mergeUnits()
	}
}

// mergeUnits merges the older half, two by two.
func (m *Marks) mergeUnits() {
	half := len(m.units) / 2
	merged := m.units[:0]
	for i := 0; i+1 < half; i += 2 {
		u := m.units[i+1]
		u.first = m.units[i].first
		merged = append(merged, u)
	}
	if half%2 == 1 {
		merged = append(merged, m.units[half-1])
	}
	m.units = append(merged, m.units[half:]...)
}

// Pass notes that the scanner has handed out everything up to at.
func (m *Marks) Pass(at message.Checkpoint) {
	newest := &m.marks[len(m.marks)-1]
	if at.Term < newest.Term || (at.Term == newest.Term && at.Tick <= newest.Tick) || at.ID < newest.ID {
		return
	}
	gone := 0
	for gone < len(m.units) && m.units[gone].first < at.ID {
		if m.last.below(m.units[gone]) {
			m.last = m.units[gone]
		}
		gone++
	}
	m.units = slices.Delete(m.units, 0, gone)
	mark := Saved{ID: at.ID, Term: at.Term, Tick: at.Tick, LastUnitTerm: m.last.term, LastUnitTick: m.last.tick}
	if n := len(m.marks); n > 1 && at.ID == newest.ID && at.ID == m.marks[n-2].ID {
		*newest = mark // an idle log's tick: the first and the last of one id are enough
		return
	}
	m.marks = append(m.marks, mark)
	if len(m.marks) > maxMarks {
		m.thin()
	}
}

// thin forgets every second mark of the older half, but never the first.
func (m *Marks) thin() {
	half := len(m.marks) / 2
	kept := m.marks[:1]
	for i := 2; i < half; i += 2 {
		kept = append(kept, m.marks[i])
	}
	m.marks = append(kept, m.marks[half:]...)
}

// Floor returns the newest mark at or below the checkpoint, and forgets those
// below it.
func (m *Marks) Floor(at message.Checkpoint) Saved {
	n := 0
	for n+1 < len(m.marks) && at.Covers(m.marks[n+1].Term, m.marks[n+1].Tick) {
		n++
	}
	m.marks = slices.Delete(m.marks, 0, n)
	return m.marks[0]
}
