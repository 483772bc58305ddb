package walmanager

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Two channels from the first question to the end of the host.
func TestTheManagerKeepsTermsApart(t *testing.T) {
	o := newFakeOpener()
	m := New(o, nil)
	ctx := t.Context()
	_, err := m.Get("orders", 1)
	wantError(t, err, walimpls.ErrNotFound, "orders")
	if s := m.Status(); len(s) != 0 {
		t.Errorf("status is %+v", s)
	}
	if err := m.Remove(ctx, "orders", 1); err != nil { // of what was never opened
		t.Fatal(err)
	}
	wantError(t, m.Open(ctx, "orders", 1), walimpls.ErrTermExpired, "orders")
	if err := m.Open(ctx, "orders", 2); err != nil {
		t.Fatal(err)
	}
	wantError(t, m.Remove(ctx, "orders", 1), walimpls.ErrTermExpired, "orders")
	for _, other := range []int64{1, 3} {
		_, err := m.Get("orders", other)
		wantError(t, err, walimpls.ErrUnmatchedTerm, "orders", fmt.Sprint(other), "2")
		var unmatched *UnmatchedTermError
		if !errors.As(err, &unmatched) || unmatched.Expected != other || unmatched.Current != 2 {
			t.Errorf("%+v", unmatched)
		}
	}
	w, err := m.Get("orders", 2)
	if err != nil {
		t.Fatal(err)
	}
	if whichever, err := m.Get("orders", 0); err != nil || whichever != w {
		t.Errorf("get of whichever is open: %v, %v", whichever, err)
	}
	if out := w.Append(ctx, make([]message.Message, 2)); out[1].State != walimpls.Stored {
		t.Errorf("append: %+v", out)
	}
	if err := m.Open(ctx, "audit", 3); err != nil {
		t.Fatal(err)
	}
	states := m.Status()
	if len(states) != 2 || states[0].Channel != "audit" || states[1].Channel != "orders" ||
		states[0].Term != 3 || states[1].WAL != w || states[0].State != Available {
		t.Errorf("status is %+v", states)
	}
	o.check(t, 2)
	closeManager(t, m, o)
	afterClose(t, m)
}

// afterClose checks that a closed manager refuses everything, for always.
func afterClose(t *testing.T, m *Manager) {
	t.Helper()
	wantError(t, m.Open(t.Context(), "orders", 9), walimpls.ErrShutdown)
	wantError(t, m.Open(t.Context(), "new", 1), walimpls.ErrShutdown)
	wantError(t, m.Remove(t.Context(), "orders", 9), walimpls.ErrShutdown)
	wantError(t, m.Forget(t.Context(), "orders"), walimpls.ErrShutdown)
	_, err := m.Get("orders", 0)
	wantError(t, err, walimpls.ErrShutdown)
	if s := m.Status(); s != nil {
		t.Errorf("status of a closed manager: %+v", s)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("a second close: %v", err)
	}
}

func TestClosingAHandedOutWALDoesNothing(t *testing.T) {
	o := newFakeOpener()
	m := New(o, nil)
	if err := m.Open(t.Context(), "orders", 1); err != nil {
		t.Fatal(err)
	}
	w, err := m.Get("orders", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(t.Context()), m.Status()[0].WAL.Close(t.Context())); err != nil {
		t.Error(err)
	}
	o.check(t, 1)
	if out := w.Append(t.Context(), make([]message.Message, 1)); out[0].State != walimpls.Stored {
		t.Errorf("append after close: %+v", out)
	}
	closeManager(t, m, o)
}

