package server

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/message"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// recordOverhead is what a record counts beside its bytes, so that empty ones
// are bounded too.
const recordOverhead = 64

// lateGrace is how long a stream that is given up waits for the outcomes of
// what the WAL lets go of.
const lateGrace = 100 * time.Millisecond

func ordinal(i int) string { return strconv.Itoa(i + 1) }

// AppendStream implements WALServiceServer.
//
// Two goroutines share a stream. receive reads requests, hands their records to
// the WAL in order, and stops reading while too much is under way: that is the
// back-pressure. The handler answers in order. When the handler returns, gRPC
// ends the stream's context and with it receive.
func (s *Server) AppendStream(stream walv1.WALService_AppendStreamServer) error {
	c, txn, err := s.greet(stream)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	a := &appendStream{s: s, c: c, txn: txn, stream: stream, ctx: ctx, changed: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	s.helpers.Add(1)
	go func() {
		defer s.helpers.Done()
		var defect error
		defer func() {
			if defect != nil {
				cancel() // what has no answer is unknown
			}
		}()
		defer s.recovered(walv1.WALService_AppendStream_FullMethodName, &defect)
		a.receive()
	}()
	return a.answer()
}

// greet takes the first message and answers it.
func (s *Server) greet(stream walv1.WALService_AppendStreamServer) (c *channel, txn uint64, err error) {
	first, err := s.first(stream)
	if err != nil {
		return nil, 0, err
	}
	if first.GetSequence() != 0 || len(first.GetRecords()) > 0 {
		return nil, 0, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "append stream: the first message has sequence 0, the channel, and no records")
	}
	if c, err = s.channels.find(first.GetChannel()); err != nil {
		return nil, 0, err
	}
	if st, _, err := c.now(); st == unavailable {
		return nil, 0, err
	}
	return c, first.GetTxnId(), stream.Send(&walv1.AppendStreamResponse{})
}

// first is stream.Recv that ends with the stream's context, which ends a little
// early, or when the host stops. The goroutine ends with the handler.
func (s *Server) first(stream walv1.WALService_AppendStreamServer) (*walv1.AppendStreamRequest, error) {
	type result struct {
		req *walv1.AppendStreamRequest
		err error
	}
	got := make(chan result, 1)
	s.helpers.Add(1)
	go func() {
		defer s.helpers.Done()
		req, err := stream.Recv()
		got <- result{req, err}
	}()
	select {
	case r := <-got:
		if errors.Is(r.err, io.EOF) {
			return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "append stream: it ended before it named a channel")
		}
		return r.req, r.err
	case <-s.draining:
		return nil, shutdownError("")
	case <-stream.Context().Done():
		return nil, walimpls.ContextError(stream.Context(), "", "append stream")
	}
}

// appendStream is one AppendStream.
type appendStream struct {
	s      *Server
	c      *channel
	txn    uint64 // the open transaction that the records are a part of, 0 for none
	stream walv1.WALService_AppendStreamServer
	// ctx bounds what is handed over; it ends with the handler.
	ctx     context.Context
	changed chan struct{} // tells answer that there is a new job or an end
	room    chan struct{} // tells receive that bytes were given back

	mu      sync.Mutex // guards all below
	jobs    []*appendJob
	bytes   int
	failed  error // the first record's failure: nothing more is handed over
	ending  bool  // the host ends the stream: nothing more is taken
	readErr error // why receive has ended, io.EOF at the client's end; nil before
}

// appendJob is one request on its way.
type appendJob struct {
	sequence uint64
	n        int // records
	bytes    int
	// rest are the results of the records that were not handed over: the last
	// ones. done is closed when those of the records before are in results.
	rest    []wal.Result
	done    chan struct{}
	results []wal.Result
	ids     idFormat
}

// receive reads requests and hands them over until the stream or the host ends.
func (a *appendStream) receive() {
	for next := uint64(1); ; next++ {
		req, err := a.stream.Recv()
		if err == nil && req.GetSequence() != next {
			err = walimpls.Errorf(walimpls.CodeInvalidArgument, a.c.name,
				"append stream: request %d came where %d was due", req.GetSequence(), next)
		}
		if err != nil {
			a.mu.Lock()
			a.readErr = err
			a.mu.Unlock()
			a.tell()
			return
		}
		if !a.take(req) {
			return
		}
	}
}

// take hands one request over; false means that the stream is ending.
func (a *appendStream) take(req *walv1.AppendStreamRequest) bool {
	batch, wrong := toBatch(a.c.name, a.txn, req.GetRecords())
	job := &appendJob{sequence: req.GetSequence(), n: len(req.GetRecords()), done: make(chan struct{})}
	job.bytes = job.n * recordOverhead
	for i := range batch {
		job.bytes += batch[i].Size()
	}
	if !a.enter(job) {
		return false
	}
	w, err := a.c.wal(a.ctx)
	if err == nil {
		var desc walimpls.Description
		if desc, err = a.c.description(a.ctx); err == nil {
			job.ids = newIDFormat(desc.IDLayout)
			batch, wrong = fitting(a.c.name, batch, wrong, desc.Limits)
		}
	}
	if err != nil {
		batch, wrong = nil, err
	}
	if a.hasFailed() != nil {
		batch, wrong = nil, nil
	}
	if len(batch) < job.n {
		a.refuseFrom(job, len(batch), wrong)
		if w != nil && a.txn != 0 {
			w.FailTxn(a.txn)
		}
	}
	if len(batch) == 0 {
		close(job.done)
		a.tell()
		return true
	}
	n := len(batch)
	w.AppendAsync(a.ctx, batch, func(results []wal.Result) {
		job.results = complete(a.c.name, n, results)
		for i := range job.results {
			if o := &job.results[i]; o.State != walimpls.Stored {
				a.fail(o.Err)
				break
			}
		}
		close(job.done)
		a.tell()
	})
	return true
}

