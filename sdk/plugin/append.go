package plugin

import (
	"errors"
	"io"
	"runtime"
	"time"

	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// maxWaitingBytes bounds what one Append stream holds in memory; above it the
// stream is not read on, and gRPC's flow control stops the host. One batch above
// the bound is let in on its own.
const maxWaitingBytes = 16 << 20

// lingerAfterClose is how long a stream whose handle was closed waits for the
// host's end of it, so that batches on their way are refused and not left unknown.
const lingerAfterClose = time.Second

// recordOverhead is what a record costs in memory beside its Size.
const recordOverhead = 256

type appendStream = grpc.BidiStreamingServer[pluginv1.AppendRequest, pluginv1.AppendResponse]

// batch is one AppendRequest.
type batch struct {
	sequence uint64
	messages []message.Message
	bytes    int
}

// Append implements the service: one goroutine receives, this one commits
// everything that waits and answers in order.
func (s *Server) Append(stream appendStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h, err := s.handle(first.GetHandle())
	if err == nil && (len(first.GetRecords()) > 0 || first.GetSequence() != 0) {
		err = walimpls.Errorf(walimpls.CodeInvalidArgument, h.name, "append: the first message of the stream holds the handle and nothing else")
	}
	if err == nil {
		err = h.attach()
	}
	if err != nil {
		return wire.StatusError(err)
	}
	// The stream is the handle's life-line: a host that has gone closes nothing.
	defer s.discard(h)
	if err := stream.Send(&pluginv1.AppendResponse{}); err != nil {
		return err
	}
	a := &appender{h: h, stream: stream, queue: newInbox(maxWaitingBytes)}
	s.running.start(func() { a.receive(s) })
	return a.commitAll()
}

// appender serves one Append stream.
type appender struct {
	h      *handle
	stream appendStream
	queue  *inbox

	scratch []message.Message // the committer's
}

// receive reads the stream until it ends. It returns soon after the stream's
// handler has, because gRPC ends the stream's context then.
func (a *appender) receive(s *Server) {
	for next := uint64(1); ; next++ {
		var req wire.AppendBatch
		if err := a.stream.RecvMsg(&req); err != nil {
			if !errors.Is(err, io.EOF) {
				// The host has gone, and the committer may hang in the backend.
				s.discard(a.h)
			}
			a.queue.end(err)
			return
		}
		if req.Err != nil {
			a.queue.end(walimpls.Errorf(walimpls.CodeInvalidArgument, a.h.name, "append: sequence %d: %w", next, req.Err))
			return
		}
		if req.Sequence != next {
			a.queue.end(walimpls.Errorf(walimpls.CodeInvalidArgument, a.h.name, "append: sequence %d, want %d", req.Sequence, next))
			return
		}
		b := &batch{sequence: next, messages: req.Records}
		for i := range b.messages {
			b.bytes += b.messages[i].Size() + recordOverhead
		}
		if !a.queue.push(a.stream.Context(), b) {
			return
		}
	}
}

// commitAll runs until the stream ends or the handle is closed. What waits when
// the host half-closes is still stored.
func (a *appender) commitAll() error {
	closed := a.h.closed
	var linger <-chan time.Time
	for {
		select {
		case <-a.queue.wake:
		case <-a.stream.Context().Done():
			return wire.StatusError(a.stream.Context().Err())
		case <-closed:
			closed = nil
			t := time.NewTimer(lingerAfterClose)
			defer t.Stop()
			linger = t.C
		case <-linger:
			return wire.StatusError(a.h.refusal())
		}
		for {
			// Batches that are about to arrive are worth a few yields: fewer, larger
			// commits.
			runtime.Gosched()
			waiting, ended := a.queue.take()
			if len(waiting) == 0 {
				if errors.Is(ended, io.EOF) {
					return nil
				}
				if ended != nil {
					return wire.StatusError(ended)
				}
				break
			}
			if err := a.commit(waiting); err != nil {
				return err
			}
			a.queue.release(waiting)
		}
	}
}

// commit hands the batches to the backend, as many at once as its limits allow,
// and answers each when the outcome of its last record is known.
func (a *appender) commit(batches []*batch) error {
	records := batches[0].messages
	if len(batches) > 1 {
		records = a.scratch[:0]
		for _, b := range batches {
			records = append(records, b.messages...)
		}
		defer func() {
			clear(records)
			a.scratch = records[:0]
		}()
	}
	outcomes := make([]walimpls.Outcome, len(records))
	answered, begin := 0, 0 // batches answered, and the first record of the next one
	for done := 0; ; {
		end := a.h.cut(records, done)
		a.store(records[done:end], outcomes[done:end])
		done = end
		for answered < len(batches) && begin+len(batches[answered].messages) <= done {
			b := batches[answered]
			if err := a.stream.Send(answer(a.h.name, b.sequence, outcomes[begin:begin+len(b.messages)])); err != nil {
				return err
			}
			begin += len(b.messages)
			answered++
		}
		if done == len(records) {
			return nil
		}
	}
}

// cut returns the end of the next piece of records that fits the limits. A
// record that is too large is a piece of its own, for store to refuse.
func (h *handle) cut(records []message.Message, from int) int {
	bytes := 0
	for i := from; i < len(records); i++ {
		size := records[i].Size()
		if size > h.limits.MaxMessageBytes {
			return max(i, from+1)
		}
		bytes += size
		if i > from && (i-from >= h.limits.MaxBatchRecords || bytes > h.limits.MaxBatchBytes) {
			return i
		}
	}
	return len(records)
}

// store appends one piece and sets the outcome of each of its records. After an
// unknown outcome the handle takes no more.
func (a *appender) store(piece []message.Message, outcomes []walimpls.Outcome) {
	if len(piece) == 0 {
		return
	}
	h := a.h
	err := h.refusal()
	if size := piece[0].Size(); err == nil && size > h.limits.MaxMessageBytes {
		err = wire.TooLarge(h.name, size, h.limits.MaxMessageBytes)
	}
	if err != nil {
		for i := range outcomes {
			outcomes[i] = walimpls.Outcome{State: walimpls.NotStored, Err: err}
		}
		return
	}
	ids, err := h.wal.Append(h.storing, piece)
	if len(piece) > 1 && refusedAsWhole(err) {
		// One record is at fault, and its neighbours belong to other callers.
		half := len(piece) / 2
		a.store(piece[:half], outcomes[:half])
		a.store(piece[half:], outcomes[half:])
		return
	}
	copy(outcomes, walimpls.Outcomes(h.name, len(piece), ids, err))
	for i := range outcomes {
		if outcomes[i].State == walimpls.Unknown {
			e := walimpls.Errorf(walimpls.CodeUnavailable, h.name, "append: the handle has ended after an unknown outcome")
			e.Hint = "open the channel again with the next incarnation"
			h.end(e)
			return
		}
	}
}

// refusedAsWhole reports that the backend stored nothing because of what a
// record is, without saying which.
func refusedAsWhole(err error) bool {
	var each *walimpls.BatchError
	return err != nil && !errors.As(err, &each) &&
		(errors.Is(err, walimpls.ErrInvalidArgument) || errors.Is(err, walimpls.ErrTooLarge))
}

// answer builds the answer to one batch.
func answer(channel string, sequence uint64, outcomes []walimpls.Outcome) *pluginv1.AppendResponse {
	resp := &pluginv1.AppendResponse{Sequence: sequence, Ids: make([][]byte, len(outcomes))}
	for i := range outcomes {
		if outcomes[i].State != walimpls.Stored {
			resp.Ids = nil
			resp.Error = wire.ErrorToProto(&walimpls.BatchError{Channel: channel, Outcomes: outcomes})
			return resp
		}
		resp.Ids[i] = []byte(outcomes[i].ID)
	}
	return resp
}
