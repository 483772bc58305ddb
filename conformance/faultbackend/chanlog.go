package faultbackend

import (
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// chanLog is the log of one channel: pure state, no locks and no I/O. The store
// changes it under its mutex, after the change is in the file if there is one.
//
// Ids have no holes: recs[i] has id first+i, and the newest record is never
// truncated. A log is created with its first Open's fence record, so it is
// never empty.
type chanLog struct {
	no      uint64 // names the log in the file
	name    string
	storeID string

	recs    []message.Message
	first   uint64
	highest walimpls.Pair
	// newest is the id of the newest record that is no fence record, 0 for none.
	newest  uint64
	dropped bool

	// wake is closed when a scanner may have something to do; nil while none waits.
	wake chan struct{}
}

const firstID = 1

func newChanLog(no uint64, name, storeID string) *chanLog {
	return &chanLog{no: no, name: name, storeID: storeID, first: firstID}
}

// next is the id of the next record.
func (l *chanLog) next() uint64 { return l.first + uint64(len(l.recs)) }

// add appends records that are stamped with their pair already and gives them
// their ids.
func (l *chanLog) add(recs []message.Message) {
	for i := range recs {
		id := l.next()
		recs[i].ID = message.Uint64ID(id)
		l.recs = append(l.recs, recs[i])
		if recs[i].Type != message.TypeFence {
			l.newest = id
		}
		l.highest = pairOf(&recs[i])
	}
	l.signal()
}

// cut removes what lies before the id, which is not above the newest record's.
func (l *chanLog) cut(before uint64) {
	if before <= l.first {
		return
	}
	l.recs = slices.Clone(l.recs[before-l.first:])
	l.first = before
	l.signal()
}

func (l *chanLog) drop() {
	l.dropped = true
	l.recs = nil
	l.signal()
}

// waiter returns a channel that is closed at the next change.
func (l *chanLog) waiter() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

func (l *chanLog) signal() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// take returns the records from the id on, up to the given numbers of records
// and bytes, but one at least if there is any.
func (l *chanLog) take(from uint64, records, bytes int) []message.Message {
	rest := l.recs[from-l.first:]
	n, size := 0, 0
	for n < len(rest) && n < records {
		if size += rest[n].Size(); size > bytes && n > 0 {
			break
		}
		n++
	}
	return slices.Clone(rest[:n])
}

func (l *chanLog) bounds() walimpls.Bounds {
	if len(l.recs) == 0 {
		return walimpls.Bounds{Empty: true}
	}
	b := walimpls.Bounds{Earliest: message.Uint64ID(l.first), Latest: message.Uint64ID(l.next() - 1)}
	if l.newest >= l.first {
		b.LatestRecord = message.Uint64ID(l.newest)
	}
	return b
}

// start resolves a start position to the id that a scanner begins at.
func (l *chanLog) start(s walimpls.Start) (uint64, error) {
	switch s.Policy {
	case walimpls.PolicyAll:
		return l.first, nil
	case walimpls.PolicyLatest:
		return l.next(), nil
	}
	id, ok := s.ID.Uint64()
	switch {
	case !ok:
		return 0, walimpls.Errorf(walimpls.CodeInvalidArgument, l.name, "read: the id %s has %d bytes, ids of this backend have 8", shorten(s.ID), len(s.ID))
	case id < l.first:
		return 0, walimpls.NewPositionLostError(l.name, l.bounds(), "the start %d was truncated; the earliest id is %d", id, l.first)
	case id >= l.next():
		return 0, walimpls.NewPositionLostError(l.name, l.bounds(), "the start %d lies above the latest id %d", id, l.next()-1)
	case s.Policy == walimpls.PolicyAfter:
		return id + 1, nil
	}
	return id, nil
}

// shorten keeps an id of any length out of error texts.
func shorten(id message.ID) string {
	const most = 16
	if len(id) > most {
		return id[:most].String() + "…"
	}
	return id.String()
}

func pairOf(m *message.Message) walimpls.Pair {
	return walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
}
