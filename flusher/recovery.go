package flusher

import (
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
)

// recoverAll makes the services of the row's vchannels and opens their outputs, in
// parallel. Those that do not open in time are detached: they hold the pchannel
// checkpoint back, and nobody else.
func (r *run) recoverAll(row Row) error {
	r.mu.Lock()
	start := Saved{}
	if n := len(row.Checkpoints); n > 0 {
		start = row.Checkpoints[n-1]
	}
	r.saved, r.list = start, row.Checkpoints
	saved := message.Checkpoint{StoreID: r.storeID, ID: start.ID, Term: start.Term, Tick: start.Tick}
	if r.fromEarliest {
		start = Saved{LastUnitTerm: start.LastUnitTerm, LastUnitTick: start.LastUnitTick}
	}
	if t := row.Truncated; t != nil {
		r.truncated = *t
		// What was cut by hand may have taken more than the checkpoint knew of.
		if start.LastUnitTerm < t.LastUnitTerm || (start.LastUnitTerm == t.LastUnitTerm && start.LastUnitTick < t.LastUnitTick) {
			start.LastUnitTerm, start.LastUnitTick = t.LastUnitTerm, t.LastUnitTick
		}
	}
	r.marks = NewMarks(start)
	r.pos = message.Checkpoint{StoreID: r.storeID, ID: start.ID, Term: start.Term, Tick: start.Tick}
	r.set = NewSet(row.VChannels)
	list := append([]VChannel{{Name: ""}}, row.VChannels...)
	for _, v := range list {
		if !v.Declared() {
			continue
		}
		s := r.add(v)
		s.mode = detached
		r.advance(s, saved)
		s.flightSince = r.opt.Now()
	}
	began := time.Now()
	opening := make([]*service, 0, len(r.services))
	for _, s := range r.services {
		opening = append(opening, s)
		s.working = true
		r.workers[s] = struct{}{}
		r.wg.Add(1)
		go r.recoverOne(s)
	}
	for deadline := began.Add(r.opt.RecoverWait); ; {
		left := len(opening) - r.nOpen
		rest := time.Until(deadline)
		if left == 0 || rest <= 0 {
			r.attachOpened(opening)
			r.mu.Unlock()
			r.f.log.Info("the flusher has recovered", zap.Int("vchannels", len(opening)-1), zap.Int("not_open", left), zap.Duration("took", time.Since(began)))
			return nil
		}
		if !r.await(rest) {
			r.mu.Unlock()
			return r.because(nil)
		}
	}
}

// recoverOne opens a service's output and leaves it; one that opens too late
// has to catch up.
func (r *run) recoverOne(s *service) {
	r.open(s)
	r.mu.Lock()
	late := s.late
	r.mu.Unlock()
	if late && r.ctx.Err() == nil {
		r.work(s)
		return
	}
	r.leave(s)
	r.wg.Done()
}

// attachOpened attaches the services that are open: the scanner begins at or
// below all that they miss. r.mu is held.
func (r *run) attachOpened(opening []*service) {
	for _, s := range opening {
		if s.sink == nil {
			s.late = true
			continue
		}
		s.mode = attached
		if err := r.cps.Idle(s.name); err != nil {
			r.f.log.Error("an idle vchannel is gone", zap.Error(err))
		}
	}
}
