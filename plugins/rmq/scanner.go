package rmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	// readBytes is what one read of a file fetches, more for a larger frame. Its
	// buffer is shared by the records in it.
	readBytes = 256 << 10
	// readGap is how much of other logs' frames a read goes over, because that
	// costs less than another read.
	readGap = 32 << 10
)

// scanner reads one log. It holds nothing of the store between two calls of
// Next, so any number of them can stand still for any time.
type scanner struct {
	handle *handle
	opt    walimpls.ReadOptions

	// For Next's goroutine alone.
	next  uint64            // the id of the record to read next
	ready []message.Message // read already, from next on
	sizes []int             // their encoded sizes
	run   *run              // where next lies, as far as is known
	refs  []frameRef        // its frames
	upto  uint64            // the last record of refs
	grows bool              // refs are of a segment that was active
	at    int               // the frame of refs that holds next, or comes before it
	err   error             // what ended the scanner

	closeOnce sync.Once
	done      chan struct{}
}

var _ walimpls.Scanner = (*scanner)(nil)

// Next returns the records that come next; see walimpls.Scanner.
func (s *scanner) Next(ctx context.Context) ([]message.Message, error) {
	name, l := s.handle.ch.Name, s.handle.log
	if s.err != nil {
		return nil, s.err
	}
	if err := ctx.Err(); err != nil {
		return nil, gaveUp(name, "read", err)
	}
	for {
		if s.isClosed() {
			return nil, s.end(walimpls.Errorf(walimpls.CodeClosed, name, "read: the scanner is closed"))
		}
		span, changed, err := l.view.wait()
		if err != nil {
			return nil, s.end(err)
		}
		if s.next < span.first {
			return nil, s.end(s.lost(span))
		}
		if s.next <= span.last {
			records, err := s.read(span.last)
			if err != nil {
				return nil, s.end(err)
			}
			if len(records) > 0 {
				return records, nil
			}
			continue // a repair gave up the last records
		}
		select {
		case <-changed:
		case <-s.done:
		case <-s.handle.done:
		case <-ctx.Done():
			return nil, gaveUp(name, "read", ctx.Err())
		}
	}
}

func (s *scanner) end(err error) error {
	s.err, s.ready, s.sizes, s.run, s.refs = err, nil, nil, nil, nil
	return err
}

func (s *scanner) lost(b span) error {
	return walimpls.NewPositionLostError(s.handle.ch.Name, b.bounds(), "read: the scanner stood at %d, and the log was truncated before %d", s.next, b.first)
}

func (s *scanner) isClosed() bool {
	select {
	case <-s.done:
		return true
	case <-s.handle.done:
		return true
	default:
		return false
	}
}

// Close releases the scanner and wakes a blocked Next.
func (s *scanner) Close() error {
	s.closeOnce.Do(func() { close(s.done) })
	return nil
}

// read returns records from s.next up to last, as many as the options allow,
// and moves on. What was read and does not fit waits for the next call.
func (s *scanner) read(last uint64) ([]message.Message, error) {
	bytes := 0
	for _, n := range s.sizes {
		bytes += n
	}
	for len(s.ready) < s.opt.BufferRecords && bytes < s.opt.BufferBytes && s.next+uint64(len(s.ready)) <= last {
		n, err := s.fetch(last)
		if err != nil && len(s.ready) == 0 {
			return nil, err
		}
		if err != nil || n == 0 {
			break // what is there comes first; the error comes again
		}
		bytes += n
	}
	n, bytes := 0, 0
	for n < len(s.ready) && n < s.opt.BufferRecords && (n == 0 || bytes+s.sizes[n] <= s.opt.BufferBytes) {
		bytes += s.sizes[n]
		n++
	}
	records := s.ready[:n:n]
	s.ready, s.sizes = s.ready[n:], s.sizes[n:]
	if len(s.ready) == 0 {
		s.ready, s.sizes = nil, s.sizes[:0:cap(s.sizes)]
	}
	s.next += uint64(n)
	return records, nil
}

// fetch reads frames behind what is ready, and returns their size. 0 means
// that there is nothing up to last: a repair gave those records up.
func (s *scanner) fetch(last uint64) (int, error) {
	e, name := s.handle.engine, s.handle.ch.Name
	release, err := e.beginRead(name)
	if err != nil {
		return 0, err
	}
	defer release()
	id := s.next + uint64(len(s.ready))
	file, done, err := s.locate(&id, last)
	if err != nil || file == nil {
		return 0, err
	}
	defer done()

	// Frames that lie close together are one read.
	first, end := s.at, s.at
	from := int64(s.refs[first].pos) * frameAlign
	to := from
	limit := min(last, s.upto)
	for end < len(s.refs) && s.refs[end].first <= limit {
		begin := int64(s.refs[end].pos) * frameAlign
		size := int64(s.refs[end].size) * frameAlign
		if end > first && (begin-to > readGap || begin+size-from > readBytes) {
			break
		}
		to = begin + size
		end++
	}
	buf := make([]byte, to-from)
	if n, err := file.ReadAt(buf, from); err != nil && !(errors.Is(err, io.EOF) && n == len(buf)) {
		if !errors.Is(err, io.EOF) {
			return 0, storeError(name, fmt.Sprintf("read %q at position %d", s.run.segment.path, from), err)
		}
		buf = buf[:n]
	}
	total := 0
	for ; s.at < end; s.at++ {
		ref := s.refs[s.at]
		pos := int64(ref.pos) * frameAlign
		b := buf[min(pos-from, int64(len(buf))):min(pos-from+int64(ref.size)*frameAlign, int64(len(buf)))]
		f, body, err := checkFrame(b, s.run, ref)
		if err == nil {
			err = s.take(f, body, id, limit)
		}
		if err != nil {
			if total > 0 {
				return total, nil // it is met again, after what was good
			}
			return 0, storeError(name, fmt.Sprintf("read the record %d: %q at position %d", id, s.run.segment.path, pos), err)
		}
		total += len(b)
		id = s.next + uint64(len(s.ready))
	}
	return total, nil
}

