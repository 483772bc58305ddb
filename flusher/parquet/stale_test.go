package parquet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// holder is a gate that holds the operations that match, until it is let go.
type holder struct {
	op, part string // the operation, and what its key has in it
	mu       sync.Mutex
	held     chan struct{} // nil: nothing is held
}

func hold(op, part string) *holder { return &holder{op: op, part: part, held: make(chan struct{})} }

func (h *holder) gate(_ context.Context, op, key string) (bool, error) {
	h.mu.Lock()
	held := h.held
	h.mu.Unlock()
	if held != nil && op == h.op && strings.Contains(key, h.part) {
		<-held
	}
	return true, nil
}

func (h *holder) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held != nil {
		close(h.held)
		h.held = nil
	}
}

func mustOpen(t *testing.T, s *Sink, vchannel string, term int64) *vchannelSink {
	t.Helper()
	v, err := s.Open(context.Background(), testKey(vchannel, term))
	if err != nil {
		t.Fatalf("open in term %d: %v", term, err)
	}
	return v.(*vchannelSink)
}

func mustFlush(t *testing.T, v flusher.VChannelSink, from, to message.Tick) {
	t.Helper()
	if _, err := v.Flush(context.Background(), testRows("early", from, to), testCheckpoint(1, to)); err != nil {
		t.Fatalf("flush %d to %d: %v", from, to, err)
	}
}