func TestLookingUpUnknownNamesLeavesNoTrace(t *testing.T) {
	o := newFakeOpener()
	m := New(o, nil)
	before := runtime.NumGoroutine()
	for i := range 10_000 {
		if _, err := m.Get(fmt.Sprintf("unknown-%d", i), int64(i%3)); !errors.Is(err, walimpls.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines before, %d after", before, n)
	}
	if len(m.lifetimes) != 0 || len(m.Status()) != 0 || o.openCount() != 0 {
		t.Errorf("%d lifetimes are left", len(m.lifetimes))
	}
	closeManager(t, m, o)
}

func TestARemoveEndsTheGoroutineAndKeepsThePair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		m := New(o, nil)
		before := runtime.NumGoroutine()
		names := []string{"a", "b", "c"}
		for _, name := range names {
			if err := m.Open(t.Context(), name, 4); err != nil {
				t.Fatal(err)
			}
		}
		if n := runtime.NumGoroutine(); n != before+len(names) {
			t.Errorf("%d goroutines for %d channels", n-before, len(names))
		}
		for _, name := range names {
			if err := m.Remove(t.Context(), name, 4); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := runtime.NumGoroutine(); n != before {
			t.Errorf("%d goroutines are left", n-before)
		}
		for _, name := range names {
			wantError(t, m.Open(t.Context(), name, 4), walimpls.ErrTermExpired, name)
			if err := m.Open(t.Context(), name, 5); err != nil {
				t.Error(err)
			}
		}
		closeManager(t, m, o)
	})
}

func TestForgetEndsEverythingForTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		o.forgets = true
		m := New(o, nil)
		forget := func() {
			t.Helper()
			for range 2 { // idempotent
				if err := m.Forget(t.Context(), "orders"); err != nil {
					t.Fatal(err)
				}
			}
			o.check(t, 0)
			_, err := m.Get("orders", 0)
			wantError(t, err, walimpls.ErrNotFound)
			if len(m.lifetimes) != 0 {
				t.Error("the name is still known")
			}
		}
		forget() // an unknown name
		if err := m.Open(t.Context(), "orders", 7); err != nil {
			t.Fatal(err)
		}
		forget()                                                 // an open one
		if err := m.Open(t.Context(), "orders", 3); err != nil { // any term again
			t.Fatal(err)
		}
		if err := m.Remove(t.Context(), "orders", 3); err != nil {
			t.Fatal(err)
		}
		forget() // a removed one
		o.onOpen = blockUntilCanceled
		opened := make(chan error)
		go func() { opened <- m.Open(t.Context(), "orders", 1) }()
		synctest.Wait()
		forgotten := make(chan struct{})
		go func() { defer close(forgotten); forget() }() // one that is being opened
		wantError(t, <-opened, walimpls.ErrNotFound, "orders")
		<-forgotten
		closeManager(t, m, o)
	})
}

// What a name had open is closed before the name is opened anew, however long
// that takes and whoever gives up waiting.
func TestANameIsOpenedAnewOnlyWhenItIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		o.forgets = true
		closing := make(chan struct{})
		o.onClose = func(context.Context, string, int64) error { <-closing; return nil }
		m := New(o, nil)
		if err := m.Open(t.Context(), "orders", 7); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantError(t, m.Forget(short, "orders"), context.DeadlineExceeded, "orders")
		wantError(t, m.Open(short, "orders", 1), context.DeadlineExceeded, "orders")
		_, err := m.Get("orders", 0)
		wantError(t, err, walimpls.ErrNotFound)
		if s := m.Status(); len(s) != 0 {
			t.Errorf("status is %+v", s)
		}
		opened := make(chan error)
		go func() { opened <- m.Open(t.Context(), "orders", 1) }()
		synctest.Wait()
		if n := o.openCount(); n != 1 {
			t.Errorf("opened %d times while the old wal is being closed", n)
		}
		close(closing)
		if err := <-opened; err != nil {
			t.Error(err)
		}
		closeManager(t, m, o)
	})
}

func TestCloseEndsAnOpenThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		o.onOpen = func(ctx context.Context, channel string, term int64) error {
			if channel == "orders" {
				return blockUntilCanceled(ctx, channel, term)
			}
			return nil
		}
		m := New(o, nil)
		if err := m.Open(t.Context(), "audit", 1); err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 2)
		go func() { results <- m.Open(t.Context(), "orders", 1) }()
		synctest.Wait()
		start := time.Now()
		closeManager(t, m, o)
		if d := time.Since(start); d != 0 {
			t.Errorf("close took %v", d)
		}
		wantError(t, <-results, walimpls.ErrShutdown)
		afterClose(t, m)
	})
}

// Whatever hangs below and does not listen, Close comes back, says what hangs,
// and what comes back later is closed all the same.
func TestCloseIsBoundedWhateverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		release := make(chan struct{})
		o.onOpen = func(_ context.Context, channel string, _ int64) error {
			if channel == "slow-open" {
				<-release
			}
			return nil
		}
		o.onClose = func(_ context.Context, channel string, _ int64) error {
			if channel == "slow-close" {
				<-release
			}
			return nil
		}
		m := New(hangingOpener{o, release}, nil)
		for _, name := range []string{"slow-close", "good"} {
			if err := m.Open(t.Context(), name, 1); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _ = m.Open(t.Context(), "slow-open", 1) }()
		synctest.Wait()
		start := time.Now()
		err := m.Close(t.Context())
		if d := time.Since(start); d > closeBudget {
			t.Errorf("close took %v", d)
		}
		wantError(t, err, walimpls.ErrUnavailable, "slow-close", "slow-open", "opener")
		if strings.Contains(err.Error(), "good") {
			t.Errorf("the error names what closed in time: %v", err)
		}
		o.check(t, 1) // slow-close; slow-open has no wal yet
		close(release)
		synctest.Wait()
		o.defects = slices.DeleteFunc(o.defects, func(d string) bool { return strings.Contains(d, "while") })
		o.check(t, 0)
	})
}

// hangingOpener does not close before it is released.
type hangingOpener struct {
	*fakeOpener
	release chan struct{}
}

func (o hangingOpener) Close(ctx context.Context) error {
	<-o.release
	return o.fakeOpener.Close(ctx)
}

func TestASecondCloseWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		o.onClose = func(ctx context.Context, _ string, _ int64) error { <-ctx.Done(); return ctx.Err() }
		m := New(o, nil)
		if err := m.Open(t.Context(), "orders", 1); err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 3)
		for range 3 {
			go func() { results <- m.Close(t.Context()) }()
		}
		synctest.Wait()
		wantError(t, m.Open(t.Context(), "orders", 2), walimpls.ErrShutdown)
		wantError(t, m.Close(canceled(t)), context.Canceled)
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		o.check(t, 0)
	})
}

func TestWrongUseIsAnErrorAndNeverAPanic(t *testing.T) {
	m := New(nil, nil)
	ctx := t.Context()
	for _, name := range []string{"", "../x", strings.Repeat("x", 300), "\xff\x00"} {
		wantError(t, m.Open(ctx, name, 1), walimpls.ErrInvalidArgument)
		wantError(t, m.Remove(ctx, name, 1), walimpls.ErrInvalidArgument)
		_, err := m.Get(name, 1)
		wantError(t, err, walimpls.ErrNotFound)
		if err := m.Forget(ctx, name); err != nil {
			t.Error(err)
		}
	}
	for _, term := range []int64{0, -1, math.MinInt64} {
		wantError(t, m.Open(ctx, "orders", term), walimpls.ErrInvalidArgument, "orders")
		wantError(t, m.Remove(ctx, "orders", term), walimpls.ErrInvalidArgument, "orders")
	}
	wantError(t, m.Open(ctx, "orders", 1), walimpls.ErrInternal, "no opener")
	if err := m.Remove(ctx, "orders", math.MaxInt64); err != nil {
		t.Error(err)
	}
	if _, err := m.Get("orders", -5); err == nil {
		t.Error("a negative term is open")
	}
	if err := m.Close(ctx); err != nil {
		t.Error(err)
	}
}
