package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// fragile is a connection that breaks at a random answer: what was sent on it was
// taken by the broker, and nobody hears of it.
type fragile struct {
	net.Conn
	left atomic.Int64
}

func (f *fragile) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if err == nil && f.left.Add(-1) < 0 {
		f.Conn.Close()
		return 0, errors.New("the connection was cut by the test")
	}
	return n, err
}

func TestLostRepliesLoseAndDoubleNothing(t *testing.T) {
	var dials atomic.Int64
	o := build(t, shared(t), func(s *settings) {
		dial := s.dial
		s.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			dials.Add(1)
			f := &fragile{Conn: c}
			f.left.Store(int64(5 + rand.IntN(60)))
			return f, nil
		}
	})
	history := newOracle()
	c := hire(t, history, o, "c", 1, 8, 0)
	until(t, "records are acknowledged", func() bool { return history.stored() > 1500 })
	c.end()
	history.verify(t, finalLog(t, o, "c"))
	if dials.Load() < 5 {
		t.Errorf("%d connections: the test cut none", dials.Load())
	}
	t.Logf("%s over %d connections, %d incarnations", history.counts(), dials.Load(), c.inc)
}
