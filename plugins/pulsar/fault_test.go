package pulsar

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// writers append through a handle until it refuses, from several goroutines.
type writers struct {
	wg   sync.WaitGroup
	stop chan struct{}
}

func (o *oracle) write(w walimpls.WAL, prefix string, n int) *writers {
	ws := &writers{stop: make(chan struct{})}
	for g := range n {
		ws.wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ws.stop:
					return
				default:
				}
				if !o.append(context.Background(), w, fmt.Sprintf("%s-%d-%d", prefix, g, i), fmt.Sprintf("%s-%d-%d+", prefix, g, i)) {
					return
				}
			}
		})
	}
	return ws
}

func (ws *writers) end() {
	close(ws.stop)
	ws.wg.Wait()
}

// stored returns how many records are acknowledged.
func (o *oracle) stored() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[walimpls.Stored]
}

func TestUnloadsDuringAppendsLoseAndRepeatNothing(t *testing.T) {
	s := sharedStore(t)
	o := s.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	truth := newOracle()
	scanner := mustRead(t, mustOpen(t, o, ro("c")), walimpls.FromAll())
	ws := truth.write(h, "w1", 8)
	opens := int64(1)
	for round := range 20 {
		before := truth.stored()
		must(t, o.admin.unload(testContext(t), topicOf("c")))
		until(t, fmt.Sprintf("appends go on after unload %d", round+1), func() bool {
			if h.app.refusal("append") != nil {
				// The broker took the returning producer for another one.
				ws.end()
				opens++
				h = mustOpen(t, o, rw("c", 1, opens))
				ws = truth.write(h, fmt.Sprint("w", opens), 8)
			}
			return truth.stored() >= before+50
		})
	}
	ws.end()
	t.Logf("%d opens: %s", opens, truth)
	log := readAll(t, h)
	truth.verify(t, log)
	// A scanner that was there all the time has seen the same.
	var seen []message.Message
	for len(seen) < len(log) {
		records, err := scanner.Next(testContext(t))
		must(t, err)
		seen = append(seen, records...)
	}
	truth.verify(t, seen)
}

func TestTwoOwnersFightForOneLog(t *testing.T) {
	s := sharedStore(t)
	truth := newOracle()
	length := time.Duration(rounds(6, 60)) * time.Second
	end := time.Now().Add(length)
	var fight sync.WaitGroup
	var mu sync.Mutex
	term, won := int64(0), 0
	for host := range 2 {
		o := s.opener()
		fight.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				mu.Lock()
				term++
				mine := term
				mu.Unlock()
				w, err := o.Open(testContext(t), rw("c", mine, 1))
				if err != nil {
					var e *walimpls.Error
					if e = walimpls.AsError(err); e.Code != walimpls.CodeFenced {
						t.Errorf("open of term %d: %v", mine, err)
						return
					}
					continue
				}
				mu.Lock()
				won++
				mu.Unlock()
				ws := truth.write(w, fmt.Sprintf("h%d-%d", host, mine), 4)
				ws.wg.Wait() // until the other takes it, or nearly so
				must(t, w.Close(context.Background()))
			}
		})
		if host == 0 {
			// The second comes when the first is at work.
			until(t, "the first owner appends", func() bool { return truth.stored() > 0 })
		}
	}
	// The last one would write for ever.
	time.Sleep(time.Until(end))
	final := mustOpen(t, s.opener(), rw("c", 1<<40, 1))
	fight.Wait()
	truth.verify(t, readAll(t, final))
	t.Logf("%d opens won: %s", won, truth)
	if won < 4 {
		t.Errorf("%d opens won in %s: this was no fight", won, length)
	}
}

func TestOpenAfterADroppedConnectionIsQuick(t *testing.T) {
	p, at := behindProxy(t, brokers.Pulsar(t))
	s := newStore(t, at)
	o := s.opener()
	truth := newOracle()
	var worst time.Duration
	for round := range rounds(15, 200) {
		began := time.Now()
		h := mustOpen(t, o, rw("c", int64(round+1), 1))
		took := time.Since(began)
		worst = max(worst, took)
		if limit := 5 * time.Second; took > limit {
			t.Errorf("round %d: open took %s, more than %s", round+1, took, limit)
		}
		ws := truth.write(h, fmt.Sprint(round), 2)
		before := truth.stored()
		until(t, "appends", func() bool { return truth.stored() > before || h.app.refusal("append") != nil })
		p.cut()
		time.Sleep(time.Duration(round%21) * time.Millisecond) // from 0 to 20 ms later, as the reconnect goes on
		began = time.Now()
		must(t, h.Close(context.Background()))
		if took := time.Since(began); took > walimpls.GracePeriod {
			t.Errorf("round %d: close took %s", round+1, took)
		}
		ws.end()
		if _, err := h.Append(testContext(t), batchOf("late")); walimpls.AsError(err).Code != walimpls.CodeClosed {
			t.Fatalf("append after close: %v", err)
		}
	}
	truth.verify(t, readAll(t, mustOpen(t, o, rw("c", 1<<40, 1))))
	t.Logf("the slowest open took %s; %s", worst, truth)
}

