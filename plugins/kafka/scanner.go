package kafka

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// maxFetch bounds one fetch; a larger batch is returned all the same.
const maxFetch = 1 << 20

// scanner reads one log over a connection of its own. One goroutine fetches and
// decodes, one fetch ahead of Next.
type scanner struct {
	h    *handle
	opt  walimpls.ReadOptions
	ctx  context.Context // ends with the scanner or its handle; the cause says why
	end  context.CancelCauseFunc
	more chan []message.Message
	done chan struct{} // closed when the goroutine has ended; err is set then
	err  error

	// For the goroutine alone.
	c       *conn
	next    int64 // the offset to read next
	highest walimpls.Pair
	strays  int
}

var _ walimpls.Scanner = (*scanner)(nil)

// Read starts a scanner; see walimpls.WAL.
func (h *handle) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	name := h.ch.Name
	opt, err := opt.Normalize(name)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, walimpls.ContextError(ctx, name, "read")
	}
	if err := h.mayRead("read"); err != nil {
		return nil, err
	}
	bounded, done := h.begin(ctx)
	defer done()
	var next int64
	err = h.o.k.onLeader(bounded, h.l.topic, h.l.id, func(c *conn) error {
		next, err = h.start(bounded, c, opt.Start)
		return err
	})
	if err != nil {
		return nil, ended(bounded, name, "read", h.o.gone(h.l, "read", err))
	}
	s := &scanner{h: h, opt: opt, next: next, more: make(chan []message.Message), done: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, closedError(name, "read")
	}
	s.ctx, s.end = context.WithCancelCause(h.living)
	h.background.Go(s.run)
	return s, nil
}

// start resolves a start position to an offset.
func (h *handle) start(ctx context.Context, c *conn, start walimpls.Start) (int64, error) {
	k, name := h.o.k, h.ch.Name
	switch start.Policy {
	case walimpls.PolicyAll:
		return k.offset(ctx, c, h.l.topic, offsetEarliest)
	case walimpls.PolicyLatest:
		return k.offset(ctx, c, h.l.topic, offsetLatest)
	}
	id, ok := start.ID.Uint64()
	if !ok {
		return 0, walimpls.Errorf(walimpls.CodeInvalidArgument, name, "read: an id of %d bytes is not one of this backend", len(start.ID))
	}
	t, err := k.tailFrom(ctx, c, h.l, false)
	if err != nil {
		return 0, err
	}
	if t.latest < 0 || id > uint64(t.latest) || id < uint64(t.start) {
		b, err := k.boundsOf(ctx, c, h.l, t)
		if err != nil {
			return 0, err
		}
		if t.latest >= 0 && id > uint64(t.latest) {
			return 0, walimpls.NewPositionLostError(name, b, "read: %d lies above %d, the latest id", id, t.latest)
		}
		return 0, walimpls.NewPositionLostError(name, b, "read: the record %d is not in the log any more, which begins at %d", id, t.start)
	}
	if start.Policy == walimpls.PolicyAfter {
		return int64(id) + 1, nil
	}
	return int64(id), nil
}

// Next returns the records that come next; see walimpls.Scanner.
func (s *scanner) Next(ctx context.Context) ([]message.Message, error) {
	if ctx.Err() != nil {
		return nil, walimpls.ContextError(ctx, s.h.ch.Name, "read")
	}
	select {
	case <-s.ctx.Done(): // what was read ahead is not returned after the end
		<-s.done
		return nil, s.err
	default:
	}
	select {
	case recs := <-s.more:
		return recs, nil
	case <-s.done:
		return nil, s.err
	case <-ctx.Done():
		return nil, walimpls.ContextError(ctx, s.h.ch.Name, "read")
	}
}

// Close releases the scanner and wakes a blocked Next.
func (s *scanner) Close() error {
	s.end(walimpls.Errorf(walimpls.CodeClosed, s.h.ch.Name, "read: the scanner is closed"))
	<-s.done
	return nil
}

// run is the scanner's goroutine.
func (s *scanner) run() {
	defer close(s.done)
	defer s.hangUp()
	var wait backoff
	var failing time.Time // since when
	for {
		err := s.fetch()
		switch {
		case s.ctx.Err() != nil:
			s.err = context.Cause(s.ctx)
			return
		case err == nil:
			wait, failing = backoff{}, time.Time{}
			continue
		case !s.worthRetry(err):
			s.fail(err)
			return
		}
		s.hangUp()
		if failing.IsZero() {
			failing = time.Now()
		}
		patience := s.h.o.s.deliveryTimeout
		if code := (*answerError)(nil); errors.As(err, &code) && code.code.topicGone() {
			patience = s.h.o.s.goneGrace
		}
		if time.Since(failing) > patience {
			s.fail(err)
			return
		}
		wait.pause(s.ctx)
	}
}

func (s *scanner) worthRetry(err error) bool {
	return transient(err) || errors.Is(err, context.DeadlineExceeded)
}

