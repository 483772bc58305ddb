package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol/findcoordinator"
)

// errTopicGone says that the topic was deleted, or is another one of the same name.
var errTopicGone = errors.New("the topic was deleted")

// errBudget is the cause of a context that this backend bounded itself.
var errBudget = errors.New("the time for it is over")

// cluster finds brokers and holds one control connection to each that was needed.
// Nothing that waits at the broker goes over a control connection.
type cluster struct {
	s *settings

	mu     sync.Mutex // guards what follows
	conns  map[string]*conn
	known  []string // addresses that the brokers named
	closed bool
}

func newCluster(s *settings) *cluster { return &cluster{s: s, conns: map[string]*conn{}} }

// control returns the control connection to a broker.
func (k *cluster) control(ctx context.Context, addr string) (*conn, error) {
	k.mu.Lock()
	c := k.conns[addr]
	closed := k.closed
	k.mu.Unlock()
	if closed {
		return nil, errConnClosed
	}
	if c != nil && c.alive() {
		return c, nil
	}
	fresh, err := k.s.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	switch c = k.conns[addr]; {
	case k.closed:
		k.mu.Unlock()
		fresh.close()
		return nil, errConnClosed
	case c != nil && c.alive(): // another caller was quicker
		k.mu.Unlock()
		fresh.close()
		return c, nil
	}
	k.conns[addr] = fresh
	k.mu.Unlock()
	return fresh, nil
}

func (k *cluster) close() {
	k.mu.Lock()
	k.closed = true
	conns := k.conns
	k.conns = map[string]*conn{}
	k.mu.Unlock()
	for _, c := range conns {
		c.close()
	}
}

// candidates lists the addresses to ask: those that are connected first.
func (k *cluster) candidates() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out, rest []string
	for _, addr := range append(slices.Clone(k.known), k.s.brokers...) {
		switch c := k.conns[addr]; {
		case slices.Contains(out, addr) || slices.Contains(rest, addr):
		case c != nil && c.alive():
			out = append(out, addr)
		default:
			rest = append(rest, addr)
		}
	}
	return append(out, rest...)
}

// unreachableError says that no broker answered.
type unreachableError struct {
	asked []string
	err   error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("no broker answers at %s: %v", strings.Join(e.asked, ", "), e.err)
}
func (e *unreachableError) Unwrap() error { return e.err }

// metadata asks the brokers one after the other until one answers.
func (k *cluster) metadata(ctx context.Context, topic string) (metadata, error) {
	addrs := k.candidates()
	var last error
	for _, addr := range addrs {
		m, err := k.metadataFrom(ctx, addr, topic)
		if err == nil {
			return m, nil
		}
		var refused *refusedError
		if ctx.Err() != nil || errors.As(err, &refused) || errors.Is(err, errConnClosed) && last == nil {
			return metadata{}, err
		}
		last = err
	}
	return metadata{}, &unreachableError{asked: addrs, err: last}
}

func (k *cluster) metadataFrom(ctx context.Context, addr, topic string) (metadata, error) {
	c, err := k.control(ctx, addr)
	if err != nil {
		return metadata{}, err
	}
	frame, err := c.roundTrip(ctx, apiMetadata, metadataVersion, k.s.requestTimeout, func(b []byte) []byte { return appendMetadata(b, topic) })
	if err != nil {
		return metadata{}, err
	}
	m, err := decodeMetadata(frame[8:])
	if err != nil {
		return m, &lostError{addr: addr, err: err}
	}
	if len(m.brokers) > 0 {
		known := make([]string, len(m.brokers))
		for i := range m.brokers {
			known[i] = m.brokers[i].addr()
		}
		k.mu.Lock()
		k.known = known
		k.mu.Unlock()
	}
	return m, nil
}

func (b broker) addr() string { return net.JoinHostPort(b.host, strconv.Itoa(int(b.port))) }

// node returns the address of a broker.
func (m *metadata) node(id int32) (string, bool) {
	for _, b := range m.brokers {
		if b.id == id {
			return b.addr(), true
		}
	}
	return "", false
}

// lookup returns the topic, or codeUnknownTopic as an *answerError.
func (k *cluster) lookup(ctx context.Context, topic string) (topicMeta, metadata, error) {
	m, err := k.metadata(ctx, topic)
	if err != nil {
		return topicMeta{}, m, err
	}
	if len(m.topics) != 1 {
		return topicMeta{}, m, fmt.Errorf("metadata: %d topics in the answer, asked for one", len(m.topics))
	}
	t := m.topics[0]
	return t, m, answered("metadata of topic "+topic, int16(t.code), "")
}

// leader returns the address of the leader of a topic's partition. Another topic of
// this name is errTopicGone.
func (k *cluster) leader(ctx context.Context, topic string, id uuid) (string, error) {
	t, m, err := k.lookup(ctx, topic)
	if err != nil {
		return "", err
	}
	if t.id != id {
		return "", errTopicGone
	}
	addr, ok := m.node(t.leader)
	if !ok {
		return "", answered("metadata of topic "+topic, int16(codeLeaderNotAvailable), "its partition has no leader")
	}
	return addr, nil
}

// coordinator returns a connection to the coordinator of a transactional id.
func (k *cluster) coordinator(ctx context.Context, txnID string) (*conn, error) {
	m, err := k.metadata(ctx, "")
	if err != nil {
		return nil, err
	}
	// A cluster names no broker while each has missed its heartbeats.
	last := answered("metadata", int16(codeCoordinatorMissing), "the cluster names no broker")
	for _, b := range m.brokers {
		c, err := k.control(ctx, b.addr())
		if err != nil {
			last = err
			continue
		}
		a, err := c.askWithin(ctx, 2, &findcoordinator.Request{Key: txnID, KeyType: 1}, k.s.requestTimeout)
		if err != nil {
			last = err
			continue
		}
		r := a.(*findcoordinator.Response)
		if err := answered("find the transaction coordinator", r.ErrorCode, r.ErrorMessage); err != nil {
			return nil, err
		}
		return k.control(ctx, net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port))))
	}
	return nil, last
}

// controller returns a connection to the broker that takes changes of topics.
func (k *cluster) controller(ctx context.Context) (*conn, error) {
	m, err := k.metadata(ctx, "")
	if err != nil {
		return nil, err
	}
	addr, ok := m.node(m.controller)
	if !ok {
		return nil, answered("metadata", int16(codeNotController), "the cluster has no controller")
	}
	return k.control(ctx, addr)
}

// transient reports whether trying again may help.
func transient(err error) bool {
	var code *answerError
	if errors.As(err, &code) {
		return code.code.retriable()
	}
	var lost *lostError
	var unreachable *unreachableError
	return errors.As(err, &lost) || errors.As(err, &unreachable)
}

// retry repeats do until it succeeds, fails for good or ctx ends.
func retry(ctx context.Context, do func() error) error {
	var wait backoff
	for {
		err := do()
		if err == nil || !transient(err) {
			return err
		}
		if !wait.pause(ctx) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// backoff is a pause that grows.
type backoff struct{ n int }

const (
	firstPause = 10 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// next returns the next pause, with jitter: those who fight must not march in step.
func (b *backoff) next() time.Duration {
	d := firstPause << min(b.n, 10)
	b.n++
	d = min(d, maxPause)
	return d/2 + rand.N(d/2+1)
}

// pause waits; false means that ctx ended.
func (b *backoff) pause(ctx context.Context) bool {
	t := time.NewTimer(b.next())
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// within bounds a call by the configured budget.
func (k *cluster) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, k.s.openTimeout, errBudget)
}
