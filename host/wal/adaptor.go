package wal

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// adaptor is the WAL of one term. Its goroutine (run) owns the handle: it sends
// what waits, replaces a lost handle, and ends the WAL.
type adaptor struct {
	claim *claim
	opt   Options
	log   *zap.Logger

	// ctx ends when Close is called; stopped closes when run has returned.
	ctx     context.Context
	cancel  context.CancelFunc
	stopped chan struct{}
	done    chan struct{}
	// wake tells run that there is something to send or that the handle is lost.
	wake chan struct{}

	mu sync.Mutex // guards all below
	q  *queue
	// room is closed and replaced whenever bytes leave the queue.
	room   chan struct{}
	handle asyncHandle // nil while reopening
	// generation counts the handles; change is closed and replaced with each.
	generation int
	change     chan struct{}
	lost       bool // the present handle is of no more use
	pair       walimpls.Channel
	lastErr    error
	err        error // why the WAL ended
	readers    map[*reader]struct{}
}

func newAdaptor(c *claim, handle walimpls.WAL, opt Options) *adaptor {
	a := &adaptor{
		claim: c, opt: opt, log: c.log,
		stopped: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
		q: newQueue(), room: make(chan struct{}), change: make(chan struct{}), readers: map[*reader]struct{}{},
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.install(handle)
	go a.run()
	return a
}

// Channel implements WAL.
func (a *adaptor) Channel() walimpls.Channel {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pair
}

// Done implements WAL.
func (a *adaptor) Done() <-chan struct{} { return a.done }

// Err implements WAL.
func (a *adaptor) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Status implements WAL.
func (a *adaptor) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Status{Channel: a.pair, Reopening: a.handle == nil && a.err == nil}
	if s.Reopening {
		s.LastError = a.lastErr
	}
	for r := range a.readers {
		s.Readers = append(s.Readers, ReaderStatus{Name: r.opt.Name})
	}
	return s
}

// Append implements WAL.
func (a *adaptor) Append(ctx context.Context, batch []message.Message) []walimpls.Outcome {
	if len(batch) == 0 {
		return nil
	}
	result := make(chan []walimpls.Outcome, 1)
	e := &entry{batch: batch, done: func(out []walimpls.Outcome) { result <- out }}
	if err := a.enqueue(ctx, e, false); err != nil {
		return notStored(a.claim.channel, len(batch), err)
	}
	a.poke()
	select {
	case out := <-result:
		return out
	case <-ctx.Done():
	}
	switch a.cancelWaiting(e) {
	case entryWaiting:
		return notStored(a.claim.channel, len(batch), a.tooLate(ctx))
	case entrySent:
		return unknown(a.claim.channel, len(batch), "append: %v after the batch was handed to the backend", context.Cause(ctx))
	default:
		return <-result
	}
}

// AppendAsync implements WAL.
func (a *adaptor) AppendAsync(ctx context.Context, batch []message.Message, done func([]walimpls.Outcome)) {
	if len(batch) == 0 {
		go done(nil)
		return
	}
	e := &entry{batch: batch, done: done}
	if err := a.enqueue(ctx, e, true); err != nil {
		go done(notStored(a.claim.channel, len(batch), err))
		return
	}
	a.poke()
}

// enqueue waits for room and puts e into the queue. With watch, e is answered
// when ctx ends before a backend has seen it.
func (a *adaptor) enqueue(ctx context.Context, e *entry, watch bool) error {
	for {
		a.mu.Lock()
		if a.err != nil {
			err := a.err
			a.mu.Unlock()
			return err
		}
		if ctx.Err() != nil {
			a.mu.Unlock()
			return contextError(ctx, a.claim.channel, "append: nothing was handed to the backend")
		}
		if a.q.bytes == 0 || a.q.bytes < a.opt.MaxWaitingBytes {
			a.q.add(e)
			if watch && ctx.Done() != nil {
				e.release = context.AfterFunc(ctx, func() { a.giveUpWaiting(ctx, e) })
			}
			a.mu.Unlock()
			return nil
		}
		room := a.room
		a.mu.Unlock()
		select {
		case <-room:
		case <-a.done:
		case <-ctx.Done():
		}
	}
}

// giveUpWaiting answers an entry whose caller has left, if no backend saw it.
func (a *adaptor) giveUpWaiting(ctx context.Context, e *entry) {
	if a.cancelWaiting(e) == entryWaiting {
		e.done(notStored(a.claim.channel, len(e.batch), a.tooLate(ctx)))
	}
}

