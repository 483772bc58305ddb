package wal

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/host/wal/tso"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// termWAL is the WAL of one term. Its goroutine (run) owns the handle: it sends
// what waits, replaces a lost handle and settles what that left unknown. A
// second one (beat) writes time ticks, extends the tick window and lets
// transactions expire. Both end with Close, or when the term ends.
type termWAL struct {
	claim *claim
	opt   Options
	log   *zap.Logger
	chain *interceptors.Chain
	// vchannels are the declared ones; vchannelWrites is held while the row's are
	// changed.
	vchannels      *vchannels
	vchannelWrites sync.Mutex
	buffer         *wab.Buffer
	clock          *tso.Clock

	// ctx ends when Close is called or the term ends.
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed with err set
	wg     sync.WaitGroup
	// wake tells run that there is something to send or that the handle is
	// lost; pulse tells beat that something needs a tick or a wider window now.
	wake  chan struct{}
	pulse chan struct{}

	mu   sync.Mutex // guards all below
	core *owner.Core
	// calls holds the answers that unresolved batches owe.
	calls map[*owner.Batch]*call
	// sendable lists batches with queued records, in tick order.
	sendable []*owner.Batch
	// sentBytes and sentGroups count what the present handle has not answered;
	// answers of another generation are ignored.
	sentBytes  int
	sentGroups int
	maxGroups  int
	handle     asyncHandle // nil while reopening
	generation int
	lost       bool
	channel    walimpls.Channel
	lastErr    error
	err        error // why the WAL ended
	// txns holds what the core does not know of the open transactions: their
	// time. ends holds who waits for their end.
	txns map[uint64]*txnClock
	ends map[uint64]*call
	// change is closed and replaced at every progress while somebody waits for it.
	change  chan struct{}
	awaited bool
	readers map[*readerHandle]struct{}
	// lastReader is the newest reader's number.
	lastReader uint64
	// waiting counts the appends that wait for their ticks.
	waiting int
	// violations are those of the scanners that were closed.
	violations int64
	// lastPersisted is when the last persisted time tick was accepted.
	lastPersisted time.Time
}

// call is what a batch owes to whoever appended it.
type call struct {
	done func([]Result)
	errs []error
	// txnStart is the last confirmed id of the transaction's begin.
	txnStart message.ID
	release  func() bool
	answered bool
	// settled is called when the batch is resolved, also if it was answered long
	// before; nil for none.
	settled func()
}

func newTermWAL(c *claim, opt Options, row catalog.Row, open *opening) *termWAL {
	w := &termWAL{
		claim: c, opt: opt, log: c.log,
		clock: open.clock, core: owner.New(c.term, open.tick),
		buffer: wab.New(wab.Options{MaxBytes: opt.WABBytes, MaxAge: opt.WABAge}, open.tick),
		done:   make(chan struct{}), wake: make(chan struct{}, 1), pulse: make(chan struct{}, 1),
		calls: map[*owner.Batch]*call{}, txns: map[uint64]*txnClock{}, ends: map[uint64]*call{},
		change: make(chan struct{}), readers: map[*readerHandle]struct{}{}, lastPersisted: time.Now(),
	}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	w.vchannels = newVChannels(w)
	w.vchannels.take(row)
	if row.VChannelsKnown {
		w.vchannels.open()
	}
	w.chain = interceptors.NewChain(w.accept,
		interceptors.Metrics(opt.Observer),
		interceptors.Term(w.Err),
		interceptors.Lock(),
		interceptors.VChannels(w.vchannels),
		interceptors.Txn(bodies{w}),
	)
	w.install(open.handle)
	w.wg.Add(3)
	go w.run()
	go w.beat()
	go w.recoverVChannels(row)
	return w
}

// Channel implements WAL.
func (w *termWAL) Channel() walimpls.Channel {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.channel
}

// Done implements WAL.
func (w *termWAL) Done() <-chan struct{} { return w.done }

