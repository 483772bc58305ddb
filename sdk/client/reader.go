package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/walrig/walrig/sdk/message"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// ReadOptions are the parameters of NewReader. The zero value reads everything
// there is and ends.
type ReadOptions struct {
	// From is all, latest, ID, after:ID or cp:TOKEN; "" is all.
	From string
	// Follow waits for more at the end of the log. Without it the Reader ends
	// at what was the end when it began.
	Follow bool
	// VChannel lets records of that vchannel and those for all pass; "" all.
	VChannel string
	// System returns system records too.
	System bool
	// RetryFor bounds how long the Reader tries to get a lost connection back. 0
	// is 30 s without Follow and without a bound with it; a negative one means no
	// try at all.
	RetryFor time.Duration
}

const defaultRetryFor = 30 * time.Second

// Message is a record that was read.
type Message struct {
	// ID is the record's id in text form.
	ID string
	// Checkpoint is a token: a read from "cp:" + Checkpoint begins behind the
	// record's unit. The parts of a transaction but the last carry that of the
	// unit before it.
	Checkpoint string
	// UnitEnd is false on all parts of a transaction but the last.
	UnitEnd     bool
	Type        message.Type
	VChannel    string
	Term        int64
	Incarnation int64
	// TimeTick is the unit's: all parts of a transaction have their commit's.
	TimeTick message.Tick
	// TxnID is the transaction's, 0 for a record of its own.
	TxnID      uint64
	Properties map[string]string
	Payload    []byte
}

// Reader reads one channel. Next is for one goroutine; Close may be called from any.
type Reader struct {
	client  *Client
	channel string
	opt     ReadOptions
	parent  context.Context // the caller's
	ctx     context.Context // ends with parent or Close
	cancel  context.CancelFunc
	// running counts run, which the Reader owns.
	running sync.WaitGroup
	in      chan *wire.Page
	caught  chan struct{}
	// ended is closed when run is over; last says why.
	ended chan struct{}
	last  error

	// Of Next's goroutine alone.
	batch    *wire.Page
	position int
	// slab saves an allocation for each record. It is small: who keeps one record
	// keeps its neighbours' structs too.
	slab       []Message
	checkpoint string
	err        error
}

// NewReader starts a Reader and returns when the host has resolved the start,
// so that nothing appended after that is missed; the client's timeout bounds
// that. The Reader lives until Close or until ctx ends. Errors: ErrNotFound for the channel, ErrInvalidArgument,
// *PositionLostError, ErrUnreachable. Always Close it.
func (c *Client) NewReader(ctx context.Context, channel string, opt ReadOptions) (*Reader, error) {
	if opt.From == "" {
		opt.From = "all"
	}
	if opt.RetryFor == 0 && !opt.Follow {
		opt.RetryFor = defaultRetryFor
	}
	r := &Reader{
		client: c, channel: channel, opt: opt,
		in: make(chan *wire.Page), caught: make(chan struct{}), ended: make(chan struct{}),
	}
	r.parent = ctx
	r.ctx, r.cancel = context.WithCancel(ctx)
	s := &session{reader: r, from: opt.From}
	late := c.handshake(ctx, r.cancel)
	first, err := s.start()
	if err = late(err); err != nil {
		r.cancel()
		return nil, err
	}
	r.batch = first
	r.running.Add(1)
	go s.run()
	return r, nil
}

// NextUnit returns the next unit: one record, or all records of a transaction.
// Its errors are those of Next.
func (r *Reader) NextUnit(ctx context.Context) ([]*Message, error) {
	first, err := r.Next(ctx)
	if err != nil {
		return nil, err
	}
	unit := []*Message{first}
	for !unit[len(unit)-1].UnitEnd {
		// The session hands whole units over, so this does not wait.
		m, err := r.Next(ctx)
		if err != nil {
			return nil, err
		}
		unit = append(unit, m)
	}
	return unit, nil
}

