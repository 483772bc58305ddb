package remote

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// gate is an append stream whose encoding and whose answers wait for the test.
type gate struct {
	appendStream
	ctx     context.Context
	encode  chan struct{}
	free    func() // closes encode
	answers chan *pluginv1.AppendResponse
	sent    int // read when everything is idle
}

func (g *gate) Context() context.Context { return g.ctx }
func (g *gate) CloseSend() error         { return nil }

func (g *gate) SendMsg(m any) error {
	<-g.encode
	o := m.(*outgoing)
	g.sent += o.request.records
	o.encoded()
	return nil
}

func (g *gate) Recv() (*pluginv1.AppendResponse, error) {
	select {
	case a := <-g.answers:
		return a, nil
	case <-g.ctx.Done():
		return nil, g.ctx.Err()
	}
}

// gated returns a WAL over a gate.
func gated(t *testing.T) (*WAL, *gate) {
	ctx, cancel := context.WithCancel(context.Background())
	g := &gate{ctx: ctx, encode: make(chan struct{}), answers: make(chan *pluginv1.AppendResponse)}
	g.free = sync.OnceFunc(func() { close(g.encode) })
	limits := walimpls.Limits{MaxMessageBytes: 100, MaxBatchRecords: 10, MaxBatchBytes: 100}
	w := &WAL{limits: limits, channel: walimpls.Channel{Name: "orders", Access: walimpls.AccessReadWrite}}
	w.appender = newAppender("orders", limits, g, cancel)
	w.appender.start()
	t.Cleanup(func() { cancel(); g.free(); <-w.appender.sent; <-w.appender.received })
	return w, g
}

func TestBuffersAreTheCallersAgainWhenAppendReturns(t *testing.T) {
	for name, giveUp := range map[string]func(*gate, context.CancelFunc){
		"the context ends": func(_ *gate, cancel context.CancelFunc) { cancel() },
		// An answer that comes too early is nonsense, so the outcome is unknown.
		"the stream breaks": func(g *gate, _ context.CancelFunc) { g.answers <- &pluginv1.AppendResponse{Sequence: 99} },
	} {
		t.Run(name, func(t *testing.T) {
			w, g := gated(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			returned := make(chan error, 1)
			go func() { _, err := w.Append(ctx, records(1)); returned <- err }()
			for InFlight(w) == 0 {
				runtime.Gosched()
			}
			giveUp(g, cancel)
			<-w.Broken() // the outcome is known now
			select {
			case err := <-returned:
				t.Fatalf("Append returned while gRPC still reads its payload: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			g.free()
			if err := <-returned; !errors.Is(err, walimpls.ErrUnknownOutcome) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAtMostSoManyRequestsAreInFlightAndTheRestIsCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := gated(t)
		g.free()
		var answered int
		async := func() {
			w.AppendAsync(records(1), func(o []walimpls.Outcome) {
				if o[0].State == walimpls.Stored {
					answered++
				}
			})
			synctest.Wait()
		}
		for range maxInFlight + 7 {
			async()
		}
		if n := InFlight(w); n != maxInFlight || g.sent != maxInFlight || Waiting(w) != 7 {
			t.Fatalf("%d requests of %d records in flight, %d calls wait", n, g.sent, Waiting(w))
		}
		g.answers <- &pluginv1.AppendResponse{Sequence: 1, Ids: [][]byte{{1}}}
		synctest.Wait()
		if n := InFlight(w); n != maxInFlight || g.sent != maxInFlight+7 || Waiting(w) != 0 || answered != 1 {
			t.Errorf("behind an answer: %d requests of %d records in flight, %d calls wait, %d answered", n, g.sent, Waiting(w), answered)
		}
	})
}
