package faultbackend

import (
	"context"
	"errors"
	"sync"

	"github.com/walrig/walrig/sdk/walimpls"
)

// opener is the walimpls.Opener of one Build.
type opener struct {
	engine  *engine
	store   *Store
	owned   bool // the store is this opener's alone and is closed with it
	limits  walimpls.Limits
	closing chan struct{}

	mu      sync.Mutex // guards below; never held while another lock is taken or a call waits
	closed  bool
	handles map[*handle]struct{}
}

// Open implements walimpls.Opener.
func (o *opener) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	o.engine.called(OpOpen, 0)
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if err := o.alive(opt.Channel); err != nil {
		return nil, err
	}
	cl := call{op: OpOpen, channel: opt.Channel, pair: opt.Pair(), n: 1}
	if opt.Access == walimpls.AccessReadOnly {
		cl.pair = walimpls.Pair{}
	}
	var h *handle
	late := func(r *liveRule) error {
		if opt.Access == walimpls.AccessReadOnly {
			return nil
		}
		return o.store.openLater(ctx, r.duration, opt)
	}
	err := o.engine.step(ctx, o.closing, cl, stepFuncs{late: late, do: func() (err error) {
		h, err = o.open(ctx, opt)
		return err
	}})
	if err == nil {
		err = o.register(h)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (o *opener) open(ctx context.Context, opt walimpls.OpenOptions) (*handle, error) {
	open := o.store.open
	if opt.Access == walimpls.AccessReadOnly {
		open = func(ctx context.Context, opt walimpls.OpenOptions) (*chanLog, walimpls.Pair, error) {
			return o.store.openReadOnly(ctx, opt.Channel)
		}
	}
	l, pair, err := open(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &handle{
		opener: o, engine: o.engine, store: o.store, log: l,
		channel:  walimpls.Channel{Name: opt.Channel, StoreID: l.storeID, Pair: pair, Access: opt.Access},
		closing:  make(chan struct{}),
		scanners: map[*scanner]struct{}{},
	}, nil
}

func (o *opener) alive(channel string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errClosed(channel, "backend")
	}
	return nil
}

// register hands the handle to the opener, which may have been closed meanwhile.
func (o *opener) register(h *handle) error {
	o.mu.Lock()
	closed := o.closed
	if !closed {
		o.handles[h] = struct{}{}
	}
	o.mu.Unlock()
	if closed {
		return errClosed(h.channel.Name, "backend")
	}
	o.engine.handle(h.channel.Name, h.readOnly(), +1)
	return nil
}

// forget is the counterpart of register; only the first call counts.
func (o *opener) forget(h *handle) {
	o.mu.Lock()
	_, known := o.handles[h]
	delete(o.handles, h)
	o.mu.Unlock()
	if known {
		o.engine.handle(h.channel.Name, h.readOnly(), -1)
	}
}

// Drop implements walimpls.Opener.
func (o *opener) Drop(ctx context.Context, channel string, term int64) error {
	o.engine.called(OpDrop, 0)
	if err := walimpls.ValidateName("channel", channel); err != nil {
		return err
	}
	if err := o.alive(channel); err != nil {
		return err
	}
	cl := call{op: OpDrop, channel: channel, pair: walimpls.Pair{Term: term}, n: 1}
	return o.engine.step(ctx, o.closing, cl, stepFuncs{do: func() error { return o.store.drop(ctx, channel, term) }})
}

// Close implements walimpls.Opener. The handles close side by side, so that one
// that a rule holds up does not add to another.
func (o *opener) Close(ctx context.Context) error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil
	}
	o.closed = true
	close(o.closing)
	handles := make([]*handle, 0, len(o.handles))
	for h := range o.handles {
		handles = append(handles, h)
	}
	o.mu.Unlock()

	errs := make([]error, len(handles))
	var wg sync.WaitGroup
	for i, h := range handles {
		wg.Go(func() { errs[i] = h.Close(ctx) })
	}
	wg.Wait()
	if o.owned {
		errs = append(errs, o.store.Close())
	}
	o.engine.writer.close()
	return errors.Join(errs...)
}