// The sequence that needs claims: term 1 writes on after term 2 began; term 2's
// write hangs; term 3 takes over and is idle, so the log is cut without a
// manifest of its own; then term 2's write lands. Had term 3 gone on from what
// term 1 wrote late, the hung manifest, which does not list that, would now win.
func TestHungWriteOfAFormerOwnerDoesNotCountOnAnIdleVChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStore()
		h := hold("put", "/manifests/")
		one, two, three := testSink(m, open), testSink(m, h.gate), testSink(m, open)
		first := mustOpen(t, one, "early", 1)
		mustFlush(t, first, 1, 3)
		second := mustOpen(t, two, "early", 2)
		hung := make(chan error, 1)
		go func() {
			_, err := second.Flush(context.Background(), testRows("early", 4, 5), testCheckpoint(1, 5))
			hung <- err
		}()
		synctest.Wait()
		if _, err := first.Flush(context.Background(), testRows("early", 4, 6), testCheckpoint(1, 6)); !errors.Is(err, walimpls.ErrFenced) {
			t.Fatalf("flush of term 1: %v, want ErrFenced", err)
		}
		third := mustOpen(t, three, "early", 3)
		if cp := third.Checkpoint(); cp != testCheckpoint(1, 3) {
			t.Fatalf("term 3 goes on from %+v", cp)
		}
		mustFlush(t, third, 4, 6)
		h.letGo()
		if err := <-hung; !errors.Is(err, walimpls.ErrFenced) {
			t.Fatalf("the hung flush of term 2: %v, want ErrFenced", err)
		}
		checkOutput(t, m, third, "early", 9)
		four := testSink(m, open)
		checkOutput(t, m, mustOpen(t, four, "early", 4), "early", 9)
		for _, s := range []*Sink{one, two, three, four} {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The same, but the hung write lands when the newer owner has written nothing at
// all for the vchannel: what decides is the newer owner's claim.
func TestClaimDecidesOverALaterManifestOfAFormerOwner(t *testing.T) {
	m := newMemStore()
	one, two := testSink(m, open), testSink(m, open)
	defer func() { _, _ = one.Close(), two.Close() }()
	first := mustOpen(t, one, "early", 1)
	mustFlush(t, first, 1, 6)
	second := mustOpen(t, two, "early", 2)
	// A manifest of term 1 with a higher sequence, listing less, as a hung write
	// of another process of term 1 would.
	late, _ := (&manifest{PChannel: testChannel, StoreID: testStore, VChannel: "early"}).next(
		position{Owner: first.o.id, Seq: 7}, nil, testCheckpoint(1, 5), false, 2)
	m.objects[first.o.l.manifest("early", late.Ref)] = late.encode(first.o.l)
	checkOutput(t, m, second, "early", 9)
	three := testSink(m, open)
	defer func() { _ = three.Close() }()
	checkOutput(t, m, mustOpen(t, three, "early", 3), "early", 9)
	checkOutput(t, m, mustOpen(t, two, "early", 3+1), "early", 9)
}

// A new owner has listed the manifests and is slow to write its claim. Meanwhile
// the old one writes a newer manifest and collects: it must leave the manifest
// that the new owner chose.
func TestFormerOwnerRemovesNothingThatASlowTakeOverChose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStore()
		one := testSink(m, open)
		first := mustOpen(t, one, "early", 1)
		mustFlush(t, first, 1, 2)
		mustFlush(t, first, 3, 4)
		h := hold("put", "owners/0000000000000002-00000001.json")
		two := testSink(m, h.gate)
		opened := make(chan *vchannelSink, 1)
		go func() { opened <- mustOpen(t, two, "early", 2) }()
		synctest.Wait()
		_, err := first.Flush(context.Background(), testRows("early", 5, 6), testCheckpoint(1, 6))
		if !errors.Is(err, walimpls.ErrFenced) {
			t.Errorf("flush of term 1: %v, want ErrFenced", err)
		}
		time.Sleep(time.Second)
		if err := collectAll(one); err != nil {
			t.Error(err)
		}
		h.letGo()
		second := <-opened
		if cp := second.Checkpoint(); cp != testCheckpoint(1, 4) {
			t.Fatalf("term 2 goes on from %+v", cp)
		}
		checkOutput(t, m, second, "early", 4)
		for _, s := range []*Sink{one, two} {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The same with a manifest that was superseded, but not yet removed, before the
// new owner began: the look before the removal is what saves it.
func TestCollectorLooksBeforeItRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStore()
		listed := hold("list", "/manifests/")
		one, two := testSink(m, open), testSink(m, listed.gate)
		first := mustOpen(t, one, "early", 1)
		mustFlush(t, first, 1, 2)
		mustFlush(t, first, 3, 4) // makes the first manifest superfluous
		before := len(m.objects)
		opened := make(chan *vchannelSink, 1)
		go func() { opened <- mustOpen(t, two, "early", 2) }()
		synctest.Wait() // it has announced itself and is about to list
		if err := collectAll(one); err != nil {
			t.Error(err)
		}
		if after := len(m.objects); after != before+1 { // the announcement
			t.Errorf("%d objects became %d", before, after)
		}
		listed.letGo()
		checkOutput(t, m, <-opened, "early", 4)
		for _, s := range []*Sink{one, two} {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestHungStoreHoldsUpNobodyAndALateWriteDoesNotCount(t *testing.T) {
	for _, at := range []struct{ op, part string }{{"create", "/data/"}, {"put", "/index/"}, {"put", "/manifests/"}, {"list", "/owners/"}} {
		t.Run(at.op+at.part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemStore()
				h := hold(at.op, at.part)
				release := h.held
				h.held = nil
				s := testSink(m, h.gate)
				v := mustOpen(t, s, "early", 1)
				h.mu.Lock()
				h.held = release
				h.mu.Unlock()
				flush := func(to message.Tick) error {
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
					defer cancel()
					start := time.Now()
					_, err := v.Flush(ctx, testRows("early", 1, to), testCheckpoint(1, to))
					if took := time.Since(start); took > 3*time.Second+hangGrace {
						t.Errorf("the flush took %s", took)
					}
					return err
				}
				err := flush(5)
				if at.op == "list" {
					if err != nil { // all was durable before the look that hangs
						t.Fatal(err)
					}
				} else {
					for range 2 {
						var e *walimpls.Error
						if !errors.As(err, &e) || e.Code != walimpls.CodeTimeout || !e.Retryable || e.Hint == "" {
							t.Fatalf("flush into a hung store: %#v", err)
						}
						err = flush(5)
					}
					checkOutput(t, m, v, "early", 0)
				}
				h.letGo()
				synctest.Wait()
				if at.op != "list" {
					if err := flush(6); err != nil {
						t.Fatal(err)
					}
					checkOutput(t, m, v, "early", 0)
				}
				next := testSink(m, open)
				checkOutput(t, m, mustOpen(t, next, "early", 2), "early", 0)
				for _, s := range []*Sink{s, next} {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func TestCloseIsBoundedWithAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hold("put", "/manifests/")
		s := testSink(newMemStore(), h.gate)
		v := mustOpen(t, s, "early", 1)
		hung := make(chan error, 1)
		go func() {
			_, err := v.Flush(context.Background(), testRows("early", 1, 5), testCheckpoint(1, 5))
			hung <- err
		}()
		synctest.Wait()
		start := time.Now()
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-hung; !errors.Is(err, walimpls.ErrClosed) {
			t.Errorf("the hung flush: %v, want ErrClosed", err)
		}
		if err := s.Close(); !errors.Is(err, walimpls.ErrTimeout) {
			t.Errorf("close: %v, want ErrTimeout", err)
		}
		if took := time.Since(start); took > walimpls.GracePeriod+2*hangGrace {
			t.Errorf("closing took %s", took)
		}
		h.letGo()
	})
}