// fail ends the scanner.
func (s *scanner) fail(err error) {
	s.err = contractError(s.h.ch.Name, "read", s.h.o.gone(s.h.l, "read", err))
	s.end(s.err)
}

func (s *scanner) hangUp() {
	if s.c != nil {
		s.c.close()
		s.c = nil
	}
}

// fetch makes one request and hands out what it brings.
func (s *scanner) fetch() error {
	k := s.h.o.k
	ctx, cancel := context.WithTimeout(s.ctx, k.s.requestTimeout)
	defer cancel()
	if s.c == nil {
		addr, err := k.leader(ctx, s.h.l.topic, s.h.l.id)
		if err != nil {
			return err
		}
		if s.c, err = k.s.connect(ctx, addr); err != nil {
			s.c = nil
			return err
		}
	}
	wait := min(k.s.fetchWait, k.s.requestTimeout/2)
	f, err := k.fetch(ctx, s.c, s.h.l.id, s.next, min(maxFetch, s.opt.BufferBytes), wait.Milliseconds())
	var code *answerError
	if errors.As(err, &code) && code.code == codeOffsetOutOfRange {
		return s.outOfRange(ctx)
	}
	if err != nil {
		return err
	}
	if f.throttleMillis > 0 {
		s.sleep(time.Duration(f.throttleMillis) * time.Millisecond)
	}
	moved := false
	for rest := f.records; len(rest) > 0; {
		b, behind, ok, err := nextBatch(rest, s.next)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		rest = behind
		if b.next <= s.next {
			continue
		}
		moved = true
		if err := s.handOut(s.pick(b.records), b.next); err != nil {
			return err
		}
	}
	if !moved && s.next < f.highWatermark {
		s.sleep(firstPause) // a leader that has only just become one
	}
	return nil
}

func (s *scanner) sleep(d time.Duration) {
	t := time.NewTimer(min(d, s.h.o.s.requestTimeout))
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}

// pick leaves out what is not of this log: hidden records, those of an earlier topic
// of this name, and those of a pair below one that came before.
func (s *scanner) pick(records []record) []message.Message {
	out := make([]message.Message, 0, len(records))
	for i := range records {
		r := &records[i]
		if r.hidden() {
			continue
		}
		p := pairOf(&r.msg)
		if r.offset >= s.h.floor && s.h.ch.Pair.Compare(s.highest) > 0 {
			s.highest = s.h.ch.Pair
		}
		if !s.h.l.mine(r) || p.Compare(s.highest) < 0 {
			s.strays++
			if s.strays == 1 {
				s.h.o.log.Warn("a record that a fenced handle wrote when the brokers had forgotten its successor is left out",
					zap.String("channel", s.h.ch.Name), zap.Int64("offset", r.offset), zap.Stringer("pair", p))
			}
			continue
		}
		s.highest = p
		out = append(out, r.msg)
	}
	return out
}

// handOut gives the records of a batch to Next, and moves on to behind it.
func (s *scanner) handOut(recs []message.Message, behind int64) error {
	for first := true; len(recs) > 0; first = false {
		n, bytes := 0, 0
		for n < len(recs) && n < s.opt.BufferRecords {
			size := recs[n].Size()
			if n > 0 && bytes+size > s.opt.BufferBytes {
				break
			}
			bytes += size
			n++
		}
		if !first {
			// What was read ahead beyond the buffer may be truncated by now.
			if err := s.stillThere(recs[0].ID); err != nil {
				return err
			}
		}
		select {
		case s.more <- recs[:n:n]:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		last, _ := recs[n-1].ID.Uint64()
		s.next = int64(last) + 1
		recs = recs[n:]
	}
	s.next = behind
	return nil
}

func (s *scanner) stillThere(id message.ID) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.h.o.s.requestTimeout)
	defer cancel()
	start, err := s.h.o.k.offset(ctx, s.c, s.h.l.topic, offsetEarliest)
	if err != nil {
		return err
	}
	if at, _ := id.Uint64(); at < uint64(start) {
		return s.outOfRange(ctx)
	}
	return nil
}

// outOfRange says why the broker has nothing at the scanner's place.
func (s *scanner) outOfRange(ctx context.Context) error {
	k, l := s.h.o.k, s.h.l
	t, err := k.tailFrom(ctx, s.c, l, false)
	if err != nil {
		return err
	}
	if s.next >= t.start && s.next <= t.high {
		return errMoved
	}
	b, err := k.boundsOf(ctx, s.c, l, t)
	if err != nil {
		return err
	}
	if s.next < t.start {
		return walimpls.NewPositionLostError(l.channel, b, "read: the scanner stood at %d, and the log was truncated before %d", s.next, t.start)
	}
	return walimpls.NewPositionLostError(l.channel, b, "read: the scanner stood at %d, and the log ends at %d: the brokers lost records", s.next, t.high)
}
