package walmanager

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/walimpls"
)

// lifetime is one pchannel: a machine, and the goroutine that makes its steps.
type lifetime struct {
	opener wal.Opener
	log    *zap.Logger

	mu      sync.Mutex // guards all below
	m       machine
	changed chan struct{} // closed and replaced whenever m changes
	// running is closed when the goroutine has ended; nil while none runs.
	running chan struct{}
	// cancelOpen ends the open that runs, nil while none does.
	cancelOpen context.CancelFunc
	// closeCtx bounds the closing of WALs once the lifetime is stopped.
	closeCtx context.Context
}

func newLifetime(channel string, opener wal.Opener, log *zap.Logger) *lifetime {
	return &lifetime{
		opener:   opener,
		log:      log.With(zap.String("pchannel", channel)),
		m:        newMachine(channel),
		changed:  make(chan struct{}),
		closeCtx: context.Background(),
	}
}

// call is one of the two things that can be asked of a lifetime.
type call struct {
	op        string
	available bool
	outcome   func(*machine, int64) (done bool, err error)
}

var (
	callOpen   = call{op: "open", available: true, outcome: (*machine).openOutcome}
	callRemove = call{op: "remove", available: false, outcome: (*machine).removeOutcome}
)

// request makes (term, available) what shall be, whatever becomes of the caller afterwards.
func (l *lifetime) request(c call, term int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	news, err := l.m.request(c.op, state{term, c.available})
	if !news {
		return err
	}
	// Whatever is being opened now is an older state: without this an Open
	// that hangs would hold up everything that comes after it.
	if l.cancelOpen != nil {
		l.cancelOpen()
	}
	l.notify()
	if l.running == nil {
		l.running = make(chan struct{})
		go l.run(l.running)
	}
	return nil
}

// wait waits for the outcome or the end of ctx. A ctx that has ended already
// is judged first, or the answer would depend on who runs faster.
func (l *lifetime) wait(ctx context.Context, c call, term int64) error {
	for {
		if ctx.Err() != nil {
			return gaveUp(ctx, l.m.channel, c.op, term)
		}
		l.mu.Lock()
		done, err := c.outcome(&l.m, term)
		changed := l.changed
		l.mu.Unlock()
		if done {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// notify wakes everybody who waits for a change; mu is held.
func (l *lifetime) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// report changes the machine after a step.
func (l *lifetime) report(f func(*machine)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.m)
	l.notify()
}

// run makes one step after the other until there is none, and closes done then.
func (l *lifetime) run(done chan struct{}) {
	for {
		l.mu.Lock()
		s := l.m.next()
		if s.kind == stepIdle {
			l.running = nil
			l.notify()
			close(done)
			l.mu.Unlock()
			return
		}
		changed, closeCtx := l.changed, l.closeCtx
		openCtx, cancel := context.WithCancel(context.Background())
		if s.kind == stepOpen {
			l.cancelOpen = cancel
		}
		l.mu.Unlock()

		switch s.kind {
		case stepWatch:
			l.watch(s.wal, changed)
		case stepClose:
			l.close(closeCtx, s)
			l.report((*machine).closed)
		case stepOpen:
			w, err := l.open(openCtx, s.term)
			l.report(func(m *machine) {
				l.cancelOpen = nil
				if err != nil {
					m.openFailed(s.term, err)
				} else {
					m.opened(s.term, w)
				}
			})
		}
		cancel()
	}
}

// watch waits until something else shall be, or the WAL ends by itself.
func (l *lifetime) watch(w wal.WAL, changed <-chan struct{}) {
	select {
	case <-changed:
	case <-w.Done():
		err := endError(l.m.channel, w)
		l.log.Warn("the wal ended", zap.Error(err))
		l.report(func(m *machine) { m.walEnded(err) })
	}
}

// open opens the term. A panic of the opener is an error like any other.
func (l *lifetime) open(ctx context.Context, term int64) (w wal.WAL, err error) {
	l.log.Info("opening the wal", zap.Int64("term", term))
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("the wal opener panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			w, err = nil, openError(l.m.channel, term, fmt.Errorf("the opener panicked: %v", p))
		}
		if err != nil {
			l.log.Warn("the wal could not be opened", zap.Int64("term", term), zap.Error(err))
		}
	}()
	if l.opener == nil {
		return nil, openError(l.m.channel, term, errors.New("the wal manager has no opener"))
	}
	w, err = l.opener.Open(ctx, l.m.channel, term)
	if err != nil || w == nil {
		return nil, openError(l.m.channel, term, err)
	}
	return w, nil
}

// close closes the WAL. Its error changes nothing: a handle that does not close
// cleanly is fenced by the next open.
func (l *lifetime) close(ctx context.Context, s step) {
	ctx, cancel := context.WithTimeout(ctx, walimpls.GracePeriod)
	defer cancel()
	if err := protect("close", func() error { return s.wal.Close(ctx) }); err != nil {
		l.log.Warn("the wal did not close cleanly", zap.Int64("term", s.term), zap.Error(err))
		return
	}
	l.log.Info("closed the wal", zap.Int64("term", s.term))
}

// protect turns a panic of f into an error.
func protect(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panicked: %v", what, p)
		}
	}()
	return f()
}

// get returns the WAL for Get.
func (l *lifetime) get(term int64) (wal.WAL, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, err := l.m.get(term)
	if err != nil {
		return nil, err
	}
	// The goroutine may not have seen yet that the WAL has ended.
	if hasEnded(w) {
		return nil, l.m.failed(endError(l.m.channel, w))
	}
	return managed{w}, nil
}

// status describes the channel; ok is false if there is nothing to tell.
func (l *lifetime) status() (s ChannelState, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.stopped != nil || l.m.expected.term == initialTerm {
		return s, false
	}
	s = l.m.status()
	if s.WAL != nil && hasEnded(s.WAL) {
		s.State, s.Err, s.WAL = Unavailable, endError(l.m.channel, s.WAL), nil
	}
	if s.WAL != nil {
		s.WAL = managed{s.WAL}
	}
	return s, true
}

// stop ends the lifetime: it cancels an open, closes the WAL within ctx, and
// answers every call with why. It does not wait.
func (l *lifetime) stop(ctx context.Context, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.stopped != nil {
		return
	}
	l.m.stop(why)
	l.closeCtx = ctx
	if l.cancelOpen != nil {
		l.cancelOpen()
	}
	l.notify()
}

// idle returns a channel that is closed once no goroutine of the lifetime runs.
func (l *lifetime) idle() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		return l.running
	}
	done := make(chan struct{})
	close(done)
	return done
}

func hasEnded(w wal.WAL) bool {
	select {
	case <-w.Done():
		return true
	default:
		return false
	}
}

// endError is why the WAL ended by itself, never nil.
func endError(channel string, w wal.WAL) error {
	if err := w.Err(); err != nil {
		return err
	}
	return walimpls.Errorf(walimpls.CodeClosed, channel, "the wal ended without a reason")
}

// managed is the WAL that callers get: the manager alone closes it.
type managed struct{ wal.WAL }

// Close does nothing.
func (managed) Close(context.Context) error { return nil }
