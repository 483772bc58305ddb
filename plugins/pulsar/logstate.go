package pulsar

import (
	"context"
	"errors"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// logState is what the handles of one log in this process share.
type logState struct {
	channel, topic, storeID string
	// alive ends, with the reason, when the log is gone or the opener closes.
	alive context.Context
	end   context.CancelCauseFunc

	mu    sync.Mutex // guards what follows
	point message.ID // the truncation point; it only grows
	// newest is the newest message that anybody here has seen, without its payload.
	newest   *envelope
	newestAt entry
	handles  map[*handle]struct{}
}

func newLogState(parent context.Context, channel string, c cursorInfo) *logState {
	l := &logState{channel: channel, topic: topicOf(channel), storeID: c.storeID, point: c.point, handles: map[*handle]struct{}{}}
	l.alive, l.end = context.WithCancelCause(parent)
	return l
}

// truncated returns the truncation point.
func (l *logState) truncated() message.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.point
}

func (l *logState) raisePoint(id message.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.point = max(l.point, id)
}

// remember keeps what is known of the message at e.
func (l *logState) remember(e entry, env *envelope) {
	bare := *env
	bare.payload = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil || l.newestAt.compare(e) < 0 {
		l.newest, l.newestAt = &bare, e
	}
}

func (l *logState) recall(e entry) *envelope {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest != nil && l.newestAt == e {
		return l.newest
	}
	return nil
}

// others returns the handles of the log but for h.
func (l *logState) others(h *handle) []*handle {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*handle
	for other := range l.handles {
		if other != h {
			out = append(out, other)
		}
	}
	return out
}

func (l *logState) add(h *handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handles[h] = struct{}{}
}

// remove returns how many handles are left.
func (l *logState) remove(h *handle) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.handles, h)
	return len(l.handles)
}

// tail is the end of a log as the store shows it.
type tail struct {
	layout *layout
	cursor cursorInfo
	// newest is the newest message, without its payload, and at its place; nil for
	// a log without messages.
	newest *envelope
	at     entry
}

// pair is the highest pair in the log.
func (t *tail) pair() walimpls.Pair {
	if t.newest == nil {
		return walimpls.Pair{}
	}
	return t.newest.pair
}

// next is the index of the next record.
func (t *tail) next() uint64 {
	if t.newest == nil {
		return 1
	}
	return t.newest.next()
}

// lastRecord is the id of the newest record that is no fence record, "" for none.
func (t *tail) lastRecord() message.ID {
	switch {
	case t.newest == nil:
		return ""
	case t.newest.fence:
		return t.newest.lastRecord
	}
	return t.latest()
}

func (t *tail) latest() message.ID { return t.at.id(t.newest.count - 1) }

// earliest is the id of the first readable record of a log that has one.
func (t *tail) earliest() message.ID { return max(t.layout.first().id(0), t.cursor.point) }

func (t *tail) bounds() walimpls.Bounds {
	if t.newest == nil {
		return walimpls.Bounds{Empty: true}
	}
	b := walimpls.Bounds{Earliest: t.earliest(), Latest: t.latest(), LatestRecord: t.lastRecord()}
	if b.LatestRecord < b.Earliest {
		b.LatestRecord = ""
	}
	return b
}

// tail reads the end of a log. l may be nil.
func (o *opener) tail(ctx context.Context, topic string, l *logState) (*tail, error) {
	const tries = 3
	for try := 1; ; try++ {
		t, err := o.tryTail(ctx, topic, l)
		// The newest message may go between two requests: another one came, and a
		// truncation.
		if err == nil || !errors.Is(err, errNoEntry) || try == tries {
			return t, err
		}
	}
}

func (o *opener) tryTail(ctx context.Context, topic string, l *logState) (*tail, error) {
	// The properties first: a topic that is made anew in between has entries that
	// the old point does not fit, and no record is shown that must not be.
	c, err := o.admin.cursor(ctx, topic)
	if err != nil {
		return nil, err
	}
	lay, err := o.admin.layout(ctx, topic)
	if err != nil {
		return nil, err
	}
	t := &tail{layout: lay, cursor: c}
	if lay.empty() {
		return t, nil
	}
	t.at = lay.last()
	if l != nil {
		if t.newest = l.recall(t.at); t.newest != nil {
			return t, nil
		}
	}
	env, err := o.admin.read(ctx, topic, t.at)
	if err != nil {
		return nil, err
	}
	env.payload = nil
	t.newest = env
	if l != nil {
		l.remember(t.at, env)
	}
	return t, nil
}
