package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// opener opens the logs of one cluster.
type opener struct {
	s   *settings
	log *zap.Logger
	k   *cluster
	// ending is cancelled by Close.
	ending context.Context
	end    context.CancelFunc

	mu      sync.Mutex // guards what follows
	closed  bool
	handles map[*handle]struct{}
	// opening has one entry for each channel that is being opened for writing or
	// dropped: those of one process take turns instead of fighting.
	opening map[string]chan struct{}
}

var _ walimpls.Opener = (*opener)(nil)

func newOpener(s *settings, log *zap.Logger) *opener {
	o := &opener{s: s, log: log, k: newCluster(s), handles: map[*handle]struct{}{}, opening: map[string]chan struct{}{}}
	o.ending, o.end = context.WithCancel(context.Background())
	return o
}

// begin bounds a call and ties it to the opener's life.
func (o *opener) begin(ctx context.Context, channel, what string) (context.Context, func(), error) {
	if ctx.Err() != nil {
		return nil, nil, walimpls.ContextError(ctx, channel, what)
	}
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return nil, nil, walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the plugin is closed", what)
	}
	ctx, cancel := o.k.within(ctx)
	ctx, tied := context.WithCancelCause(ctx)
	stop := context.AfterFunc(o.ending, func() {
		tied(walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the plugin is closed", what))
	})
	return ctx, func() { stop(); tied(nil); cancel() }, nil
}

// turn waits until no other call of this process opens or drops the channel.
func (o *opener) turn(ctx context.Context, channel string) (done func(), err error) {
	mine := make(chan struct{})
	for {
		o.mu.Lock()
		other := o.opening[channel]
		if other == nil {
			o.opening[channel] = mine
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				delete(o.opening, channel)
				o.mu.Unlock()
				close(mine)
			}, nil
		}
		o.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Open opens a channel; see walimpls.Opener.
func (o *opener) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	ctx, done, err := o.begin(ctx, opt.Channel, "open")
	if err != nil {
		return nil, err
	}
	defer done()
	var h *handle
	if opt.Access == walimpls.AccessReadOnly {
		h, err = o.openRead(ctx, opt.Channel)
	} else {
		h, err = o.openWrite(ctx, opt)
	}
	if err != nil {
		return nil, ended(ctx, opt.Channel, "open", err)
	}
	o.mu.Lock()
	closed := o.closed
	if !closed {
		o.handles[h] = struct{}{}
	}
	o.mu.Unlock()
	if closed {
		h.shut(0)
		return nil, walimpls.Errorf(walimpls.CodeClosed, opt.Channel, "open: the plugin is closed")
	}
	return h, nil
}

// openRead opens a log that exists; it writes and creates nothing.
func (o *opener) openRead(ctx context.Context, channel string) (*handle, error) {
	l := &ref{channel: channel, topic: topicName(o.s.prefix, channel)}
	t, err := o.find(ctx, l)
	if err != nil {
		return nil, err
	}
	if !t {
		return nil, walimpls.Errorf(walimpls.CodeNotFound, channel, "open read-only: there is no such log (topic %s)", l.topic)
	}
	end, err := o.k.tail(ctx, l, false)
	if err != nil {
		return nil, o.gone(l, "open read-only", err)
	}
	ch := walimpls.Channel{Name: channel, StoreID: l.id.String(), Pair: end.highest, Access: walimpls.AccessReadOnly}
	return newHandle(o, l, ch, nil, end.high), nil
}

// find looks the topic up and sets the id; false means that there is none.
func (o *opener) find(ctx context.Context, l *ref) (found bool, err error) {
	t, _, err := o.k.lookup(ctx, l.topic)
	var code *answerError
	if errors.As(err, &code) && code.code == codeUnknownTopic {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.id = t.id
	return true, nil
}

// gone turns the end of a topic into ErrNotFound.
func (o *opener) gone(l *ref, what string, err error) error {
	var code *answerError
	if errors.Is(err, errTopicGone) || errors.As(err, &code) && code.code.topicGone() {
		return droppedLog(l.channel, what)
	}
	return err
}

// Drop deletes the topic; see walimpls.Opener.
func (o *opener) Drop(ctx context.Context, channel string, term int64) error {
	if err := walimpls.ValidateName("channel", channel); err != nil {
		return err
	}
	ctx, done, err := o.begin(ctx, channel, "drop")
	if err != nil {
		return err
	}
	defer done()
	if err := o.drop(ctx, channel, term); err != nil {
		return ended(ctx, channel, "drop", err)
	}
	return nil
}

func (o *opener) drop(ctx context.Context, channel string, term int64) error {
	release, err := o.turn(ctx, channel)
	if err != nil {
		return err
	}
	defer release()
	l := &ref{channel: channel, topic: topicName(o.s.prefix, channel)}
	found, err := o.find(ctx, l)
	if err != nil || !found {
		return err
	}
	t, err := o.k.tail(ctx, l, false)
	if errors.Is(err, errTopicGone) {
		return nil
	}
	if err != nil {
		return err
	}
	if term < t.highest.Term {
		return walimpls.NewFencedError(channel, walimpls.Pair{Term: term}, t.highest)
	}
	// From here on the handles of this process must not write: the topic may be made
	// again before they notice.
	for _, h := range o.handlesOf(l) {
		h.drop()
	}
	if err := o.k.deleteTopic(ctx, l.topic); err != nil {
		return err
	}
	return o.awaitGone(ctx, l)
}

// awaitGone waits until the brokers do not name the topic any more: its deletion
// reaches them one after the other.
func (o *opener) awaitGone(ctx context.Context, l *ref) error {
	return retry(ctx, func() error {
		m, err := o.k.metadata(ctx, "")
		if err != nil {
			return err
		}
		for _, b := range m.brokers {
			m, err := o.k.metadataFrom(ctx, b.addr(), l.topic)
			if err != nil {
				continue // a broker that is down learns it when it starts
			}
			if len(m.topics) == 1 && m.topics[0].code == codeNone && m.topics[0].id == l.id {
				return answered("delete topic "+l.topic, int16(codeThrottled), "broker "+b.addr()+" still names it")
			}
		}
		return nil
	})
}

func (o *opener) handlesOf(l *ref) (out []*handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for h := range o.handles {
		if h.l.id == l.id {
			out = append(out, h)
		}
	}
	return out
}

// forget takes a closed handle out.
func (o *opener) forget(h *handle) {
	o.mu.Lock()
	delete(o.handles, h)
	o.mu.Unlock()
}

// Close closes every handle and connection; see walimpls.Opener.
func (o *opener) Close(context.Context) error {
	o.mu.Lock()
	o.closed = true
	var handles []*handle
	for h := range o.handles {
		handles = append(handles, h)
	}
	o.mu.Unlock()
	o.end()
	var all sync.WaitGroup
	for _, h := range handles {
		all.Go(func() { h.shut(o.s.flightGrace) })
	}
	finished := make(chan struct{})
	go func() {
		all.Wait()
		o.k.close()
		close(finished)
	}()
	t := time.NewTimer(o.s.closeGrace)
	defer t.Stop()
	select {
	case <-finished:
		return nil
	case <-t.C:
		return walimpls.Errorf(walimpls.CodeUnavailable, "", "close: connections to the brokers do not end")
	}
}
