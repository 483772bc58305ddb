package walmanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/walimpls"
)

func TestAnUntouchedChannelIsBelowEveryTerm(t *testing.T) {
	m := newMachine("orders")
	if m.current.term != -1 || m.current.available || m.current.wal != nil || m.current.err != nil {
		t.Errorf("current is %+v", m.current)
	}
	if m.expected != (state{-1, false}) {
		t.Errorf("expected is %v", m.expected)
	}
	for _, text := range []string{m.expected.String(), m.current.String()} {
		if text != "(-1,false)" {
			t.Errorf("the text is %s", text)
		}
	}
	if s := m.next(); s.kind != stepIdle {
		t.Errorf("the next step is %+v", s)
	}
}

func TestStatesCarryWhatTheyWereMadeOf(t *testing.T) {
	w := &fakeWAL{name: "orders", term: 1}
	cause := errors.New("cause")
	for _, c := range []struct {
		is    current
		text  string
		state state
	}{
		{availableAt(1, w), "(1,true)", state{1, true}},
		{unavailableAt(1, cause), "(1,false)", state{1, false}},
		{availableAt(0, w), "(0,true)", state{0, true}},
	} {
		if c.is.state != c.state || c.is.String() != c.text {
			t.Errorf("%+v is %s", c.is, c.is)
		}
	}
	if a := availableAt(1, w); a.wal != w || a.err != nil {
		t.Errorf("%+v", a)
	}
	if u := unavailableAt(1, fmt.Errorf("wrapped: %w", cause)); u.wal != nil || !errors.Is(u.err, cause) {
		t.Errorf("%+v", u)
	}
}

func TestStatesAreOrderedByTermThenAvailableFirst(t *testing.T) {
	history := []state{{-1, false}, {0, true}, {1, true}, {1, false}, {2, false}, {3, true}, {3, false}, {5, false}, {7, true}}
	for i, a := range history {
		for j, b := range history {
			if a.before(b) != (i < j) {
				t.Errorf("%v before %v is %v", a, b, a.before(b))
			}
		}
	}
}

func TestTheOrderOfStatesIsStrictAndTotal(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) state {
		return state{rapid.Int64Range(-1, 5).Draw(t, "term"), rapid.Bool().Draw(t, "available")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := draw.Draw(t, "a"), draw.Draw(t, "b"), draw.Draw(t, "c")
		if n := count(a.before(b), b.before(a), a == b); n != 1 {
			t.Fatalf("%v, %v: %d of <, >, = hold", a, b, n)
		}
		if a.before(b) && b.before(c) && !a.before(c) {
			t.Fatalf("%v < %v < %v is not transitive", a, b, c)
		}
	})
}

func count(facts ...bool) int {
	n := 0
	for _, f := range facts {
		if f {
			n++
		}
	}
	return n
}

// What shall be and what is both move forward only, also when many move them
// at once, and everybody who watches sees them move forward.
func TestWatchersSeeStatesMoveForwardOnly(t *testing.T) {
	o := newFakeOpener()
	l := newLifetime("orders", o, nopLog())
	read := func() (state, state, <-chan struct{}) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.m.expected, l.m.current.state, l.changed
	}
	target := state{10, false}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			for expected, current, changed := read(); current != target; {
				select {
				case <-changed:
				case <-time.After(10 * time.Second):
					t.Errorf("stuck at %v, %v", expected, current)
					return
				}
				e, c, ch := read()
				if e.before(expected) || c.before(current) || e.before(c) {
					t.Errorf("from %v, %v to %v, %v", expected, current, e, c)
				}
				expected, current, changed = e, c, ch
			}
		})
		wg.Go(func() {
			for term := int64(1); term <= 10; term++ {
				for _, c := range []call{callOpen, callRemove} {
					_ = l.request(c, term)
					if e, _, _ := read(); e.before(state{term, c.available}) {
						t.Errorf("%v after a request of %v", e, state{term, c.available})
					}
				}
			}
		})
	}
	wg.Wait()
	<-l.idle()
	o.check(t, 0)
}

func TestAWaiterEndsWithTheStateOrItsOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLifetime("orders", newFakeOpener(), nopLog())
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		// Reached and passed states answer at once.
		l.m.expected, l.m.current = state{1, false}, unavailableAt(1, nil)
		if err := l.wait(within(time.Second), callRemove, 1); err != nil {
			t.Error(err)
		}
		// A state that does not come is waited for as long as the caller wants.
		start := time.Now()
		if err := l.wait(within(time.Second), callRemove, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("it took %v", d)
		}
		// A context that ended already is judged before the state, or the answer
		// would depend on who runs faster.
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.wait(ended, callRemove, 1); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		// An Open that is overtaken gets the refusal, with name and both terms.
		l.m.expected = state{3, true}
		result := make(chan error)
		go func() { result <- l.wait(within(time.Minute), callOpen, 3) }()
		synctest.Wait()
		for _, term := range []int64{2, 4} {
			l.report(func(m *machine) { m.expected, m.current = state{max(3, term), true}, availableAt(term, &fakeWAL{}) })
			synctest.Wait()
		}
		err := <-result
		wantError(t, err, walimpls.ErrTermExpired, "orders", "3", "4")
		// A Remove that is overtaken is content: nothing of its term is open.
		if err := l.wait(within(time.Second), callRemove, 3); err != nil {
			t.Error(err)
		}
	})
}

