package client

import (
	"context"
	"runtime"
	"sync"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// AppenderOptions bound what an Appender holds. The zero value is good for most.
type AppenderOptions struct {
	// RequestRecords and RequestBytes bound one request; 0 is 512 records and
	// 1 MiB. A larger record goes alone.
	RequestRecords int
	RequestBytes   int
	// InFlight is how many requests may wait for their answers; 0 is 4. More
	// makes requests smaller, not the log faster.
	InFlight int
	// MaxBytes bounds what was appended and not answered: Append blocks above
	// it. 0 is 16 MiB. A larger record is taken when it is alone.
	MaxBytes int
	// TxnID makes the records a part of that open transaction; see Txn.
	TxnID uint64
}

func (o AppenderOptions) withDefaults() AppenderOptions {
	def := func(v *int, to int) {
		if *v <= 0 {
			*v = to
		}
	}
	def(&o.RequestRecords, 512)
	def(&o.RequestBytes, 1<<20)
	def(&o.InFlight, 4)
	def(&o.MaxBytes, 16<<20)
	return o
}

// Appender appends records to one channel in the order of its Append calls, and
// collects them into requests while earlier ones are under way. It is safe for
// concurrent use. After the first record that is not stored or unknown it
// refuses all that was not handed to the connection yet, and all later ones, as
// not stored: go on with a new Appender.
type Appender struct {
	client  *Client
	channel string
	opt     AppenderOptions
	ctx     context.Context
	cancel  context.CancelFunc
	stream  walv1.WALService_AppendStreamClient
	// running counts send and receive, which the Appender owns.
	running sync.WaitGroup

	mu     sync.Mutex // guards all below
	work   *sync.Cond // wakes send
	room   *sync.Cond // wakes Append
	queue  []*group   // not handed to the connection, in order
	sent   []*group   // handed over and not answered, in order
	bytes  int        // of queue and sent
	closed bool       // Close was called: no new records, the queue is still sent
	failed error      // the first failure: no new records, the queue is dropped
}

// NewAppender opens a stream to the channel, within the client's timeout; a
// channel that does not exist is ErrNotFound. The Appender lives until Close or until ctx ends: then what was
// handed over and not answered is ErrUnknownOutcome. Always Close it.
func (c *Client) NewAppender(ctx context.Context, channel string, opt AppenderOptions) (*Appender, error) {
	a := &Appender{client: c, channel: channel, opt: opt.withDefaults()}
	a.work, a.room = sync.NewCond(&a.mu), sync.NewCond(&a.mu)
	a.ctx, a.cancel = context.WithCancel(ctx)
	late := c.handshake(ctx, a.cancel)
	if err := late(a.open()); err != nil {
		a.cancel()
		return nil, err
	}
	a.running.Add(2)
	go a.send()
	go a.receive()
	return a, nil
}

// open starts the stream and waits for the host's word that the channel exists.
// Nothing but the channel's name is sent by then.
func (a *Appender) open() error {
	stream, err := a.client.wal.AppendStream(a.ctx)
	if err != nil {
		return a.client.callError(a.ctx, err, nothingSent)
	}
	// A Send that fails leaves the reason to Recv.
	_ = stream.Send(&walv1.AppendStreamRequest{Channel: a.channel, TxnId: a.opt.TxnID})
	resp, err := stream.Recv()
	if err != nil {
		return a.client.callError(a.ctx, err, nothingSent)
	}
	if end := resp.GetEnd(); end != nil {
		return fromHost(end)
	}
	a.stream = stream
	return nil
}

// Append takes a record and returns the Future of its Result. It blocks while
// more than MaxBytes wait for their answers. The record's bytes must not be
// written to until the Future is done.
func (a *Appender) Append(rec Record) *Future {
	size, err := check(a.channel, &rec)
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.closed && a.failed == nil && a.bytes > 0 && a.bytes+size > a.opt.MaxBytes {
		a.room.Wait()
	}
	switch {
	case a.failed != nil:
		return doneFuture(Result{State: walimpls.NotStored, Err: a.refusal()})
	case a.closed:
		return doneFuture(Result{State: walimpls.NotStored, Err: walimpls.Errorf(walimpls.CodeClosed, a.channel, "append: the appender is closed")})
	case err != nil:
		a.fail(err)
		return doneFuture(Result{State: walimpls.NotStored, Err: err})
	}
	g := a.tail(size)
	g.add(&rec, a.opt.RequestRecords)
	g.bytes += size
	a.bytes += size
	a.work.Signal()
	return &Future{group: g, index: len(g.records) - 1}
}

// tail returns the group at the end of the queue that has room for size bytes;
// a.mu is held.
func (a *Appender) tail(size int) *group {
	if n := len(a.queue); n > 0 {
		g := a.queue[n-1]
		if len(g.records) < a.opt.RequestRecords && g.bytes+size <= a.opt.RequestBytes {
			return g
		}
	}
	g := newGroup()
	a.queue = append(a.queue, g)
	return g
}

// fail notes the first failure; a.mu is held.
func (a *Appender) fail(err error) {
	if a.failed == nil {
		a.failed = err
	}
	a.work.Signal()
	a.room.Broadcast()
}

// refusal is the error of a record that is not sent because of an earlier
// failure; a.mu is held.
func (a *Appender) refusal() error {
	e := walimpls.Errorf(walimpls.CodeClosed, a.channel, "append: not sent, because the stream has failed before: %v", a.failed)
	e.Retryable = true
	e.Hint = "append it with a new Appender"
	return e
}

// send hands requests to the connection until there will be no more.
func (a *Appender) send() {
	defer a.running.Done()
	for sequence := uint64(1); ; sequence++ {
		// Yielding lets callers that are about to append join this request: it
		// makes larger requests, and costs nothing when nobody is.
		for range 3 {
			runtime.Gosched()
		}
		records := a.next()
		if records == nil {
			_ = a.stream.CloseSend()
			return
		}
		if err := a.stream.Send(&walv1.AppendStreamRequest{Sequence: sequence, Records: records}); err != nil {
			// The stream has ended. receive learns why, and the request is unknown
			// unless the host said otherwise; nothing behind it may be handed over.
			a.mu.Lock()
			for a.failed == nil {
				a.work.Wait()
			}
			a.mu.Unlock()
		}
	}
}

// next returns the records of the next request, whose group is marked as handed
// over; nil when there will be none any more. The group itself may be settled
// by receive at any time from then on.
func (a *Appender) next() []*walv1.AppendRecord {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		switch {
		case a.failed != nil:
			for _, g := range a.queue {
				a.bytes -= g.bytes
				g.finish(same(len(g.records), walimpls.NotStored, a.refusal()))
			}
			a.queue = nil
			return nil
		case len(a.queue) > 0 && len(a.sent) < a.opt.InFlight:
			g := a.queue[0]
			a.queue[0] = nil
			a.queue = a.queue[1:]
			a.sent = append(a.sent, g)
			return g.records
		case len(a.queue) == 0 && a.closed:
			return nil
		}
		a.work.Wait()
	}
}
