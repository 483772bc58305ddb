package scanner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Source is the pchannel that a Scanner reads. It is safe for concurrent use.
type Source interface {
	// Channel returns the pchannel's name and its log's store id.
	Channel() (name, storeID string)
	// Read starts a scanner of the backend. While the backend is away it waits
	// for it to come back, until ctx ends.
	Read(ctx context.Context, start walimpls.Start) (walimpls.Scanner, error)
	// Truncation returns the row's truncation point, nil if there is none.
	Truncation(ctx context.Context) (*catalog.Checkpoint, error)
	// Now returns a checkpoint behind every tick given out until now. direct
	// says that no transaction is open across it, so that a reader may begin in
	// the write-ahead buffer.
	Now() (at message.Checkpoint, direct bool)
	// Buffer is the owner's write-ahead buffer, nil for a reader without owner.
	Buffer() *wab.Buffer
	// Term is the owner's term.
	Term() int64
	// Done is closed when the owner's term has ended; Err says why.
	Done() <-chan struct{}
	Err() error
}

// Scanner reads units. Next is for one goroutine; Close and Status for any.
type Scanner struct {
	src    Source
	opt    Options
	now    func() time.Time
	ctx    context.Context
	cancel context.CancelFunc

	// Of Next's goroutine alone.
	core *core
	tail *wab.Reader
	// candidate is a time tick from which the write-ahead buffer will go on as
	// soon as it has it; 0 for none.
	candidate message.Tick
	// goal is where the scanner has caught up.
	goal       message.Checkpoint
	reached    bool // the goal was reached
	caughtUp   bool // and told
	lastOut    time.Time
	pause      time.Duration
	finalErr   error
	onClosedFn func()

	mu      sync.Mutex // guards backend and status
	backend walimpls.Scanner
	status  Status
}

// New starts a scanner: when it returns, its start is fixed. ctx bounds New
// alone. onClose, if not nil, is called once by the first Close.
func New(ctx context.Context, src Source, opt Options, onClose func()) (*Scanner, error) {
	name, storeID := src.Channel()
	opt = opt.withDefaults()
	s := &Scanner{src: src, opt: opt, now: time.Now, core: newCore(name, storeID, opt), onClosedFn: onClose}
	s.status = Status{Name: opt.Name, Mode: CatchUp}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.lastOut = s.now()
	if err := s.begin(ctx); err != nil {
		s.cancel()
		s.dropBackend()
		return nil, err
	}
	s.publish()
	return s, nil
}

// begin fixes the start.
func (s *Scanner) begin(ctx context.Context) error {
	now, direct := s.src.Now()
	s.goal = now
	if s.opt.Until != nil {
		s.goal = *s.opt.Until
	}
	name, storeID := s.src.Channel()
	switch s.opt.Start {
	case All:
		return s.restart(ctx, message.Checkpoint{StoreID: storeID})
	case Latest:
		s.core.restart(now)
		if direct && s.src.Buffer() != nil {
			// Nothing below the tick can matter: what is unresolved there is
			// covered by the checkpoint, and the buffer has all that follows.
			if tail, err := s.src.Buffer().ReadAfter(min(now.Tick, s.src.Buffer().Horizon())); err == nil {
				s.tail = tail
				return nil
			}
		}
		return s.restart(ctx, now)
	case Checkpoint:
		at := s.opt.Checkpoint
		if at.StoreID != storeID {
			e := walimpls.NewPositionLostError(name, walimpls.Bounds{}, "the checkpoint belongs to log %q, this one is %q", at.StoreID, storeID)
			return e
		}
		return s.restart(ctx, at)
	case FromID, AfterID:
		at, err := s.resolveID(ctx)
		if err != nil {
			return err
		}
		return s.restart(ctx, at)
	}
	return walimpls.Errorf(walimpls.CodeInvalidArgument, name, "read: start %d is not known", s.opt.Start)
}

// resolveID turns a record's id into the checkpoint from which it is read, or
// behind which the reading begins.
func (s *Scanner) resolveID(ctx context.Context) (message.Checkpoint, error) {
	backend, err := s.src.Read(ctx, walimpls.StartFrom(s.opt.ID))
	if err != nil {
		return message.Checkpoint{}, err
	}
	defer backend.Close()
	for {
		batch, err := backend.Next(ctx)
		if err != nil {
			return message.Checkpoint{}, err
		}
		for i := range batch {
			m := &batch[i]
			if m.TimeTick == 0 {
				continue // a fence record has no tick: the next one stands for it
			}
			at := s.core.checkpoint(m)
			if s.opt.Start == FromID || m.ID != s.opt.ID {
				at.Tick--
			}
			return at, nil
		}
	}
}

