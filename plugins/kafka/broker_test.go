package kafka

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/walimpls"
)

// quick makes failures show soon.
func quick(s *settings) { s.requestTimeout = 5 * time.Second }

func TestNothingIsLostOrDoubledWhenTheBrokerIsKilled(t *testing.T) {
	b := brokers.StartKafka(t, brokers.KafkaOptions{})
	o := build(t, config(b.Addrs), quick)
	history := newOracle()
	c := hire(t, history, o, "c", 1, 8, time.Millisecond)
	for range rounds(2, 10) {
		before := history.stored()
		until(t, "records are acknowledged", func() bool { return history.stored() > before+200 })
		must(t, b.Kill())
		must(t, b.Restart())
	}
	before := history.stored()
	until(t, "records are acknowledged after the last kill", func() bool { return history.stored() > before+50 })
	c.end()
	history.verify(t, finalLog(t, o, "c"))
	t.Logf("%s, %d incarnations", history.counts(), c.inc)
}

func TestNothingIsLostOrDoubledWhenTheLeaderIsKilled(t *testing.T) {
	cluster := brokers.StartKafkaCluster(t, 3, brokers.KafkaOptions{})
	o := build(t, with(config(cluster.Addrs), keyReplication, 3, keyMinInSync, 2), quick)
	history := newOracle()
	c := hire(t, history, o, "c", 1, 8, time.Millisecond)
	topic := topicName(o.s.prefix, "c")
	for range rounds(2, 10) {
		before := history.stored()
		until(t, "records are acknowledged", func() bool { return history.stored() > before+100 })
		m, _, err := o.k.lookup(testContext(t), topic)
		must(t, err)
		leader := cluster.Broker(int(m.leader))
		must(t, leader.Kill())
		before = history.stored()
		until(t, "another broker leads and acknowledges", func() bool { return history.stored() > before+20 })
		must(t, leader.Restart())
		until(t, "all replicas are in sync again", func() bool { return inSync(t, o, topic) == 3 })
	}
	c.end()
	history.verify(t, finalLog(t, o, "c"))
	t.Logf("%s, %d incarnations", history.counts(), c.inc)
}

// inSync is the number of replicas in sync; 0 while nobody can say.
func inSync(t testing.TB, o *opener, topic string) int {
	m, _, err := o.k.lookup(testContext(t), topic)
	if err != nil {
		return 0
	}
	return m.inSync
}

func TestABrokerThatIsDownIsAClearErrorAndWorksWhenItIsBack(t *testing.T) {
	b := brokers.StartKafka(t, brokers.KafkaOptions{})
	must(t, b.Stop())
	o := build(t, config(b.Addrs)) // Build does not touch it
	for _, opt := range []walimpls.OpenOptions{rw("c", 1, 1), ro("c")} {
		began := time.Now()
		_, err := o.Open(testContext(t), opt)
		wantIs(t, err, walimpls.ErrUnavailable)
		var e *walimpls.Error
		if !errors.As(err, &e) || !e.Retryable || e.Hint != hintBrokers {
			t.Fatalf("%+v", e)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Fatalf("it took %s", took)
		}
	}
	must(t, b.Restart())
	w := mustOpen(t, o, rw("c", 1, 2))
	ids := mustAppend(t, w, "before")

	// An append while the broker is away is not stored for sure if it was never sent,
	// and the handle goes on.
	s, err := w.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.StartAfter(ids[0])})
	must(t, err)
	defer s.Close()
	must(t, b.Kill())
	until(t, "the handle notices", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := w.Append(ctx, batchOf("lost or not"))
		return err != nil
	})
	must(t, b.Restart())
	w2 := mustOpen(t, o, rw("c", 1, 3))
	mustAppend(t, w2, "after")
	// A reader of before goes on by itself.
	for got := ""; got != "after"; {
		recs, err := s.Next(testContext(t))
		must(t, err)
		got = string(recs[len(recs)-1].Payload)
	}
}

func TestALateOpenOfALowerTermDoesNotHarmABusyOwner(t *testing.T) {
	cfg := shared(t)
	owner, late := build(t, cfg), build(t, cfg)
	history := newOracle()
	c := hire(t, history, owner, "c", 50, 4, 0)
	before := history.stored()
	for i := range 100 {
		_, err := late.Open(testContext(t), rw("c", int64(1+i%49), int64(1+i)))
		var fenced *walimpls.FencedError
		if !errors.As(err, &fenced) || fenced.Highest != (walimpls.Pair{Term: 50, Incarnation: 1}) {
			t.Fatalf("open %d: %v", i, err)
		}
	}
	until(t, "the owner still appends", func() bool { return history.stored() > before+100 })
	c.end()
	if c.inc != 1 {
		t.Errorf("the owner had to open %d times", c.inc)
	}
	history.verify(t, finalLog(t, owner, "c"))
}

// Two hosts, each with the next higher term as soon as it was fenced.
func TestOwnersWhoFightKeepTheHistory(t *testing.T) {
	cfg := shared(t)
	history := newOracle()
	var crews []*crew
	openers := []*opener{build(t, cfg), build(t, cfg)}
	end := time.Now().Add(time.Duration(rounds(8, 60)) * time.Second)
	term := int64(0)
	for i := 0; time.Now().Before(end); i++ {
		term++
		c := hire(t, history, openers[i%2], "c", term, 4, 0)
		crews = append(crews, c)
		before := history.stored()
		until(t, "the new owner's records are acknowledged", func() bool { return history.stored() > before+10+i%50 })
	}
	for _, c := range crews {
		c.end()
	}
	log := finalLog(t, openers[0], "c")
	history.verify(t, log)
	t.Logf("%d terms, %s", term, history.counts())
}

// Opens of one process and of several that compete with the same and with different
// pairs: whoever returns a handle owns the log until a higher pair was opened.
func TestOpensThatCompeteAgree(t *testing.T) {
	cfg := shared(t)
	openers := []*opener{build(t, cfg), build(t, cfg), build(t, cfg)}
	history := newOracle()
	for round := range 3 {
		type won struct {
			w   walimpls.WAL
			err error
		}
		results := make(chan won)
		for i, o := range openers {
			go func() {
				w, err := o.Open(testContext(t), rw("c", int64(round+1), int64(1+i/2)))
				if err == nil {
					_ = history.append(testContext(t), w, fmt.Sprint(round, i), fmt.Sprintf("r%d-%d", round, i))
				}
				results <- won{w, err}
			}()
		}
		winners := map[walimpls.Pair]int{}
		for range openers {
			r := <-results
			if r.err != nil {
				wantIs(t, r.err, walimpls.ErrFenced)
				continue
			}
			winners[r.w.Channel().Pair]++
		}
		if len(winners) == 0 {
			t.Fatal("nobody owns the log")
		}
		for p, n := range winners {
			if n > 1 {
				t.Fatalf("%d opens returned a handle of %s", n, p)
			}
		}
	}
	history.verify(t, finalLog(t, openers[0], "c"))
}
