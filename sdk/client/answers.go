package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// group is one request's records, and later their results.
type group struct {
	records []*walv1.AppendRecord
	// slab saves an allocation for each record; it grows with the group.
	slab    []walv1.AppendRecord
	bytes   int
	done    chan struct{}
	results []Result // valid when done is closed
}

func newGroup() *group { return &group{done: make(chan struct{})} }

func (g *group) add(rec *Record, most int) {
	if len(g.slab) == 0 {
		g.slab = make([]walv1.AppendRecord, max(1, min(len(g.records), most-len(g.records))))
	}
	p := &g.slab[0]
	g.slab = g.slab[1:]
	rec.fill(p)
	g.records = append(g.records, p)
}

func (g *group) finish(results []Result) {
	g.results, g.records, g.slab = results, nil, nil
	close(g.done)
}

// Future is the Result of a record to come.
type Future struct {
	group *group
	index int
}

func doneFuture(r Result) *Future {
	g := newGroup()
	g.finish([]Result{r})
	return &Future{group: g}
}

// Done is closed when the Result is there.
func (f *Future) Done() <-chan struct{} { return f.group.done }

// Result returns the Result; it blocks until Done is closed.
func (f *Future) Result() Result {
	<-f.group.done
	return f.group.results[f.index]
}

// Wait returns the Result and its error. When ctx ends first it returns ctx's
// error, and the record goes its way.
func (f *Future) Wait(ctx context.Context) (Result, error) {
	select {
	case <-f.group.done:
		r := f.Result()
		return r, r.Err
	case <-ctx.Done():
		return Result{State: walimpls.Unknown, Err: ctx.Err()}, ctx.Err()
	}
}

// receive takes the host's answers until the stream ends, then settles what was
// not answered.
func (a *Appender) receive() {
	defer a.running.Done()
	err := a.answers()
	state := walimpls.Unknown
	var ended *hostEnd
	switch {
	case errors.As(err, &ended):
		state, err = walimpls.NotStored, ended.cause
	case refused(err):
		state, err = walimpls.NotStored, a.client.callError(a.ctx, err, nothingSent)
	case errors.Is(err, io.EOF):
		err = walimpls.Errorf(walimpls.CodeUnknownOutcome, a.channel, "append: the host ended the stream without an answer")
	case !errors.Is(err, walimpls.ErrUnknownOutcome):
		err = a.client.unknownAppend(a.ctx, a.channel, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.sent {
		a.bytes -= g.bytes
		g.finish(same(len(g.records), state, err))
	}
	if len(a.sent) > 0 || len(a.queue) > 0 || !a.closed {
		a.fail(err)
	}
	a.sent = nil
	// After a breach of the protocol the stream is still there: end it.
	a.cancel()
}

// hostEnd is how a host ends a stream by itself: nothing that it did not answer
// was handed to the log.
type hostEnd struct{ cause error }

func (e *hostEnd) Error() string { return e.cause.Error() }

// answers handles the host's answers and returns how the stream ended.
func (a *Appender) answers() error {
	for next := uint64(1); ; next++ {
		resp, err := a.stream.Recv()
		if err != nil {
			return err
		}
		if end := resp.GetEnd(); end != nil {
			return &hostEnd{cause: fromHost(end)}
		}
		a.mu.Lock()
		if resp.GetSequence() != next || len(a.sent) == 0 {
			a.mu.Unlock()
			return walimpls.Errorf(walimpls.CodeUnknownOutcome, a.channel, "append: the host answered request %d instead of %d", resp.GetSequence(), next)
		}
		g := a.sent[0]
		results, err := toResults(a.channel, len(g.records), resp.GetResults())
		if err != nil {
			a.mu.Unlock()
			return err
		}
		a.sent[0] = nil
		a.sent = a.sent[1:]
		a.bytes -= g.bytes
		g.finish(results)
		if err := worst(results); err != nil {
			a.fail(err)
		}
		a.work.Signal()
		a.room.Broadcast()
		a.mu.Unlock()
	}
}

// refused reports whether a call ended before any handler of the host saw it.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return true
	}
	return false
}

// Flush waits until all that was appended so far has its Result. It returns the
// first failure, or ctx's error when that ends first.
func (a *Appender) Flush(ctx context.Context) error {
	a.mu.Lock()
	var last *group
	if n := len(a.queue); n > 0 {
		last = a.queue[n-1]
	} else if n := len(a.sent); n > 0 {
		last = a.sent[n-1]
	}
	a.mu.Unlock()
	if last != nil {
		select {
		case <-last.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return a.Err()
}

// Err returns the first failure, nil if there was none.
func (a *Appender) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// Close waits until all that was appended has its Result, ends the stream and
// returns the first failure. When ctx ends first the stream is cut: what was
// handed over and not answered is ErrUnknownOutcome. It always waits for the
// Appender's goroutines, and may be called more than once.
func (a *Appender) Close(ctx context.Context) error {
	a.mu.Lock()
	a.closed = true
	a.work.Signal()
	a.room.Broadcast()
	a.mu.Unlock()
	stop := context.AfterFunc(ctx, a.cancel)
	a.running.Wait()
	stop()
	a.cancel()
	return a.Err()
}
