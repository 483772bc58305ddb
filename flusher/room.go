package flusher

import (
	"slices"
	"time"

	"go.uber.org/zap"
)

// room makes room for n more bytes of a service. It waits while flushes go on
// that will make some, and detaches services whose sinks do not work. The
// service itself may be detached when it returns. r.mu is held, and let go
// meanwhile. false means that the try is over.
func (r *run) room(s *service, n int) bool {
	for {
		if s.mode == detached {
			return true
		}
		now := r.opt.Now()
		if s.bytes()+n > r.opt.serviceLimit() && s.bytes() > 0 && (s.working || s.mode == joining) {
			r.detach(s, "it holds too much")
			return true
		}
		if r.used == 0 || r.used+n <= r.opt.sharedMemory() {
			return true
		}
		if v := r.victim(now); v != nil {
			r.detach(v, "its sink does not work, and memory is short")
			continue
		}
		if !r.helps(now) {
			r.detach(s, "memory is short")
			return true
		}
		if !r.await(r.opt.StallAfter / 4) {
			return false
		}
	}
}

// victim returns the service that holds most of those whose sink does not work.
func (r *run) victim(now time.Time) *service {
	var v *service
	for s := range r.workers {
		// A flight that hangs cannot be taken back; one between two tries can.
		frees := s.bufBytes
		if s.failing {
			frees = s.bytes()
		}
		if s.mode != detached && frees > 0 && s.stalled(now, r.opt.StallAfter) && (v == nil || s.bytes() > v.bytes()) {
			v = s
		}
	}
	return v
}

// helps reports whether a flush is under way, or can be started, that will free
// memory; r.mu is held.
func (r *run) helps(now time.Time) bool {
	r.startDue(now, true)
	for s := range r.workers {
		if s.mode == attached && s.bytes() > 0 && !s.stalled(now, r.opt.StallAfter) {
			return true
		}
		// One that was detached between two tries is about to let go of its flight.
		if s.mode == detached && s.flightBytes > 0 && now.Sub(s.flightSince) < r.opt.StallAfter {
			return true
		}
	}
	return false
}

// detach makes dispatch skip a service; r.mu is held. Its rows are read again
// when its sink works.
func (r *run) detach(s *service, why string) {
	r.f.log.Warn("a vchannel is detached", zap.String("vchannel", s.name), zap.String("why", why), zap.NamedError("last", s.lastErr))
	r.f.count(func(c *Counters) { c.Detached++ })
	s.skipped += int64(s.bytes())
	r.used -= s.free()
	delete(r.dirty, s)
	s.mode = detached
	r.advance(s, s.at)
	s.wake()
	r.start(s)
	r.changed()
}

// tend starts flushes when they are due.
func (r *run) tend() {
	defer r.wg.Done()
	beat := min(max(r.opt.MaxAge/10, 10*time.Millisecond), 250*time.Millisecond)
	for {
		r.mu.Lock()
		r.startDue(r.opt.Now(), r.used > r.opt.sharedMemory()/2)
		waiting := len(r.dirty) > 0
		r.mu.Unlock()
		var timeout <-chan time.Time
		var timer *time.Timer
		if waiting {
			timer = time.NewTimer(beat)
			timeout = timer.C
		}
		select {
		case <-r.poke:
		case <-timeout:
		case <-r.ctx.Done():
		}
		if timer != nil {
			timer.Stop()
		}
		if r.ctx.Err() != nil {
			return
		}
	}
}

// due reports whether what the service holds is to be flushed now; r.mu is held.
func (r *run) due(s *service, now time.Time) bool {
	return s.closing != nil || s.wanted || s.bufBytes >= r.opt.MaxBytes || now.Sub(s.since) >= r.opt.MaxAge
}

// startDue starts workers for what is due, those that wait longest first; with
// pressure also for the one that holds most. r.mu is held.
func (r *run) startDue(now time.Time, pressure bool) {
	free := r.opt.Parallel
	for s := range r.workers {
		if s.mode == attached && s.sink != nil && !s.stalled(now, r.opt.StallAfter) {
			free--
		}
	}
	if free <= 0 || len(r.dirty) == 0 {
		return
	}
	due := make([]*service, 0, free+1) // the longest waiting first
	var largest *service
	for s := range r.dirty {
		if s.working || s.mode != attached {
			continue
		}
		if r.due(s, now) {
			due = insertOldest(due, s, free)
		} else if largest == nil || s.bufBytes > largest.bufBytes {
			largest = s
		}
	}
	if pressure && len(due) == 0 && largest != nil {
		largest.wanted = true
		due = append(due, largest)
	}
	for _, s := range due {
		r.start(s)
	}
}

// insertOldest keeps the n services that wait longest, in that order.
func insertOldest(list []*service, s *service, n int) []*service {
	at := len(list)
	for at > 0 && s.since.Before(list[at-1].since) {
		at--
	}
	if at >= n {
		return list
	}
	list = slices.Insert(list, at, s)
	return list[:min(n, len(list))]
}
