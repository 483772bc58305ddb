package pulsar

import (
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// window is what an appender knows, without locks, clocks or a network: the
// records that wait, and the messages that were handed over and are not answered.
//
// Records are handed over in the order of push, and their indexes follow each
// other without a hole, as the messages do in the log.
type window struct {
	channel string
	pair    walimpls.Pair
	next    uint64 // index of the next record that is handed over
	// batchBytes bounds the payload of a message that has several records;
	// refused is the smallest payload that the broker is known to refuse, 0 for none.
	batchBytes, refused int
	inFlight            int // how many messages may be under way

	queue       []*request
	queuedBytes int
	sent        []*sent // in the order of the log
	// last is the place of the message before sent[0]: the search for one whose
	// place was lost begins behind it.
	last entry
}

// request is the records of one Append that can be stored.
type request struct {
	records [][]byte // encoded; those before taken were handed over
	taken   int
	bytes   int // of the records that were not handed over
	open    int // records without an outcome
	out     []walimpls.Outcome
	done    chan struct{} // closed when open is 0
}

func newRequest(records [][]byte) *request {
	r := &request{records: records, open: len(records), out: make([]walimpls.Outcome, len(records)), done: make(chan struct{})}
	for _, rec := range records {
		r.bytes += len(rec)
	}
	return r
}

func (r *request) set(i int, o walimpls.Outcome) {
	r.out[i] = o
	if r.open--; r.open == 0 {
		close(r.done)
	}
}

// part is a run of records of one request in a message.
type part struct {
	req  *request
	from int
	n    int
}

// sent is a message that was handed over.
type sent struct {
	env   *envelope
	parts []part
	// at is the place, once it is known; lost says that the store has the message
	// but did not say where.
	at    entry
	known bool
	lost  bool
}

func (w *window) push(r *request) {
	w.queue = append(w.queue, r)
	w.queuedBytes += r.bytes
}

// take makes the next message, nil if nothing waits or too much is under way.
func (w *window) take() *sent {
	if len(w.queue) == 0 || len(w.sent) >= w.inFlight {
		return nil
	}
	s := &sent{env: &envelope{pair: w.pair, first: w.next}}
	for len(w.queue) > 0 && s.env.count < maxRecords {
		r := w.queue[0]
		p := part{req: r, from: r.taken}
		for r.taken < len(r.records) && s.env.count < maxRecords {
			rec := r.records[r.taken]
			if s.env.count > 0 && len(s.env.payload)+len(rec) > w.batchBytes {
				break
			}
			if s.env.payload == nil {
				s.env.payload = make([]byte, 0, min(w.batchBytes, w.queuedBytes+16*len(r.records))+len(rec)+16)
			}
			s.env.payload = appendRecord(s.env.payload, rec)
			s.env.count++
			r.records[r.taken] = nil
			r.bytes -= len(rec)
			w.queuedBytes -= len(rec)
			r.taken++
			p.n++
		}
		if p.n > 0 {
			s.parts = append(s.parts, p)
		}
		if r.taken < len(r.records) {
			break
		}
		w.queue[0] = nil
		w.queue = w.queue[1:]
	}
	w.next += uint64(s.env.count)
	w.sent = append(w.sent, s)
	return s
}

// tooLarge undoes the take of s, the last one, because the client refused its
// payload before anything was sent. Several records come again in smaller
// messages; a single one is refused with err.
func (w *window) tooLarge(s *sent, err func(bytes int) error) {
	w.sent = w.sent[:len(w.sent)-1]
	w.next = s.env.first
	size := len(s.env.payload)
	if w.refused == 0 || size < w.refused {
		w.refused = size
	}
	if s.env.count == 1 {
		s.parts[0].req.set(s.parts[0].from, walimpls.Outcome{State: walimpls.NotStored, Err: err(size)})
		return
	}
	w.batchBytes = max(1, size/2)
	var again []*request
	rest := s.env.payload
	for _, p := range s.parts {
		r := p.req
		for i := p.from; i < p.from+p.n; i++ {
			var rec []byte
			rec, rest = cutRecord(rest)
			r.records[i] = rec
			r.bytes += len(rec)
			w.queuedBytes += len(rec)
		}
		r.taken = p.from
		if len(w.queue) == 0 || w.queue[0] != r {
			again = append(again, r)
		}
	}
	w.queue = append(again, w.queue...)
}

// acked notes the answer to s: its place, or that it is stored somewhere.
func (w *window) acked(s *sent, at entry, known bool) {
	if known {
		s.at, s.known, s.lost = at, true, false
	} else {
		s.lost = true
	}
	w.settle()
}

// settle gives the records at the front their ids, and forgets them.
func (w *window) settle() {
	for len(w.sent) > 0 && w.sent[0].known {
		s := w.sent[0]
		w.sent[0] = nil
		w.sent = w.sent[1:]
		w.last = s.at
		index := 0
		for _, p := range s.parts {
			for i := p.from; i < p.from+p.n; i++ {
				p.req.set(i, walimpls.Outcome{State: walimpls.Stored, ID: s.at.id(index)})
				index++
			}
		}
	}
}

// withdraw takes back what was not handed over of r.
func (w *window) withdraw(r *request, err error) {
	for i, q := range w.queue {
		if q == r {
			w.queue = append(w.queue[:i:i], w.queue[i+1:]...)
			break
		}
	}
	w.queuedBytes -= r.bytes
	r.bytes = 0
	for i := r.taken; i < len(r.records); i++ {
		r.set(i, walimpls.Outcome{State: walimpls.NotStored, Err: err})
	}
	r.records = r.records[:r.taken]
}

// end gives everything an outcome: what was handed over is unknown, or stored if
// its place is known, the rest is not stored.
func (w *window) end(handedOver, waiting error) {
	for _, s := range w.sent {
		index := 0
		for _, p := range s.parts {
			for i := p.from; i < p.from+p.n; i++ {
				if s.known {
					p.req.set(i, walimpls.Outcome{State: walimpls.Stored, ID: s.at.id(index)})
				} else {
					p.req.set(i, walimpls.Outcome{State: walimpls.Unknown, Err: handedOver})
				}
				index++
			}
		}
	}
	w.sent = nil
	for len(w.queue) > 0 {
		w.withdraw(w.queue[0], waiting)
	}
}

// ids returns the ids of a request that is stored as a whole, nil if it is not.
func (r *request) ids() []message.ID {
	ids := make([]message.ID, len(r.out))
	for i := range r.out {
		if r.out[i].State != walimpls.Stored {
			return nil
		}
		ids[i] = r.out[i].ID
	}
	return ids
}
