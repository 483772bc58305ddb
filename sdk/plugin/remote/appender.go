package remote

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

const (
	// maxInFlight is the number of batches under way: one is committed while the
	// next ones travel. More would only make them smaller.
	maxInFlight = 3
	// maxWireBytes bounds one request unless a single record is larger; the backend's
	// own limit may be far above what is good for latency.
	maxWireBytes = 4 << 20
	// maxQueuedBytes is where Append starts to wait.
	maxQueuedBytes = 32 << 20
	// yields is how often the sender lets others run before it takes what waits:
	// callers that were woken together get into the same batch.
	yields = 3
)

type appendStream = grpc.BidiStreamingClient[pluginv1.AppendRequest, pluginv1.AppendResponse]

// appender owns the Append stream of one handle: a goroutine that sends and one
// that receives.
//
// A call's way: push (any goroutine) → queue.waiting → take + encode + send
// (sender) → queue.inFlight → answer (receiver) → done. Whatever ends the handle
// sets queue.ended first, so nothing is taken after it.
type appender struct {
	channel string
	limits  walimpls.Limits // the backend's, per record
	buffers wire.Buffers    // the requests' encodings
	stream  appendStream
	cancel  context.CancelFunc // ends the stream

	// encoding is held by the sender from take until the records are encoded. Who
	// gives a batch back to its caller passes through it.
	encoding sync.Mutex

	mu       sync.Mutex // guards what follows; taken after encoding
	queue    queue
	lastID   message.ID
	space    chan struct{} // closed when bytes have fallen; nil if nobody waits
	isClosed bool          // by Close
	isBroken bool          // broken is closed

	wake     chan struct{} // holds a token while the sender has something to see
	broken   chan struct{}
	sent     chan struct{} // closed when the sender has returned
	received chan struct{} // closed when the receiver has returned
}

func newAppender(channel string, limits walimpls.Limits, stream appendStream, cancel context.CancelFunc) *appender {
	cut := limits
	cut.MaxBatchBytes = min(limits.MaxBatchBytes, max(maxWireBytes, limits.MaxMessageBytes))
	return &appender{
		channel: channel, limits: limits, stream: stream, cancel: cancel,
		queue:    queue{limits: cut},
		wake:     make(chan struct{}, 1),
		broken:   make(chan struct{}),
		sent:     make(chan struct{}),
		received: make(chan struct{}),
	}
}

// start starts the two goroutines; both end when the stream does.
func (a *appender) start() {
	go a.send()
	go a.receive()
}

// push hands a call over. It returns true if all records were refused; done is the
// caller's to call then.
func (a *appender) push(c *call) (finished bool) {
	a.mu.Lock()
	finished = a.queue.push(c, a.refuse)
	a.mu.Unlock()
	if !finished {
		a.signal()
	}
	return finished
}

// refuse returns why a record is not sent at all.
func (a *appender) refuse(m *message.Message) error {
	if size := m.Size(); size > a.limits.MaxMessageBytes {
		return wire.TooLarge(a.channel, size, a.limits.MaxMessageBytes)
	}
	return wire.CheckRecord(a.channel, m)
}

// waitForSpace blocks while too much is queued, until ctx ends.
func (a *appender) waitForSpace(ctx context.Context) error {
	for {
		a.mu.Lock()
		if a.queue.bytes < maxQueuedBytes || a.queue.ended != nil {
			a.mu.Unlock()
			return nil
		}
		if a.space == nil {
			a.space = make(chan struct{})
		}
		space := a.space
		a.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return ctxError(ctx, a.channel)
		}
	}
}

// freed wakes who waits for space; mu is held.
func (a *appender) freed() {
	if a.space != nil && (a.queue.bytes < maxQueuedBytes || a.queue.ended != nil) {
		close(a.space)
		a.space = nil
	}
}

func (a *appender) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// send runs until the stream ends or the handle was closed.
func (a *appender) send() {
	defer close(a.sent)
	for {
		select {
		case <-a.wake:
		case <-a.stream.Context().Done():
			return
		}
		for {
			ready, closed := a.ready()
			if closed {
				_ = a.stream.CloseSend()
				return
			}
			if !ready {
				break
			}
			for range yields {
				runtime.Gosched()
			}
			if err := a.sendNext(); err != nil {
				if !errors.Is(err, io.EOF) {
					a.cancel() // the receiver learns of it by that
				}
				return
			}
		}
	}
}

func (a *appender) ready() (ready, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queue.ended != nil {
		return false, a.isClosed
	}
	return len(a.queue.waiting) > 0 && len(a.queue.inFlight) < maxInFlight, false
}

// sendNext takes a request and sends it; io.EOF means that the stream has ended.
func (a *appender) sendNext() error {
	a.encoding.Lock()
	encoded := sync.OnceFunc(a.encoding.Unlock)
	defer encoded()
	a.mu.Lock()
	r := a.queue.take()
	a.mu.Unlock()
	if r == nil {
		return nil
	}
	return a.stream.SendMsg(&outgoing{request: r, buffers: &a.buffers, encoded: encoded})
}

// end ends the handle after an unknown outcome; mu is held.
func (a *appender) end(cause error) []*call {
	finished := a.queue.end(tooLate(a.channel, cause))
	a.markBroken()
	a.freed()
	return finished
}

func (a *appender) markBroken() {
	if !a.isClosed && !a.isBroken {
		a.isBroken = true
		close(a.broken)
	}
}

// lose ends the handle because the stream is of no use any more.
func (a *appender) lose(cause error) {
	a.mu.Lock()
	finished := a.end(cause)
	unknown := walimpls.Errorf(walimpls.CodeUnknownOutcome, a.channel, "append: no answer from the plugin: %v", cause)
	finished = append(finished, a.queue.lose(unknown)...)
	a.freed()
	a.mu.Unlock()
	a.settled()
	deliver(finished)
}

// close refuses everything that is not sent yet. What is in flight may still be answered.
func (a *appender) close() {
	a.mu.Lock()
	closed := closedError(a.channel, "append")
	finished := a.queue.end(closed)
	a.queue.ended = closed // also where it had ended for another reason before
	a.isClosed = true
	a.freed()
	a.mu.Unlock()
	a.signal()
	deliver(finished)
}

// abandon gives the caller of c its outcomes because ctx has ended. It returns
// false if they are on their way already.
func (a *appender) abandon(ctx context.Context, c *call) bool {
	cause := ctxError(ctx, a.channel)
	sent := walimpls.Errorf(walimpls.CodeUnknownOutcome, a.channel, "append: the caller gave up while the record was under way: %w", ctx.Err())
	a.mu.Lock()
	unknown, ok := a.queue.abandon(c, cause, sent)
	var finished []*call
	if unknown {
		finished = a.end(sent)
	}
	a.freed()
	a.mu.Unlock()
	deliver(finished)
	a.settled()
	return ok
}

// settled returns when the sender does not look at records any more whose outcome
// is known: it may be known while they are still being encoded.
func (a *appender) settled() {
	a.encoding.Lock()
	defer a.encoding.Unlock()
}

func deliver(finished []*call) {
	for _, c := range finished {
		c.done(c.outcomes)
	}
}
