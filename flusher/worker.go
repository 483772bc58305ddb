package flusher

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// flight is what a worker has taken to flush.
type flight struct {
	rows  []message.Message
	bytes int
	cp    message.Checkpoint
}

// work does what the service has to do, and ends when nothing is left.
func (r *run) work(s *service) {
	defer r.wg.Done()
	for r.ctx.Err() == nil {
		r.mu.Lock()
		switch {
		case s.sink == nil:
			r.mu.Unlock()
			r.open(s)
		case s.mode != attached:
			r.mu.Unlock()
			r.catchUp(s)
		case s.closing != nil && len(s.buf) == 0:
			r.mu.Unlock()
			r.drop(s)
			r.leave(s)
			return
		case len(s.buf) == 0 || !r.due(s, r.opt.Now()):
			r.mu.Unlock()
			r.leave(s)
			return
		default:
			f := r.take(s)
			r.mu.Unlock()
			r.flush(s, f)
			// Others may wait for this one's turn.
			if r.settled(s) {
				r.leave(s)
				return
			}
		}
	}
	r.leave(s)
}

// settled reports whether the worker may leave the rest to tend.
func (r *run) settled(s *service) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.mode == attached && s.closing == nil
}

func (r *run) leave(s *service) {
	r.mu.Lock()
	s.working = false
	delete(r.workers, s)
	r.changed()
	r.mu.Unlock()
	r.tell()
}

// take takes everything that waits; r.mu is held.
func (r *run) take(s *service) flight {
	f := flight{rows: s.buf, bytes: s.bufBytes, cp: later(r.pos, s.last)}
	if s.closing != nil {
		f.cp = *s.closing // nothing of the vchannel lies behind its drop
	}
	s.buf, s.bufBytes, s.wanted = nil, 0, false
	s.flightBytes, s.flightSince = f.bytes, r.opt.Now()
	if s.closing == nil {
		delete(r.dirty, s)
	}
	return f
}

// flush gives a flight to the sink until it is durable, or the service is
// detached, which lets go of it: it will be read again.
func (r *run) flush(s *service, f flight) {
	pause := r.opt.RetryMin
	for {
		r.mu.Lock()
		s.flightSince = r.opt.Now()
		r.mu.Unlock()
		files, err := r.call(s, f)
		if err == nil {
			r.flushed(s, f, files)
			return
		}
		if r.refused(s, err) {
			return
		}
		if !wait(r.ctx, pause, s.kick) {
			return
		}
		pause = min(2*pause, r.opt.RetryMax)
		r.mu.Lock()
		gone := s.mode != attached
		if gone {
			r.used -= s.flightBytes
			s.flightBytes, s.flightSince = 0, time.Time{}
			r.changed()
		}
		r.mu.Unlock()
		if gone {
			return
		}
	}
}

// call is one call of the sink.
func (r *run) call(s *service, f flight) ([]File, error) {
	ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
	defer cancel()
	return s.sink.Flush(ctx, f.rows, f.cp)
}

// refused notes a failure of the sink. It reports whether the try is over.
func (r *run) refused(s *service, err error) bool {
	if r.ctx.Err() != nil {
		return true
	}
	if errors.Is(err, walimpls.ErrFenced) {
		// Another open took the output over. Whether that was a newer term's is
		// found out by opening all outputs again.
		r.fail(walimpls.Errorf(walimpls.CodeUnavailable, r.name, "flusher: vchannel %q: %v", s.name, err))
		return true
	}
	r.f.count(func(c *Counters) { c.Failures++ })
	r.mu.Lock()
	s.failing, s.lastErr = true, err
	r.changed()
	r.mu.Unlock()
	r.f.log.Warn("a flush failed, trying again", zap.String("vchannel", s.name), zap.Error(err))
	return false
}

