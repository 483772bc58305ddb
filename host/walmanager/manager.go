package walmanager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Manager opens and closes the WALs of a host. It is safe for concurrent use.
type Manager struct {
	opener wal.Opener
	log    *zap.Logger

	mu        sync.RWMutex // guards all below; taken before a lifetime's mu
	lifetimes map[string]*lifetime
	// closing is closed when Close has ended, with closeErr; nil before Close.
	closing  chan struct{}
	closeErr error
}

// New returns a manager that opens WALs with opener, which it closes at its own
// end. log may be nil.
func New(opener wal.Opener, log *zap.Logger) *Manager {
	if log == nil {
		log = zap.NewNop()
	}
	return &Manager{opener: opener, log: log.Named("walmanager"), lifetimes: map[string]*lifetime{}}
}

// Open opens the channel at term, after closing what was open at a lower one,
// and waits until it is available. If ctx ends first Open returns its error and
// the move goes on; a later Open of the same term joins it, or gets its result.
//
// Errors: ErrTermExpired (a higher term was asked for, or this one was removed),
// ErrInvalidArgument, ErrShutdown, and the opener's. A term that failed stays
// failed: it takes a higher one to try again.
func (m *Manager) Open(ctx context.Context, channel string, term int64) error {
	return m.drive(ctx, callOpen, channel, term)
}

// Remove closes the channel's WAL of term, or of a lower one, and keeps the term
// from being opened (again). It returns nil when nothing of that kind is open,
// also if a higher term took over meanwhile; a channel that was never opened is
// marked all the same. If ctx ends first Remove returns its error and the move
// goes on.
//
// Errors: ErrTermExpired (a higher term was asked for), ErrInvalidArgument, ErrShutdown.
func (m *Manager) Remove(ctx context.Context, channel string, term int64) error {
	return m.drive(ctx, callRemove, channel, term)
}

func (m *Manager) drive(ctx context.Context, c call, channel string, term int64) error {
	if err := walimpls.ValidateName("channel", channel); err != nil {
		return err
	}
	if term < 1 {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, channel, "%s: term %d, want 1 or more", c.op, term)
	}
	for {
		l, err := m.lifetime(channel)
		if err != nil {
			return err
		}
		err = l.request(c, term)
		if err == nil {
			return l.wait(ctx, c, term)
		}
		if !errors.Is(err, errForgotten) {
			return err
		}
		// The name is being forgotten: what it had open must be closed before
		// anything of the same name is opened.
		if !within(ctx, l.idle()) {
			return gaveUp(ctx, channel, c.op, term)
		}
		m.drop(channel, l)
	}
}

// lifetime returns the channel's lifetime, a new one if there is none.
func (m *Manager) lifetime(channel string) (*lifetime, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing != nil {
		return nil, shutdown()
	}
	l := m.lifetimes[channel]
	if l == nil {
		l = newLifetime(channel, m.opener, m.log)
		m.lifetimes[channel] = l
	}
	return l, nil
}

// Get returns the open WAL of the channel; term 0 means whichever is open. The
// WAL stays the manager's: closing it does nothing.
//
// Errors: ErrNotFound (nothing is known of the channel, or its term was removed,
// or it is being forgotten), *UnmatchedTermError, ErrUnavailable (being opened, retryable; or
// failed to open, with the cause), ErrTermExpired (the term was taken over),
// ErrShutdown.
func (m *Manager) Get(channel string, term int64) (wal.WAL, error) {
	m.mu.RLock()
	l, closing := m.lifetimes[channel], m.closing != nil
	m.mu.RUnlock()
	if closing {
		return nil, shutdown()
	}
	if l == nil {
		return nil, unknown(channel)
	}
	return l.get(term)
}

// Status describes every channel that the manager knows, sorted by name; nil
// after Close.
func (m *Manager) Status() []ChannelState {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closing != nil {
		return nil
	}
	states := make([]ChannelState, 0, len(m.lifetimes))
	for _, l := range m.lifetimes {
		if s, ok := l.status(); ok {
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b ChannelState) int { return strings.Compare(a.Channel, b.Channel) })
	return states
}

// Forget ends everything for the name: it cancels an open, closes the WAL, and
// forgets the terms, so that any term may be opened again. An unknown name is a
// success. If ctx ends first, its error; what is left ends by itself and the
// call may be repeated.
func (m *Manager) Forget(ctx context.Context, channel string) error {
	m.mu.RLock()
	l, closing := m.lifetimes[channel], m.closing != nil
	m.mu.RUnlock()
	if closing {
		return shutdown()
	}
	if l == nil {
		return nil
	}
	l.stop(ctx, forgotten(channel))
	if !within(ctx, l.idle()) {
		err := walimpls.Errorf(walimpls.CodeTimeout, channel, "forget: its wal is still being closed: %w", ctx.Err())
		err.Hint = "repeat the call"
		return err
	}
	m.drop(channel, l)
	return nil
}

// drop removes a lifetime that has ended, unless another has taken its place.
func (m *Manager) drop(channel string, l *lifetime) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lifetimes[channel] == l {
		delete(m.lifetimes, channel)
	}
}

// closeBudget bounds Close: the grace period of the WALs, and as much again for
// those that are late and for the opener.
const closeBudget = 2 * walimpls.GracePeriod

// Close refuses every further call with ErrShutdown, cancels what is being
// opened, closes every WAL and then the opener. It takes until the end of ctx,
// or closeBudget, at most: half of that for the WALs to close, a tenth more to
// wait for them, and the rest for the opener. What hangs longer is named in the
// error and closed by its own goroutine if it ever comes back. A second Close
// waits for the first and returns its result.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if done := m.closing; done != nil {
		m.mu.Unlock()
		select {
		case <-done:
			return m.closeErr
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	m.closing = done
	m.mu.Unlock()

	m.closeErr = m.shutDown(ctx)
	close(done)
	return m.closeErr
}

// shutDown does the work of Close; no lifetime is added or dropped any more
// but by a Forget that runs out.
func (m *Manager) shutDown(ctx context.Context) error {
	m.mu.RLock()
	lifetimes := make(map[string]*lifetime, len(m.lifetimes))
	for name, l := range m.lifetimes {
		lifetimes[name] = l
	}
	m.mu.RUnlock()

	budget := closeBudget
	if deadline, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	closeCtx, cancelClose := context.WithTimeout(ctx, budget/2)
	defer cancelClose()
	for _, l := range lifetimes {
		l.stop(closeCtx, shutdown())
	}
	bound, cancelBound := context.WithTimeout(ctx, budget/2+budget/10)
	defer cancelBound()
	var errs []error
	for name, l := range lifetimes {
		if !within(bound, l.idle()) {
			errs = append(errs, walimpls.Errorf(walimpls.CodeUnavailable, name, "its wal did not close in time: %w", bound.Err()))
		}
	}
	return errors.Join(append(errs, m.closeOpener(ctx))...)
}

// closeOpener closes the opener, and leaves it alone if it does not keep its bound.
func (m *Manager) closeOpener(ctx context.Context) error {
	if m.opener == nil {
		return nil
	}
	var err error
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		err = protect("the opener's close", func() error { return m.opener.Close(ctx) })
	}()
	if !within(ctx, closed) {
		return walimpls.Errorf(walimpls.CodeUnavailable, "", "the wal opener did not close in time: %w", ctx.Err())
	}
	return err
}

// within waits for done until ctx ends. If both are true it is in time: select
// alone would toss a coin.
func within(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}
