// Package wab is the write-ahead buffer of an owner: the recent stored records
// of its term in tick order, shared read-only by all tailing readers, so that
// they cost the backend nothing.
//
//  1. Append puts in what became settled together with the time tick that
//     covers it; ticks only grow.
//  2. The horizon is the newest time tick put in, the boundary the highest tick
//     evicted: every record with a tick between them is here.
//  3. It is bounded by bytes and age, but eviction never passes the newest
//     persisted time tick: a reader that comes from the backend always meets a
//     tick from which it can go on here, also on a channel that is idle.
//  4. A reader that fell behind the boundary gets ErrEvicted, and goes back to
//     the backend.
//  5. Readers must not write to what they are given.
package wab

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
)

// ErrEvicted says that records behind the reader's tick are not in the buffer
// any more.
var ErrEvicted = errors.New("write-ahead buffer: evicted")

// ErrAhead says that a reader's tick is above the horizon.
var ErrAhead = errors.New("write-ahead buffer: ahead of the horizon")

// Options bound a Buffer.
type Options struct {
	// MaxBytes bounds the records' sizes, MaxAge how long they stay.
	MaxBytes int
	MaxAge   time.Duration
	// Now is the clock of MaxAge; nil is time.Now.
	Now func() time.Time
}

// segment is what one Append put in: records in tick order, the covering time
// tick last.
type segment struct {
	records []message.Message
	bytes   int
	at      time.Time
}

func (s *segment) last() message.Tick { return s.records[len(s.records)-1].TimeTick }

// Buffer is the write-ahead buffer. It is safe for concurrent use.
type Buffer struct {
	opt Options

	mu       sync.Mutex // guards all below
	segments []segment
	// first is the sequence number of segments[0].
	first     uint64
	bytes     int
	records   int
	boundary  message.Tick
	horizon   message.Message
	persisted message.Tick
	// changed is closed and replaced at every Append.
	changed chan struct{}
	closed  error
}

// Stats says what a Buffer holds.
type Stats struct {
	Records, Bytes    int
	Boundary, Horizon message.Tick
}

// New returns a buffer that begins behind the term's opening time tick.
func New(opt Options, opening message.Message) *Buffer {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &Buffer{
		opt: opt, boundary: opening.TimeTick, horizon: opening, persisted: opening.TimeTick,
		changed: make(chan struct{}),
	}
}

// Append puts settled records in, in tick order, with the time tick that covers
// them; that is the last of them if it was persisted. The slice is the buffer's
// from now on. A tick at or below the horizon is ignored: it says nothing new.
func (b *Buffer) Append(records []message.Message, tick message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil || tick.TimeTick <= b.horizon.TimeTick {
		return
	}
	b.horizon = tick
	if len(records) > 0 {
		s := segment{records: records, at: b.opt.Now()}
		for i := range records {
			s.bytes += records[i].Size() + recordOverhead
			if records[i].Type == message.TypeTimeTick {
				b.persisted = records[i].TimeTick
			}
		}
		if s.last() < tick.TimeTick || records[len(records)-1].Type != message.TypeTimeTick {
			s.records = append(records, tick)
		}
		b.segments = append(b.segments, s)
		b.bytes += s.bytes
		b.records += len(s.records)
	}
	b.evict()
	close(b.changed)
	b.changed = make(chan struct{})
}

// recordOverhead is what a record costs besides its Size.
const recordOverhead = 160

// evict drops segments from the front that are too old or too much, up to the
// newest persisted time tick.
func (b *Buffer) evict() {
	oldest := b.opt.Now().Add(-b.opt.MaxAge)
	n := 0
	for n < len(b.segments) {
		s := &b.segments[n]
		if s.last() > b.persisted || (b.bytes <= b.opt.MaxBytes && !s.at.Before(oldest)) {
			break
		}
		b.boundary = s.last()
		b.bytes -= s.bytes
		b.records -= len(s.records)
		*s = segment{}
		n++
	}
	b.segments = b.segments[n:]
	b.first += uint64(n)
}

// Horizon is the newest time tick.
func (b *Buffer) Horizon() message.Tick {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.horizon.TimeTick
}

// Covers reports whether a reader that has everything up to the tick can go on
// here. behind says that the tick is above the horizon, so it may soon; changed
// is closed at the next Append.
func (b *Buffer) Covers(tick message.Tick) (covers, behind bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	behind = tick > b.horizon.TimeTick
	return tick >= b.boundary && !behind, behind, b.changed
}

// Stats returns what the buffer holds.
func (b *Buffer) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{Records: b.records, Bytes: b.bytes, Boundary: b.boundary, Horizon: b.horizon.TimeTick}
}

// Close ends every reader with err and drops the records.
func (b *Buffer) Close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed == nil {
		b.closed = err
		b.segments = nil
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// Reader reads a Buffer from a tick on. It is for one goroutine.
type Reader struct {
	buffer *Buffer
	tick   message.Tick
	next   uint64 // sequence number of the segment to read next
}

// ReadAfter returns a reader of everything with a tick above the given one.
func (b *Buffer) ReadAfter(tick message.Tick) (*Reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed != nil:
		return nil, b.closed
	case tick < b.boundary:
		return nil, ErrEvicted
	case tick > b.horizon.TimeTick:
		return nil, ErrAhead
	}
	n := sort.Search(len(b.segments), func(i int) bool { return b.segments[i].last() > tick })
	return &Reader{buffer: b, tick: tick, next: b.first + uint64(n)}, nil
}

// Next returns the records that come next, the covering time tick last; on an
// idle channel that tick alone. It blocks until there is a newer tick, ctx ends,
// the buffer is closed (its error), or the reader is evicted.
func (r *Reader) Next(ctx context.Context) ([]message.Message, error) {
	b := r.buffer
	for {
		b.mu.Lock()
		if err := b.closed; err != nil {
			b.mu.Unlock()
			return nil, err
		}
		if r.tick < b.boundary {
			b.mu.Unlock()
			return nil, ErrEvicted
		}
		r.next = max(r.next, b.first)
		if i := int(r.next - b.first); i < len(b.segments) {
			records := b.segments[i].records
			b.mu.Unlock()
			skip := sort.Search(len(records), func(i int) bool { return records[i].TimeTick > r.tick })
			r.next++
			r.tick = records[len(records)-1].TimeTick
			return records[skip:], nil
		}
		if b.horizon.TimeTick > r.tick {
			tick := b.horizon
			b.mu.Unlock()
			r.tick = tick.TimeTick
			return []message.Message{tick}, nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Tick is the tick up to which the reader has everything.
func (r *Reader) Tick() message.Tick { return r.tick }