// flushed notes that a flight is durable.
func (r *run) flushed(s *service, f flight, files []File) {
	r.f.countFiles(files)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.failing, s.lastErr = false, nil
	r.used -= s.flightBytes
	s.flightBytes, s.flightSince = 0, time.Time{}
	s.at = later(s.at, f.cp)
	switch {
	case s.mode == attached && len(s.buf) > 0:
		r.advance(s, s.from) // nothing of it lies between the flight and the first row that waits
	case s.mode == attached && s.closing == nil:
		if err := r.cps.Idle(s.name); err != nil {
			r.f.log.Error("an idle vchannel is gone", zap.Error(err))
		}
	default:
		r.advance(s, s.at)
	}
	r.changed()
}

// open opens the vchannel's output, again and again until it is open.
func (r *run) open(s *service) {
	pause := r.opt.RetryMin
	for {
		sink, err := r.tryOpen(s)
		if err == nil {
			r.opened(s, sink)
			return
		}
		if errors.Is(err, walimpls.ErrFenced) {
			r.fail(err) // only an Open judges: a newer term flushes this log
		}
		if r.refused(s, err) || !wait(r.ctx, pause, nil) {
			return
		}
		pause = min(2*pause, r.opt.RetryMax)
	}
}

// tryOpen opens the output once. Others wait for its token no longer than a
// call may hang.
func (r *run) tryOpen(s *service) (VChannelSink, error) {
	select {
	case r.opens <- struct{}{}:
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	}
	timer := time.AfterFunc(r.opt.StallAfter, func() { <-r.opens })
	defer func() {
		if timer.Stop() {
			<-r.opens
		}
	}()
	r.mu.Lock()
	s.flightSince = r.opt.Now()
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
	defer cancel()
	return r.f.sink.Open(ctx, SinkKey{PChannel: r.name, StoreID: r.storeID, VChannel: s.name, Term: r.term})
}

// opened takes an output that was opened: what its manifest holds is flushed.
func (r *run) opened(s *service, sink VChannelSink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.sink, s.failing, s.lastErr, s.flightSince = sink, false, nil, time.Time{}
	r.nOpen++
	cp := sink.Checkpoint()
	if cp.StoreID == r.storeID && before(s.at, cp) {
		s.at = cp
		s.buf = slices.DeleteFunc(s.buf, func(m message.Message) bool {
			covered := cp.Covers(m.Term, m.TimeTick)
			if covered {
				n := m.Size() + rowOverhead
				s.bufBytes -= n
				r.used -= n
			}
			return covered
		})
	}
	switch {
	case s.mode != attached:
		r.advance(s, s.at)
	case len(s.buf) == 0 && s.closing == nil:
		delete(r.dirty, s)
		if err := r.cps.Idle(s.name); err != nil {
			r.f.log.Error("an idle vchannel is gone", zap.Error(err))
		}
	}
	r.changed()
}

// drop leaves a tombstone in the manifest, then one in the row, and forgets the
// service.
func (r *run) drop(s *service) {
	pause := r.opt.RetryMin
	for {
		err := r.tryDrop(s)
		if err == nil {
			break
		}
		if final(err) && !errors.Is(err, walimpls.ErrFenced) {
			r.fail(err)
			return
		}
		if r.refused(s, err) || !wait(r.ctx, pause, nil) {
			return
		}
		pause = min(2*pause, r.opt.RetryMax)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = s.sink.Close()
	delete(r.services, s.name)
	delete(r.dirty, s)
	r.set.Dropped(s.name, s.closing.Tick)
	if err := r.cps.Drop(s.name); err != nil {
		r.f.log.Error("a dropped vchannel is gone", zap.Error(err))
	}
	r.changed()
}

func (r *run) tryDrop(s *service) error {
	ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
	defer cancel()
	r.mu.Lock()
	at := later(*s.closing, s.at)
	r.mu.Unlock()
	if err := s.sink.Drop(ctx, at); err != nil {
		return err
	}
	return r.f.store.Dropped(ctx, s.name, s.closing.Tick)
}