// fitting cuts the batch before its first record that is too large.
func fitting(channel string, batch []message.Message, wrong error, limits walimpls.Limits) ([]message.Message, error) {
	for i := range batch {
		if err := fits(channel, &batch[i], limits); err != nil {
			return batch[:i], err
		}
	}
	return batch, wrong
}

// enter waits for room and puts the job into the line of answers; false means
// that the stream is ending, and then the job is not answered.
func (a *appendStream) enter(job *appendJob) bool {
	for {
		a.mu.Lock()
		if a.ending {
			a.mu.Unlock()
			return false
		}
		if a.bytes == 0 || a.bytes+job.bytes <= a.s.opt.MaxStreamBytes {
			a.jobs = append(a.jobs, job)
			a.bytes += job.bytes
			a.mu.Unlock()
			a.tell()
			return true
		}
		a.mu.Unlock()
		select {
		case <-a.room:
		case <-a.ctx.Done():
			return false
		}
	}
}

func (a *appendStream) hasFailed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// fail notes the first failure.
func (a *appendStream) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		err = walimpls.Errorf(walimpls.CodeInternal, a.c.name, "append: a record failed without a reason")
	}
	if a.failed == nil {
		a.failed = err
	}
}

// refuseFrom gives the job's records from i on their results: the record at i
// failed for cause, those behind it, or all if cause is nil, are not tried
// because of the stream's first failure.
func (a *appendStream) refuseFrom(job *appendJob, i int, cause error) {
	if cause != nil {
		job.rest = all(1, walimpls.NotStored, cause)
		a.fail(cause)
	}
	// The cause is quoted, not wrapped: this record is definitely not stored,
	// even if that one is unknown.
	e := walimpls.Errorf(walimpls.CodeClosed, a.c.name, "append: not tried, because an earlier record of the stream failed: %v", a.hasFailed())
	e.Retryable = true
	e.Hint = "append it on a new stream"
	job.rest = append(job.rest, all(job.n-i-len(job.rest), walimpls.NotStored, e)...)
}

func (a *appendStream) tell() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// answer sends the results in order until the client's end, or the host's.
func (a *appendStream) answer() error {
	draining := a.s.draining
	for {
		job, readErr, ending := a.front()
		if job == nil && ending {
			return a.end(shutdownError(a.c.name))
		}
		if job == nil && readErr != nil {
			return a.goodbye(readErr)
		}
		var done <-chan struct{}
		if job != nil {
			done = job.done
		}
		select {
		case <-done:
			if err := a.send(job, false); err != nil {
				return err
			}
		case <-draining:
			draining = nil
			a.mu.Lock()
			a.ending = true
			a.mu.Unlock()
		case <-a.changed:
		case <-a.ctx.Done():
			return a.giveUp()
		}
	}
}

// front returns the job to answer next, nil if there is none.
func (a *appendStream) front() (job *appendJob, readErr error, ending bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.jobs) > 0 {
		job = a.jobs[0]
	}
	return job, a.readErr, a.ending
}

// giveUp ends the stream when its context has ended: what was not handed over
// by then comes back not stored within a moment, the rest is unknown.
func (a *appendStream) giveUp() error {
	cause := walimpls.ContextError(a.ctx, a.c.name, "append stream")
	a.mu.Lock()
	a.ending = true
	a.mu.Unlock()
	timer := time.NewTimer(lateGrace)
	defer timer.Stop()
	late := false
	for {
		job, _, _ := a.front()
		if job == nil {
			break
		}
		if !late {
			select {
			case <-job.done:
			case <-timer.C:
				late = true
			}
		}
		if err := a.send(job, late); err != nil {
			return err
		}
	}
	return a.end(cause)
}

// send answers the job at the front. With late, a job that is not done is
// answered as unknown.
func (a *appendStream) send(job *appendJob, late bool) error {
	a.mu.Lock()
	a.jobs[0] = nil
	a.jobs = a.jobs[1:]
	a.bytes -= job.bytes
	a.mu.Unlock()
	select {
	case a.room <- struct{}{}:
	default:
	}
	return a.stream.Send(&walv1.AppendStreamResponse{Sequence: job.sequence, Results: toResults(a.results(job, late), job.ids)})
}

func (a *appendStream) results(job *appendJob, late bool) []wal.Result {
	if late {
		select {
		case <-job.done:
		default:
			return all(job.n, walimpls.Unknown, walimpls.Errorf(walimpls.CodeUnknownOutcome, a.c.name,
				"append: the host gave up waiting for the backend: %v", context.Cause(a.ctx)))
		}
	}
	return append(job.results, job.rest...)
}

// goodbye ends the stream after everything was answered.
func (a *appendStream) goodbye(readErr error) error {
	if errors.Is(readErr, io.EOF) {
		return nil
	}
	var typed *walimpls.Error
	if errors.As(readErr, &typed) {
		return a.end(typed)
	}
	return readErr
}

// end tells the client that nothing without an answer was handed over, and why
// the stream is over. Nothing may be handed over behind it: ending is set, or
// receive has ended.
func (a *appendStream) end(cause error) error {
	typed := walimpls.AsError(cause)
	if err := a.stream.Send(&walv1.AppendStreamResponse{End: wire.ErrorToProto(typed)}); err != nil {
		return err
	}
	return typed
}
