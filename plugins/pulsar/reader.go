package pulsar

import (
	"context"
	"errors"
	"fmt"
	"sync"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"go.uber.org/zap"
)

// errReaderGone says that the reader lost its connection.
var errReaderGone = errors.New("the reader lost its connection")

// reader is a Pulsar reader with a client of its own. It lives as long as its
// first connection: the client's own reconnect may drop a message, or wait for
// ever, so the scanner makes a new reader at the place where it stands.
type reader struct {
	run    *background
	client client.Client
	r      client.Reader
	// gone ends when the connection is lost.
	gone  context.Context
	leave context.CancelFunc
	once  sync.Once
}

// newReader makes a reader that begins with the message at, or at the beginning.
func (o *opener) newReader(ctx context.Context, topic string, at entry, found bool, queue int) (*reader, error) {
	r := &reader{run: o.run}
	r.gone, r.leave = context.WithCancel(context.Background())
	start := client.EarliestMessageID()
	if found {
		start = client.NewMessageID(at.ledger, at.entry, 0, 0)
	}
	_, err := bounded(ctx, o.run, func() (struct{}, error) {
		c, err := o.newClient(nil, zap.String("reader", topic))
		if err != nil {
			return struct{}{}, err
		}
		made, err := c.CreateReader(client.ReaderOptions{
			Topic: o.settings.fullTopic(topic), StartMessageID: start, StartMessageIDInclusive: true,
			ReceiverQueueSize: queue, SubscriptionRolePrefix: "walrig",
			BackoffPolicyFunc: func() backoff.Policy { // the client asks at the beginning of a reconnect
				r.leave()
				return newReconnectPause()
			},
		})
		if err != nil {
			c.Close()
			return struct{}{}, err
		}
		r.client, r.r = c, made
		return struct{}{}, nil
	}, func(struct{}) { r.close() })
	if err != nil {
		r.leave()
		return nil, err
	}
	return r, nil
}

func (r *reader) next(ctx context.Context) (client.Message, error) {
	if r.gone.Err() != nil { // what it has comes from the second connection, maybe
		return nil, errReaderGone
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.gone, cancel)()
	msg, err := r.r.Next(both)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: %w", errReaderGone, err)
	}
	return msg, err
}

// close returns at once; the client's timeouts bound the rest.
func (r *reader) close() {
	r.once.Do(func() {
		r.leave()
		r.run.goFunc(func() {
			r.r.Close()
			r.client.Close()
		})
	})
}
