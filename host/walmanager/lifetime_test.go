package walmanager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

func nopLog() *zap.Logger { return zap.NewNop() }

// wantError fails unless err is of the wanted kind and its text has every part.
func wantError(t testing.TB, err, want error, parts ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %q", err, part)
		}
	}
}

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func blockUntilCanceled(ctx context.Context, _ string, _ int64) error {
	<-ctx.Done()
	return fmt.Errorf("recovery interrupted: %w", ctx.Err())
}

// The life of one pchannel from its first to its last term.
func TestALifeOfTerms(t *testing.T) {
	o := newFakeOpener()
	m := New(o, nil)
	ctx := t.Context()
	isOpen := func(term int64) {
		t.Helper()
		w, err := m.Get("orders", term)
		if err != nil {
			t.Fatal(err)
		}
		if c := w.Channel(); c.Name != "orders" || c.Term != term {
			t.Errorf("the wal is %+v, want term %d", c, term)
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Get("orders", 0); !errors.Is(err, walimpls.ErrNotFound) {
		t.Errorf("before the first open: %v", err)
	}
	ok(m.Open(ctx, "orders", 2))
	isOpen(2)
	wantError(t, m.Remove(ctx, "orders", 1), walimpls.ErrTermExpired, "orders", "1", "2")
	isOpen(2)
	ok(m.Remove(ctx, "orders", 2))
	_, err := m.Get("orders", 0)
	wantError(t, err, walimpls.ErrNotFound, "orders", "removed")
	o.check(t, 0)
	wantError(t, m.Open(ctx, "orders", 1), walimpls.ErrTermExpired, "orders", "expected term 1", "actual term 2")
	wantError(t, m.Open(ctx, "orders", 2), walimpls.ErrTermExpired, "orders", "expected term 2", "actual term 2")
	ok(m.Open(ctx, "orders", 5))
	isOpen(5)
	ok(m.Open(ctx, "orders", 10)) // replaces 5
	isOpen(10)
	// The caller is gone before it asks: the host takes the wish all the same, so
	// the later calls of that term find it taken.
	wantError(t, m.Open(canceled(t), "orders", 11), context.Canceled, "orders", "11")
	wantError(t, m.Remove(canceled(t), "orders", 11), context.Canceled, "orders", "11")
	wantError(t, m.Open(ctx, "orders", 11), walimpls.ErrTermExpired, "orders", "11")
	ok(m.Open(ctx, "orders", 12))
	isOpen(12)
	o.check(t, 1)
	closeManager(t, m, o)
}

// A difference to the reference, where a second Open of a term is refused: it
// joins. So a client that gave up may ask again, and gets the result.
func TestAnOpenOfTheSameTermJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		proceed := make(chan struct{})
		o.onOpen = func(context.Context, string, int64) error { <-proceed; return nil }
		m := New(o, nil)
		// The first caller leaves; the second leaves while it waits; the open goes on.
		wantError(t, m.Open(canceled(t), "orders", 11), context.Canceled)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantError(t, m.Open(short, "orders", 11), context.DeadlineExceeded, "orders", "11")
		results := make(chan error, 3)
		for range 3 {
			go func() { results <- m.Open(t.Context(), "orders", 11) }()
		}
		synctest.Wait()
		if s := m.Status(); len(s) != 1 || s[0].State != Opening || s[0].Term != 11 || s[0].Err != nil || s[0].WAL != nil {
			t.Errorf("status while opening: %+v", s)
		}
		_, err := m.Get("orders", 0)
		wantError(t, err, walimpls.ErrUnavailable, "orders", "11", "being opened")
		if !walimpls.AsError(err).Retryable {
			t.Error("an open that goes on is worth a retry")
		}
		close(proceed)
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if err := m.Open(t.Context(), "orders", 11); err != nil { // finished: joins too
			t.Error(err)
		}
		if n := o.openCount(); n != 1 {
			t.Errorf("the opener was called %d times", n)
		}
		closeManager(t, m, o)
	})
}

