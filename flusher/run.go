package flusher

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// run is one try of a Flusher: it recovers, dispatches, and ends with the first
// error that it cannot mend. Its goroutines: do (dispatch), tend (starts
// flushes), keep (checkpoint and truncation), and one worker for each service
// that has something to do.
type run struct {
	f       *Flusher
	opt     *Options
	name    string
	storeID string
	term    int64
	// fromEarliest: the try before lost its position.
	fromEarliest bool

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	// poke wakes tend.
	poke chan struct{}
	// catchUps holds a token for each service that reads the log itself, opens
	// one for each output that is being opened.
	catchUps chan struct{}
	opens    chan struct{}

	mu       sync.Mutex // guards all below and every service
	services map[string]*service
	// nOpen counts the outputs that were opened.
	nOpen int
	set   *Set
	cps   *Checkpoints
	marks *Marks
	// pos is where dispatch has got to; inUnit says that it is handing out the
	// unit behind it, and has let go of the lock in between.
	pos    message.Checkpoint
	inUnit bool
	// used are the bytes that services hold in shared memory.
	used int
	// peak is the most that used ever was.
	peak int
	// dirty are the services with rows that wait, workers those that work.
	dirty   map[*service]struct{}
	workers map[*service]struct{}
	// change is closed and replaced at every progress while somebody waits.
	change  chan struct{}
	awaited bool
	// saved is the newest checkpoint in the row; list are all of them.
	saved     Saved
	list      []Saved
	truncated Saved
	saveErr   error
}

func newRun(f *Flusher) *run {
	name, storeID, term := f.wal.Channel()
	f.mu.Lock()
	lost := f.lost
	f.mu.Unlock()
	r := &run{
		f: f, opt: &f.opt, name: name, storeID: storeID, term: term, fromEarliest: lost,
		poke: make(chan struct{}, 1), catchUps: make(chan struct{}, catchUps), opens: make(chan struct{}, parallelOpens),
		services: map[string]*service{}, dirty: map[*service]struct{}{}, workers: map[*service]struct{}{},
		cps: NewCheckpoints(name), change: make(chan struct{}), marks: NewMarks(Saved{}),
	}
	r.ctx, r.cancel = context.WithCancelCause(f.ctx)
	return r
}

// fail ends the try.
func (r *run) fail(err error) { r.cancel(err) }

// changed wakes everybody who waits for progress; r.mu is held.
func (r *run) changed() {
	if r.awaited {
		close(r.change)
		r.change, r.awaited = make(chan struct{}), false
	}
}

// progress returns the channel that the next progress closes; r.mu is held.
func (r *run) progress() <-chan struct{} {
	r.awaited = true
	return r.change
}

func (r *run) tell() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// do runs the try until it fails or the flusher is closed.
func (r *run) do() (err error) {
	defer func() {
		r.fail(err)
		r.wg.Wait()
		r.closeSinks()
	}()
	row, err := r.load()
	if err != nil {
		return err
	}
	if err := r.recoverAll(row); err != nil {
		return err
	}
	reader, err := r.f.wal.Read(r.ctx, ReadOptions{Name: "flusher", From: r.pos, MaxBytes: readBytes, OnUnit: r.met})
	if err != nil {
		return r.because(err)
	}
	defer reader.Close()
	r.wg.Add(2)
	go r.tend()
	go r.keep()
	r.f.set(r, Working, nil)
	for {
		units, err := reader.Next(r.ctx)
		if err != nil {
			return r.because(err)
		}
		for i := range units {
			if err := r.dispatch(&units[i]); err != nil {
				return r.because(err)
			}
		}
		r.mu.Lock()
		r.marks.Pass(r.pos)
		r.changed()
		r.mu.Unlock()
	}
}

// because returns why the try was ended, if somebody ended it, else err.
func (r *run) because(err error) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return err
}

// load reads the row, again if that fails.
func (r *run) load() (Row, error) {
	pause := r.opt.RetryMin
	for {
		ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
		row, err := r.f.store.Load(ctx)
		cancel()
		if err == nil || final(err) {
			return row, err
		}
		r.f.log.Warn("the flusher cannot read the catalog row, trying again", zap.Error(err))
		if !wait(r.ctx, pause, nil) {
			return row, r.because(err)
		}
		pause = min(2*pause, r.opt.RetryMax)
	}
}

// met notes a data unit that the shared scanner came across.
func (r *run) met(first message.ID, term int64, tick message.Tick) {
	r.mu.Lock()
	r.marks.Unit(first, term, tick)
	r.mu.Unlock()
}

// dispatch hands a unit to the services that it is for.
func (r *run) dispatch(u *Unit) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inUnit = true
	defer func() { r.inUnit = false }()
	var done map[string]bool // of a transaction over several vchannels
	for i := range u.Messages {
		m := &u.Messages[i]
		switch m.Type {
		case message.TypeData:
			if done[m.VChannel] {
				continue
			}
			if err := r.data(u, m.VChannel); err != nil {
				return err
			}
			if len(u.Messages) > 1 {
				if done == nil {
					done = map[string]bool{}
				}
				done[m.VChannel] = true
			}
		case message.TypeCreateVChannel, message.TypeDropVChannel, message.TypeFlush:
			if err := r.control(u, m); err != nil {
				return err
			}
		}
	}
	r.pos = later(r.pos, u.Checkpoint)
	r.changed()
	return nil
}

