package kafka

import (
	"math"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// maxFlights is how many batches may be unanswered. A broker knows the last five
// batches of a producer: a resend of one of them is acknowledged, not stored again.
const maxFlights = 4

// flight is a batch that was cut. Its bytes, sequence and count never change.
type flight struct {
	sequence int32
	count    int32
	bytes    []byte
	pieces   []piece
	first    time.Time // when it was sent first
	attempts int
	// maybe: an attempt was not answered, or with a code that leaves it open.
	maybe bool
}

// piece is the part of a flight that belongs to one append.
type piece struct {
	append   *pending
	from, to int // its records
	at       int // where they begin in the batch
	ends     []int
}

// verdict is what becomes of a flight.
type verdict struct {
	flight *flight
	state  walimpls.State
	base   int64
	code   kafkaCode
}

// ending says whether the window takes more batches, and if not why.
type ending int

const (
	goesOn      ending = iota
	endsFenced         // another producer has taken over
	endsRefused        // the broker refused a batch for good
	endsUnknown        // an outcome is not known
)

// window is the order of the batches in flight and the sequence numbers, without
// I/O. Batches are answered, and given up, from the front.
type window struct {
	next    int32
	flights []*flight
	// lastBase is the highest offset that was acknowledged: the next one is above.
	lastBase int64
	end      ending
}

// room returns how many records the next batch may hold, so that its sequences do
// not wrap inside of it; 0 means that the window takes none now.
func (w *window) room() int {
	if w.end != goesOn || len(w.flights) >= maxFlights {
		return 0
	}
	return int(min(int64(math.MaxInt32)-int64(w.next)+1, math.MaxInt32))
}

// add enters a batch whose sequence is w.next.
func (w *window) add(f *flight) {
	f.sequence = w.next
	w.next = int32((int64(w.next) + int64(f.count)) & math.MaxInt32)
	w.flights = append(w.flights, f)
}

// sent notes that all flights are on their way, once more.
func (f *flight) sent(now time.Time) {
	if f.attempts == 0 {
		f.first = now
	}
	f.attempts++
}

// answered takes the answer to the front flight. again means that the connection is
// of no use any more and everything in flight is to be sent again, in order.
func (w *window) answered(code kafkaCode, base int64) (v []verdict, again bool) {
	f := w.flights[0]
	if code == codeNone {
		if base <= w.lastBase {
			// This log does not go on from where the last one was: the topic was
			// deleted and made again.
			w.end = max(w.end, endsUnknown)
			return w.settle(f, walimpls.Unknown, -1, codeUnknownTopicID), false
		}
		w.lastBase = base + int64(f.count) - 1
		return w.settle(f, walimpls.Stored, base, code), false
	}
	if code.retriable() && (w.end == goesOn || w.end == endsUnknown) {
		f.maybe = f.maybe || code.mayBeStored()
		return nil, true
	}
	f.maybe = f.maybe || code.mayBeStored() || code == codeDuplicate
	switch {
	case code.fences():
		if w.end != endsRefused {
			w.end = endsFenced
		}
	case w.end == goesOn:
		w.end = endsRefused
	}
	return w.settle(f, f.uncertain(), -1, code), false
}

// uncertain is the outcome of a flight that will not be sent again.
func (f *flight) uncertain() walimpls.State {
	if f.maybe {
		return walimpls.Unknown
	}
	return walimpls.NotStored
}

// settle takes the front flight out.
func (w *window) settle(f *flight, state walimpls.State, base int64, code kafkaCode) []verdict {
	w.flights = w.flights[1:]
	return []verdict{{flight: f, state: state, base: base, code: code}}
}

// lost notes that the connection ended: what was sent on it may be stored. Where no
// resend can help it is given up.
func (w *window) lost() []verdict {
	for _, f := range w.flights {
		f.maybe = f.maybe || f.attempts > 0
	}
	if w.end == endsFenced || w.end == endsRefused {
		return w.giveUp()
	}
	return nil
}

// giveUp settles everything in flight. If none of it can be in the log, the next
// batch takes the sequence of the first, and the window goes on.
func (w *window) giveUp() (v []verdict) {
	if len(w.flights) == 0 {
		return nil
	}
	first, sure := w.flights[0].sequence, true
	for _, f := range w.flights {
		sure = sure && !f.maybe
		v = append(v, verdict{flight: f, state: f.uncertain(), base: -1})
	}
	w.flights = nil
	switch {
	case sure:
		w.next = first
	case w.end == goesOn:
		w.end = endsUnknown
	}
	return v
}

// lostBehindFront is lost for the flights behind the front one, whose answer is
// known: the connection is given up before theirs came.
func (w *window) lostBehindFront() {
	for _, f := range w.flights[1:] {
		f.maybe = f.maybe || f.attempts > 0
	}
}
