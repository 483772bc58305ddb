package pulsar

import (
	"context"
	"errors"
	"fmt"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// transientTries is how often one Open meets an unavailable store before it says so.
const transientTries = 4

// pending is a producer that won the topic, and what is known of its end.
type pending struct {
	*producer
	ended chan error // gets the first reason, before there is an appender to tell
}

// openWrite takes the log over. Each round looks at the log first: a pair at or
// above the one that is asked for ends it before anything disturbs its owner.
// Then the topic is unloaded, which ends all earlier writes for good, and an
// exclusive producer is made; whoever came first makes it start over. With the
// producer nobody else can write: the tail that is read now is the last word of
// the earlier handles, and the fence record follows it directly.
func (o *opener) openWrite(ctx context.Context, opt walimpls.OpenOptions) (*handle, error) {
	release, err := o.take(ctx, opt.Channel)
	if err != nil {
		return nil, err
	}
	defer release()
	tries := 0
	for round := 0; ; round++ {
		h, err := o.tryOpen(ctx, opt)
		if err == nil {
			return h, nil
		}
		var e *walimpls.Error
		switch {
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, errExclusive), errors.Is(err, errLostPlace):
			// The old owner or another Open was quicker.
		case errors.As(err, &e) && !e.Retryable:
			return nil, err
		default:
			if tries++; tries >= transientTries {
				return nil, err
			}
		}
		o.log.Info("open starts over", zap.String("channel", opt.Channel), zap.Int("round", round+1), zap.Error(err))
		pause := time.NewTimer(min(10*time.Millisecond<<min(round, 5), 250*time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// errLostPlace says that an Open lost its place to another before it was done.
var errLostPlace = errors.New("another open took the place of this one")

func (o *opener) tryOpen(ctx context.Context, opt walimpls.OpenOptions) (*handle, error) {
	topic := topicOf(opt.Channel)
	made := false
	before, err := o.tail(ctx, topic, nil)
	if errors.Is(err, errMissing) {
		before, made, err = o.create(ctx, topic)
	}
	if err != nil {
		return nil, err
	}
	pair, err := nextPair(opt, before.pair())
	if err != nil {
		return nil, err
	}
	if !made {
		if err := o.admin.ensureNamespace(ctx); err != nil {
			return nil, err
		}
	}
	o.fenceLocal(opt.Channel, pair)
	if !made { // nobody can have a producer on a topic that was made just now, or it is refused
		if err := o.admin.unload(ctx, topic); err != nil {
			return nil, err
		}
	}
	p := &pending{ended: make(chan error, 1)}
	if p.producer, err = o.newProducer(ctx, topic, producerName(opt.Channel, pair), p.end); err != nil {
		return nil, err
	}
	h, err := o.mark(ctx, opt.Channel, pair, p)
	if err != nil {
		p.close()
		// The next round must not meet this one's producer.
		select {
		case <-p.closed:
		case <-ctx.Done():
		}
		return nil, err
	}
	return h, nil
}

// create makes the topic and, before anybody can write, the cursor: nothing else
// holds the data. made says that this call made the topic.
func (o *opener) create(ctx context.Context, topic string) (t *tail, made bool, err error) {
	if err := o.admin.ensureNamespace(ctx); err != nil {
		return nil, false, err
	}
	if made, err = o.admin.createTopic(ctx, topic); err != nil {
		return nil, false, err
	}
	if err := o.admin.createCursor(ctx, topic); err != nil {
		return nil, false, err
	}
	t, err = o.tail(ctx, topic, nil)
	return t, made, err
}

func (p *pending) end(reason error) {
	select {
	case p.ended <- reason:
	default:
	}
}

func producerName(channel string, pair walimpls.Pair) string {
	return fmt.Sprintf("walrig/%s/%d/%d", channel, pair.Term, pair.Incarnation)
}

// nextPair decides on the pair of an Open, given the highest in the log.
func nextPair(opt walimpls.OpenOptions, highest walimpls.Pair) (walimpls.Pair, error) {
	pair := opt.Pair()
	if pair.Incarnation == 0 {
		pair.Incarnation = 1
		if pair.Term == highest.Term {
			pair.Incarnation = highest.Incarnation + 1
		}
	}
	if pair.Compare(highest) <= 0 {
		return pair, walimpls.NewFencedError(opt.Channel, opt.Pair(), highest)
	}
	return pair, nil
}

// mark writes the fence record behind the tail, and reads up to it.
func (o *opener) mark(ctx context.Context, channel string, pair walimpls.Pair, p *pending) (*handle, error) {
	topic := topicOf(channel)
	stable, err := o.tail(ctx, topic, nil)
	if err != nil {
		return nil, err
	}
	if stable.pair().Compare(pair) >= 0 {
		return nil, walimpls.NewFencedError(channel, pair, stable.pair())
	}
	fence := fenceEnvelope(pair, stable.next(), stable.lastRecord())
	sent := make(chan error, 1)
	err = p.send(&client.ProducerMessage{Payload: fence.payload, Properties: fence.properties()}, func(_ client.MessageID, err error) { sent <- err })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLostPlace, err)
	}
	select {
	case err = <-sent:
	case err = <-p.ended:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err != nil {
		// Whether it landed shows at the next look: it carries this very pair.
		return nil, fmt.Errorf("%w: %w", errLostPlace, err)
	}
	after, err := o.tail(ctx, topic, nil)
	if err != nil {
		return nil, err
	}
	if after.newest == nil || after.newest.pair != pair || after.newest.first != fence.first || after.cursor.storeID != stable.cursor.storeID {
		return nil, fmt.Errorf("%w: the log ends with a record of %s", errLostPlace, after.pair())
	}
	if follower, ok := follows(after.layout, stable, after.at); !ok {
		return nil, walimpls.Errorf(walimpls.CodeCorrupt, channel, "message %s landed between the tail %s and the fence record %s of %s", follower, stable.at, after.at, pair)
	}
	if after.cursor.point != "" && after.layout.cursorOK {
		// A truncation that was saved but not carried out, because its owner died.
		if e, _, ok := parseID(after.cursor.point); ok && after.layout.cursor.compare(e) < 0 {
			if err := o.admin.resetCursor(ctx, topic, e); err != nil {
				o.log.Warn("cannot move the cursor to the truncation point; the next truncation will", zap.String("channel", channel), zap.Error(err))
			}
		}
	}
	return o.attach(channel, after, walimpls.AccessReadWrite, pair, p)
}

// follows reports whether the message at is the next behind the tail.
func follows(l *layout, before *tail, at entry) (entry, bool) {
	want := l.first()
	if before.newest != nil {
		next, ok := l.after(before.at)
		if !ok {
			return at, false
		}
		want = next
	}
	return want, want == at
}