// The core is right whatever comes in whatever order: rapid plays requests and
// the results of steps against it.
func TestTheMachineKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine("orders")
		var open *fakeWAL // the WAL that the world has open
		var running step  // the step that is being made, of kind stepIdle if none
		var asked []state // accepted requests
		drawTerm := rapid.Int64Range(1, 6)

		begin := func() {
			if running.kind != stepIdle {
				return
			}
			running = m.next()
			switch running.kind {
			case stepOpen:
				if open != nil {
					t.Fatalf("term %d is to be opened while term %d is open", running.term, open.term)
				}
				if m.stopped != nil {
					t.Fatal("a stopped machine opens")
				}
			case stepClose, stepWatch:
				if running.wal != open {
					t.Fatalf("the step is for %v, open is %v", running.wal, open)
				}
			}
			if running.kind == stepWatch {
				running = step{}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				c := callOpen
				if rapid.Bool().Draw(t, "remove") {
					c = callRemove
				}
				s := state{drawTerm.Draw(t, "term"), c.available}
				before := m.expected
				news, err := m.request(c.op, s)
				switch {
				case m.stopped != nil:
					if !errors.Is(err, m.stopped) {
						t.Fatalf("a stopped machine answers %v", err)
					}
				case before.before(s):
					if !news || err != nil || m.expected != s {
						t.Fatalf("%v after %v: %v, %v", s, before, news, err)
					}
					asked = append(asked, s)
				case before == s:
					if news || err != nil {
						t.Fatalf("%v again: %v, %v", s, news, err)
					}
				default:
					if news || !errors.Is(err, walimpls.ErrTermExpired) || m.expected != before {
						t.Fatalf("%v after %v: %v, %v", s, before, news, err)
					}
				}
			},
			"begin": func(*rapid.T) { begin() },
			"finish": func(t *rapid.T) {
				before := m.current.state
				switch running.kind {
				case stepOpen:
					if rapid.Bool().Draw(t, "ok") {
						open = &fakeWAL{term: running.term}
						m.opened(running.term, open)
					} else {
						m.openFailed(running.term, errors.New("failed"))
					}
				case stepClose:
					open = nil
					m.closed()
				}
				running = step{}
				if m.current.before(before) {
					t.Fatalf("current goes back from %v to %v", before, m.current.state)
				}
			},
			"ended": func(*rapid.T) { m.walEnded(errors.New("fenced")) },
			"stop": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "really") == 0 {
					m.stop(shutdown())
				}
			},
			"": func(t *rapid.T) {
				w, err := m.get(0)
				if (w == nil) == (err == nil) {
					t.Fatalf("get gives %v, %v", w, err)
				}
				if w != nil && (w != open || m.expected != (state{open.term, true})) {
					t.Fatalf("get gives a wal that is not the one that is and shall be")
				}
				if m.current.term > m.expected.term {
					t.Fatalf("current %v is ahead of expected %v", m.current.state, m.expected)
				}
				if s := m.status(); (s.State == Available) != (w != nil) || s.Term != m.expected.term {
					t.Fatalf("status is %+v, get gives %v", s, w)
				}
			},
		})
		// Left alone, the machine gets to where it shall be and rests.
		for range 10 {
			begin()
			switch running.kind {
			case stepOpen:
				open = &fakeWAL{term: running.term}
				m.opened(running.term, open)
			case stepClose:
				open = nil
				m.closed()
			}
			running = step{}
		}
		if s := m.next(); s.kind == stepOpen || s.kind == stepClose {
			t.Fatalf("it does not come to rest: %+v", s)
		}
		if m.stopped != nil && open != nil {
			t.Fatal("a stopped machine leaves a wal open")
		}
		for _, s := range asked {
			c := callOpen
			if !s.available {
				c = callRemove
			}
			if done, _ := c.outcome(&m, s.term); !done {
				t.Fatalf("a %s of term %d waits for ever", c.op, s.term)
			}
		}
		if !slices.IsSortedFunc(asked, func(a, b state) int { return count(b.before(a)) - count(a.before(b)) }) {
			t.Fatalf("accepted requests go back: %v", asked)
		}
	})
}
