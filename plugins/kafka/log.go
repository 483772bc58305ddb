package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// ref names one log: a topic that is made again is another one.
type ref struct {
	channel string
	topic   string
	id      uuid
}

const (
	// tailWindow is how many offsets a look at the tail begins with. It grows until a
	// record is found: the newest offsets may be markers.
	tailWindow = 16
	// tailBytes is the size of one fetch of the tail.
	tailBytes = 1 << 20
)

// tail is what the end of a log says.
type tail struct {
	start, high int64 // log start, high watermark
	// latest and latestRecord are the offsets of the newest record, and of the newest
	// that is no fence record; -1 for none.
	latest, latestRecord int64
	// highest is the highest pair that was seen; nonce and fence are of its fence
	// record, where that was seen too.
	highest walimpls.Pair
	nonce   openNonce
	fence   int64
	// producers are those that were seen with the highest epoch of each.
	producers map[int64]int16
}

func newTail() tail {
	return tail{latest: -1, latestRecord: -1, fence: -1, producers: map[int64]int16{}}
}

// errMoved says that the log was truncated while it was looked at.
var errMoved = &answerError{what: "read the tail", code: codeOffsetNotAvailable, message: "the log was truncated meanwhile"}

// fetch asks for records from the offset on; waitMillis is how long the broker may
// hold the request while there are none.
func (k *cluster) fetch(ctx context.Context, c *conn, id uuid, offset int64, maxBytes int, waitMillis int64) (fetched, error) {
	frame, err := c.roundTrip(ctx, apiFetch, fetchVersion, k.s.requestTimeout, func(b []byte) []byte {
		return appendFetch(b, id, offset, int32(maxBytes), int32(waitMillis))
	})
	if err != nil {
		return fetched{}, err
	}
	f, err := decodeFetch(frame[8:])
	if err != nil {
		return f, &lostError{addr: c.addr, err: fmt.Errorf("fetch: %w", err)}
	}
	return f, answered("fetch", int16(f.code), "")
}

// scan calls each for the batches of [from, to), in order, until it returns false.
func (k *cluster) scan(ctx context.Context, c *conn, id uuid, from, to int64, maxBytes int, each func(b *batch) bool) error {
	for pos := from; pos < to; {
		f, err := k.fetch(ctx, c, id, pos, maxBytes, 0)
		var code *answerError
		if errors.As(err, &code) && code.code == codeOffsetOutOfRange {
			return errMoved
		}
		if err != nil {
			return err
		}
		before := pos
		for rest := f.records; len(rest) > 0 && pos < to; {
			b, more, ok, err := nextBatch(rest, from)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if b.next > pos {
				pos = b.next
				if !each(&b) {
					return nil
				}
			}
			rest = more
		}
		if pos == before {
			return errMoved // a leader that has only just become one
		}
	}
	return nil
}

// mine reports whether a record belongs to this log and is shown to readers.
func (l *ref) mine(r *record) bool { return r.tag == l.id.tag() && !r.hidden() }

// tail reads the end of the log, far enough back to find the newest record, and with
// wantRecord the newest that is no fence record.
func (k *cluster) tail(ctx context.Context, l *ref, wantRecord bool) (t tail, err error) {
	err = k.onLeader(ctx, l.topic, l.id, func(c *conn) error {
		t, err = k.tailFrom(ctx, c, l, wantRecord)
		return err
	})
	return t, err
}

func (k *cluster) tailFrom(ctx context.Context, c *conn, l *ref, wantRecord bool) (t tail, err error) {
	t = newTail()
	if t.start, err = k.offset(ctx, c, l.topic, offsetEarliest); err != nil {
		return t, err
	}
	if t.high, err = k.offset(ctx, c, l.topic, offsetLatest); err != nil {
		return t, err
	}
	window := int64(tailWindow)
	for to := t.high; to > t.start; window = min(4*window, 1<<14) {
		from := max(t.start, to-window)
		w := newTail()
		err := k.scan(ctx, c, l.id, from, to, tailBytes, func(b *batch) bool {
			w.note(l, b, to)
			return true
		})
		if err != nil {
			return t, err
		}
		t.before(&w)
		if t.latest >= 0 && (!wantRecord || t.latestRecord >= 0) {
			break
		}
		to = from
	}
	return t, nil
}

// note takes the records of a batch below an offset in; batches come in order.
func (t *tail) note(l *ref, b *batch, to int64) {
	t.saw(b.producer)
	for i := range b.records {
		r := &b.records[i]
		p := pairOf(&r.msg)
		// A record of a lower pair than one before it is what nobody is shown.
		if !l.mine(r) || r.offset >= to || p.Compare(t.highest) < 0 {
			continue
		}
		if p.Compare(t.highest) > 0 {
			t.nonce, t.fence = openNonce{}, -1
		}
		t.highest, t.latest = p, r.offset
		if r.msg.Type == message.TypeFence {
			t.nonce, t.fence = r.nonce, r.offset
		} else {
			t.latestRecord = r.offset
		}
	}
}

// before takes in what was found in front of what is known.
func (t *tail) before(w *tail) {
	t.latest = max(t.latest, w.latest)
	t.latestRecord = max(t.latestRecord, w.latestRecord)
	if w.highest.Compare(t.highest) > 0 || w.highest == t.highest && t.fence < 0 {
		t.highest, t.nonce, t.fence = w.highest, w.nonce, w.fence
	}
	for pid, epoch := range w.producers {
		t.saw(producerID{pid, epoch})
	}
}

func (t *tail) saw(p producerID) {
	if epoch, ok := t.producers[p.pid]; p.pid >= 0 && (!ok || p.epoch > epoch) {
		t.producers[p.pid] = p.epoch
	}
}

func pairOf(m *message.Message) walimpls.Pair {
	return walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
}

// bounds returns the ends of the log.
func (k *cluster) bounds(ctx context.Context, l *ref) (b walimpls.Bounds, err error) {
	err = k.onLeader(ctx, l.topic, l.id, func(c *conn) error {
		t, err := k.tailFrom(ctx, c, l, true)
		if err != nil {
			return err
		}
		b, err = k.boundsOf(ctx, c, l, t)
		return err
	})
	return b, err
}

// boundsOf finds the earliest record to a tail.
func (k *cluster) boundsOf(ctx context.Context, c *conn, l *ref, t tail) (walimpls.Bounds, error) {
	if t.latest < 0 {
		return walimpls.Bounds{Empty: true}, nil
	}
	earliest := t.latest
	err := k.scan(ctx, c, l.id, t.start, t.latest, 1<<16, func(b *batch) bool {
		for i := range b.records {
			if l.mine(&b.records[i]) {
				earliest = b.records[i].offset
				return false
			}
		}
		return true
	})
	if err != nil {
		return walimpls.Bounds{}, err
	}
	b := walimpls.Bounds{Earliest: message.Uint64ID(uint64(earliest)), Latest: message.Uint64ID(uint64(t.latest))}
	if t.latestRecord >= 0 {
		b.LatestRecord = message.Uint64ID(uint64(t.latestRecord))
	}
	return b, nil
}