// data hands a unit's rows of one vchannel to its service; r.mu is held.
func (r *run) data(u *Unit, vchannel string) error {
	switch r.set.Judge(message.TypeData, vchannel, u.Tick) {
	case Ignore:
		return nil
	case Unknown:
		e := walimpls.Errorf(walimpls.CodeCorrupt, r.name,
			"flusher: a record of vchannel %q at tick %d, which was never declared or was dropped and forgotten", vchannel, u.Tick)
		e.Hint = "declare it with `walrig vchannel create " + r.name + " " + vchannel + "` if its records are to be kept"
		return e
	}
	s := r.services[vchannel]
	if s == nil || !s.own(u) {
		return nil
	}
	rows, size := rowsOf(u, vchannel)
	if s.mode != detached && !r.room(s, size) {
		return context.Cause(r.ctx)
	}
	if s.mode == detached {
		s.skipped += int64(size)
		return nil
	}
	if len(s.buf) == 0 {
		s.from, s.since = r.pos, r.opt.Now()
		r.dirty[s] = struct{}{}
		if s.mode == attached && s.flightBytes == 0 {
			r.advance(s, later(s.at, r.pos))
		}
	}
	s.buf = append(s.buf, rows...)
	s.bufBytes += size
	s.last = u.Checkpoint
	r.used += size
	r.peak = max(r.peak, r.used)
	if len(s.buf) == len(rows) || s.bufBytes >= r.opt.MaxBytes {
		r.tell()
	}
	return nil
}

// advance says that the service is flushed up to at and has more; r.mu is held.
func (r *run) advance(s *service, at message.Checkpoint) {
	s.at = later(s.at, at)
	if err := r.cps.Update(s.name, s.at); err != nil {
		r.f.log.Error("a checkpoint was refused", zap.Error(err))
	}
}

// control takes a control record; r.mu is held.
func (r *run) control(u *Unit, m *message.Message) error {
	// A vchannel that is created again waits for its former life's end.
	for m.Type == message.TypeCreateVChannel && r.services[m.VChannel] != nil && r.services[m.VChannel].closing != nil {
		if !r.await(0) {
			return context.Cause(r.ctx)
		}
	}
	switch verdict := r.set.Judge(m.Type, m.VChannel, m.TimeTick); {
	case verdict == Create:
		return r.create(m.VChannel, m.TimeTick)
	case verdict == DropIt:
		s := r.services[m.VChannel]
		if s == nil || s.closing != nil {
			return nil
		}
		at := u.Checkpoint
		s.closing = &at
		if s.mode == attached && s.flightBytes == 0 && len(s.buf) == 0 {
			r.advance(s, later(s.at, r.pos)) // nothing passes the record until the drop is flushed
		}
		r.dirty[s] = struct{}{}
		s.wake()
		r.tell()
	case verdict == Deliver && m.Type == message.TypeFlush:
		for _, s := range r.services {
			if (m.VChannel == "" || m.VChannel == s.name) && (len(s.buf) > 0 || s.mode == detached) {
				s.wanted = true
				s.wake()
			}
		}
		r.tell()
	}
	return nil
}

// create adds a vchannel that the row may not know yet, and saves it before
// dispatch goes on; r.mu is held and let go meanwhile.
func (r *run) create(vchannel string, tick message.Tick) error {
	pause := r.opt.RetryMin
	for {
		r.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
		err := r.f.store.Declare(ctx, vchannel, tick)
		cancel()
		if err != nil && !final(err) {
			r.f.log.Warn("a new vchannel cannot be saved, trying again", zap.String("vchannel", vchannel), zap.Error(err))
			if wait(r.ctx, pause, nil) {
				r.mu.Lock()
				pause = min(2*pause, r.opt.RetryMax)
				continue
			}
		}
		r.mu.Lock()
		if err != nil {
			return err
		}
		break
	}
	r.set.Created(vchannel, tick)
	s := r.add(VChannel{Name: vchannel, Start: tick - 1})
	r.advance(s, r.pos)
	r.start(s) // it opens the output; rows wait meanwhile
	return nil
}

// add makes a service; r.mu is held.
func (r *run) add(v VChannel) *service {
	s := newService(v.Name, v.Start)
	if err := r.cps.Add(v.Name); err != nil {
		r.f.log.Error("a vchannel came twice", zap.Error(err))
	}
	r.services[v.Name] = s
	return s
}

// start starts the service's worker; r.mu is held.
func (r *run) start(s *service) {
	if s.working || r.ctx.Err() != nil {
		return
	}
	s.working = true
	r.workers[s] = struct{}{}
	r.wg.Add(1)
	go r.work(s)
}

// await waits for progress, or for d if it is not 0. r.mu is held, and let go
// meanwhile. It reports whether the try goes on.
func (r *run) await(d time.Duration) bool {
	change := r.progress()
	r.mu.Unlock()
	defer r.mu.Lock()
	var timeout <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-change:
	case <-timeout:
	case <-r.ctx.Done():
	}
	return r.ctx.Err() == nil
}
