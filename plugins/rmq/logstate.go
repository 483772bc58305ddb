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
	// row is what the committer knows of the log; name, num and storeID never change.
	row
	// broken is why the log cannot be used, nil if it can; set at load only.
	broken error

	// Guarded by engine.mu.
	highest walimpls.Pair // the highest pair that was admitted, perhaps not committed yet
	owner   *handle       // who may append; nil after its Close
	dropped bool

	// The committer's.
	stored bool // the row is in the store
	// pending are records of the commit under way that wait for their frame.
	pending     []recordsOf
	pendingPair walimpls.Pair

	// runs say where the records are, in their order; guarded by segmentSet.mu.
	runs []*run

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
		if pair.Term == l.highest.Term {
			pair.Incarnation = l.highest.Incarnation + 1
		}
	}
	if pair.Compare(l.highest) <= 0 {
		return pair, walimpls.NewFencedError(l.name, pair, l.highest)
	}
	return pair, nil
}
