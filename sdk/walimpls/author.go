package walimpls

import (
	"context"
	"sync"

	"github.com/walrig/walrig/sdk/message"
)

// This file has what a backend would otherwise write for itself. No backend has to
// use it.

// Claim returns the pair that a read-write Open with these options gets in a log
// whose highest pair is highest: incarnation 0 becomes the term's last plus one. A
// pair at or below highest is *FencedError.
func (o OpenOptions) Claim(highest Pair) (Pair, error) {
	pair := o.Pair()
	if pair.Incarnation == 0 {
		pair.Incarnation = 1
		if pair.Term == highest.Term {
			pair.Incarnation += highest.Incarnation
		}
	}
	if pair.Compare(highest) <= 0 {
		return Pair{}, NewFencedError(o.Channel, pair, highest)
	}
	return pair, nil
}

// Check returns why a record may not be appended, or nil: its type is one that only
// a backend writes or none at all (ErrInvalidArgument), or it is above
// MaxMessageBytes (ErrTooLarge).
func (l Limits) Check(channel string, m *message.Message) error {
	if m.Type == message.TypeInvalid || m.Type == message.TypeFence {
		return Errorf(CodeInvalidArgument, channel, "append: a record of type %s cannot be appended", m.Type)
	}
	if n := m.Size(); n > l.MaxMessageBytes {
		return Errorf(CodeTooLarge, channel, "append: a record of %d bytes is above the limit of %d", n, l.MaxMessageBytes)
	}
	return nil
}

// AppendEach is an Append that stores one record after the other. store must return
// an id, or an error that says that the record is not stored and never will be; the
// others are stored all the same.
func AppendEach(channel string, batch []message.Message, store func(m message.Message) (message.ID, error)) ([]message.ID, error) {
	ids := make([]message.ID, 0, len(batch))
	failed := &BatchError{Channel: channel, Outcomes: make([]Outcome, len(batch))}
	for i, m := range batch {
		id, err := store(m)
		if err != nil {
			failed.Outcomes[i] = Outcome{State: NotStored, Err: err}
			continue
		}
		failed.Outcomes[i] = Outcome{State: Stored, ID: id}
		ids = append(ids, id)
	}
	if len(ids) < len(batch) {
		return nil, failed
	}
	return ids, nil
}

// Uint64 returns where a read begins in a log with ids of the layout u64 and the
// bounds b, which must not be empty: at this id, or at the first one above it that
// there is. Errors: *PositionLostError, ErrInvalidArgument.
func (s Start) Uint64(channel string, b Bounds) (uint64, error) {
	earliest, _ := b.Earliest.Uint64()
	latest, _ := b.Latest.Uint64()
	switch s.Policy {
	case PolicyAll:
		return earliest, nil
	case PolicyLatest:
		return latest + 1, nil
	}
	id, ok := s.ID.Uint64()
	switch {
	case !ok:
		return 0, Errorf(CodeInvalidArgument, channel, "read: the id has %d bytes, ids of this log have 8", len(s.ID))
	case id > latest:
		return 0, NewPositionLostError(channel, b, "read: the id %d lies above the latest, %d", id, latest)
	case id < earliest:
		return 0, NewPositionLostError(channel, b, "read: the id %d lies below the earliest, %d", id, earliest)
	case s.Policy == PolicyAfter:
		return id + 1, nil
	}
	return id, nil
}

// Fit returns how many of the records one Next may return: at most BufferRecords,
// and no more than it takes to reach BufferBytes.
func (o ReadOptions) Fit(records []message.Message) int {
	size := 0
	for i := range records {
		if i == o.BufferRecords || size >= o.BufferBytes {
			return i
		}
		size += records[i].Size()
	}
	return len(records)
}

// NewScanner returns a Scanner over a function that returns the records that come
// next or, if there are none, a channel that is closed when there may be some (or
// another answer, such as an error, which ends the scanner). It is called by one
// goroutine at a time and must not block; the slice is the caller's.
func NewScanner(channel string, next func() ([]message.Message, <-chan struct{}, error)) Scanner {
	return &tail{channel: channel, next: next, done: make(chan struct{})}
}

type tail struct {
	channel string
	next    func() ([]message.Message, <-chan struct{}, error)
	err     error // what ended it
	done    chan struct{}
	once    sync.Once
}

func (t *tail) Next(ctx context.Context) ([]message.Message, error) {
	for {
		select {
		case <-t.done:
			return nil, Errorf(CodeClosed, t.channel, "the scanner was closed")
		default:
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if t.err != nil {
			return nil, t.err
		}
		records, changed, err := t.next()
		if t.err = err; err != nil || len(records) > 0 {
			return records, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-t.done:
		}
	}
}

func (t *tail) Close() error {
	t.once.Do(func() { close(t.done) })
	return nil
}
