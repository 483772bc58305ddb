package flusher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testLog = "orders"

// fakeLog is a pchannel in memory. Each record is a unit; ids count up.
type fakeLog struct {
	mu        sync.Mutex // guards all below
	term      int64
	records   []message.Message // ids are 1 + index
	tick      message.Tick
	first     message.ID // what lies before it is gone
	grown     chan struct{}
	done      chan struct{}
	readers   []ReaderPosition
	truncated []Saved
	cutErr    error
	reads     int
}

func newFakeLog() *fakeLog {
	return &fakeLog{term: 1, tick: message.NewTick(time.Now().UnixMilli(), 0), first: message.Uint64ID(1), grown: make(chan struct{}), done: make(chan struct{})}
}

// append appends a record and returns its tick.
func (l *fakeLog) append(t message.Type, vchannel, payload string) message.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tick = max(l.tick+1, message.NewTick(time.Now().UnixMilli(), 0))
	m := message.Message{
		ID: message.Uint64ID(uint64(len(l.records) + 1)), Type: t, VChannel: vchannel, Term: l.term, TimeTick: l.tick, Payload: []byte(payload),
	}
	m.LastConfirmed = m.ID
	l.records = append(l.records, m)
	l.wake()
	return m
}

func (l *fakeLog) wake() {
	close(l.grown)
	l.grown = make(chan struct{})
}

// beat moves the tick of an idle log on.
func (l *fakeLog) beat() { l.append(message.TypeTimeTick, "", "") }

func (l *fakeLog) Channel() (string, string, int64) { return testLog, "store", l.term }
func (l *fakeLog) Done() <-chan struct{}            { return l.done }

func (l *fakeLog) LastTick() message.Tick {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tick
}

func (l *fakeLog) Readers() []ReaderPosition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.readers)
}

func (l *fakeLog) Truncate(_ context.Context, point Saved) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cutErr != nil {
		return l.cutErr
	}
	l.truncated = append(l.truncated, point)
	l.first = max(l.first, point.ID)
	return nil
}

func (l *fakeLog) readCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

func (l *fakeLog) cuts() []Saved {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.truncated)
}

func (l *fakeLog) Read(_ context.Context, opt ReadOptions) (Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	at := opt.From.ID
	if at.IsZero() {
		at = l.first
	} else if at < l.first {
		return nil, walimpls.NewPositionLostError(testLog, walimpls.Bounds{}, "below the truncation point")
	}
	next, _ := at.Uint64()
	return &fakeReader{l: l, opt: opt, next: int(next) - 1}, nil
}

type fakeReader struct {
	l    *fakeLog
	opt  ReadOptions
	next int
}

func (r *fakeReader) Close() error { return nil }

