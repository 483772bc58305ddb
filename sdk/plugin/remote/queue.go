package remote

import (
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// call is one Append or AppendAsync.
type call struct {
	batch    []message.Message
	outcomes []walimpls.Outcome
	left     int // records without an outcome
	done     func([]walimpls.Outcome)
	// gone: the caller has its outcomes already, and done is not called any more.
	gone bool
}

// settle sets the outcome of record i and reports whether it was the last one
// that somebody waits for.
func (c *call) settle(i int, o walimpls.Outcome) (finished bool) {
	if c.gone {
		return false
	}
	c.outcomes[i] = o
	c.left--
	return c.left == 0
}

// segment is a run of records of one call.
type segment struct {
	call     *call
	from, to int
	bytes    int
}

// request is one AppendRequest that was, or is being, sent.
type request struct {
	sequence uint64
	segments []segment
	records  int
	bytes    int
}

// queue is the state of the appends of one handle, without locks, goroutines or
// I/O: calls are pushed, cut into requests, and answered in order. Methods that
// settle outcomes return the calls that are finished by it; their done functions
// are the caller's to call, outside of its lock.
type queue struct {
	limits   walimpls.Limits
	waiting  []segment
	inFlight []*request
	sequence uint64
	// bytes is the size of what waits and what is in flight.
	bytes int
	// ended is why nothing is taken or sent any more, nil while the handle works.
	ended error
}

// push adds a call. Records that refuse gives an error for are settled with it.
// finished reports that no record is left to send.
func (q *queue) push(c *call, refuse func(*message.Message) error) (finished bool) {
	c.outcomes = make([]walimpls.Outcome, len(c.batch))
	c.left = len(c.batch)
	seg := segment{call: c}
	for i := range c.batch {
		m := &c.batch[i]
		err := q.ended
		if err == nil {
			err = refuse(m)
		}
		if err == nil {
			if seg.to != i || seg.from == seg.to {
				q.enqueue(seg)
				seg = segment{call: c, from: i, to: i}
			}
			seg.to = i + 1
			seg.bytes += m.Size()
			continue
		}
		finished = c.settle(i, walimpls.Outcome{State: walimpls.NotStored, Err: err})
	}
	q.enqueue(seg)
	return finished
}

func (q *queue) enqueue(s segment) {
	if s.from < s.to {
		q.waiting = append(q.waiting, s)
		q.bytes += s.bytes
	}
}

// take cuts the next request out of what waits, within the limits; nil if there
// is nothing to send. It is in flight from here on.
func (q *queue) take() *request {
	if len(q.waiting) == 0 || q.ended != nil {
		return nil
	}
	q.sequence++
	r := &request{sequence: q.sequence}
	n := 0
	for n < len(q.waiting) {
		s := q.waiting[n]
		if r.records+s.to-s.from <= q.limits.MaxBatchRecords && r.bytes+s.bytes <= q.limits.MaxBatchBytes {
			r.add(s)
			n++
			continue
		}
		head := q.split(s, r)
		if head.from < head.to {
			r.add(head)
		}
		if head.to == s.to { // one record above the limit of a batch
			n++
		} else {
			q.waiting[n].from = head.to
			q.waiting[n].bytes -= head.bytes
		}
		break
	}
	clear(q.waiting[:n])
	q.waiting = q.waiting[n:]
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	q.inFlight = append(q.inFlight, r)
	return r
}

func (r *request) add(s segment) {
	r.segments = append(r.segments, s)
	r.records += s.to - s.from
	r.bytes += s.bytes
}

// split returns the part of s that still fits into r; an empty r takes one record
// at least.
func (q *queue) split(s segment, r *request) segment {
	head := segment{call: s.call, from: s.from, to: s.from}
	for head.to < s.to {
		size := s.call.batch[head.to].Size()
		fits := r.records+head.to-head.from < q.limits.MaxBatchRecords && r.bytes+head.bytes+size <= q.limits.MaxBatchBytes
		if !fits && r.records+head.to-head.from > 0 {
			break
		}
		head.to++
		head.bytes += size
		if !fits {
			break
		}
	}
	return head
}

// answer settles the oldest request with one outcome a record.
func (q *queue) answer(outcomes []walimpls.Outcome) (finished []*call) {
	r := q.inFlight[0]
	q.inFlight[0] = nil
	q.inFlight = q.inFlight[1:]
	q.bytes -= r.bytes
	i := 0
	for _, s := range r.segments {
		last := false
		for k := s.from; k < s.to; k++ {
			last = s.call.settle(k, outcomes[i])
			i++
		}
		if last {
			finished = append(finished, s.call)
		}
	}
	return finished
}

// end stops the queue: what waits is not stored because of err, and so is what is
// pushed later. The first reason stays. What is in flight keeps waiting for its answer.
func (q *queue) end(err error) (finished []*call) {
	if q.ended == nil {
		q.ended = err
	}
	for _, s := range q.waiting {
		q.bytes -= s.bytes
		last := false
		for k := s.from; k < s.to; k++ {
			last = s.call.settle(k, walimpls.Outcome{State: walimpls.NotStored, Err: q.ended})
		}
		if last {
			finished = append(finished, s.call)
		}
	}
	q.waiting = nil
	return finished
}

// lose makes everything in flight unknown because of err.
func (q *queue) lose(err error) (finished []*call) {
	for len(q.inFlight) > 0 {
		lost := make([]walimpls.Outcome, q.inFlight[0].records)
		for i := range lost {
			lost[i] = walimpls.Outcome{State: walimpls.Unknown, Err: err}
		}
		finished = append(finished, q.answer(lost)...)
	}
	return finished
}

// abandon gives the caller of c its outcomes now: records that wait are taken back
// and not stored because of notSent, records in flight are unknown because of
// sent. It returns false if c is finished already.
func (q *queue) abandon(c *call, notSent, sent error) (unknown, ok bool) {
	if c.left == 0 {
		return false, false
	}
	kept := q.waiting[:0]
	for _, s := range q.waiting {
		if s.call != c {
			kept = append(kept, s)
			continue
		}
		q.bytes -= s.bytes
		for k := s.from; k < s.to; k++ {
			c.settle(k, walimpls.Outcome{State: walimpls.NotStored, Err: notSent})
		}
	}
	clear(q.waiting[len(kept):])
	q.waiting = kept
	for _, r := range q.inFlight {
		for _, s := range r.segments {
			for k := s.from; k < s.to && s.call == c; k++ {
				c.settle(k, walimpls.Outcome{State: walimpls.Unknown, Err: sent})
				unknown = true
			}
		}
	}
	c.gone = true
	return unknown, true
}
