package rmq

import (
	"context"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// chunkBytes is the size of the buffers that small records share: one
// allocation for many records, and little memory kept alive by one of them.
const chunkBytes = 64 << 10

// scanner reads one log. It holds nothing of the store between two calls of
// Next, so any number of them can stand still for any time.
type scanner struct {
	handle *handle
	opt    walimpls.ReadOptions

	// For Next's goroutine alone.
	next uint64 // the id of the record to read next
	err  error  // what ended the scanner

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
			return records, nil
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
	s.err = err
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

// read returns records from s.next up to last, at least one and as many as the
// options allow, and moves on.
func (s *scanner) read(last uint64) (records []message.Message, err error) {
	e, l, name := s.handle.engine, s.handle.log, s.handle.ch.Name
	release, err := e.beginRead(name)
	if err != nil {
		return nil, err
	}
	defer release()
	it, err := e.db.NewIter(&pebble.IterOptions{
		LowerBound: recordKey(l.num, s.next),
		UpperBound: recordKey(l.num, last+1),
	})
	if err != nil {
		return nil, storeError(name, "read", err)
	}
	defer func() {
		if closeErr := it.Close(); err == nil && closeErr != nil {
			records, err = nil, storeError(name, "read", closeErr)
		}
	}()

	expect, bytes := s.next, 0
	var chunk []byte
	for valid := it.First(); valid; valid = it.Next() {
		if _, id, ok := decodeRecordKey(it.Key()); !ok || id != expect {
			break
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, storeError(name, "read", err)
		}
		if len(records) > 0 && bytes+len(value) > s.opt.BufferBytes {
			s.next = expect
			return records, nil
		}
		bytes += len(value)
		if len(value) > cap(chunk)-len(chunk) {
			chunk = make([]byte, 0, max(len(value), min(chunkBytes, s.opt.BufferBytes)))
		}
		begin := len(chunk)
		chunk = append(chunk, value...)
		m, err := message.DecodeRecord(chunk[begin:len(chunk):len(chunk)])
		if err != nil {
			return nil, walimpls.Errorf(walimpls.CodeCorrupt, name, "read: the record %d: %w", expect, err)
		}
		m.ID = message.Uint64ID(expect)
		records = append(records, m)
		expect++
		if len(records) == s.opt.BufferRecords || expect > last {
			s.next = expect
			return records, nil
		}
	}
	if err := it.Error(); err != nil {
		return nil, storeError(name, "read", err)
	}
	return nil, s.gap(expect)
}

// gap says why the record with the id is not there. Ids have no holes in this
// backend, so a record between the bounds that is missing, and that nobody
// removes just now, is damage.
func (s *scanner) gap(id uint64) error {
	name, l := s.handle.ch.Name, s.handle.log
	span, rightly := l.view.missing(id)
	switch {
	case !rightly:
		return walimpls.Errorf(walimpls.CodeCorrupt, name, "read: the record %d is missing", id)
	case span.first == droppedBelow:
		return droppedError(name, "read")
	}
	return s.lost(span)
}
