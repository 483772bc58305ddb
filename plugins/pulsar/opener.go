package pulsar

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// opener opens the logs of one namespace.
type opener struct {
	settings settings
	log      *zap.Logger
	creds    *credentials
	admin    *admin
	run      *background
	// alive ends with Close; everything that waits ends with it.
	alive context.Context
	end   context.CancelCauseFunc

	mu     sync.Mutex // guards what follows
	closed bool
	logs   map[string]*logState // by channel, those with handles
	turns  map[string]*turn     // by channel, those that are opened or dropped now
}

var _ walimpls.Opener = (*opener)(nil)

func newOpener(s settings, log *zap.Logger) *opener {
	o := &opener{settings: s, log: log, run: &background{}, logs: map[string]*logState{}, turns: map[string]*turn{}}
	o.creds = &credentials{settings: &o.settings}
	o.admin = &admin{settings: &o.settings, creds: o.creds, run: o.run}
	o.alive, o.end = context.WithCancelCause(context.Background())
	return o
}

// Open opens a channel; see walimpls.Opener.
func (o *opener) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel, err := o.budget(ctx, opt.Channel, "open")
	if err != nil {
		return nil, err
	}
	defer cancel()
	var h *handle
	if opt.Access == walimpls.AccessReadOnly {
		h, err = o.openRead(ctx, opt.Channel)
	} else {
		h, err = o.openWrite(ctx, opt)
	}
	if err != nil {
		return nil, typed(ctx, opt.Channel, "open", err)
	}
	return h, nil
}

// budget is ctx cut to the open timeout and to the opener's life.
func (o *opener) budget(ctx context.Context, channel, what string) (context.Context, func(), error) {
	if ctx.Err() != nil {
		return nil, nil, walimpls.ContextError(ctx, channel, what)
	}
	if o.alive.Err() != nil {
		return nil, nil, walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the backend is closed", what)
	}
	late := walimpls.Errorf(walimpls.CodeUnavailable, channel, "%s: not done within %s", what, o.settings.openTimeout)
	late.Hint = "see the log for what the brokers say, or raise the key open_timeout"
	timed, cancelTimed := context.WithTimeoutCause(ctx, o.settings.openTimeout, late)
	bounded, cancel := context.WithCancelCause(timed)
	stop := context.AfterFunc(o.alive, func() {
		cancel(walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the backend was closed", what))
	})
	return bounded, func() { stop(); cancel(nil); cancelTimed() }, nil
}

// openRead opens a channel for reading: it looks, and touches nothing.
func (o *opener) openRead(ctx context.Context, channel string) (*handle, error) {
	t, err := o.tail(ctx, topicOf(channel), nil)
	if err != nil {
		return nil, err
	}
	return o.attach(channel, t, walimpls.AccessReadOnly, t.pair(), nil)
}

// attach makes the handle. p is the producer that won the topic, nil for reading.
func (o *opener) attach(channel string, t *tail, access walimpls.Access, pair walimpls.Pair, p *pending) (*handle, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, walimpls.Errorf(walimpls.CodeClosed, channel, "open: the backend was closed")
	}
	l := o.logs[channel]
	if l != nil && l.storeID != t.cursor.storeID {
		l.end(walimpls.Errorf(walimpls.CodeNotFound, channel, "the log was dropped, and made anew by somebody else"))
		l = nil
	}
	if l == nil {
		l = newLogState(o.alive, channel, t.cursor)
		o.logs[channel] = l
	}
	h := newHandle(o, l, walimpls.Channel{Name: channel, StoreID: l.storeID, Pair: pair, Access: access})
	if p != nil {
		h.app = newAppender(h, t.next(), t.at, p)
	}
	l.raisePoint(t.cursor.point)
	if t.newest != nil {
		l.remember(t.at, t.newest)
	}
	l.add(h)
	h.start()
	return h, nil
}

// detach forgets a handle.
func (o *opener) detach(h *handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h.log.remove(h) == 0 && o.logs[h.log.channel] == h.log {
		delete(o.logs, h.log.channel)
		h.log.end(walimpls.Errorf(walimpls.CodeClosed, h.log.channel, "the handle is closed"))
	}
}

// fenceLocal takes the log from the other handles of this process, so that they
// neither answer nor reconnect.
func (o *opener) fenceLocal(channel string, by walimpls.Pair) {
	o.mu.Lock()
	l := o.logs[channel]
	o.mu.Unlock()
	if l == nil {
		return
	}
	for _, h := range l.others(nil) {
		if h.app != nil && h.ch.Pair.Compare(by) < 0 {
			h.app.fail(stateFenced, errFencedByBroker)
		}
	}
}

// turn is the right to open or drop one channel.
type turn struct {
	token chan struct{}
	users int // who has it or waits for it; guarded by opener.mu
}

// take waits for the channel's turn: Opens and Drops of one channel by one
// process follow each other.
func (o *opener) take(ctx context.Context, channel string) (release func(), err error) {
	o.mu.Lock()
	t := o.turns[channel]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		o.turns[channel] = t
	}
	t.users++
	o.mu.Unlock()
	leave := func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(o.turns, channel)
		}
	}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// Drop deletes a channel's topic; see walimpls.Opener.
func (o *opener) Drop(ctx context.Context, channel string, term int64) error {
	if err := walimpls.ValidateName("channel", channel); err != nil {
		return err
	}
	ctx, cancel, err := o.budget(ctx, channel, "drop")
	if err != nil {
		return err
	}
	defer cancel()
	return typed(ctx, channel, "drop", o.drop(ctx, channel, term))
}

func (o *opener) drop(ctx context.Context, channel string, term int64) error {
	release, err := o.take(ctx, channel)
	if err != nil {
		return err
	}
	defer release()
	t, err := o.tail(ctx, topicOf(channel), nil)
	switch {
	case errors.Is(err, errMissing):
		// The topic may be there without its cursor, which an Open that died left.
	case err != nil:
		return err
	case term < t.pair().Term:
		return walimpls.NewFencedError(channel, walimpls.Pair{Term: term}, t.pair())
	}
	if err := o.admin.deleteTopic(ctx, topicOf(channel)); err != nil {
		return err
	}
	o.mu.Lock()
	l := o.logs[channel]
	delete(o.logs, channel)
	o.mu.Unlock()
	if l != nil {
		l.lost(walimpls.Errorf(walimpls.CodeNotFound, channel, "the log was dropped"))
	}
	return nil
}

// lost ends everything that works on a log that is gone.
func (l *logState) lost(err *walimpls.Error) {
	for _, h := range l.others(nil) {
		if h.app != nil {
			h.app.fail(stateFenced, errTopicGone)
		}
	}
	l.end(err)
}

// Close ends every handle; see walimpls.Opener.
func (o *opener) Close(ctx context.Context) error {
	deadline := time.Now().Add(o.settings.closeGrace)
	o.mu.Lock()
	o.closed = true
	var handles []*handle
	for _, l := range o.logs {
		handles = append(handles, l.others(nil)...)
	}
	o.mu.Unlock()
	var closing sync.WaitGroup
	for _, h := range handles {
		closing.Go(func() { _ = h.Close(ctx) })
	}
	closing.Wait()
	o.end(walimpls.Errorf(walimpls.CodeClosed, "", "the backend was closed"))
	if !o.run.wait(time.Until(deadline)) {
		o.log.Warn("the Pulsar client does not end in time; its requests time out by themselves")
	}
	o.admin.close()
	return nil
}
