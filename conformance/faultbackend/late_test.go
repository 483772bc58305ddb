package faultbackend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestALateRecordLandsAfterItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "append late 1s count=1")
		w := f.open(t, 1, 1)
		ids, err := w.Append(f.ctx, data("late", "on time"))
		out := walimpls.Outcomes(channel, 2, ids, err)
		if out[0].State != walimpls.Unknown || out[1].State != walimpls.Stored {
			t.Fatalf("%+v", out)
		}
		wantEnded(t, w)
		check(t, w.Close(f.ctx)) // what is on its way is not called back
		sc := scan(t, mustReadOnly(t, f), walimpls.FromAll())
		wantPayloads(t, payloads(next(t, sc, 1)), "on time")
		time.Sleep(2 * time.Second)
		wantPayloads(t, payloads(next(t, sc, 1)), "late")
	})
}

func mustReadOnly(t *testing.T, f *fixture) walimpls.WAL {
	t.Helper()
	w, err := f.Open(f.ctx, ro(channel))
	check(t, err)
	return w
}

func TestALateRecordNeverLandsBehindAnOpenOrADrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "append late 1s term=1")
		appendLate := func() {
			if out := appendOne(f.ctx, f.open(t, 1, 1), "late"); out.State != walimpls.Unknown {
				t.Fatalf("%v", out.State)
			}
		}
		appendLate()
		w := f.open(t, 2, 1)
		time.Sleep(2 * time.Second)
		appendAll(t, w, "a")
		wantPayloads(t, f.stored(), "a")

		check(t, f.Drop(f.ctx, channel, 2))
		appendLate()
		check(t, f.Drop(f.ctx, channel, 1))
		check(t, f.ctl.SetRules(""))
		w = f.open(t, 1, 1) // the same pair, another log
		time.Sleep(2 * time.Second)
		appendAll(t, w, "b")
		wantPayloads(t, f.stored(), "b")
	})
}

func TestACloseOfTheStoreCancelsWhatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "append late 1s")
		appendOne(f.ctx, f.open(t, 1, 1), "late")
		check(t, f.store.Close())
		time.Sleep(2 * time.Second)
		wantPayloads(t, f.stored())
	})
}

// node is one owner or former owner of the model test.
type node struct {
	w     walimpls.WAL
	o     walimpls.Opener
	ctl   *Controller
	rules string
	ended bool // an outcome was unknown
}

// history is what the callers were told.
type history struct {
	outcomes map[string]walimpls.Outcome
	pending  int
	results  chan result
}

type result struct {
	node     *node
	ended    bool // the handle had ended before the call
	payloads []string
	outcomes []walimpls.Outcome
}

// collect takes the answers that have come, or waits for all.
func (h *history) collect(all bool) error {
	for h.pending > 0 {
		if !all && len(h.results) == 0 {
			return nil
		}
		r := <-h.results
		h.pending--
		for i, p := range r.payloads {
			h.outcomes[p] = r.outcomes[i]
			if r.ended && r.outcomes[i].State != walimpls.NotStored {
				return fmt.Errorf("%s on a handle that had ended: %s", p, r.outcomes[i].State)
			}
			r.node.ended = r.node.ended || r.outcomes[i].State == walimpls.Unknown
		}
	}
	return nil
}

// noDeadline hides the test's deadline from rapid: it is not to be had in a bubble.
type noDeadline struct{ testing.TB }