// restart begins, or begins again, behind a checkpoint, reading the backend.
func (s *Scanner) restart(ctx context.Context, at message.Checkpoint) error {
	s.tail, s.candidate = nil, 0
	s.dropBackend()
	s.core.restart(at)
	start := walimpls.FromAll()
	if !at.ID.IsZero() {
		start = walimpls.StartFrom(at.ID)
	}
	backend, err := s.src.Read(ctx, start)
	var lost *walimpls.PositionLostError
	if errors.As(err, &lost) {
		backend, err = s.readTruncated(ctx, at, lost)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.backend = backend
	closed := s.ctx.Err() != nil
	s.mu.Unlock()
	if closed {
		s.dropBackend()
		return s.closedError()
	}
	return nil
}

// readTruncated starts at the truncation point when the checkpoint missed
// nothing: every unit of which something was removed is at or below it.
func (s *Scanner) readTruncated(ctx context.Context, at message.Checkpoint, lost *walimpls.PositionLostError) (walimpls.Scanner, error) {
	t, err := s.src.Truncation(ctx)
	if err != nil {
		return nil, err
	}
	if t == nil || at.ID >= t.ID || !at.Covers(t.LastUnitTerm, t.LastUnitTick) {
		return nil, lost
	}
	return s.src.Read(ctx, walimpls.StartFrom(t.ID))
}

// Position is the checkpoint at which the scanner began, or from which it would
// resume now. It is for the goroutine of Next.
func (s *Scanner) Position() message.Checkpoint { return s.core.at }

// End is where the scanner has caught up.
func (s *Scanner) End() message.Checkpoint { return s.goal }

// Next returns the next units, at least one, in (term, tick) order. It blocks
// until there is one; while ticks come it returns progress now and then. When
// ctx ends nothing is lost. Any other error is final: ErrClosed, ErrTermExpired,
// *PositionLostError, ErrCorrupt.
func (s *Scanner) Next(ctx context.Context) ([]Unit, error) {
	if s.finalErr != nil {
		return nil, s.finalErr
	}
	merged, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for {
		if units := s.ready(); len(units) > 0 {
			s.publish()
			return units, nil
		}
		err := s.step(merged)
		if err == nil {
			continue
		}
		if s.ctx.Err() != nil || s.src.Err() != nil {
			err = s.closedError()
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !s.resumes(merged, err) {
			s.finalErr = err
			s.publish() // a late record that ended it is counted
			return nil, err
		}
	}
}

// ready returns what can be handed out now: units up to the goal, then that the
// scanner has caught up, then the rest.
func (s *Scanner) ready() []Unit {
	tell := false
	limit := len(s.core.out)
	if !s.caughtUp {
		limit = s.beforeGoal()
		tell = s.reached && limit == 0
	}
	now := s.now()
	units := s.core.drain(limit, s.opt.MaxBytes)
	if len(units) == 0 {
		if !tell && (!s.core.progressed || now.Sub(s.lastOut) < s.opt.ProgressEvery) {
			return nil
		}
		at := s.core.at
		if tell {
			s.caughtUp = true
			if len(s.core.out) > 0 {
				at = s.core.out[0].Before
			}
		} else {
			s.core.progressed = false
		}
		units = []Unit{{Term: at.Term, Tick: at.Tick, Before: at, Checkpoint: at, CaughtUp: tell}}
	}
	s.lastOut = now
	return units
}

// beforeGoal counts the units that lie at or below the goal.
func (s *Scanner) beforeGoal() int {
	for i := range s.core.out {
		if !s.goal.Covers(s.core.out[i].Term, s.core.out[i].Tick) {
			return i
		}
	}
	return len(s.core.out)
}

func (s *Scanner) step(ctx context.Context) error {
	if s.tail != nil {
		return s.stepTail(ctx)
	}
	return s.stepBackend(ctx)
}

func (s *Scanner) stepTail(ctx context.Context) error {
	records, err := s.tail.Next(ctx)
	if err != nil {
		return err
	}
	if err := s.core.take(records); err != nil {
		return err
	}
	s.passed(s.src.Term(), s.tail.Tick())
	return nil
}

// passed notes that everything up to the tick was taken.
func (s *Scanner) passed(term int64, tick message.Tick) {
	if term > s.goal.Term || (term == s.goal.Term && tick >= s.goal.Tick) {
		s.reached = true
	}
}

func (s *Scanner) stepBackend(ctx context.Context) error {
	s.mu.Lock()
	backend := s.backend
	s.mu.Unlock()
	if backend == nil {
		return s.restart(ctx, s.core.at)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.candidate != 0 {
		covers, behind, changed := s.src.Buffer().Covers(s.candidate)
		switch {
		case covers && s.switchTo(s.candidate):
			return nil
		case !behind:
			s.candidate = 0
		default:
			// The backend may have nothing more: the buffer's next tick must wake
			// this scanner as well as the backend's next record.
			stop := make(chan struct{})
			watched := make(chan struct{})
			go func() {
				defer close(watched)
				select {
				case <-changed:
					cancel()
				case <-stop:
				}
			}()
			defer func() { close(stop); <-watched }()
		}
	}
	batch, err := backend.Next(ctx)
	if err != nil {
		if s.candidate != 0 && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // the wait for the buffer ended; the caller's context decides in the next step
		}
		return err
	}
	s.pause = 0
	s.core.reorder.expect(len(batch))
	for i := range batch {
		if s.core.at.ID == "" {
			// The start of a reader of all is the first record that it met.
			s.core.at.ID = batch[i].ID
		}
		tick, term, err := s.core.read(batch[i])
		if err != nil {
			return err
		}
		if tick == 0 {
			continue
		}
		s.passed(term, tick)
		// What this tick released must not come from the buffer again, so an
		// older candidate is void, also when a newer term's tick releases it.
		s.candidate = 0
		if term != s.src.Term() || s.src.Buffer() == nil {
			continue
		}
		covers, behind, _ := s.src.Buffer().Covers(tick)
		// Evicted between the look and the switch, the rest of the batch counts.
		if covers && s.switchTo(tick) {
			return nil
		}
		if behind {
			s.candidate = tick
		}
	}
	return nil
}

// switchTo goes on in the write-ahead buffer behind the tick, if the buffer
// still has what follows it.
func (s *Scanner) switchTo(tick message.Tick) bool {
	tail, err := s.src.Buffer().ReadAfter(tick)
	if err != nil {
		return false
	}
	s.core.switched()
	s.tail, s.candidate = tail, 0
	s.dropBackend()
	return true
}

// resumes mends what can be mended, and reports whether the scanner goes on.
func (s *Scanner) resumes(ctx context.Context, err error) bool {
	var lost *walimpls.PositionLostError
	switch {
	case s.ctx.Err() != nil || s.src.Err() != nil:
		return false
	case errors.Is(err, wab.ErrEvicted):
		s.dropBackend()
		s.tail = nil
		return s.restartOrFail(ctx)
	case errors.As(err, &lost):
		// It fell below the truncation point while it ran; its own position
		// decides. One that starts there and is refused again is lost.
		s.mu.Lock()
		running := s.backend != nil
		s.mu.Unlock()
		return running && s.restartOrFail(ctx)
	case errors.Is(err, walimpls.ErrUnavailable), errors.Is(err, walimpls.ErrClosed), errors.Is(err, walimpls.ErrFenced):
		s.dropBackend()
		s.pause = min(max(2*s.pause, 20*time.Millisecond), 2*time.Second)
		timer := time.NewTimer(s.pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-s.src.Done():
		}
		return true
	}
	return false
}

// restartOrFail restarts at the restart position. Unless it is lost for good a
// failure is met again by the next step.
func (s *Scanner) restartOrFail(ctx context.Context) bool {
	err := s.restart(ctx, s.core.at)
	var lost *walimpls.PositionLostError
	if errors.As(err, &lost) {
		s.dropBackend()
		s.finalErr = err
		return false
	}
	return true
}

func (s *Scanner) dropBackend() {
	s.mu.Lock()
	backend := s.backend
	s.backend = nil
	s.mu.Unlock()
	if backend != nil {
		_ = backend.Close()
	}
}

// publish shows the present state to Status.
func (s *Scanner) publish() {
	mode := CatchUp
	if s.tail != nil {
		mode = Tailing
	}
	s.mu.Lock()
	s.status.Mode, s.status.Checkpoint = mode, s.core.at
	s.status.Violations, s.status.BufferedBytes = s.core.reorder.violations, s.core.bufferedBytes()
	s.mu.Unlock()
}

// Status returns the state as of the last Next.
func (s *Scanner) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Scanner) closedError() error {
	if err := s.src.Err(); err != nil {
		return err
	}
	name, _ := s.src.Channel()
	return walimpls.Errorf(walimpls.CodeClosed, name, "the scanner is closed")
}

// Close ends the scanner and wakes a blocked Next. It is idempotent.
func (s *Scanner) Close() error {
	first := s.ctx.Err() == nil
	s.cancel()
	s.dropBackend()
	if first && s.onClosedFn != nil {
		s.onClosedFn()
	}
	return nil
}
