package remote

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// sendGrace is how long Close waits for the sender to end its side of the append
// stream before it asks the plugin to close; a stuck sender is cut off later.
const sendGrace = 100 * time.Millisecond

// WAL is a walimpls.WAL in a plugin process. It is safe for concurrent use.
type WAL struct {
	client   *Client
	handle   uint64
	channel  walimpls.Channel
	limits   walimpls.Limits
	appender *appender

	mu       sync.Mutex
	scanners map[*Scanner]struct{}

	closeOnce sync.Once
	closing   chan struct{} // closed when Close has begun
	closed    chan struct{} // closed when it is over
	closeErr  error         // valid when closed is closed
}

var _ walimpls.WAL = (*WAL)(nil)

// attach opens the Append stream, which is the handle's life-line too: the plugin
// closes the handle when it ends. Read-only handles have one for that reason.
func (w *WAL) attach(ctx context.Context) error {
	own, cancel := context.WithCancel(context.Background())
	// ctx bounds the attaching, not the stream.
	stop := context.AfterFunc(ctx, cancel)
	stream, err := w.client.rpc.Append(own, streamOptions()...)
	if err == nil {
		// An error of Send says only that the stream has ended; Recv says why.
		_ = stream.Send(&pluginv1.AppendRequest{Handle: w.handle})
		_, err = stream.Recv()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return callError(ctx, w.channel.Name, err)
	}
	w.appender = newAppender(w.channel.Name, w.limits, stream, cancel)
	w.appender.start()
	return nil
}

// Channel implements walimpls.WAL.
func (w *WAL) Channel() walimpls.Channel { return w.channel }

// Broken is closed when the handle can never append again although nobody closed
// it: an outcome is unknown, or the stream to the plugin broke. The way on is to
// Close it and to Open with the next incarnation.
func (w *WAL) Broken() <-chan struct{} { return w.appender.broken }

// AppendAsync hands the batch over; batches reach the log in the order of the
// calls. It never blocks. done is called exactly once, from another goroutine, with
// one outcome a record; it must not block and must not call Close, because other
// outcomes wait behind it. The batch belongs to the WAL until then. There is no
// bound on what waits: a caller that needs one keeps it itself.
func (w *WAL) AppendAsync(batch []message.Message, done func([]walimpls.Outcome)) {
	if w.channel.Access == walimpls.AccessReadOnly {
		go done(walimpls.BatchFailure(w.channel.Name, len(batch), walimpls.NotStored, w.readOnly("append")).Outcomes)
		return
	}
	c := &call{batch: batch, done: done}
	if len(batch) == 0 || w.appender.push(c) {
		go done(c.outcomes)
	}
}

// Append implements walimpls.WAL. It waits while too much is queued. When ctx ends,
// records that were not sent are not stored, with ctx's error, and those that were
// are ErrUnknownOutcome, which ends the handle.
func (w *WAL) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	if w.channel.Access == walimpls.AccessReadOnly {
		return nil, w.readOnly("append")
	}
	if len(batch) == 0 {
		return nil, nil
	}
	err := w.appender.waitForSpace(ctx)
	if err == nil && ctx.Err() != nil {
		err = ctxError(ctx, w.channel.Name)
	}
	if err != nil {
		return nil, walimpls.BatchFailure(w.channel.Name, len(batch), walimpls.NotStored, err)
	}
	done := make(chan struct{})
	c := &call{batch: batch, done: func([]walimpls.Outcome) { close(done) }}
	if !w.appender.push(c) {
		select {
		case <-done:
		case <-ctx.Done():
			if !w.appender.abandon(ctx, c) {
				<-done
			}
		}
	}
	ids := make([]message.ID, len(batch))
	for i, o := range c.outcomes {
		if o.State != walimpls.Stored {
			return nil, &walimpls.BatchError{Channel: w.channel.Name, Outcomes: c.outcomes}
		}
		ids[i] = o.ID
	}
	return ids, nil
}

func (w *WAL) readOnly(what string) error {
	e := walimpls.Errorf(walimpls.CodeReadOnly, w.channel.Name, "%s: the handle was opened read-only", what)
	e.Hint = "open the channel read-write, with a term"
	return e
}

func (w *WAL) usable(what string) error {
	select {
	case <-w.closing:
		return closedError(w.channel.Name, what)
	default:
		return nil
	}
}

// Truncate implements walimpls.WAL.
func (w *WAL) Truncate(ctx context.Context, before message.ID) error {
	if err := w.usable("truncate"); err != nil {
		return err
	}
	if w.channel.Access == walimpls.AccessReadOnly {
		return w.readOnly("truncate")
	}
	_, err := w.client.rpc.Truncate(ctx, &pluginv1.TruncateRequest{Handle: w.handle, Before: []byte(before)}, callOptions()...)
	return callError(ctx, w.channel.Name, err)
}

// Bounds implements walimpls.WAL.
func (w *WAL) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	if err := w.usable("bounds"); err != nil {
		return walimpls.Bounds{}, err
	}
	resp, err := w.client.rpc.Bounds(ctx, &pluginv1.BoundsRequest{Handle: w.handle}, callOptions()...)
	if err != nil {
		return walimpls.Bounds{}, callError(ctx, w.channel.Name, err)
	}
	return wire.BoundsFromProto(resp), nil
}

// Close implements walimpls.WAL. It is bounded by walimpls.GracePeriod even when
// the plugin hangs: then its error says so, and the handle is closed on this side
// all the same. A plugin that is gone is no error: it holds nothing any more.
func (w *WAL) Close(ctx context.Context) error {
	w.closeOnce.Do(func() {
		close(w.closing)
		w.appender.close()
		go w.finish()
	})
	select {
	case <-w.closed:
		return w.closeErr
	case <-ctx.Done():
		return ctxError(ctx, w.channel.Name)
	}
}

// finish does the slow part of Close.
func (w *WAL) finish() {
	defer close(w.closed)
	defer w.client.forget(w)
	ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
	defer cancel()
	w.closeScanners()
	// The end of the stream comes before the close, so that the plugin can tell a
	// batch on its way from none.
	select {
	case <-w.appender.sent:
	case <-time.After(sendGrace):
	}
	_, err := w.client.rpc.CloseWAL(ctx, &pluginv1.CloseWALRequest{Handle: w.handle}, callOptions()...)
	if err == nil {
		select {
		case <-w.appender.received:
		case <-ctx.Done():
		}
	}
	w.appender.cancel()
	<-w.appender.received
	<-w.appender.sent
	switch {
	case err == nil:
	case ctx.Err() != nil, status.Code(err) == codes.DeadlineExceeded:
		w.closeErr = walimpls.Errorf(walimpls.CodeTimeout, w.channel.Name, "close: the plugin did not close it within %s; the handle is given up", walimpls.GracePeriod)
	case isTyped(err):
		w.closeErr = callError(ctx, w.channel.Name, err)
	default: // the plugin is gone
	}
}

func (w *WAL) closeScanners() {
	w.mu.Lock()
	var open []*Scanner
	for s := range w.scanners {
		open = append(open, s)
	}
	w.mu.Unlock()
	for _, s := range open {
		_ = s.Close()
	}
}
