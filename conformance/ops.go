package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// handle is an open WAL with tracing. The methods without "try" fail the check
// when the call fails.
type handle struct {
	t   *T
	n   int
	wal walimpls.WAL
	ch  walimpls.Channel

	mu     sync.Mutex
	closed bool
}

func (h *handle) String() string { return fmt.Sprintf("h%d %s", h.n, h.ch.Pair) }

func (h *handle) open() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.closed
}

// tryOpenOn opens on any instance with any options.
func (t *T) tryOpenOn(ctx context.Context, i walimpls.Opener, opt walimpls.OpenOptions) (*handle, error) {
	h := &handle{t: t, n: t.number()}
	if opt.Access == walimpls.AccessReadWrite && walimpls.ValidateName("channel", opt.Channel) == nil {
		t.own(opt.Channel, opt.Term)
	}
	what := fmt.Sprintf("Open(%s, %d.%d, %s)", shorten(opt.Channel), opt.Term, opt.Incarnation, opt.Access)
	err := t.call(ctx, t.run.opt.Bound, what, func(ctx context.Context) (string, error) {
		w, err := i.Open(ctx, opt)
		if err != nil {
			return "", err
		}
		if w == nil {
			return "", errors.New("neither a handle nor an error")
		}
		h.wal, h.ch = w, w.Channel()
		return h.String() + " store " + h.ch.StoreID, nil
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.handles = append(t.handles, h)
	t.mu.Unlock()
	return h, nil
}

func (t *T) tryOpen(channel string, term, incarnation int64) (*handle, error) {
	return t.tryOpenOn(t.ctx, t.opener(), walimpls.OpenOptions{Channel: channel, Term: term, Incarnation: incarnation, Access: walimpls.AccessReadWrite})
}

func (t *T) open(channel string, term, incarnation int64) *handle {
	h, err := t.tryOpen(channel, term, incarnation)
	t.expect(err == nil, "Open(%s, %d.%d) succeeds, the highest pair in the log is lower; got %v", channel, term, incarnation, err)
	return h
}

func (t *T) tryOpenReadOnly(channel string) (*handle, error) {
	return t.tryOpenOn(t.ctx, t.opener(), walimpls.OpenOptions{Channel: channel, Access: walimpls.AccessReadOnly})
}

func (t *T) openReadOnly(channel string) *handle {
	h, err := t.tryOpenReadOnly(channel)
	t.expect(err == nil, "a read-only Open of %s succeeds, the log exists; got %v", channel, err)
	return h
}

// tryAppend appends under its own context.
func (h *handle) tryAppend(ctx context.Context, batch ...message.Message) ([]message.ID, error) {
	var ids []message.ID
	err := h.t.call(ctx, h.t.run.opt.Bound, fmt.Sprintf("%s Append(%s)", h, showBatch(batch)), func(ctx context.Context) (string, error) {
		got, err := h.wal.Append(ctx, batch)
		ids = got
		return showIDs(got), err
	})
	return ids, err
}

func (h *handle) append(batch ...message.Message) []message.ID {
	ids, err := h.tryAppend(h.t.ctx, batch...)
	h.t.expect(err == nil, "Append of %d records succeeds on the owner's handle %s; got %v", len(batch), h, err)
	h.t.expect(len(ids) == len(batch), "Append of %d records returns one id a record; got %d ids", len(batch), len(ids))
	return ids
}

// appendEach appends the records one by one.
func (h *handle) appendEach(batch ...message.Message) []message.ID {
	var ids []message.ID
	for _, m := range batch {
		ids = append(ids, h.append(m)...)
	}
	return ids
}

func (h *handle) tryTruncate(before message.ID) error {
	return h.t.call(h.t.ctx, h.t.run.opt.Bound, fmt.Sprintf("%s Truncate(%s)", h, showID(before)), func(ctx context.Context) (string, error) {
		return "ok", h.wal.Truncate(ctx, before)
	})
}

func (h *handle) truncate(before message.ID) {
	err := h.tryTruncate(before)
	h.t.expect(err == nil, "Truncate(%s) succeeds, the id is in the log; got %v", showID(before), err)
}

func (h *handle) tryBounds() (b walimpls.Bounds, err error) {
	err = h.t.call(h.t.ctx, h.t.run.opt.Bound, fmt.Sprintf("%s Bounds()", h), func(ctx context.Context) (string, error) {
		b, err = h.wal.Bounds(ctx)
		return fmt.Sprintf("earliest %s latest %s latest record %s empty %t", showID(b.Earliest), showID(b.Latest), showID(b.LatestRecord), b.Empty), err
	})
	return b, err
}

func (h *handle) bounds() walimpls.Bounds {
	b, err := h.tryBounds()
	h.t.expect(err == nil, "Bounds succeeds; got %v", err)
	return b
}

// tryClose closes; a Close that hangs fails the check.
func (h *handle) tryClose() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	return h.t.call(h.t.ctx, h.t.run.opt.closeBound(), fmt.Sprintf("%s Close()", h), func(ctx context.Context) (string, error) {
		return "ok", h.wal.Close(ctx)
	})
}

// close closes; whatever comes of it is the business of the clause on Close.
func (h *handle) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.t.closeQuietly(h.t.ctx, h)
}

