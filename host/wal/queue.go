package wal

import (
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// entry is one AppendAsync call on its way.
type entry struct {
	// number grows with the order of the calls.
	number uint64
	batch  []message.Message
	bytes  int
	done   func([]walimpls.Outcome)
	// release stops the watch on the caller's context.
	release func() bool
	state   entryState
}

type entryState int

const (
	entryWaiting  entryState = iota // in the queue, not handed to a backend
	entrySent                       // handed to the present handle
	entryFinished                   // answered
)

// queue is the order of one pchannel's appends: what waits, what was sent, and
// what came back unsent from a lost handle. It has no lock and no I/O; the
// adaptor guards it.
type queue struct {
	waiting  []*entry
	returned []*entry
	// sent counts the entries that the present handle has not answered.
	sent map[*entry]struct{}
	// bytes counts everything that is not finished, sentBytes what is sent.
	bytes     int
	sentBytes int
	// next numbers the entries; stored is the highest number any record of
	// which was stored, or may have been.
	next   uint64
	stored uint64
}

func newQueue() *queue { return &queue{sent: map[*entry]struct{}{}} }

// add puts a new entry at the end.
func (q *queue) add(e *entry) {
	q.next++
	e.number = q.next
	for i := range e.batch {
		e.bytes += e.batch[i].Size()
	}
	q.bytes += e.bytes
	q.waiting = append(q.waiting, e)
}

// take marks the first waiting entry as sent and returns it; nil when there is
// none, or when limit bytes are under way already.
func (q *queue) take(limit int) *entry {
	if len(q.waiting) == 0 || (q.sentBytes > 0 && q.sentBytes >= limit) {
		return nil
	}
	e := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	e.state = entrySent
	q.sent[e] = struct{}{}
	q.sentBytes += e.bytes
	return e
}

// cancel takes a waiting entry out of the queue and reports whether it did; an
// entry that was sent or answered stays what it is.
func (q *queue) cancel(e *entry) bool {
	if e.state != entryWaiting {
		return false
	}
	if i := slices.Index(q.waiting, e); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else if i := slices.Index(q.returned, e); i >= 0 {
		q.returned = slices.Delete(q.returned, i, i+1)
	}
	q.finish(e)
	return true
}

// verdict says what the answer of a handle means.
type verdict struct {
	// finished: the caller gets the outcomes. Otherwise the entry came back
	// unsent and waits for the next handle.
	finished bool
	// lost: the handle is of no more use.
	lost bool
}

// answer takes the outcomes of a sent entry. An entry that was answered before
// (its caller was told "unknown" when the handle was given up) is ignored, and
// ok is false.
func (q *queue) answer(e *entry, outcomes []walimpls.Outcome) (v verdict, ok bool) {
	if e.state != entrySent {
		return verdict{}, false
	}
	delete(q.sent, e)
	q.sentBytes -= e.bytes
	untouched := true
	for _, o := range outcomes {
		switch o.State {
		case walimpls.NotStored:
			if endsHandle(o.Err) {
				v.lost = true
			} else {
				untouched = false
			}
		case walimpls.Unknown:
			v.lost, untouched = true, false
			q.stored = max(q.stored, e.number)
		case walimpls.Stored:
			untouched = false
			q.stored = max(q.stored, e.number)
		}
	}
	if untouched && v.lost {
		e.state = entryWaiting
		q.returned = append(q.returned, e)
		return v, true
	}
	v.finished = true
	q.finish(e)
	return v, true
}

// requeue puts what came back in front of what waits, in the old order, and
// returns the entries that cannot go again because a later one is stored.
func (q *queue) requeue() (refused []*entry) {
	slices.SortFunc(q.returned, func(a, b *entry) int { return int(int64(a.number - b.number)) })
	var again []*entry
	for _, e := range q.returned {
		if e.number < q.stored {
			q.finish(e)
			refused = append(refused, e)
		} else {
			again = append(again, e)
		}
	}
	q.returned = nil
	q.waiting = append(again, q.waiting...)
	return refused
}

// giveUp finishes every sent entry: the handle is gone without an answer.
func (q *queue) giveUp() []*entry {
	var all []*entry
	for e := range q.sent {
		all = append(all, e)
		q.stored = max(q.stored, e.number)
		q.sentBytes -= e.bytes
		q.finish(e)
	}
	clear(q.sent)
	return all
}

// drain finishes every entry that waits.
func (q *queue) drain() []*entry {
	all := append(q.returned, q.waiting...)
	q.returned, q.waiting = nil, nil
	for _, e := range all {
		q.finish(e)
	}
	return all
}

func (q *queue) finish(e *entry) {
	e.state = entryFinished
	q.bytes -= e.bytes
}