// cancelWaiting takes e out of the queue if it still waits, and returns the
// state that it was in.
func (a *adaptor) cancelWaiting(e *entry) entryState {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := e.state
	if a.q.cancel(e) {
		a.madeRoom()
	}
	return state
}

// tooLate is the error of a batch whose caller left before a backend saw it.
func (a *adaptor) tooLate(ctx context.Context) error {
	err := contextError(ctx, a.claim.channel, "append: nothing was handed to the backend")
	a.mu.Lock()
	cause := a.lastErr
	a.mu.Unlock()
	if cause != nil {
		err.Message += "; the backend is not available: " + cause.Error()
	}
	return err
}

// madeRoom wakes callers that wait for room; a.mu is held.
func (a *adaptor) madeRoom() {
	close(a.room)
	a.room = make(chan struct{})
}

func (a *adaptor) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run owns the handle until the WAL ends.
func (a *adaptor) run() {
	defer close(a.stopped)
	for {
		a.serve()
		a.retire()
		if a.ctx.Err() != nil {
			a.end(walimpls.Errorf(walimpls.CodeClosed, a.claim.channel, "the WAL of term %d is closed", a.claim.term))
			return
		}
		handle, err := a.reopen()
		if err != nil && a.ctx.Err() == nil {
			a.log.Warn("term ended", zap.Error(err))
			a.end(err)
			return
		}
		if err == nil {
			a.install(handle)
		}
	}
}

// serve sends what waits until the handle is lost or the WAL closes.
func (a *adaptor) serve() {
	a.mu.Lock()
	handle := a.handle
	a.mu.Unlock()
	if handle == nil {
		return
	}
	var broken <-chan struct{}
	if b, ok := handle.(breaker); ok {
		broken = b.Broken()
	}
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-broken:
			return
		case <-a.wake:
		}
		for {
			a.mu.Lock()
			if a.lost {
				a.mu.Unlock()
				return
			}
			e := a.q.take(a.opt.MaxSentBytes)
			a.mu.Unlock()
			if e == nil {
				break
			}
			handle.AppendAsync(e.batch, func(out []walimpls.Outcome) { a.answer(e, out) })
		}
	}
}

// answer takes the handle's outcomes for e.
func (a *adaptor) answer(e *entry, out []walimpls.Outcome) {
	a.mu.Lock()
	v, ok := a.q.answer(e, out)
	if ok {
		a.lost = a.lost || v.lost
		if v.lost {
			a.lastErr = firstError(out)
		}
		a.madeRoom()
	}
	a.mu.Unlock()
	a.poke()
	if ok && v.finished {
		a.finish(e, out)
	}
}

// finish tells the caller of an entry that left the queue.
func (a *adaptor) finish(e *entry, out []walimpls.Outcome) {
	if e.release != nil {
		e.release()
	}
	e.done(out)
}

func firstError(out []walimpls.Outcome) error {
	for _, o := range out {
		if o.Err != nil {
			return o.Err
		}
	}
	return nil
}

// retire closes the handle and settles what it was sent. The contract gives
// Close the grace period; a backend that does not keep it loses its entries to
// "unknown" all the same.
func (a *adaptor) retire() {
	a.mu.Lock()
	handle := a.handle
	a.handle, a.lost = nil, false
	a.mu.Unlock()
	if handle != nil {
		ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
		closeBounded(ctx, handle, a.log)
		a.awaitAnswers(ctx)
		cancel()
	}
	a.mu.Lock()
	silent := a.q.giveUp()
	refused := a.q.requeue()
	a.lost = false
	a.madeRoom()
	a.mu.Unlock()
	for _, e := range silent {
		a.finish(e, unknown(a.claim.channel, len(e.batch), "append: the backend's handle was lost without an answer"))
	}
	for _, e := range refused {
		a.finish(e, notStored(a.claim.channel, len(e.batch), walimpls.Errorf(walimpls.CodeUnavailable, a.claim.channel,
			"append: the backend refused the batch and took a later one; it is not sent again, to keep the order")))
	}
}

// closeBounded closes a handle that may break the contract and hang: its
// goroutine is left behind then, and ends when the handle lets go.
func closeBounded(ctx context.Context, handle walimpls.WAL, log *zap.Logger) {
	closed := make(chan error, 1)
	go func() { closed <- handle.Close(ctx) }()
	select {
	case err := <-closed:
		if err != nil {
			log.Debug("close of a handle", zap.Error(err))
		}
	case <-ctx.Done():
		log.Warn("the backend's handle does not close")
	}
}

