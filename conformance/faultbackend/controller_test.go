package faultbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

func TestDelaysTakeTheirTimeOnceACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "append delay 3s\nappend delay-ack 2s count=3")
		w := f.open(t, 1, 1)
		begin := time.Now()
		appendAll(t, w, "a", "b", "c")
		if d := time.Since(begin); d != 5*time.Second {
			t.Fatalf("three records took %s", d)
		}
		appendAll(t, w, "d")
		if d := time.Since(begin); d != 8*time.Second {
			t.Fatalf("then one took it to %s", d)
		}
	})
}

func TestOnlyHangBreaksTheBoundOfClose(t *testing.T) {
	for rule, want := range map[string]time.Duration{
		"close block": closeBound, "close delay 1m": closeBound, "close delay 1s": time.Second, "close hang 30s": 30 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, rule)
			w := f.open(t, 1, 1)
			f.open(t, 1, 2) // they close side by side
			begin := time.Now()
			check(t, f.Close(context.Background()))
			if d := time.Since(begin); d != want {
				t.Errorf("%s: Close took %s, want %s", rule, d, want)
			}
			_, err := w.Append(context.Background(), data("x"))
			wantErr(t, err, walimpls.ErrClosed)
		})
	}
}

func TestHangOutlastsContextAndCloseButNotItsRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "append hang")
		w := f.open(t, 1, 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		got := make(chan walimpls.Outcome, 1)
		go func() { got <- appendOne(ctx, w, "a") }()
		time.Sleep(time.Hour)
		check(t, w.Close(context.Background()))
		synctest.Wait()
		select {
		case out := <-got:
			t.Fatalf("it ended with %v", out.Err)
		default:
		}
		check(t, f.ctl.SetRules(""))
		if out := <-got; out.State != walimpls.NotStored || !errors.Is(out.Err, walimpls.ErrClosed) {
			t.Fatalf("%v, %v", out.State, out.Err)
		}
	})
}

func TestSelectorsChoose(t *testing.T) {
	f := newFixture(t, "append error corrupt channel=ord*s term=2 incarnation=3")
	for _, c := range []struct {
		channel           string
		term, incarnation int64
		fails             bool
	}{
		{"orders", 2, 3, true}, {"orders", 3, 3, false}, {"orders", 4, 3, false}, {"other", 2, 3, false}, {"ords", 2, 3, true}, {"ords", 2, 4, false},
	} {
		w, err := f.Open(f.ctx, rw(c.channel, c.term, c.incarnation))
		check(t, err)
		if out := appendOne(f.ctx, w, "a"); (out.State != walimpls.Stored) != c.fails {
			t.Errorf("%+v: %v", c, out.State)
		}
	}
}

func TestTheFirstRuleThatDecidesIsTheLastThatSees(t *testing.T) {
	f := newFixture(t, "append error corrupt count=1\nappend error no_space count=1\nappend error corrupt after=1 name=third")
	w := f.open(t, 1, 1)
	for i, want := range []error{walimpls.ErrCorrupt, walimpls.ErrNoSpace, nil, walimpls.ErrCorrupt} {
		if out := appendOne(f.ctx, w, "a"); !errors.Is(out.Err, want) {
			t.Errorf("append %d: %v, want %v", i, out.Err, want)
		}
	}
}

func TestPerCallCountsCallsAndActsOnTheBatch(t *testing.T) {
	f := newFixture(t, "append error corrupt per=call every=2")
	w := f.open(t, 1, 1)
	appendAll(t, w, "a", "b", "c")
	ids, err := w.Append(f.ctx, data("d", "e"))
	for _, o := range walimpls.Outcomes(channel, 2, ids, err) {
		if o.State != walimpls.NotStored {
			t.Errorf("%v", o.State)
		}
	}
	wantPayloads(t, f.stored(), "a", "b", "c")
}

func TestFaultsAreTheSameForTheSameSeed(t *testing.T) {
	run := func(rule string, cfg walimpls.Config) string {
		cfg["rules"] = rule
		o := buildOpener(t, cfg)
		defer func() { check(t, o.Close(t.Context())) }()
		w := mustOpen(testContext(t), t, o, 1, 1)
		var b strings.Builder
		for range 200 {
			fmt.Fprint(&b, int(appendOne(t.Context(), w, "a").State))
		}
		return b.String()
	}
	const rule = "append error unavailable prob=0.3"
	first := run(rule, walimpls.Config{})
	if n := strings.Count(first, "2"); n < 30 || n > 90 {
		t.Fatalf("%d of 200 failed at 0.3", n)
	}
	if run(rule, walimpls.Config{}) != first {
		t.Fatal("two runs differ")
	}
	if run(rule, walimpls.Config{"seed": 2}) == first || run(rule+" seed=5", walimpls.Config{}) == first {
		t.Fatal("another seed gives the same faults")
	}
	if run(rule+" seed=5", walimpls.Config{"seed": 2}) != run(rule+" seed=5", walimpls.Config{}) {
		t.Fatal("a rule's own seed does not win")
	}
}

func TestARuleThatStaysKeepsItsStateAndItsCalls(t *testing.T) {
	f := newFixture(t, "append block count=1\nread error corrupt count=1")
	w := f.open(t, 1, 1)
	got := make(chan walimpls.Outcome)
	go func() { got <- appendOne(f.ctx, w, "held") }()
	f.waiting(t, OpAppend, 1)
	_, err := w.Read(f.ctx, walimpls.ReadOptions{Start: walimpls.FromAll()})
	wantErr(t, err, walimpls.ErrCorrupt)
	check(t, f.ctl.SetRules("# another order\nread error corrupt count=1; append block count=1"))
	appendAll(t, w, "not held: the count is used up")
	scan(t, w, walimpls.FromAll())
	wantErr(t, f.ctl.SetRules("nonsense"), walimpls.ErrInvalidArgument) // changes nothing
	if f.ctl.Stats().Waiting[OpAppend] != 1 || len(f.ctl.Rules()) != 2 {
		t.Fatal("the append was let go")
	}
	check(t, f.ctl.SetRules("append block count=1 name=again"))
	if out := <-got; out.State != walimpls.Stored {
		t.Fatal(out.Err)
	}
	go func() { got <- appendOne(f.ctx, w, "held again") }()
	f.waiting(t, OpAppend, 1)
	check(t, f.ctl.SetRules(""))
	<-got
	if s := f.ctl.Stats(); s.Faults["append block count=1"] != 1 || s.Faults["again"] != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestStatsOfOneThatWaitsInVainSayWhatTheyAre(t *testing.T) {
	f := newFixture(t, "")
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	err := f.ctl.WaitFor(ctx, func(Stats) bool { return false })
	wantErr(t, err, context.Canceled)
	if !strings.Contains(err.Error(), "Calls") {
		t.Errorf("%v", err)
	}
}
