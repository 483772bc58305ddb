package flusher

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// catchUp brings a detached service back: it waits until the sink works again,
// reads the log from the service's checkpoint with a reader of its own, and
// rejoins the shared one.
func (r *run) catchUp(s *service) {
	if !r.probe(s) {
		return
	}
	select {
	case r.catchUps <- struct{}{}:
		defer func() { <-r.catchUps }()
	case <-r.ctx.Done():
		return
	}
	c := &catchUp{r: r, s: s}
	if err := c.read(); err != nil && r.ctx.Err() == nil {
		if r.refused(s, err) {
			return
		}
		wait(r.ctx, r.opt.RetryMin, nil)
	}
}

// probe asks the sink for a manifest without rows until it works. So a sink that
// hangs or fails holds neither memory nor a place among those that read.
func (r *run) probe(s *service) bool {
	pause := r.opt.RetryMin
	for {
		r.mu.Lock()
		f := flight{cp: s.at}
		s.flightSince = r.opt.Now()
		r.mu.Unlock()
		f.cp.StoreID = r.storeID
		_, err := r.call(s, f)
		if err == nil {
			r.mu.Lock()
			s.failing, s.lastErr, s.flightSince = false, nil, time.Time{}
			r.mu.Unlock()
			return true
		}
		if r.refused(s, err) || !wait(r.ctx, pause, nil) {
			return false
		}
		pause = min(2*pause, r.opt.RetryMax)
	}
}

// catchUp is one try of a detached service to catch up.
type catchUp struct {
	r *run
	s *service
	// rows are read and not flushed; seen is behind them.
	rows  []message.Message
	bytes int
	seen  message.Checkpoint
	// goal is where dispatch was when the reading began: there the service joins.
	goal message.Checkpoint
	// joining says that what lies behind joinAt is dispatch's.
	joining bool
	joinAt  message.Checkpoint
}

func (c *catchUp) read() error {
	r, s := c.r, c.s
	r.mu.Lock()
	from := s.at
	c.seen, c.goal = s.at, r.pos
	if s.loss {
		from = message.Checkpoint{}
	}
	r.mu.Unlock()
	from.StoreID = r.storeID
	r.f.count(func(n *Counters) { n.CatchUps++ })
	err := c.readFrom(from)
	var lost *walimpls.PositionLostError
	if errors.As(err, &lost) && !s.loss {
		r.f.log.Error("a vchannel lost its position: records were removed that it had not flushed; it goes on with the earliest",
			zap.String("vchannel", s.name), zap.Error(err))
		r.f.count(func(n *Counters) { n.LostPositions++ })
		s.loss = true
	}
	return err
}

func (c *catchUp) readFrom(from message.Checkpoint) error {
	r, s := c.r, c.s
	reader, err := r.f.wal.Read(r.ctx, ReadOptions{
		Name: "flusher:" + s.name, From: from, VChannel: s.name, MaxBytes: min(readBytes, r.opt.catchUpBytes()),
	})
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		if done, err := c.joined(); done || err != nil {
			return err
		}
		units, err := reader.Next(r.ctx)
		if err != nil {
			return err
		}
		for i := range units {
			if err := c.take(&units[i]); err != nil {
				return err
			}
		}
	}
}

// take takes a unit, unless it is dispatch's already.
func (c *catchUp) take(u *Unit) error {
	target, own := c.target(u)
	if target != nil && !target.Covers(u.Term, u.Tick) {
		c.seen = later(c.seen, *target)
		return nil
	}
	c.seen = later(c.seen, u.Checkpoint)
	if !own {
		return nil
	}
	rows, size := rowsOf(u, c.s.name)
	c.rows, c.bytes = append(c.rows, rows...), c.bytes+size
	if c.bytes >= c.r.opt.catchUpBytes() {
		return c.flush()
	}
	return nil
}

// target returns up to where this reader is in charge, nil if there is no end.
func (c *catchUp) target(u *Unit) (*message.Checkpoint, bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	own := c.s.own(u)
	switch {
	case c.joining:
		at := c.joinAt
		return &at, own
	case c.s.closing != nil:
		at := *c.s.closing
		return &at, own
	}
	return nil, own
}

// joined asks to join when the reader is where dispatch was, and attaches the
// service when everything up to where it joined is flushed.
func (c *catchUp) joined() (bool, error) {
	r, s := c.r, c.s
	r.mu.Lock()
	for r.inUnit {
		// Amid a unit nobody could say which part of it is whose.
		if !r.await(0) {
			r.mu.Unlock()
			return false, context.Cause(r.ctx)
		}
	}
	var target message.Checkpoint
	switch {
	case c.joining && s.mode != joining:
		// Dispatch let go of it again, and this reader has left out what was
		// dispatch's: another one begins where this one has flushed.
		r.mu.Unlock()
		return true, nil
	case !c.joining && s.closing != nil:
		target = *s.closing
	case !c.joining && !before(c.seen, c.goal):
		s.mode, c.joining, c.joinAt = joining, true, r.pos
		fallthrough
	case c.joining:
		target = c.joinAt
	default:
		r.mu.Unlock()
		return false, nil
	}
	r.mu.Unlock()
	if before(c.seen, target) {
		return false, nil
	}
	c.seen = target
	if err := c.flush(); err != nil {
		return false, err
	}
	c.attach(target)
	return true, nil
}

// attach gives the service back to dispatch, unless it was detached once more.
func (c *catchUp) attach(target message.Checkpoint) {
	r, s := c.r, c.s
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.joining && s.mode != joining:
		return
	case len(s.buf) > 0:
		r.advance(s, later(target, s.from))
	case s.closing != nil:
		r.advance(s, target)
	default:
		s.at = later(s.at, target)
		if err := r.cps.Idle(s.name); err != nil {
			r.f.log.Error("an idle vchannel is gone", zap.Error(err))
		}
	}
	s.mode, s.loss, s.skipped, s.failing = attached, false, 0, false
	r.f.count(func(n *Counters) { n.Rejoins++ })
	r.changed()
	r.tell()
}

// flush makes what was read durable, in one call.
func (c *catchUp) flush() error {
	r, s := c.r, c.s
	if len(c.rows) == 0 {
		return nil
	}
	r.mu.Lock()
	s.flightSince = r.opt.Now()
	r.mu.Unlock()
	files, err := r.call(s, flight{rows: c.rows, cp: c.seen})
	if err != nil {
		return err
	}
	r.f.countFiles(files)
	c.rows, c.bytes = nil, 0
	r.mu.Lock()
	defer r.mu.Unlock()
	s.flightSince, s.failing, s.lastErr = time.Time{}, false, nil
	r.advance(s, c.seen)
	return nil
}