// Units ranges over the units that NextUnit returns, up to the end of the read
// or the end of ctx. An error other than io.EOF is the last pair; after the loop
// was left the Reader goes on where it was.
func (r *Reader) Units(ctx context.Context) iter.Seq2[[]*Message, error] {
	return func(yield func([]*Message, error) bool) {
		for {
			unit, err := r.NextUnit(ctx)
			if errors.Is(err, io.EOF) || !yield(unit, err) || err != nil {
				return
			}
		}
	}
}

// Checkpoint returns the token behind everything that Next has returned or the
// filter has left out, "" before the first message. It is for Next's goroutine.
func (r *Reader) Checkpoint() string { return r.checkpoint }

// Next returns the next record. The parts of a transaction come one behind the
// other, and never without the rest. Without Follow it returns io.EOF behind the
// last one. When ctx ends it returns ctx's error, and nothing is lost: call it
// again. Any other error is final: ErrClosed after Close, *PositionLostError
// when the place was truncated away, ErrUnreachable when the connection did not
// come back in time.
func (r *Reader) Next(ctx context.Context) (*Message, error) {
	for {
		if r.batch != nil {
			if m := r.take(); m != nil {
				return m, nil
			}
		}
		if r.err != nil {
			return nil, r.err
		}
		select {
		case r.batch = <-r.in:
			r.position = 0
		case <-r.ended:
			r.err = r.last
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns the next record of the batch, or nil behind the last one.
func (r *Reader) take() *Message {
	if r.position < len(r.batch.Records) {
		if len(r.slab) == 0 {
			r.slab = make([]Message, min(len(r.batch.Records)-r.position, 32))
		}
		m := &r.slab[0]
		r.slab = r.slab[1:]
		m.take(&r.batch.Records[r.position])
		r.position++
		r.checkpoint = m.Checkpoint
		return m
	}
	if r.batch.Checkpoint != "" {
		r.checkpoint = r.batch.Checkpoint
	}
	if r.batch.CaughtUp {
		select {
		case <-r.caught:
		default:
			close(r.caught)
		}
	}
	r.batch = nil
	return nil
}

// Buffered returns how many records Next will return without waiting.
func (r *Reader) Buffered() int {
	if r.batch == nil {
		return 0
	}
	return len(r.batch.Records) - r.position
}

// CaughtUp is closed when Next has returned everything up to the end of the log
// as it was when the Reader began, and is called once more.
func (r *Reader) CaughtUp() <-chan struct{} { return r.caught }

// Close ends the Reader and waits for its goroutine; Next returns ErrClosed then.
func (r *Reader) Close() error {
	r.cancel()
	r.running.Wait()
	return nil
}

// take fills m with what the host sent.
func (m *Message) take(d *wire.Delivery) {
	rec := &d.Message
	*m = Message{
		ID: d.ID, Checkpoint: d.Checkpoint, UnitEnd: endsUnit(d), Type: rec.Type, VChannel: rec.VChannel,
		Term: rec.Term, Incarnation: rec.Incarnation, TimeTick: rec.TimeTick,
		TxnID: rec.TxnID, Properties: rec.Properties, Payload: rec.Payload,
	}
}

// session is the state of a Reader's streams, of one goroutine alone.
type session struct {
	reader *Reader
	stream walv1.WALService_ReadClient
	cancel context.CancelFunc // of stream
	// from and until are where the next stream begins and ends.
	from, until string
	caughtUp    bool
	// partial are the first records of a transaction whose last has not come: a
	// stream that breaks inside it begins again before it.
	partial []wire.Delivery
}

// start opens a stream and returns its first message.
func (s *session) start() (*wire.Page, error) {
	r := s.reader
	ctx, cancel := context.WithCancel(r.ctx)
	stream, err := r.client.wal.Read(ctx, &walv1.ReadRequest{
		Channel: r.channel, From: s.from, Follow: r.opt.Follow,
		Vchannel: r.opt.VChannel, System: r.opt.System, Until: s.until,
	}, grpc.ForceCodecV2(wire.Codec()))
	if err != nil {
		cancel()
		return nil, r.client.callError(r.ctx, err, readOnly)
	}
	s.stream, s.cancel, s.partial = stream, cancel, nil
	resp, err := s.recv()
	if err != nil {
		s.stop()
		return nil, err
	}
	if s.until == "" && !r.opt.Follow {
		s.until = resp.End
	}
	return resp, nil
}

// recv returns the next message of the stream, and io.EOF at its proper end.
func (s *session) recv() (*wire.Page, error) {
	resp := new(wire.Page)
	err := s.stream.RecvMsg(resp)
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, s.reader.client.callError(s.reader.ctx, err, readOnly)
	}
	if resp.Resume != "" {
		s.from = resp.Resume
	}
	resp.Records = s.whole(resp.Records)
	// A stream that goes on behind the first one's end is not news.
	resp.CaughtUp = resp.CaughtUp && !s.caughtUp
	s.caughtUp = s.caughtUp || resp.CaughtUp
	return resp, nil
}

// whole returns the records up to the end of the last unit that is complete.
func (s *session) whole(records []wire.Delivery) []wire.Delivery {
	if len(s.partial) > 0 {
		records = append(s.partial, records...)
	}
	n := len(records)
	for n > 0 && !endsUnit(&records[n-1]) {
		n--
	}
	s.partial = records[n:]
	return records[:n:n]
}

// endsUnit: a record of its own is a unit, whatever the host says.
func endsUnit(d *wire.Delivery) bool { return d.UnitEnd || d.Message.TxnID == 0 }

func (s *session) stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.stream, s.cancel = nil, nil
}

// run hands the host's messages to Next, and connects again, until the end.
func (s *session) run() {
	r := s.reader
	defer r.running.Done()
	defer close(r.ended)
	defer s.stop()
	var pause time.Duration
	var failing time.Time // since when nothing came
	for {
		resp, err := s.next()
		if err == nil {
			pause, failing = 0, time.Time{}
			select {
			case r.in <- resp:
				continue
			case <-r.ctx.Done():
			}
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		s.stop()
		pause = min(max(2*pause, 50*time.Millisecond), 2*time.Second)
		if !s.again(err, failing) || !sleep(r.ctx, pause) {
			r.last = s.final(err)
			return
		}
	}
}

// next returns the next message, of a new stream if there is none.
func (s *session) next() (*wire.Page, error) {
	if s.stream == nil {
		return s.start()
	}
	return s.recv()
}

// again reports whether a new stream may do better than the one that err ended.
func (s *session) again(err error, failing time.Time) bool {
	r := s.reader
	if r.ctx.Err() != nil || r.opt.RetryFor < 0 || r.opt.RetryFor > 0 && time.Since(failing) > r.opt.RetryFor {
		return false
	}
	if r.client.conn.GetState() == connectivity.Shutdown {
		return false
	}
	// The term that the reader was on has ended: the next one goes on.
	for _, target := range []error{walimpls.ErrTermExpired, walimpls.ErrUnmatchedTerm, walimpls.ErrFenced, walimpls.ErrClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	var e *walimpls.Error
	return errors.As(err, &e) && e.Retryable
}

// final is what Next returns for ever after err.
func (s *session) final(err error) error {
	r := s.reader
	switch {
	case errors.Is(r.parent.Err(), context.DeadlineExceeded):
		return walimpls.Errorf(walimpls.CodeTimeout, r.channel, "read: %w", r.parent.Err())
	case r.parent.Err() != nil:
		return walimpls.Errorf(walimpls.CodeCanceled, r.channel, "read: %w", r.parent.Err())
	case r.ctx.Err() != nil:
		return walimpls.Errorf(walimpls.CodeClosed, r.channel, "read: the reader is closed")
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