func TestAcknowledgementsWithoutAPlaceAreResolvedByReading(t *testing.T) {
	p, at := behindProxy(t, brokers.Pulsar(t))
	s := newStore(t, at)
	h := mustOpen(t, s.opener(), rw("c", 1, 1))
	look := mustOpen(t, s.opener(), ro("c"))
	truth := newOracle()
	mustNote := func(p string) {
		if !truth.append(testContext(t), h, p) {
			t.Fatalf("append %q: %s", p, truth)
		}
	}
	mustNote("first")
	for round := range 5 {
		before, err := look.Bounds(testContext(t))
		must(t, err)
		// The broker stores three messages and its answers get lost.
		p.silence(true)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() { truth.append(testContext(t), h, fmt.Sprintf("lost-%d-%d", round, i)) })
		}
		until(t, "the records are in the store", func() bool {
			b, err := look.Bounds(testContext(t))
			must(t, err)
			return b.Latest > before.Latest
		})
		p.cut()
		p.silence(false)
		wg.Wait()
		mustNote(fmt.Sprint("after-", round))
	}
	if truth.counts[walimpls.Stored] != 21 {
		t.Fatalf("got %s, want 21 stored", truth)
	}
	if h.app.resolved.Load() == 0 {
		t.Error("no acknowledgement came without a place: the test tests nothing")
	}
	truth.verify(t, readAll(t, look))
}

func TestAppendKeepsItsDeadlineWhileTheBrokerIsAway(t *testing.T) {
	p, at := behindProxy(t, brokers.Pulsar(t))
	s := newStore(t, at)
	o := s.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	truth := newOracle()
	truth.append(testContext(t), h, "before")
	p.down(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	truth.append(ctx, h, "unknown")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("an append with a deadline of 1s took %s", took)
	}
	if truth.states["unknown"] != walimpls.Unknown {
		t.Errorf("the record is %s, want unknown", truth.states["unknown"])
	}
	// The handle has ended: nothing more is handed over.
	_, err := h.Append(testContext(t), batchOf("refused"))
	if e := walimpls.AsError(err); e.Code != walimpls.CodeUnavailable || e.Retryable || e.Hint == "" {
		t.Errorf("after an unknown outcome: %+v", e)
	}
	began = time.Now()
	must(t, h.Close(context.Background()))
	if took := time.Since(began); took > walimpls.GracePeriod {
		t.Errorf("close took %s", took)
	}
	p.down(false)
	truth.verify(t, readAll(t, mustOpen(t, o, rw("c", 1, 2))))
}

func TestBrokerThatIsDownAtStartIsNamedAndWorksWhenItIsBack(t *testing.T) {
	shared := brokers.Pulsar(t)
	web := newProxy(t, shared.AdminURL[len("http://"):])
	at := brokers.PulsarEndpoint{ServiceURL: shared.ServiceURL, AdminURL: "http://" + web.listener.Addr().String()}
	web.down(true)
	o := newStore(t, at).opener()
	for _, opt := range []walimpls.OpenOptions{rw("c", 1, 1), ro("c")} {
		began := time.Now()
		_, err := o.Open(testContext(t), opt)
		wantIs(t, err, walimpls.ErrUnavailable)
		if e := walimpls.AsError(err); !e.Retryable || e.Hint == "" {
			t.Errorf("got %+v", e)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %s to say so", took)
		}
	}
	web.down(false)
	h := mustOpen(t, o, rw("c", 1, 2))
	mustAppend(t, h, "works")
	wantPayloads(t, readAll(t, h), "works")
}

func TestLateLowerOpensDoNotHarmTheOwner(t *testing.T) {
	s := sharedStore(t)
	owner := mustOpen(t, s.opener(), rw("c", 10, 2))
	truth := newOracle()
	ws := truth.write(owner, "w", 4)
	other := s.opener()
	var late sync.WaitGroup
	for g := range 4 {
		late.Go(func() {
			for i := range 25 {
				_, err := other.Open(testContext(t), rw("c", int64(1+(g+i)%10), 1))
				if walimpls.AsError(err).Code != walimpls.CodeFenced {
					t.Errorf("a late open: %v", err)
				}
			}
		})
	}
	late.Wait()
	ws.end()
	if truth.counts[walimpls.Unknown]+truth.counts[walimpls.NotStored] > 0 {
		t.Errorf("late opens harmed the owner: %s", truth)
	}
	truth.verify(t, readAll(t, owner))
}

func TestStuckScannersDoNotStopWriters(t *testing.T) {
	s := sharedStore(t)
	o := s.opener()
	h := mustOpen(t, o, rw("c", 1, 1))
	other := mustOpen(t, o, rw("d", 1, 1))
	mustAppend(t, h, "first")
	for range 10 {
		sc := mustRead(t, h, walimpls.FromAll()) // never consumed
		_ = sc
	}
	block := make([]byte, 16<<10)
	for i := range 300 {
		for _, w := range []walimpls.WAL{h, other} {
			began := time.Now()
			_, err := w.Append(testContext(t), []message.Message{{Type: message.TypeData, Payload: block}})
			must(t, err)
			if took := time.Since(began); took > 10*time.Second {
				t.Fatalf("append %d took %s", i, took)
			}
		}
	}
}
