package rmq

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// opener opens the logs of one folder. The first call that needs the store
// opens it; concurrent calls join; a failed attempt is forgotten, so the next
// call tries anew.
type opener struct {
	settings settings
	log      *zap.Logger
	// ending is cancelled by Close.
	ending context.Context
	end    context.CancelFunc

	mu      sync.Mutex // guards what follows
	engine  *engine    // the last one that was opened, nil for none
	attempt *attempt   // the one under way
	closed  bool
}

// attempt is an opening of the store that any number of callers wait for.
type attempt struct {
	done   chan struct{}
	engine *engine // set before done is closed
	err    error
}

var _ walimpls.Opener = (*opener)(nil)

func newOpener(s settings, log *zap.Logger) *opener {
	o := &opener{settings: s, log: log}
	o.ending, o.end = context.WithCancel(context.Background())
	return o
}

// Open opens a channel; see walimpls.Opener.
func (o *opener) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if opt.Access == walimpls.AccessReadOnly {
		if missing, err := o.missing(); missing || err != nil {
			if err == nil {
				err = missingError(opt.Channel)
			}
			return nil, err
		}
	}
	e, err := o.store(ctx)
	if err != nil {
		return nil, err
	}
	if opt.Access == walimpls.AccessReadOnly {
		return e.openRead(opt)
	}
	return e.openWrite(ctx, opt)
}

// Drop deletes a channel's log; see walimpls.Opener.
func (o *opener) Drop(ctx context.Context, channel string, term int64) error {
	if err := walimpls.ValidateName("channel", channel); err != nil {
		return err
	}
	if missing, err := o.missing(); missing || err != nil {
		return err
	}
	e, err := o.store(ctx)
	if err != nil {
		return err
	}
	return e.drop(ctx, channel, term)
}

// missing reports whether there is no store yet, for calls that must not make one.
func (o *opener) missing() (bool, error) {
	o.mu.Lock()
	known := o.engine != nil || o.attempt != nil || o.closed
	o.mu.Unlock()
	if known {
		return false, nil
	}
	there, err := hasStore(o.settings.fs, o.settings.dir)
	if err != nil || there {
		return false, err
	}
	// A foreign folder is an error, not a missing log.
	_, err = inspectFolder(o.settings.fs, o.settings.dir)
	return err == nil, err
}

// store returns the running engine, opening it if need be.
func (o *opener) store(ctx context.Context) (*engine, error) {
	if err := ctx.Err(); err != nil {
		return nil, gaveUp("", "open the store", err)
	}
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil, walimpls.Errorf(walimpls.CodeClosed, "", "the store is closed")
	}
	if o.engine != nil && o.engine.usable() {
		defer o.mu.Unlock()
		return o.engine, nil
	}
	a := o.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		o.attempt = a
		go o.run(a, o.engine)
	}
	o.mu.Unlock()
	select {
	case <-a.done:
		return a.engine, a.err
	case <-ctx.Done():
		return nil, gaveUp("", "open the store", ctx.Err())
	}
}

// run makes one attempt. A failed engine must be gone first: it holds the lock
// for as long as anything of it may still reach the disk.
func (o *opener) run(a *attempt, old *engine) {
	defer close(a.done)
	ctx, cancel := context.WithTimeout(o.ending, o.settings.openTimeout)
	defer cancel()
	e, err := (*engine)(nil), error(nil)
	if old != nil {
		select {
		case <-old.released:
		case <-ctx.Done():
			err = walimpls.Errorf(walimpls.CodeUnavailable, "", "open the store in %q: a file operation of the failed one still hangs: %w", o.settings.dir, ctx.Err())
		}
	}
	if err == nil {
		e, err = openEngine(ctx, o.settings, o.log)
	}

	o.mu.Lock()
	o.attempt = nil
	if err == nil {
		o.engine = e
	}
	a.engine, a.err = e, err
	closed := o.closed
	o.mu.Unlock()
	if closed && err == nil {
		// Close may have given up on this attempt.
		_ = e.close(context.Background())
		a.engine, a.err = nil, walimpls.Errorf(walimpls.CodeClosed, "", "the store is closed")
	}
}

// Close closes every handle and releases the folder; see walimpls.Opener. It is
// idempotent; a second call waits for what the first could not finish.
func (o *opener) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.settings.closeGrace)
	defer cancel()
	o.mu.Lock()
	o.closed = true
	a := o.attempt
	o.mu.Unlock()
	o.end()
	if a != nil {
		select {
		case <-a.done:
		case <-ctx.Done():
			return walimpls.Errorf(walimpls.CodeUnavailable, "", "close: opening the store in %q hangs: %w", o.settings.dir, ctx.Err())
		}
	}
	o.mu.Lock()
	e := o.engine
	o.mu.Unlock()
	if e == nil {
		return nil
	}
	return e.close(ctx)
}