func (r *fakeReader) Next(ctx context.Context) ([]Unit, error) {
	for {
		r.l.mu.Lock()
		grown := r.l.grown
		var units []Unit
		for r.next < len(r.l.records) && len(units) < 100 {
			m := r.l.records[r.next]
			r.next++
			if m.Type == message.TypeData && r.opt.OnUnit != nil {
				r.l.mu.Unlock()
				r.opt.OnUnit(m.ID, m.Term, m.TimeTick)
				r.l.mu.Lock()
			}
			if r.opt.From.Covers(m.Term, m.TimeTick) {
				continue
			}
			u := Unit{Term: m.Term, Tick: m.TimeTick, Checkpoint: message.Checkpoint{StoreID: "store", ID: m.LastConfirmed, Term: m.Term, Tick: m.TimeTick}}
			if m.Type.IsSystem() || r.opt.VChannel == "" || m.VChannel == "" || m.VChannel == r.opt.VChannel {
				u.Messages = []message.Message{m}
			}
			units = append(units, u)
		}
		r.l.mu.Unlock()
		if len(units) > 0 {
			return units, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// fakeStore is a row.
type fakeStore struct {
	mu    sync.Mutex // guards all below
	log   *fakeLog
	term  int64
	row   Row
	err   error
	saves int
}

func (s *fakeStore) Load(context.Context) (Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Row{Checkpoints: slices.Clone(s.row.Checkpoints), Truncated: s.row.Truncated, VChannels: slices.Clone(s.row.VChannels)}, s.err
}

func (s *fakeStore) update(change func(*Row)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.term != s.log.term {
		return walimpls.Errorf(walimpls.CodeTermExpired, testLog, "another term")
	}
	change(&s.row)
	return nil
}

func (s *fakeStore) Save(_ context.Context, change func(*Row)) error {
	return s.update(func(r *Row) { s.saves++; change(r) })
}

func (s *fakeStore) Declare(_ context.Context, vchannel string, created message.Tick) error {
	return s.update(func(r *Row) {
		if !slices.ContainsFunc(r.VChannels, func(v VChannel) bool { return v.Name == vchannel && v.Declared() }) {
			r.VChannels = append(slices.DeleteFunc(r.VChannels, func(v VChannel) bool { return v.Name == vchannel }), VChannel{Name: vchannel, Start: created - 1})
		}
	})
}

func (s *fakeStore) Dropped(_ context.Context, vchannel string, tick message.Tick) error {
	return s.update(func(r *Row) {
		for i := range r.VChannels {
			if r.VChannels[i].Name == vchannel {
				r.VChannels[i].Dropped = tick
			}
		}
	})
}

func (s *fakeStore) get() Row {
	row, _ := s.Load(context.Background())
	return row
}

// fakeSink keeps manifests in memory and fails on request.
type fakeSink struct {
	mu    sync.Mutex // guards all below
	chans map[string]*fakeOutput
	// faults by vchannel: an error, or a channel that blocks a call until it is
	// closed, whatever the context says (deaf) or until the context ends.
	errs map[string]error
	hang map[string]chan struct{}
	deaf bool
	// openHang blocks Open likewise.
	openHang map[string]chan struct{}
	inFlight int
	inBytes  int
	opens    int
}

type fakeOutput struct {
	rows    []message.Message
	cp      message.Checkpoint
	term    int64
	flushes int
	dropped bool
}

func newFakeSink() *fakeSink {
	return &fakeSink{chans: map[string]*fakeOutput{}, errs: map[string]error{}, hang: map[string]chan struct{}{}, openHang: map[string]chan struct{}{}}
}

func (s *fakeSink) fail(vchannel string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs[vchannel] = err
}

// block makes calls for the vchannel hang until the result is called.
func (s *fakeSink) block(vchannel string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := make(chan struct{})
	s.hang[vchannel] = ch
	return sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.hang, vchannel)
		s.mu.Unlock()
		close(ch)
	})
}

func (s *fakeSink) out(vchannel string) fakeOutput {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.chans[vchannel]; o != nil {
		c := *o
		c.rows = slices.Clone(o.rows)
		return c
	}
	return fakeOutput{}
}

func (s *fakeSink) payloads(vchannel string) []string {
	var out []string
	for _, m := range s.out(vchannel).rows {
		out = append(out, string(m.Payload))
	}
	return out
}

func (s *fakeSink) Open(ctx context.Context, key SinkKey) (VChannelSink, error) {
	s.mu.Lock()
	hang, err := s.openHang[key.VChannel], s.errs[key.VChannel]
	s.opens++
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.chans[key.VChannel]
	if o == nil {
		o = &fakeOutput{}
		s.chans[key.VChannel] = o
	}
	if o.term > key.Term {
		return nil, walimpls.Errorf(walimpls.CodeFenced, testLog, "a newer term flushes")
	}
	o.term = key.Term
	return &fakeVSink{s: s, key: key, cp: o.cp}, nil
}

