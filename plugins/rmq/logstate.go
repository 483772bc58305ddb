package rmq

import (
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// logState is the state of one log in the store. A log that is dropped and
// made again is another logState.
//
// It has three parts with an owner each, so that readers never meet the queue's
// lock and the committer never waits for a reader:
//   - what admission decides on belongs to engine.mu,
//   - what the committer writes next belongs to the committer,
//   - what readers may see belongs to view.mu.
type logState struct {
	name    string
	num     uint64
	storeID string
	// broken is why the log cannot be used, nil if it can; set at load only.
	broken error

	// Guarded by engine.mu.
	pair    walimpls.Pair // the highest that was admitted, perhaps not committed yet
	owner   *handle       // who may append; nil after its Close
	dropped bool

	// The committer's.
	stored bool   // the row is in the store
	next   uint64 // the id of the next record
	first  uint64 // the earliest id that is not truncated

	view view
}

// span is what a reader may see of a log: the ids of the earliest and of the
// newest durable record, and of the newest one that is no fence record (0 if
// there was none). last is 0 while the log is being made.
type span struct {
	first, last, lastRecord uint64
}

// bounds returns the span as the contract's bounds.
func (s span) bounds() walimpls.Bounds {
	if s.last == 0 {
		return walimpls.Bounds{Empty: true}
	}
	b := walimpls.Bounds{Earliest: message.Uint64ID(s.first), Latest: message.Uint64ID(s.last)}
	if s.lastRecord >= s.first {
		b.LatestRecord = message.Uint64ID(s.lastRecord)
	}
	return b
}

// start resolves a start position to the id of the record to read first; that
// may be the one after last.
func (s span) start(channel string, start walimpls.Start) (uint64, error) {
	switch start.Policy {
	case walimpls.PolicyAll:
		return s.first, nil
	case walimpls.PolicyLatest:
		return s.last + 1, nil
	}
	id, ok := start.ID.Uint64()
	if !ok {
		return 0, walimpls.Errorf(walimpls.CodeInvalidArgument, channel, "read: the id %s has %d bytes, ids of this backend have 8", start.ID, len(start.ID))
	}
	if id < s.first || id > s.last {
		return 0, walimpls.NewPositionLostError(channel, s.bounds(), "read: the record %d is not in the log, which reaches from %d to %d", id, s.first, s.last)
	}
	if start.Policy == walimpls.PolicyAfter {
		id++
	}
	return id, nil
}

// view publishes a log's span and wakes those who wait for it to change.
type view struct {
	mu      sync.Mutex // guards what follows
	span    span
	end     error         // why nothing can be read any more; nil while it can
	doomed  uint64        // records below it may be missing already; see doom
	changed chan struct{} // closed at the next change; nil while nobody waits
}

// snapshot returns the present span, or the error that ended the log.
func (v *view) snapshot() (span, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.span, v.end
}

// wait returns the present span, and a channel that is closed at the next
// change. Taking both under one lock loses no wake-up.
func (v *view) wait() (span, <-chan struct{}, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.span, v.changed, v.end
}

func (v *view) publish(s span) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.span = s
	v.wakeLocked()
}

// doom says that the commit which begins now removes the records below id.
// Pebble shows a removal before its sync is done, that is before it can be
// published: a scanner that misses a record in between asks missing.
func (v *view) doom(id uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.doomed = max(v.doomed, id)
}

// missing returns the span without what is doomed, and whether the record with
// the id is rightly missing.
func (v *view) missing(id uint64) (s span, rightly bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s = v.span
	s.first = max(s.first, v.doomed)
	return s, id < s.first || v.end != nil
}

// finish ends the log for readers; the first reason stays.
func (v *view) finish(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.end == nil {
		v.end = err
		v.wakeLocked()
	}
}

func (v *view) wakeLocked() {
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// nextPair decides on the pair of a read-write open of this log: the pair
// asked for, with incarnation 0 replaced, or a refusal. The caller holds engine.mu.
func (l *logState) nextPair(asked walimpls.Pair) (walimpls.Pair, error) {
	pair := asked
	if pair.Incarnation == 0 {
		pair.Incarnation = 1
		if pair.Term == l.pair.Term {
			pair.Incarnation = l.pair.Incarnation + 1
		}
	}
	if pair.Compare(l.pair) <= 0 {
		return pair, walimpls.NewFencedError(l.name, pair, l.pair)
	}
	return pair, nil
}