// hungBound is how long a Close is waited for once one did not return.
const hungBound = 20 * time.Millisecond

func (t *T) closeQuietly(ctx context.Context, h *handle) (problem string) {
	bound := t.run.opt.closeBound()
	if t.run.hung.Load() {
		bound = hungBound
	}
	done := make(chan error, 1)
	n := t.trace.start(fmt.Sprintf("%s Close()", h))
	began := time.Now()
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		done <- h.wal.Close(ctx)
	}()
	late := time.NewTimer(bound + min(bound, t.run.opt.Grace))
	defer late.Stop()
	select {
	case err := <-done:
		t.trace.end(n, time.Since(began), fmt.Sprint("ended: ", err))
		if err != nil {
			return err.Error()
		}
		return ""
	case <-late.C:
		t.run.hung.Store(true)
		return "it does not return"
	}
}

// scan is a scanner with tracing.
type scan struct {
	t  *T
	n  int
	sc walimpls.Scanner
	h  *handle
	// held are records that Next returned and take did not need yet.
	held []message.Message
}

func (s *scan) String() string { return fmt.Sprintf("s%d", s.n) }

func (h *handle) tryRead(opt walimpls.ReadOptions) (*scan, error) {
	s := &scan{t: h.t, n: h.t.number(), h: h}
	what := fmt.Sprintf("%s Read(%s)", h, showStart(opt.Start))
	err := h.t.call(h.t.ctx, h.t.run.opt.Bound, what, func(ctx context.Context) (string, error) {
		sc, err := h.wal.Read(ctx, opt)
		if err != nil {
			return "", err
		}
		if sc == nil {
			return "", errors.New("neither a scanner nor an error")
		}
		s.sc = sc
		return s.String(), nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (h *handle) read(start walimpls.Start) *scan {
	return h.readWith(walimpls.ReadOptions{Start: start})
}

func (h *handle) readWith(opt walimpls.ReadOptions) *scan {
	opt.Name = "conformance"
	s, err := h.tryRead(opt)
	h.t.expect(err == nil, "Read(%s) succeeds, the start is in the log; got %v", showStart(opt.Start), err)
	return s
}

// next is one Next under its own context; what was held is not looked at.
func (s *scan) next(ctx context.Context, bound time.Duration) (recs []message.Message, err error) {
	err = s.t.call(ctx, bound, fmt.Sprintf("%s Next()", s), func(ctx context.Context) (string, error) {
		recs, err = s.sc.Next(ctx)
		if err == nil && len(recs) == 0 {
			err = errors.New("the scanner's Next returned neither a record nor an error")
		}
		return showBatch(recs), err
	})
	return recs, err
}

// tryTake returns the next record of any kind.
func (s *scan) tryTake() (message.Message, error) {
	if len(s.held) == 0 {
		recs, err := s.next(s.t.ctx, s.t.run.opt.Bound)
		if err != nil {
			return message.Message{}, err
		}
		s.held = recs
	}
	m := s.held[0]
	s.held = s.held[1:]
	return m, nil
}

// take returns the next n messages; fence records between them are passed over.
func (s *scan) take(n int) []message.Message {
	var out []message.Message
	for len(out) < n {
		m, err := s.tryTake()
		s.t.expect(err == nil, "%s returns %d more messages that are in the log; got %d, then %v", s, n, len(out), err)
		if m.Type != message.TypeFence {
			out = append(out, m)
		}
	}
	return out
}

// until returns all records up to the one with the payload, that one excluded,
// fence records included.
func (s *scan) until(marker string) []message.Message {
	var out []message.Message
	for {
		m, err := s.tryTake()
		s.t.expect(err == nil, "%s reaches the marker %q, which was appended; got %d records, then %v", s, marker, len(out), err)
		if m.Type != message.TypeFence && string(m.Payload) == marker {
			return out
		}
		out = append(out, m)
	}
}

// silent fails if a message arrives within the quiet time.
func (s *scan) silent(why string) {
	for {
		for _, m := range s.held {
			s.t.expect(m.Type == message.TypeFence, "%s has nothing to return: %s; got %s", s, why, showBatch([]message.Message{m}))
		}
		s.held = nil
		recs, err := s.next(s.t.ctx, s.t.quiet)
		if err != nil {
			s.t.expect(isContext(err), "%s waits: %s; got %v", s, why, err)
			return
		}
		s.held = recs
	}
}

func (s *scan) close() {
	err := s.t.call(s.t.ctx, s.t.run.opt.Bound, fmt.Sprintf("%s Close()", s), func(context.Context) (string, error) {
		return "ok", s.sc.Close()
	})
	s.t.expect(err == nil, "Close of a scanner succeeds; got %v", err)
}

// log returns everything that the log holds, fence records included, by way of a
// marker that it appends; so it needs no Bounds. The handle must be the owner's.
func (h *handle) log() []message.Message {
	marker := fmt.Sprintf("marker-%d-%s", h.t.number(), h.ch.Name)
	h.append(message.Message{Type: message.TypeBarrier, Payload: []byte(marker)})
	s := h.read(walimpls.FromAll())
	defer s.close()
	var out []message.Message
	for _, m := range s.until(marker) {
		if m.Type != message.TypeBarrier || !isMarker(&m) {
			out = append(out, m)
		}
	}
	return out
}

// messages is log without fence records.
func (h *handle) messages() []message.Message { return withoutFences(h.log()) }

func isMarker(m *message.Message) bool {
	return len(m.Payload) > 7 && string(m.Payload[:7]) == "marker-"
}

func withoutFences(recs []message.Message) []message.Message {
	var out []message.Message
	for _, m := range recs {
		if m.Type != message.TypeFence {
			out = append(out, m)
		}
	}
	return out
}

func isContext(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	switch walimpls.AsError(err).Code {
	case walimpls.CodeTimeout, walimpls.CodeCanceled:
		return true
	}
	return false
}

// same compares what an appender decides about; id and pair are compared elsewhere.
func same(a, b *message.Message) string {
	switch {
	case a.Type != b.Type:
		return fmt.Sprintf("type %s, was %s", b.Type, a.Type)
	case string(a.Payload) != string(b.Payload):
		return fmt.Sprintf("a payload of %d bytes that differs, was %d bytes", len(b.Payload), len(a.Payload))
	case a.VChannel != b.VChannel:
		return fmt.Sprintf("vchannel %q, was %q", b.VChannel, a.VChannel)
	case a.TimeTick != b.TimeTick:
		return fmt.Sprintf("tick %d, was %d", b.TimeTick, a.TimeTick)
	case a.LastConfirmed != b.LastConfirmed:
		return fmt.Sprintf("last confirmed %s, was %s", b.LastConfirmed, a.LastConfirmed)
	case a.TxnID != b.TxnID:
		return fmt.Sprintf("txn id %d, was %d", b.TxnID, a.TxnID)
	case len(a.Properties)+len(b.Properties) > 0 && !maps.Equal(a.Properties, b.Properties):
		return fmt.Sprintf("%d properties that differ, were %d", len(b.Properties), len(a.Properties))
	}
	return ""
}

// expectLog fails unless got is want in order, with the ids if they are given.
func (t *T) expectLog(got, want []message.Message, ids []message.ID, what string) {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.fatalf("%s: %d messages; the log ends after %d, %s is missing", what, len(want), len(got), showBatch(want[i:i+1]))
		case i >= len(want):
			t.fatalf("%s: %d messages; there is one more, %s", what, len(want), showBatch(got[i:i+1]))
		}
		if diff := same(&want[i], &got[i]); diff != "" {
			t.fatalf("%s: message %d is %s as it was appended; got %s: %s", what, i, showBatch(want[i:i+1]), showBatch(got[i:i+1]), diff)
		}
		if ids != nil {
			t.expect(got[i].ID == ids[i], "%s: message %d has the id %s that Append returned; got %s", what, i, showID(ids[i]), showID(got[i].ID))
		}
	}
}