func (s *fakeSink) VChannels(context.Context, string, string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.chans {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func (s *fakeSink) Close() error { return nil }

type fakeVSink struct {
	s   *fakeSink
	key SinkKey
	cp  message.Checkpoint
}

func (v *fakeVSink) Checkpoint() message.Checkpoint { return v.cp }
func (v *fakeVSink) Close() error                   { return nil }

func (v *fakeVSink) Files(context.Context) ([]File, error) {
	o := v.s.out(v.key.VChannel)
	return []File{{Path: v.key.VChannel, Rows: int64(len(o.rows))}}, nil
}

func (v *fakeVSink) enter(ctx context.Context, bytes int) error {
	v.s.mu.Lock()
	hang, deaf := v.s.hang[v.key.VChannel], v.s.deaf
	v.s.inFlight++
	v.s.inBytes += bytes
	v.s.mu.Unlock()
	defer func() {
		v.s.mu.Lock()
		v.s.inFlight--
		v.s.inBytes -= bytes
		v.s.mu.Unlock()
	}()
	if hang != nil {
		ended := ctx.Done()
		if deaf {
			ended = nil
		}
		select {
		case <-hang:
		case <-ended:
			return ctx.Err()
		}
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.s.errs[v.key.VChannel]
}

func (v *fakeVSink) Flush(ctx context.Context, rows []message.Message, cp message.Checkpoint) ([]File, error) {
	n := 0
	for i := range rows {
		n += rows[i].Size()
	}
	if err := v.enter(ctx, n); err != nil {
		return nil, err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	o := v.s.chans[v.key.VChannel]
	if o.term > v.key.Term {
		return nil, walimpls.Errorf(walimpls.CodeFenced, testLog, "a newer term flushes")
	}
	if before(cp, o.cp) {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, testLog, "the checkpoint goes back")
	}
	for i := range rows {
		if o.cp.Covers(rows[i].Term, rows[i].TimeTick) || !cp.Covers(rows[i].Term, rows[i].TimeTick) {
			return nil, walimpls.Errorf(walimpls.CodeInternal, testLog, "row %d of %q at tick %d lies outside (%d, %d]", i, v.key.VChannel, rows[i].TimeTick, o.cp.Tick, cp.Tick)
		}
	}
	o.rows = append(o.rows, rows...)
	o.cp = cp
	o.flushes++
	if len(rows) == 0 {
		return nil, nil
	}
	return []File{{Path: fmt.Sprint(o.flushes), Rows: int64(len(rows)), Bytes: int64(n)}}, nil
}

func (v *fakeVSink) Drop(ctx context.Context, at message.Checkpoint) error {
	if err := v.enter(ctx, 0); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	o := v.s.chans[v.key.VChannel]
	if before(at, o.cp) {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, testLog, "the checkpoint goes back")
	}
	o.dropped, o.cp = true, at
	return nil
}

// world is a log, its row and a sink.
type world struct {
	t     *testing.T
	log   *fakeLog
	store *fakeStore
	sink  *fakeSink
	opt   Options
	f     *Flusher
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, log: newFakeLog(), sink: newFakeSink(), opt: Options{MaxAge: time.Second, Log: zap.NewNop()}}
	w.store = &fakeStore{log: w.log, term: 1}
	return w
}

// start starts a flusher; stop ends it.
func (w *world) start() {
	w.f = Start(w.opt, w.log, w.store, w.sink)
}

func (w *world) stop() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := w.f.Close(ctx); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) data(vchannel, payload string) message.Message {
	return w.log.append(message.TypeData, vchannel, payload)
}

func (w *world) create(names ...string) {
	for _, n := range names {
		w.log.append(message.TypeCreateVChannel, n, "")
	}
}

// flushed waits until everything that is in the log is flushed.
func (w *world) flushed(vchannel string) {
	w.t.Helper()
	m := w.log.append(message.TypeFlush, vchannel, "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.f.Wait(ctx, vchannel, m.Term, m.TimeTick); err != nil {
		w.t.Fatal(err)
	}
}

// same compares what a vchannel was flushed to with what was appended.
func (w *world) same(vchannel string, want []string) {
	w.t.Helper()
	if got := w.sink.payloads(vchannel); !slices.Equal(got, want) {
		w.t.Fatalf("vchannel %q holds %d rows, want %d: %.200q, want %.200q", vchannel, len(got), len(want), got, want)
	}
}