// locate finds the frame that holds the record, and returns its file, open
// until done is called. id moves on over records that a repair gave up; no
// file means that these were all.
func (s *scanner) locate(id *uint64, last uint64) (file interface {
	ReadAt([]byte, int64) (int, error)
}, done func(), err error) {
	e, l := s.handle.engine, s.handle.log
	set := e.set
	set.mu.Lock()
	r := s.run
	if r == nil || r.segment.dead || *id < r.first || *id > r.last || len(s.refs) == 0 {
		r = findRun(l.runs, *id)
		for r == nil {
			next, ok := l.lostAt(*id)
			if !ok {
				set.mu.Unlock()
				return nil, nil, s.gap(*id)
			}
			if len(s.ready) > 0 {
				set.mu.Unlock()
				return nil, nil, nil // what is ready goes out first
			}
			s.next, *id = next, next
			if next > last {
				set.mu.Unlock()
				return nil, nil, nil
			}
			r = findRun(l.runs, *id)
		}
		s.run, s.refs, s.at = r, nil, 0
	}
	switch {
	case r.frames != nil:
		s.refs, s.grows = r.frames, true
	case s.grows:
		s.refs, s.grows = nil, false // they moved to the index file, more of them
	}
	s.upto = r.last
	f, err := set.acquireLocked(r.segment)
	set.mu.Unlock()
	if err != nil {
		s.run = nil
		return nil, nil, storeError(l.name, fmt.Sprintf("read %q", r.segment.path), err)
	}
	done = func() { set.release(r.segment) }
	if s.refs == nil {
		if s.refs, err = set.loadFrames(r); err != nil {
			s.run = nil
			done()
			return nil, nil, storeError(l.name, fmt.Sprintf("read %q", r.segment.path), err)
		}
	}
	if s.at >= len(s.refs) || s.refs[s.at].first != *id {
		s.at = frameIndex(s.refs, *id)
	}
	return f, done, nil
}

// take decodes the records of a frame from id to last.
func (s *scanner) take(f frame, body []byte, id, last uint64) error {
	last = min(last, f.last())
	if f.first > id || last < id {
		return fmt.Errorf("%w: the frame holds the records %d to %d", errDamaged, f.first, f.last())
	}
	ids := idsFrom(id, int(last-id+1))
	for n := range ids {
		m := message.Message{Type: message.TypeFence, Term: f.pair.Term, Incarnation: f.pair.Incarnation, Payload: []byte{}}
		size := 10
		if f.kind == frameData || f.kind == frameMovedData {
			record, ok := f.recordAt(body, int(id-f.first)+n)
			if !ok {
				return fmt.Errorf("%w: the table of records", errDamaged)
			}
			var err error
			if m, err = message.DecodeRecord(record); err != nil {
				return err
			}
			size = len(record)
		}
		m.ID = ids[n]
		s.ready = append(s.ready, m)
		s.sizes = append(s.sizes, size)
	}
	return nil
}

// checkFrame returns the frame in b, which must be the one that ref says.
func checkFrame(b []byte, r *run, ref frameRef) (frame, []byte, error) {
	f, ok := decodeHeader(b, r.segment.num, int64(ref.pos)*frameAlign)
	if !ok || f.log != r.log || f.first != ref.first || !f.kind.records() || frameHeaderLen+f.length > len(b) {
		return frame{}, nil, fmt.Errorf("%w: there is no frame", errDamaged)
	}
	body := b[frameHeaderLen : frameHeaderLen+f.length : frameHeaderLen+f.length]
	if !f.bodyIs(body) {
		return frame{}, nil, fmt.Errorf("%w: the checksum of a frame does not fit", errDamaged)
	}
	return f, body, nil
}

// frameIndex returns the frame that holds id.
func frameIndex(refs []frameRef, id uint64) int {
	return max(0, sort.Search(len(refs), func(i int) bool { return refs[i].first > id })-1)
}

// gap says why no run holds the record. Ids have no holes in this backend but
// those of a repair, so a record between the bounds that is missing, and that
// nobody removed just now, is damage.
func (s *scanner) gap(id uint64) error {
	name := s.handle.ch.Name
	span, err := s.handle.log.view.snapshot()
	switch {
	case err != nil:
		return err
	case id < span.first:
		return s.lost(span)
	}
	return storeError(name, fmt.Sprintf("read: the record %d is missing: no segment in %q holds it", id, s.handle.engine.set.dir), errDamaged)
}