// Err implements WAL.
func (w *termWAL) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Status implements WAL.
func (w *termWAL) Status() Status {
	w.mu.Lock()
	s := Status{
		Channel: w.channel, Reopening: w.handle == nil && w.err == nil,
		LastTick: w.core.Released(), LastConfirmed: w.core.LastConfirmed(),
		Violations: w.violations,
		OpenTxns:   len(w.core.Txns()), UnresolvedBytes: w.core.UnresolvedBytes(),
	}
	if s.Reopening {
		s.LastError = w.lastErr
	}
	readers := make([]*readerHandle, 0, len(w.readers))
	for r := range w.readers {
		readers = append(readers, r)
	}
	w.mu.Unlock()
	s.WAB = w.buffer.Stats()
	for _, r := range readers {
		st := r.scanner.Status()
		st.Number = r.number
		s.Violations += st.Violations
		s.Readers = append(s.Readers, st)
	}
	return s
}

// changed wakes everybody who waits for progress; w.mu is held.
func (w *termWAL) changed() {
	if w.awaited {
		close(w.change)
		w.change, w.awaited = make(chan struct{}), false
	}
}

// progressed returns the channel that the next progress closes; w.mu is held.
func (w *termWAL) progressed() <-chan struct{} {
	w.awaited = true
	return w.change
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// settle puts what became settled into the write-ahead buffer, accepts the ends
// of transactions that became ready, and lets a waiting time tick go. It
// returns the answers that are due; w.mu is held, so the caller gives them
// after it unlocked.
func (w *termWAL) settle() {
	w.endReadyTxns()
	if t := w.core.SendableTick(); t != nil {
		w.sendable = append([]*owner.Batch{t}, w.sendable...)
	}
	released, tick := w.core.Release()
	if tick > w.buffer.Horizon() {
		w.buffer.Append(released, w.progress(tick, released))
	}
	w.changed()
	poke(w.wake)
}

// progress is the time tick that tells readers of the write-ahead buffer how
// far everything is settled: the persisted one if it is the last released
// record, else one that lives in memory alone.
func (w *termWAL) progress(tick message.Tick, released []message.Message) message.Message {
	if n := len(released); n > 0 && released[n-1].Type == message.TypeTimeTick && released[n-1].TimeTick == tick {
		return released[n-1]
	}
	return message.Message{
		Type: message.TypeTimeTick, TimeTick: tick, Term: w.claim.term,
		Incarnation: w.channel.Incarnation, LastConfirmed: w.core.Confirmed(),
	}
}

// end makes the WAL useless for ever and answers everything that waits: a term
// that ends leaves its unresolved records unknown.
func (w *termWAL) end(err error) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.err = err
	var due []func()
	for b, c := range w.calls {
		if f := w.answerUnresolved(b, c, err); f != nil {
			due = append(due, f)
		}
		if c.settled != nil {
			due = append(due, c.settled)
		}
	}
	clear(w.calls)
	for id, c := range w.ends {
		due = append(due, w.answerEnd(c, Result{Outcome: walimpls.Outcome{
			State: walimpls.Unknown,
			Err:   walimpls.Errorf(walimpls.CodeUnknownOutcome, w.claim.channel, "transaction %d: %w", id, err),
		}}))
	}
	clear(w.ends)
	w.changed()
	close(w.done)
	w.mu.Unlock()
	w.cancel(err)
	w.buffer.Close(err)
	for _, f := range due {
		f()
	}
}

// Close implements WAL.
func (w *termWAL) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, walimpls.GracePeriod)
	defer cancel()
	w.chain.Refuse()
	w.lastTick(ctx)
	w.end(walimpls.Errorf(walimpls.CodeClosed, w.claim.channel, "the WAL of term %d is closed", w.claim.term))
	w.chain.Close(ctx)
	w.mu.Lock()
	readers := make([]*readerHandle, 0, len(w.readers))
	for r := range w.readers {
		readers = append(readers, r)
	}
	w.mu.Unlock()
	for _, r := range readers {
		_ = r.scanner.Close()
	}
	stopped := make(chan struct{})
	go func() { w.wg.Wait(); close(stopped) }()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return walimpls.ContextError(ctx, w.claim.channel, "close")
	}
}