func TestAFailedOpenEndsItsTermWithTheCause(t *testing.T) {
	o := newFakeOpener()
	cause := walimpls.NewFencedError("orders", walimpls.Pair{Term: 3, Incarnation: 1}, walimpls.Pair{Term: 9, Incarnation: 2})
	fail := true
	o.onOpen = func(context.Context, string, int64) error {
		if fail {
			return fmt.Errorf("claim: %w", cause)
		}
		return nil
	}
	m := New(o, nil)
	for range 2 { // the retry gets the same result, without another open
		err := m.Open(t.Context(), "orders", 3)
		wantError(t, err, walimpls.ErrFenced, "orders", "term 3", "9.2")
		var fenced *walimpls.FencedError
		if !errors.As(err, &fenced) || fenced.Highest.Term != 9 {
			t.Errorf("the cause is lost: %v", err)
		}
		if e := walimpls.AsError(err); e.Retryable || !strings.Contains(e.Hint, "higher term") {
			t.Errorf("the error does not say what to do: %+v", e)
		}
	}
	if n := o.openCount(); n != 1 {
		t.Errorf("the opener was called %d times", n)
	}
	_, err := m.Get("orders", 3)
	wantError(t, err, walimpls.ErrTermExpired, "orders", "9.2")
	if s := m.Status()[0]; s.State != Unavailable || s.Term != 3 || !errors.Is(s.Err, walimpls.ErrFenced) {
		t.Errorf("status is %+v", s)
	}
	fail = false
	if err := m.Open(t.Context(), "orders", 10); err != nil {
		t.Fatal(err)
	}
	if s := m.Status()[0]; s.State != Available || s.Term != 10 || s.Err != nil || s.WAL == nil {
		t.Errorf("status is %+v", s)
	}
	closeManager(t, m, o)
}

// The reference's regression test: the open ends with a wrapped context error;
// a Remove with a healthy context must not take that for its own.
func TestRemoveNeverInheritsTheErrorOfAnOpen(t *testing.T) {
	for name, cause := range map[string]error{
		"a wrapped cancellation":  fmt.Errorf("recover: %w", context.Canceled),
		"a wrapped deadline":      fmt.Errorf("recover: %w", context.DeadlineExceeded),
		"a typed timeout":         walimpls.Errorf(walimpls.CodeTimeout, "orders", "slow: %w", context.DeadlineExceeded),
		"any other":               errors.New("disk on fire"),
		"neither wal nor error":   nil,
		"a panic of the opener":   errPanic,
		"the shutdown of a below": walimpls.Errorf(walimpls.CodeShutdown, "", "below"),
	} {
		t.Run(name, func(t *testing.T) {
			o := newFakeOpener()
			o.onOpen = func(context.Context, string, int64) error {
				if errors.Is(cause, errPanic) {
					panic(cause)
				}
				return cause
			}
			m := New(nilOpener{o}, nil)
			err := m.Open(t.Context(), "orders", 1)
			if err == nil {
				t.Fatal("the open is a success")
			}
			if code := walimpls.AsError(err).Code; code == walimpls.CodeCanceled || code == walimpls.CodeTimeout {
				t.Errorf("the opener's context looks like the caller's: %v", err)
			}
			if err := m.Remove(t.Context(), "orders", 1); err != nil {
				t.Errorf("remove: %v", err)
			}
			if _, err := m.Get("orders", 0); !errors.Is(err, walimpls.ErrNotFound) {
				t.Errorf("get after the remove: %v", err)
			}
			if err := m.Remove(t.Context(), "orders", 1); err != nil {
				t.Errorf("remove again: %v", err)
			}
			closeManager(t, m, o)
		})
	}
}

var errPanic = errors.New("panic")

// A Remove or a higher Open does not wait for an open that hangs: it ends it.
func TestALaterCallEndsAnOpenThatHangs(t *testing.T) {
	for name, later := range map[string]func(*Manager, context.Context) error{
		"remove":      func(m *Manager, ctx context.Context) error { return m.Remove(ctx, "orders", 1) },
		"higher open": func(m *Manager, ctx context.Context) error { return m.Open(ctx, "orders", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newFakeOpener()
				o.onOpen = func(ctx context.Context, channel string, term int64) error {
					if term == 1 {
						return blockUntilCanceled(ctx, channel, term)
					}
					return nil
				}
				m := New(o, nil)
				first := make(chan error)
				go func() { first <- m.Open(t.Context(), "orders", 1) }()
				synctest.Wait()
				start := time.Now()
				if err := later(m, t.Context()); err != nil {
					t.Error(err)
				}
				wantError(t, <-first, walimpls.ErrTermExpired, "orders", "term 1")
				if d := time.Since(start); d != 0 {
					t.Errorf("it took %v", d)
				}
				if s := m.Status()[0]; s.Err != nil { // nothing went wrong
					t.Errorf("status is %+v", s)
				}
				closeManager(t, m, o)
			})
		})
	}
}

