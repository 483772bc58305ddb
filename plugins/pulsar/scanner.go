package pulsar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// scanner reads one log with a Pulsar reader of its own. A reader that meets a
// truncated place jumps without a word; the indexes of the records betray it.
type scanner struct {
	h   *handle
	opt walimpls.ReadOptions
	// life ends with Close, with the handle's, and when the log is gone.
	life  context.Context
	close context.CancelCauseFunc
	stop  sync.Once

	mu     sync.Mutex // guards reader against Close
	reader *reader

	// For Next's goroutine alone.
	from    message.ID        // the first record to return
	at      entry             // the newest message that was read
	started bool              // at is set
	expect  uint64            // index of the next record, 0 for any
	records []message.Message // decoded, not returned yet
	suspect bool              // a gap was met; the next one behind a new reader is real
	away    time.Time         // since when no reader could be made; zero if there is one
	err     error             // what ended the scanner
}

var _ walimpls.Scanner = (*scanner)(nil)

// Read starts a scanner; see walimpls.WAL.
func (h *handle) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	opt, err := opt.Normalize(h.ch.Name)
	if err != nil {
		return nil, err
	}
	t, err := h.look(ctx, "read")
	if err != nil {
		return nil, err
	}
	s := &scanner{h: h, opt: opt}
	start, inclusive, err := s.resolve(t)
	if err != nil {
		return nil, err
	}
	s.life, s.close = context.WithCancelCause(h.life)
	budget, cancel, err := h.o.budget(ctx, h.ch.Name, "read")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if s.reader, err = h.o.newReader(budget, h.log.topic, start, inclusive, s.queueSize()); err != nil {
		s.close(nil)
		if h.life.Err() != nil {
			return nil, h.ending("read")
		}
		return nil, typed(budget, h.ch.Name, "read", err)
	}
	context.AfterFunc(s.life, s.release)
	return s, nil
}

// queueSize is how many messages the client may hold for this scanner: messages
// that are full then take about what the options allow.
func (s *scanner) queueSize() int {
	return min(max(s.opt.BufferBytes/s.h.o.settings.batchBytes, 2), 64)
}

// resolve checks the start and returns where the client is to begin. found is
// false for a log without messages.
func (s *scanner) resolve(t *tail) (start entry, found bool, err error) {
	name, id := s.h.ch.Name, s.opt.Start.ID
	b := t.bounds()
	switch s.opt.Start.Policy {
	case walimpls.PolicyAll:
		if b.Empty {
			s.expect = 1
			return entry{}, false, nil
		}
		id = b.Earliest
	case walimpls.PolicyLatest:
		if b.Empty {
			s.expect = 1
			return entry{}, false, nil
		}
		id = b.Latest + "\x00" // the least that is more
		s.expect = t.next()
	default:
		if _, _, ok := parseID(id); !ok {
			return entry{}, false, walimpls.NewPositionLostError(name, b, "read: %s is no id of this log", id)
		}
		if b.Empty || id < b.Earliest || id > b.Latest {
			return entry{}, false, walimpls.NewPositionLostError(name, b, "read: the start %s does not lie in the log", text(id))
		}
		if s.opt.Start.Policy == walimpls.PolicyAfter {
			id += "\x00"
		}
	}
	s.from = id
	at, _, _ := parseID(id[:idBytes])
	if id[:idBytes].IsZero() {
		at = entry{}
	}
	return at, true, nil
}

func text(id message.ID) string {
	if s, err := idLayout.Format(id); err == nil {
		return s
	}
	return id.String()
}

// Next returns the records that come next; see walimpls.Scanner.
func (s *scanner) Next(ctx context.Context) ([]message.Message, error) {
	if s.err != nil {
		return nil, s.err
	}
	if ctx.Err() != nil {
		return nil, walimpls.ContextError(ctx, s.h.ch.Name, "read")
	}
	wait, cancel := context.WithCancel(s.life)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	for {
		if s.life.Err() != nil {
			s.err = s.ending()
			return nil, s.err
		}
		if len(s.records) > 0 {
			if point := s.h.log.truncated(); s.records[0].ID < point {
				s.err = s.lost(ctx, "the scanner stood at %s, and the log was truncated before %s", text(s.records[0].ID), text(point))
				return nil, s.err
			}
			return s.cut(), nil
		}
		err := s.fetch(wait)
		switch {
		case err == nil:
		case s.life.Err() != nil: // told above
		case ctx.Err() != nil:
			return nil, walimpls.ContextError(ctx, s.h.ch.Name, "read")
		default:
			s.err = typed(ctx, s.h.ch.Name, "read", err)
			return nil, s.err
		}
	}
}

// cut returns as many of the decoded records as the options allow.
func (s *scanner) cut() []message.Message {
	n, bytes := 0, 0
	for n < len(s.records) && n < s.opt.BufferRecords {
		bytes += s.records[n].Size()
		if n > 0 && bytes > s.opt.BufferBytes {
			break
		}
		n++
	}
	out := s.records[:n:n]
	s.records = s.records[n:]
	return out
}