// Any number of owners, one of them not fenced, append side by side while answers
// are lost and records are late, and others open the log meanwhile.
func TestWhatCallersWereToldIsTrueWhateverIsLate(t *testing.T) {
	landed, never, stored := 0, 0, 0
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(noDeadline{t}, func(rt *rapid.T) {
			store := NewStore()
			h := &history{outcomes: map[string]walimpls.Outcome{}, results: make(chan result, 1000)}
			var nodes []*node
			serial := 0
			fault := func(kinds ...string) string {
				serial++
				r := rapid.SampledFrom(kinds).Draw(rt, "fault")
				if r == "" {
					return ""
				}
				d := rapid.IntRange(1, 60).Draw(rt, "ms")
				return strings.ReplaceAll(r, "MS", fmt.Sprintf("%dms", d)) + fmt.Sprintf(" count=1 name=r%d", serial)
			}
			open := func(rt *rapid.T) {
				n := &node{ctl: NewController()}
				n.rules = fault("", "", "open late MS", "open fail-after-write", "open delay MS", "open delay-ack MS")
				check(t, n.ctl.SetRules(n.rules))
				var err error
				n.o, err = NewBuilder(WithStore(store), WithController(n.ctl)).Build(context.Background(), nil, nil)
				check(t, err)
				opt := rw(channel, rapid.Int64Range(1, 4).Draw(rt, "term"), rapid.Int64Range(0, 4).Draw(rt, "incarnation"))
				n.w, err = n.o.Open(context.Background(), opt)
				nodes = append(nodes, n)
				if err != nil {
					n.w = nil
				}
			}
			add := func(rt *rapid.T) {
				var alive []*node
				for _, n := range nodes {
					if n.w != nil {
						alive = append(alive, n)
					}
				}
				if len(alive) == 0 {
					return
				}
				n := rapid.SampledFrom(alive).Draw(rt, "node")
				var batch []string
				for range rapid.IntRange(1, 3).Draw(rt, "records") {
					serial++
					batch = append(batch, fmt.Sprint("p", serial))
				}
				n.rules += "\n" + fault("", "", "append late MS", "append late MS per=call", "append fail-after-write", "append fail-before-write unknown",
					"append fail-before-write", "append delay MS", "append delay-ack MS", "append lose-connection half", "append lose-connection")
				check(t, n.ctl.SetRules(n.rules))
				ended := n.ended
				h.pending++
				go func() {
					ids, err := n.w.Append(context.Background(), data(batch...))
					h.results <- result{n, ended, batch, walimpls.Outcomes(channel, len(batch), ids, err)}
				}()
				synctest.Wait()
				if err := h.collect(false); err != nil {
					rt.Fatal(err)
				}
			}
			open(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"open": open, "append": add, "append more": add,
				"wait": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(0, 80).Draw(rt, "ms")) * time.Millisecond)
				},
				"close": func(rt *rapid.T) {
					if len(nodes) > 0 {
						check(t, rapid.SampledFrom(nodes).Draw(rt, "node").o.Close(context.Background()))
					}
				},
				"": func(rt *rapid.T) {
					if err := grows(store.Records(channel)); err != nil {
						rt.Fatal(err)
					}
				},
			})
			if err := h.collect(true); err != nil {
				rt.Fatal(err)
			}
			time.Sleep(time.Second)
			recs := store.Records(channel)
			for _, n := range nodes {
				check(t, n.o.Close(context.Background()))
			}
			check(t, store.Close())
			if err := grows(recs); err != nil {
				rt.Fatal(err)
			}
			for p, out := range h.outcomes {
				at := slices.IndexFunc(recs, func(m message.Message) bool { return string(m.Payload) == p })
				switch {
				case out.State == walimpls.Stored && (at < 0 || recs[at].ID != out.ID):
					rt.Fatalf("%s was acknowledged as %s and is at %d", p, out.ID, at)
				case out.State == walimpls.NotStored && at >= 0:
					rt.Fatalf("%s is there although %v", p, out.Err)
				case out.State == walimpls.Stored:
					stored++
				case out.State == walimpls.Unknown && at >= 0:
					landed++
				case out.State == walimpls.Unknown:
					never++
				}
			}
		})
	})
	t.Logf("%d stored, of the unknown %d landed and %d did not", stored, landed, never)
	if stored == 0 || landed == 0 || never == 0 {
		t.Error("the test did not meet all three")
	}
}

// grows checks that pairs never decrease, that a new pair begins with its fence
// record, which is rule 3's "before the new handle's first record, or never",
// that ids ascend and that no record is there twice.
func grows(recs []message.Message) error {
	seen := map[string]bool{}
	var last walimpls.Pair
	for i := range recs {
		m := &recs[i]
		pair := pairOf(m)
		switch {
		case pair.Compare(last) < 0, pair != last && m.Type != message.TypeFence, pair == last && m.Type == message.TypeFence:
			return fmt.Errorf("record %d (%s) of pair %s follows pair %s", i, m.Type, pair, last)
		case m.ID != message.Uint64ID(uint64(i)+1):
			return fmt.Errorf("record %d has id %s", i, m.ID)
		case m.Type != message.TypeFence && seen[string(m.Payload)]:
			return fmt.Errorf("%s is there twice", m.Payload)
		}
		last, seen[string(m.Payload)] = pair, true
	}
	return nil
}
