package pulsar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"go.uber.org/zap"
)

var (
	// errExclusive says that another producer is connected.
	errExclusive = errors.New("another producer has the topic")
	// errFencedByBroker says that another producer took the topic over.
	errFencedByBroker = errors.New("another producer took the topic over")
	errTopicGone      = errors.New("the topic was deleted or terminated")
	errProducerEnded  = errors.New("the producer was closed")
	errOffline        = errors.New("the producer is not connected")
)

// producer is an exclusive producer with a client of its own. The client
// reconnects it, and sends again what was not acknowledged, until it is fenced;
// it never becomes another producer.
type producer struct {
	run    *background
	client client.Client
	p      client.Producer
	// onEnd gets the reason when the broker takes the topic away. It must not block.
	onEnd func(error)

	// patience bounds the wait for the client's own timeouts.
	patience time.Duration

	made          chan struct{} // closed when p is set, or will never be
	reconnectDone chan struct{} // closed when the client's own loop has ended
	doneOnce      sync.Once
	closeOnce     sync.Once
	closed        chan struct{} // closed when nothing of it is left

	// sending is held for reading while a message is handed over, and for writing
	// by the close: the client would panic if both met.
	sending sync.RWMutex
	ended   bool
	ending  chan struct{} // closed with ended
	// online is closed while the producer is connected, as far as it knows.
	online chan struct{}
}

// reconnectDelay is how long a producer that lost its connection waits before it
// connects again. A broker that closes a topic says so before it is done, and
// takes who comes back at once for somebody else than who is just leaving; and a
// new owner, which had the topic unloaded, finds it free.
const reconnectDelay = 100 * time.Millisecond

// newProducer connects an exclusive producer. The error wraps errExclusive when
// another one has the topic.
func (o *opener) newProducer(ctx context.Context, topic, name string, onEnd func(error)) (*producer, error) {
	p := &producer{
		run: o.run, onEnd: onEnd, patience: 2*o.settings.requestTimeout + o.settings.connectTimeout,
		made: make(chan struct{}), reconnectDone: make(chan struct{}), closed: make(chan struct{}), ending: make(chan struct{}),
		online: closedChannel(),
	}
	_, err := bounded(ctx, o.run, func() (struct{}, error) {
		defer close(p.made)
		c, err := o.newClient(p.hear, zap.String("producer", name))
		if err != nil {
			return struct{}{}, err
		}
		p.client = c
		made, err := c.CreateProducer(client.ProducerOptions{
			Topic: o.settings.fullTopic(topic), Name: name,
			ProducerAccessMode:              client.ProducerAccessModeExclusive,
			DisableBatching:                 true, // a batch of ours is one message, with the same borders whenever it is sent
			SendTimeout:                     -1,   // the appender has deadlines; a message that timed out alone would leave a gap
			MaxPendingMessages:              128,  // more than the appender ever has under way, so that handing over never waits
			PartitionsAutoDiscoveryInterval: 10000 * time.Hour,
			BackOffPolicyFunc: func() backoff.Policy { // the client asks at the beginning of a reconnect
				p.disconnected()
				return newReconnectPause()
			},
		})
		if err != nil {
			c.Close()
			return struct{}{}, err
		}
		p.p = made
		return struct{}{}, nil
	}, func(struct{}) { p.close() })
	if err != nil {
		if strings.Contains(err.Error(), "ProducerFenced") || strings.Contains(err.Error(), "ProducerBusy") {
			return nil, fmt.Errorf("%w: %w", errExclusive, err)
		}
		return nil, err
	}
	return p, nil
}

// hear acts on what the client says. When the client gives a producer up by
// itself, it neither ends its loop nor answers what comes later; so it is closed
// in an orderly way just before that, in the goroutine that is about to do it.
func (p *producer) hear(line string) {
	var reason error
	switch line {
	case saysProducerFenced:
		reason = errFencedByBroker
	case saysTopicNotFound, saysTopicTerminated:
		reason = errTopicGone
	case saysReconnected:
		p.reconnected()
		return
	case saysReconnectEnded:
		p.doneOnce.Do(func() { close(p.reconnectDone) })
		return
	default:
		return
	}
	p.onEnd(reason)
	<-p.made
	if p.p != nil {
		p.finish()
		p.p.Close()
	}
}

// finish makes sure that nothing is handed over any more.
func (p *producer) finish() {
	p.sending.Lock()
	defer p.sending.Unlock()
	if !p.ended {
		p.ended = true
		close(p.ending)
	}
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// disconnected runs before the client reconnects, and waits a little. Nothing is
// handed over until it is connected again: the client writes some fields of a
// producer while it reconnects and reads them while it sends.
func (p *producer) disconnected() {
	p.sending.Lock()
	select {
	case <-p.online:
		p.online = make(chan struct{})
	default:
	}
	p.sending.Unlock()
	<-p.made
	p.settleClient()
	timer := time.NewTimer(reconnectDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ending:
	}
}

func (p *producer) reconnected() {
	p.sending.Lock()
	defer p.sending.Unlock()
	select {
	case <-p.online:
	default:
		close(p.online)
	}
}

// settleClient returns when the client's sending goroutine has dealt with all
// that it was handed. It takes flush commands from a queue of ten: when the
// twelfth is queued, it has taken the second, and with the first it has emptied
// the queue of messages.
func (p *producer) settleClient() {
	if p.p == nil {
		return
	}
	for range 12 {
		p.sending.RLock()
		ended := p.ended // by a close, which ends that goroutine
		if !ended {
			_ = p.p.FlushWithCtx(&queueOnly{Context: context.Background()})
		}
		p.sending.RUnlock()
		if ended {
			return
		}
	}
}

// queueOnly is a context that ends when it is asked for the second time: a flush
// asks once before it queues its command and once before it waits for the answer.
type queueOnly struct {
	context.Context
	asked bool
}

func (q *queueOnly) Done() <-chan struct{} {
	if q.asked {
		return closedChannel()
	}
	q.asked = true
	return nil
}

func (q *queueOnly) Err() error { return context.Canceled }

// connected is closed while the producer is connected.
func (p *producer) connected() <-chan struct{} {
	p.sending.RLock()
	defer p.sending.RUnlock()
	return p.online
}

// send hands a message over. It does not wait: without a connection it returns
// errOffline. Unless it returns an error, done is called once, maybe before send returns, or never if the producer ends.
func (p *producer) send(msg *client.ProducerMessage, done func(client.MessageID, error)) (err error) {
	p.sending.RLock()
	defer p.sending.RUnlock()
	if p.ended {
		return errProducerEnded
	}
	select {
	case <-p.online:
	default:
		return errOffline
	}
	defer func() {
		// The client closes its channels when it gives a producer up in a way that
		// hear does not know; it was not handed over then.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errProducerEnded, r)
		}
	}()
	p.p.SendAsync(context.Background(), msg, func(id client.MessageID, _ *client.ProducerMessage, err error) { done(id, err) })
	return nil
}

// close ends the producer and its client; what was not sent never will be. It
// returns at once; closed is closed when nothing of it is left, which the
// client's timeouts bound.
func (p *producer) close() {
	p.closeOnce.Do(func() {
		p.run.goFunc(func() {
			defer close(p.closed)
			p.finish()
			p.p.Close()
			// A reconnect that is under way registers the producer anew, on a new
			// connection if need be: the client must not be closed before it ended.
			timer := time.NewTimer(p.patience)
			defer timer.Stop()
			select {
			case <-p.reconnectDone:
			case <-timer.C:
			}
			p.client.Close()
		})
	})
}