// An opener that does not listen to its context opens the old term all the
// same: the WAL is closed and nobody ever gets it.
func TestAnOvertakenOpenThatSucceedsIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		proceed := make(chan struct{})
		o.onOpen = func(_ context.Context, _ string, term int64) error {
			if term == 1 {
				<-proceed
			}
			return nil
		}
		m := New(o, nil)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- m.Open(t.Context(), "orders", 1) }()
		synctest.Wait()
		go func() { second <- m.Open(t.Context(), "orders", 2) }()
		synctest.Wait()
		wantError(t, <-first, walimpls.ErrTermExpired)
		close(proceed)
		if err := <-second; err != nil {
			t.Error(err)
		}
		o.check(t, 1)
		if w, err := m.Get("orders", 0); err != nil || w.Channel().Term != 2 {
			t.Error(err)
		}
		closeManager(t, m, o)
	})
}

func TestAWALThatEndsByItselfEndsItsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		closing := make(chan struct{})
		o.onClose = func(ctx context.Context, _ string, _ int64) error {
			select {
			case <-closing:
			case <-ctx.Done():
			}
			return nil
		}
		m := New(o, nil)
		if err := m.Open(t.Context(), "orders", 1); err != nil {
			t.Fatal(err)
		}
		over := walimpls.Errorf(walimpls.CodeTermExpired, "orders", "term 1 was taken over by term 7")
		o.wal("orders").end(over)
		// At once, before the manager's goroutine has run, nobody gets it any more.
		for range 2 {
			_, err := m.Get("orders", 1)
			wantError(t, err, over, "orders", "taken over by term 7")
			wantError(t, err, walimpls.ErrTermExpired)
			if s := m.Status()[0]; s.State != Unavailable || !errors.Is(s.Err, over) || s.WAL != nil || s.Term != 1 {
				t.Errorf("status is %+v", s)
			}
			synctest.Wait() // the second round: it is being closed
		}
		wantError(t, m.Open(t.Context(), "orders", 1), over)
		removed := make(chan error, 1)
		go func() { removed <- m.Remove(t.Context(), "orders", 1) }()
		synctest.Wait()
		select {
		case err := <-removed:
			t.Errorf("remove returns %v before the handle is closed", err)
		default:
		}
		close(closing)
		if err := <-removed; err != nil {
			t.Error(err)
		}
		o.check(t, 0)
		if err := m.Open(t.Context(), "orders", 8); err != nil {
			t.Error(err)
		}
		closeManager(t, m, o)
	})
}

// Without a Remove the term stays as it ended, and its goroutine is gone.
func TestATermThatEndedLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		m := New(o, nil)
		if err := m.Open(t.Context(), "orders", 1); err != nil {
			t.Fatal(err)
		}
		o.wal("orders").end(nil) // a WAL that does not say why
		<-m.lifetimes["orders"].idle()
		o.check(t, 0)
		err := m.Open(t.Context(), "orders", 1)
		wantError(t, err, walimpls.ErrClosed, "orders")
		if s := m.Status()[0]; s.State != Unavailable || s.Err == nil {
			t.Errorf("status is %+v", s)
		}
		closeManager(t, m, o)
	})
}

// A failing or panicking Close of the old WAL does not keep the new term away:
// the open fences what is left.
func TestAFailingCloseDoesNotStopTheNextTerm(t *testing.T) {
	o := newFakeOpener()
	o.onClose = func(_ context.Context, _ string, term int64) error { return fmt.Errorf("close of %d", term) }
	m := New(panicOnClose{o}, nil)
	for term := int64(1); term <= 3; term++ {
		if err := m.Open(t.Context(), "orders", term); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	o.check(t, 0)
}

func TestClosingTheOldWALIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeOpener()
		o.onClose = func(ctx context.Context, _ string, _ int64) error { <-ctx.Done(); return ctx.Err() }
		m := New(o, nil)
		start := time.Now()
		for term := int64(1); term <= 2; term++ {
			if err := m.Open(t.Context(), "orders", term); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != walimpls.GracePeriod {
			t.Errorf("the second open took %v", d)
		}
		closeManager(t, m, o)
	})
}
