package tso

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
)

// wall is a clock that a test sets.
type wall struct{ at time.Time }

func (w *wall) now() time.Time { return w.at }

func (w *wall) tick() message.Tick { return message.NewTick(w.at.UnixMilli(), 0) }

func at(milli int64) *wall { return &wall{time.UnixMilli(milli)} }

// TestTicksOnlyGrowAndStayInsideTheirWindow lets the wall clock jump as it
// likes, also to before 1970, while windows come late.
func TestTicksOnlyGrowAndStayInsideTheirWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := at(1_000_000)
		floor := message.Tick(rapid.Uint64Range(0, uint64(2*w.tick())).Draw(t, "floor"))
		c, last, bound := New(w.now, floor), floor, message.Tick(0)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.IntRange(1, 70000).Draw(t, "n")
				want := max(last+1, message.NewTick(max(w.at.UnixMilli(), 0), 0))
				first, ok := c.Take(n)
				end := want + message.Tick(n) - 1
				if ok != (end < bound) {
					t.Fatalf("Take(%d) behind %d inside %d: %v", n, last, bound, ok)
				}
				if !ok {
					return
				}
				if first != want {
					t.Fatalf("Take(%d) = %d, want %d: behind %d and at the wall clock", n, first, want, last)
				}
				last = end
			},
			"clock": func(t *rapid.T) {
				w.at = time.UnixMilli(rapid.Int64Range(-1_000_000, 3_000_000).Draw(t, "milli"))
			},
			"observe": func(t *rapid.T) {
				seen := max(last, 5) - 5 + message.Tick(rapid.IntRange(0, 1<<19).Draw(t, "ahead"))
				c.Observe(seen)
				last = max(last, seen)
			},
			"extend": func(t *rapid.T) {
				length := time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond
				n := rapid.IntRange(1, 70000).Draw(t, "n")
				want, due := c.Want(length, n)
				if first, ok := c.Take(n); !ok && !due {
					t.Fatalf("no window is due, and there is none for %d ticks", n)
				} else if ok {
					last = first + message.Tick(n) - 1
				}
				if rapid.Bool().Draw(t, "granted") {
					c.Extend(want)
					bound = max(bound, want)
				}
			},
			"an old window comes late": func(t *rapid.T) {
				c.Extend(bound / 2)
			},
		})
	})
}

func TestClockWithoutAWindowGivesNothing(t *testing.T) {
	c := New(at(5).now, 10)
	if tick, ok := c.Take(1); ok {
		t.Fatalf("it gave %d", tick)
	}
	bound, due := c.Want(time.Second, 100)
	if !due {
		t.Fatal("no window is due")
	}
	c.Extend(bound)
	if tick, ok := c.Take(1); !ok || tick != at(5).tick() {
		t.Fatalf("tick %d (%v), want the wall clock's %d", tick, ok, at(5).tick())
	}
	if _, due := c.Want(time.Second, 100); due {
		t.Fatal("a window is due right behind the last one")
	}
}

// TestLogicalPartRunsIntoThePhysicalOne: more ticks in a millisecond than the
// logical part has numbers borrow from the next millisecond.
func TestLogicalPartRunsIntoThePhysicalOne(t *testing.T) {
	w := at(1000)
	c := New(w.now, 0)
	c.Extend(message.NewTick(2000, 0))
	first, _ := c.Take(1 << message.LogicalBits)
	next, ok := c.Take(1)
	if !ok || first != w.tick() || next != message.NewTick(1001, 0) {
		t.Fatalf("%d:%d, then %d:%d", first.Physical(), first.Logical(), next.Physical(), next.Logical())
	}
	w.at = time.UnixMilli(1001)
	if tick, _ := c.Take(1); tick != next+1 {
		t.Fatalf("the wall clock has come to %d: %d is taken, want %d", 1001, tick, next+1)
	}
}

func TestClockAnHourBehindIsOvertakenByTheFloor(t *testing.T) {
	w := at(3_600_000)
	floor := message.NewTick(7_200_000, 17)
	c := New(w.now, floor)
	c.Extend(message.NewTick(7_300_000, 0))
	if tick, ok := c.Take(1); !ok || tick != floor+1 {
		t.Fatalf("tick %d (%v), want %d", tick, ok, floor+1)
	}
}

// TestTicksEndAndDoNotWrap: a barrier, or a damaged record, that names the last
// tick there is must not make the clock begin again.
func TestTicksEndAndDoNotWrap(t *testing.T) {
	for _, seen := range []message.Tick{math.MaxUint64, math.MaxUint64 - 1, math.MaxUint64 - 3} {
		c := New(at(1000).now, 0)
		c.Extend(message.NewTick(5000, 0))
		c.Observe(seen)
		if tick, ok := c.Take(5); ok {
			t.Errorf("behind %d it gave %d", seen, tick)
		}
		bound, _ := c.Want(time.Second, 5)
		c.Extend(bound)
		if tick, ok := c.Take(5); ok && tick <= seen {
			t.Errorf("behind %d it gave %d", seen, tick)
		}
	}
}