// awaitAnswers waits until the closed handle has answered everything.
func (a *adaptor) awaitAnswers(ctx context.Context) {
	for {
		a.mu.Lock()
		left, room := len(a.q.sent), a.room
		a.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-room:
		case <-ctx.Done():
			return
		}
	}
}

// reopen opens the next incarnation; it goes on until it works, fails for good
// or the WAL is closed.
func (a *adaptor) reopen() (walimpls.WAL, error) {
	pause := backoff{first: 20 * time.Millisecond, most: 5 * time.Second}
	for {
		handle, err := a.claim.attempt(a.ctx)
		if err == nil {
			return handle, nil
		}
		a.mu.Lock()
		a.lastErr = err
		a.mu.Unlock()
		if errors.Is(err, walimpls.ErrFenced) {
			return nil, walimpls.Errorf(walimpls.CodeTermExpired, a.claim.channel, "term %d ended: %w", a.claim.term, err)
		}
		if !transient(err) || a.ctx.Err() != nil {
			return nil, err
		}
		a.log.Warn("reopen failed, trying again", zap.Int64("incarnation", a.claim.incarnation), zap.Error(err))
		if !pause.wait(a.ctx) {
			return nil, err
		}
	}
}

// install makes handle the present one.
func (a *adaptor) install(handle walimpls.WAL) {
	h := async(handle)
	a.mu.Lock()
	a.handle, a.lost, a.lastErr = h, false, nil
	a.pair = h.Channel()
	a.generation++
	close(a.change)
	a.change = make(chan struct{})
	again := a.generation > 1
	a.mu.Unlock()
	a.log.Info("opened", zap.Int64("incarnation", h.Channel().Incarnation), zap.Bool("again", again))
	a.poke()
}

// end makes the WAL useless for ever and answers everything that waits.
func (a *adaptor) end(err error) {
	a.mu.Lock()
	a.err = err
	rest := a.q.drain()
	close(a.done)
	a.mu.Unlock()
	for _, e := range rest {
		a.finish(e, notStored(a.claim.channel, len(e.batch), err))
	}
}

// awaitHandle returns a handle of a generation above after.
func (a *adaptor) awaitHandle(ctx context.Context, after int) (asyncHandle, int, error) {
	for {
		a.mu.Lock()
		handle, generation, change, err := a.handle, a.generation, a.change, a.err
		a.mu.Unlock()
		if err != nil {
			return nil, 0, err
		}
		if handle != nil && generation > after {
			return handle, generation, nil
		}
		select {
		case <-change:
		case <-a.done:
		case <-ctx.Done():
			return nil, 0, contextError(ctx, a.claim.channel, "waiting for the backend")
		}
	}
}

// Truncate implements WAL.
func (a *adaptor) Truncate(ctx context.Context, before message.ID) error {
	return a.withHandle(ctx, func(h asyncHandle) error { return h.Truncate(ctx, before) })
}

// Bounds implements WAL.
func (a *adaptor) Bounds(ctx context.Context) (b walimpls.Bounds, err error) {
	err = a.withHandle(ctx, func(h asyncHandle) error {
		b, err = h.Bounds(ctx)
		return err
	})
	return b, err
}

// withHandle calls do, on the next handle again when one is lost meanwhile.
// do must be idempotent.
func (a *adaptor) withHandle(ctx context.Context, do func(asyncHandle) error) error {
	generation := 0
	for {
		handle, g, err := a.awaitHandle(ctx, generation)
		if err != nil {
			return err
		}
		if err = do(handle); err == nil || !endsHandle(err) || ctx.Err() != nil {
			return err
		}
		a.giveUp(g, err)
		generation = g
	}
}

// giveUp says that the handle of that generation is of no more use.
func (a *adaptor) giveUp(generation int, why error) {
	a.mu.Lock()
	if a.generation == generation && a.handle != nil {
		a.lost, a.lastErr = true, why
	}
	a.mu.Unlock()
	a.poke()
}

// Close implements WAL.
func (a *adaptor) Close(ctx context.Context) error {
	a.cancel()
	var err error
	select {
	case <-a.stopped:
	case <-ctx.Done():
		err = contextError(ctx, a.claim.channel, "close")
	}
	a.mu.Lock()
	readers := make([]*reader, 0, len(a.readers))
	for r := range a.readers {
		readers = append(readers, r)
	}
	a.mu.Unlock()
	for _, r := range readers {
		_ = r.Close()
	}
	return err
}