// fetch reads one message and keeps its records that are wanted. The reader is
// made anew when it lost its connection.
func (s *scanner) fetch(ctx context.Context) error {
	msg, err := s.reader.next(ctx)
	if errors.Is(err, errReaderGone) {
		return s.again(ctx)
	}
	if err != nil {
		return err
	}
	s.away = time.Time{}
	at := entry{msg.ID().LedgerID(), msg.ID().EntryID()}
	if s.started && at.compare(s.at) <= 0 {
		return nil // the client reads what it has read when it reconnects
	}
	env, err := parseEnvelope(msg.Properties(), msg.Payload())
	if err != nil {
		return fmt.Errorf("message %s: %w", at, err)
	}
	if err := s.continues(ctx, at, env); err != nil {
		var lost *walimpls.PositionLostError
		if errors.As(err, &lost) && !s.suspect {
			s.suspect = true // it may be the reader's fault: see whether another one says the same
			s.reader.leave()
			return nil
		}
		return err
	}
	records, err := env.records(at)
	if err != nil {
		return err
	}
	for len(records) > 0 && records[0].ID < s.from {
		records = records[1:]
	}
	s.records, s.at, s.started, s.expect = records, at, true, env.next()
	s.suspect = false
	return nil
}

// continues checks that the message at follows what was read.
func (s *scanner) continues(ctx context.Context, at entry, env *envelope) error {
	switch {
	case s.expect == 0:
		// The first message: if it is not the one of the start, that one was
		// truncated meanwhile, or the start lay in a hole of the ids.
		if first, _, _ := parseID(s.from[:idBytes]); first == at || s.from[:idBytes].IsZero() {
			return nil
		}
		t, err := s.h.look(ctx, "read")
		if err != nil {
			return err
		}
		if b := t.bounds(); s.from < b.Earliest {
			return walimpls.NewPositionLostError(s.h.ch.Name, b, "read: the start %s was truncated", text(s.from[:idBytes]))
		}
		return nil
	case env.next() <= s.expect, env.first == s.expect:
		// A start behind the newest record gets that record's message once more.
		if env.first != s.expect && s.started {
			return fmt.Errorf("%w: message %s has index %d again", message.ErrBadRecord, at, env.first)
		}
		return nil
	case env.first < s.expect:
		return fmt.Errorf("%w: message %s begins with index %d, expected %d", message.ErrBadRecord, at, env.first, s.expect)
	}
	return s.jumped(ctx, at, env)
}

// jumped tells what a gap between s.expect and the message means: mostly that the
// log was truncated, but also that the store lost something.
func (s *scanner) jumped(ctx context.Context, at entry, env *envelope) error {
	t, err := s.h.look(ctx, "read")
	if err != nil {
		return err
	}
	lost := walimpls.NewPositionLostError(s.h.ch.Name, t.bounds(), "read: record number %d was expected, and %d came at %s", s.expect, env.first, at)
	if first := at.id(0); lost.Earliest < first {
		// The gap lies within the log, so reading from its beginning meets it again.
		lost.Earliest = first
		lost.Err.Hint = "the store lost records inside the log; start at the earliest id of this error to go on behind them"
		s.h.o.log.Error("records are missing inside the log", zap.String("channel", s.h.ch.Name), zap.Uint64("expected", s.expect), zap.Uint64("found", env.first), zap.Stringer("at", at))
	}
	return lost
}

// lost is the error of a scanner that fell below the truncation point.
func (s *scanner) lost(ctx context.Context, format string, args ...any) error {
	t, err := s.h.look(ctx, "read")
	if err != nil {
		return typed(ctx, s.h.ch.Name, "read", err)
	}
	return walimpls.NewPositionLostError(s.h.ch.Name, t.bounds(), "read: "+format, args...)
}

// again makes a reader that goes on where this scanner stands. While the brokers
// are away it tries for as long as an open would.
func (s *scanner) again(ctx context.Context) error {
	err := s.replace(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	var e *walimpls.Error
	if errors.As(typed(ctx, s.h.ch.Name, "read", err), &e) && !e.Retryable {
		return err
	}
	if s.away.IsZero() {
		s.away = time.Now()
	}
	if time.Since(s.away) > s.h.o.settings.openTimeout {
		return err
	}
	s.h.o.log.Info("a scanner waits for the brokers", zap.String("channel", s.h.ch.Name), zap.Error(err))
	pause := time.NewTimer(100 * time.Millisecond)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return nil
}

func (s *scanner) replace(ctx context.Context) error {
	if _, err := s.h.look(ctx, "read"); err != nil {
		return err
	}
	start, found := s.at, s.started
	if !s.started && s.from != "" {
		start, _, _ = parseID(s.from[:idBytes])
		found = true
	}
	r, err := s.h.o.newReader(ctx, s.h.log.topic, start, found, s.queueSize())
	if err != nil {
		return err
	}
	s.mu.Lock()
	old := s.reader
	s.reader = r
	s.mu.Unlock()
	old.close()
	if s.life.Err() != nil { // Close has released the old one
		r.close()
	}
	return nil
}

func (s *scanner) ending() error {
	var e *walimpls.Error
	if errors.As(context.Cause(s.life), &e) && e.Code != walimpls.CodeClosed {
		return e
	}
	return walimpls.Errorf(walimpls.CodeClosed, s.h.ch.Name, "read: the scanner is closed")
}

// Close releases the scanner and wakes a blocked Next.
func (s *scanner) Close() error {
	s.close(walimpls.Errorf(walimpls.CodeClosed, s.h.ch.Name, "read: the scanner is closed"))
	return nil
}

func (s *scanner) release() {
	s.stop.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reader.close()
	})
}
