package flusher

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Flusher flushes one pchannel at one term. It runs from Start to Close, or
// until the term ends; whatever fails meanwhile is tried again. It is safe for
// concurrent use.
type Flusher struct {
	opt   Options
	wal   Log
	store Store
	sink  Sink
	log   *zap.Logger

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the loop has ended

	mu      sync.Mutex // guards all below
	run     *run       // nil between two tries
	state   State
	err     error // why it does not run
	change  chan struct{}
	lost    bool // the next try begins at the earliest record
	counted Counters
}

// State is what a Flusher is doing.
type State string

// The states.
const (
	Recovering State = "recovering"
	Working    State = "working"
	Failed     State = "failed" // and tries again
	Ended      State = "ended"  // for good
)

// Start starts the flusher of a pchannel.
func Start(opt Options, wal Log, store Store, sink Sink) *Flusher {
	opt = opt.WithDefaults()
	name, _, term := wal.Channel()
	f := &Flusher{
		opt: opt, wal: wal, store: store, sink: sink, done: make(chan struct{}), change: make(chan struct{}), state: Recovering,
		log: opt.Log.With(zap.String("pchannel", name), zap.Int64("term", term)),
	}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	go f.loop()
	return f
}

// loop runs the flusher again and again until it has ended for good.
func (f *Flusher) loop() {
	defer close(f.done)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-f.wal.Done():
			f.cancel(termEnded(f.wal))
		case <-f.ctx.Done():
		}
	}()
	defer func() { f.cancel(nil); <-watched }()
	pause := f.opt.RetryMin
	for {
		r := newRun(f)
		f.set(r, Recovering, nil)
		began := f.opt.Now()
		err := r.do()
		if f.ctx.Err() != nil || final(err) {
			f.set(nil, Ended, cause(f.ctx, err))
			return
		}
		f.noteLoss(r, err)
		f.log.Error("the flusher failed, trying again", zap.Duration("pause", pause), zap.Error(err))
		f.set(nil, Failed, err)
		if f.opt.Now().Sub(began) > f.opt.RetryMax {
			pause = f.opt.RetryMin
		}
		if !wait(f.ctx, pause, nil) {
			f.set(nil, Ended, cause(f.ctx, nil))
			return
		}
		pause = min(2*pause, f.opt.RetryMax)
		if errors.Is(err, walimpls.ErrCorrupt) {
			pause = f.opt.RetryMax // it will not pass by itself
		}
	}
}

// noteLoss makes the next try begin at the earliest record when this one lost
// its position, but for a try that began there already.
func (f *Flusher) noteLoss(r *run, err error) {
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = !r.fromEarliest
	if f.lost {
		f.counted.LostPositions++
		f.log.Error("the flusher lost its position: records were removed that it had not flushed; it goes on with the earliest", zap.Error(err))
	}
}

// final reports whether an error ends the flusher's term. ErrFenced is one of a
// sink's Open.
func final(err error) bool {
	return errors.Is(err, walimpls.ErrFenced) || errors.Is(err, walimpls.ErrTermExpired)
}

func termEnded(wal Log) error {
	name, _, term := wal.Channel()
	return walimpls.Errorf(walimpls.CodeTermExpired, name, "flusher: term %d has ended", term)
}

func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (f *Flusher) set(r *run, state State, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run, f.state, f.err = r, state, err
	close(f.change)
	f.change = make(chan struct{})
}

// current returns the present try and what is closed when another takes its place.
func (f *Flusher) current() (*run, <-chan struct{}, State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.run, f.change, f.state, f.err
}

func (f *Flusher) count(add func(c *Counters)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.counted)
}

// Close stops the flusher. What is not flushed stays in the log. It returns
// when everything has ended, or with ctx: a sink that hangs is left behind, and
// what it still writes counts for nothing unless its manifest is complete.
func (f *Flusher) Close(ctx context.Context) error {
	name, _, _ := f.wal.Channel()
	f.cancel(walimpls.Errorf(walimpls.CodeClosed, name, "the flusher is closed"))
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return walimpls.ContextError(ctx, name, "close the flusher: a sink hangs")
	}
}

// Wait waits until everything of the vchannel up to (term, tick) is flushed; of
// all vchannels for "". It ends with ctx, and with the flusher.
func (f *Flusher) Wait(ctx context.Context, vchannel string, term int64, tick message.Tick) error {
	name, _, _ := f.wal.Channel()
	for {
		r, replaced, state, err := f.current()
		if state == Ended {
			return err
		}
		var change <-chan struct{}
		if r != nil {
			var at message.Checkpoint
			var known bool
			at, change, known = r.flushedTo(vchannel)
			if known && at.Covers(term, tick) {
				return nil
			}
		}
		select {
		case <-change:
		case <-replaced:
		case <-ctx.Done():
			e := walimpls.ContextError(ctx, name, "waiting for the flush")
			if r != nil {
				if failure := r.failureOf(vchannel); failure != nil {
					e.Message += "; its sink fails: " + failure.Error()
				}
			}
			return e
		}
	}
}

// Files lists the files of a vchannel ("" is for the records to all), also of
// one that was dropped.
func (f *Flusher) Files(ctx context.Context, vchannel string) ([]File, error) {
	name, storeID, term := f.wal.Channel()
	r, _, state, _ := f.current()
	var sink VChannelSink
	opening := r == nil || state != Working
	if !opening {
		sink, opening = r.sinkOf(vchannel)
	}
	switch {
	case sink != nil:
		return sink.Files(ctx)
	case opening: // a second open would take the output away
		return nil, walimpls.Errorf(walimpls.CodeUnavailable, name, "flusher: the output of vchannel %q is not open yet", vchannel)
	}
	sink, err := f.sink.Open(ctx, SinkKey{PChannel: name, StoreID: storeID, VChannel: vchannel, Term: term})
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	return sink.Files(ctx)
}

// wait waits for d, and reports whether ctx goes on. kick, if not nil, ends the
// wait early.
func wait(ctx context.Context, d time.Duration, kick <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-kick:
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}
