package kafka

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// longVariable makes the tests of failures run as long as the project promises;
// without it they do the same in fewer rounds.
const longVariable = "WALRIG_TEST_KAFKA_LONG"

func rounds(short, long int) int {
	if os.Getenv(longVariable) != "" {
		return long
	}
	return short
}

// oracle remembers what became of every record, and judges the log by it.
type oracle struct {
	mu    sync.Mutex
	state map[string]walimpls.State
	ids   map[string]message.ID
	last  map[string]message.ID // the last acknowledged id of each appender
}

func newOracle() *oracle {
	return &oracle{state: map[string]walimpls.State{}, ids: map[string]message.ID{}, last: map[string]message.ID{}}
}

// append appends one record each of an appender and notes the outcomes.
func (o *oracle) append(ctx context.Context, w walimpls.WAL, who string, texts ...string) error {
	ids, err := w.Append(ctx, batchOf(texts...))
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, out := range walimpls.Outcomes("", len(texts), ids, err) {
		if _, twice := o.state[texts[i]]; twice {
			panic("a text was used twice: " + texts[i])
		}
		o.state[texts[i]] = out.State
		if out.State == walimpls.Stored {
			o.ids[texts[i]] = out.ID
			if !o.last[who].Less(out.ID) {
				panic(fmt.Sprintf("%s: id %s does not lie above %s", who, out.ID, o.last[who]))
			}
			o.last[who] = out.ID
		}
	}
	return err
}

func (o *oracle) counts() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := map[walimpls.State]int{}
	for _, s := range o.state {
		n[s]++
	}
	return fmt.Sprintf("%d stored, %d not stored, %d unknown", n[walimpls.Stored], n[walimpls.NotStored], n[walimpls.Unknown])
}

// stored is how many records were acknowledged so far.
func (o *oracle) stored() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.ids)
}

// verify fails unless the log holds every acknowledged record once with its id, none
// that was refused, none twice, and pairs and ids that never go back.
func (o *oracle) verify(t testing.TB, log []message.Message) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	var highest walimpls.Pair
	var last message.ID
	seen := map[string]message.ID{}
	for i := range log {
		m := &log[i]
		p := pairOf(m)
		if p.Compare(highest) < 0 {
			t.Errorf("a record of %s lies behind one of %s at %s", p, highest, m.ID)
		}
		if p != highest && m.Type != message.TypeFence {
			t.Errorf("the first record of %s is no fence record, at %s", p, m.ID)
		}
		highest = p
		if !last.Less(m.ID) {
			t.Errorf("id %s follows %s", m.ID, last)
		}
		last = m.ID
		if m.Type == message.TypeFence {
			continue
		}
		text := string(m.Payload)
		if at, twice := seen[text]; twice {
			t.Errorf("%q lies in the log twice, at %s and %s", text, at, m.ID)
		}
		seen[text] = m.ID
		state, known := o.state[text]
		switch {
		case !known:
			t.Errorf("%q was never appended", text)
		case state == walimpls.NotStored:
			t.Errorf("%q was refused as not stored and lies in the log at %s", text, m.ID)
		case state == walimpls.Stored && o.ids[text] != m.ID:
			t.Errorf("%q was acknowledged as %s and lies at %s", text, o.ids[text], m.ID)
		}
	}
	missing := 0
	for text, id := range o.ids {
		if _, ok := seen[text]; !ok {
			if missing++; missing <= 5 {
				t.Errorf("%q was acknowledged as %s and is not in the log", text, id)
			}
		}
	}
	if missing > 5 {
		t.Errorf("%d acknowledged records are missing in all", missing)
	}
}

// crew appends from several goroutines until it is stopped. When its handle ends it
// opens the next incarnation, as a host does.
type crew struct {
	t       testing.TB
	o       *oracle
	opener  walimpls.Opener
	channel string
	term    int64
	pause   time.Duration

	stop   chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex
	w      walimpls.WAL
	inc    int64
	fenced bool
}

// hire starts appenders on a handle.
func hire(t testing.TB, o *oracle, opener walimpls.Opener, channel string, term int64, appenders int, pause time.Duration) *crew {
	c := &crew{t: t, o: o, opener: opener, channel: channel, term: term, pause: pause, stop: make(chan struct{})}
	if c.reopen(nil) == nil {
		t.Fatal("the first open failed")
	}
	for i := range appenders {
		c.wg.Go(func() { c.work(i) })
	}
	return c
}

func (c *crew) work(n int) {
	w := c.handle()
	for i := 0; w != nil; i++ {
		select {
		case <-c.stop:
			return
		case <-time.After(c.pause):
		}
		who := fmt.Sprintf("%d/%d", c.term, n)
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		err := c.o.append(ctx, w, who, fmt.Sprintf("%s-%d.a", who, i), fmt.Sprintf("%s-%d.b", who, i))
		cancel()
		if err != nil {
			w = c.reopen(w)
		}
	}
}

func (c *crew) handle() walimpls.WAL {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w
}

// reopen replaces a handle that failed; nil means that the term is over or the crew stopped.
func (c *crew) reopen(old walimpls.WAL) walimpls.WAL {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w != old || c.fenced {
		return c.w
	}
	if old != nil {
		_ = old.Close(context.Background())
	}
	deadline := time.Now().Add(bound)
	for {
		c.inc++
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		w, err := c.opener.Open(ctx, rw(c.channel, c.term, c.inc))
		cancel()
		if err == nil {
			c.w = w
			return w
		}
		if strings.Contains(err.Error(), "fenced") {
			c.fenced, c.w = true, nil
			return nil
		}
		select {
		case <-c.stop:
			c.fenced, c.w = true, nil
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			c.t.Errorf("the channel does not open again within %s: %v", bound, err)
			c.fenced, c.w = true, nil
			return nil
		}
	}
}

// end stops the appenders and closes the handle.
func (c *crew) end() {
	close(c.stop)
	c.wg.Wait()
	if w := c.handle(); w != nil {
		must(c.t, w.Close(context.Background()))
	}
}

// until polls until ok.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(bound)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain until %s", bound, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// finalLog opens the channel above every term and returns what it holds.
func finalLog(t testing.TB, o walimpls.Opener, channel string) []message.Message {
	t.Helper()
	w := mustOpen(t, o, rw(channel, 1<<40, 1))
	log := readAll(t, w)
	must(t, w.Close(context.Background()))
	return log[:len(log)-1]
}
