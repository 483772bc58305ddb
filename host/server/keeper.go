package server

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/walimpls"
)

// start runs the channel's keeper: the goroutine that opens it in standalone
// mode and keeps it open. Admin calls of one channel never overlap, so there is
// at most one.
func (c *channel) start() {
	ctx, cancel := context.WithCancel(c.set.ctx)
	stopped := make(chan struct{})
	c.mu.Lock()
	c.stop, c.stopped = cancel, stopped
	c.mu.Unlock()
	c.set.keepers.Add(1)
	go func() {
		defer c.set.keepers.Done()
		defer close(stopped)
		defer cancel()
		c.keep(ctx)
	}()
}

// halt stops the keeper and waits for it.
func (c *channel) halt() {
	c.mu.Lock()
	stop, stopped := c.stop, c.stopped
	c.stop, c.stopped = nil, nil
	c.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped
	}
}

// keep opens the channel, again after a pause when an error may pass, and at
// once when its WAL has ended for such an error. An error that will not pass
// by itself waits for a kick. While it tries again behind a failure the channel
// stays unavailable with that error, so that callers learn it at once.
func (c *channel) keep(ctx context.Context) {
	pause := c.set.opt.RetryMin
	for {
		w, err := c.open(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			c.setState(available, nil)
			pause = c.set.opt.RetryMin
			select {
			case <-w.Done():
			case <-ctx.Done():
				return
			}
			if err = w.Err(); passes(err) {
				c.log.Warn("the wal has ended, opening the channel again", zap.Error(err))
				c.setState(opening, nil)
				continue
			}
		}
		c.log.Warn("the channel is unavailable", zap.Error(err), zap.Bool("retry", passes(err)))
		c.setState(unavailable, err)
		if !c.awaitRetry(ctx, err, pause) {
			return
		}
		pause = min(2*pause, c.set.opt.RetryMax)
	}
}

// awaitRetry waits for the next try; false means that ctx ended.
func (c *channel) awaitRetry(ctx context.Context, err error, pause time.Duration) bool {
	var again <-chan time.Time
	if passes(err) {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-again:
	case <-c.kick:
	case <-ctx.Done():
		return false
	}
	return true
}

// retry makes the keeper try at once and waits for the result.
func (c *channel) retry(ctx context.Context) error {
	if err := c.afterEnd(ctx); err != nil {
		return err
	}
	if st, _, _ := c.now(); st == unavailable {
		c.setState(opening, nil)
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
	return c.settled(ctx)
}

// open opens the channel at the next term, and at higher ones if that is too low.
func (c *channel) open(ctx context.Context) (wal.WAL, error) {
	opt := c.set.opt
	late := time.AfterFunc(opt.ReportAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.report()
	})
	defer late.Stop()
	if _, err := c.configured(); err != nil {
		return nil, err
	}
	release, err := c.set.slot(ctx, c.plugin)
	if err != nil {
		return nil, err
	}
	defer release()
	for tries := 1; ; tries++ {
		row, err := opt.Catalog.Get(ctx, c.name)
		if err != nil {
			return nil, err
		}
		term := c.nextTerm(row.Term)
		err = opt.Manager.Open(ctx, c.name, term)
		if err == nil {
			c.refresh(ctx)
			return opt.Manager.Get(c.name, term)
		}
		if !c.learn(err) || tries == maxTermTries {
			return nil, cause(err)
		}
		c.log.Info("the term is too low, taking a higher one", zap.Int64("term", term), zap.Error(err))
	}
}

func (c *channel) nextTerm(row int64) int64 {
	known := c.set.managed(c.name).Term
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms.Next(row, known)
}

func (c *channel) learn(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms.Learn(err)
}

// refresh takes the description of the plugin that runs now: its limits may be
// others than at the last open. A plugin that has just gone is asked later.
func (c *channel) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, walimpls.GracePeriod)
	defer cancel()
	if _, err := c.describe(ctx); err != nil {
		c.log.Warn("the plugin does not describe itself", zap.Error(err))
	}
}

// passes reports whether an open that failed with err may succeed later without
// anybody giving an order: the error, or one that it wraps, says so.
func passes(err error) bool {
	for err != nil {
		var e *walimpls.Error
		if !errors.As(err, &e) {
			return errors.Is(err, context.DeadlineExceeded)
		}
		switch e.Code {
		case walimpls.CodeForeignStore, walimpls.CodeTermExpired, walimpls.CodeFenced:
			return false
		}
		if e.Retryable {
			return true
		}
		err = e.Err
	}
	return false
}

// cause returns what the manager's error about a failed term wraps. Its advice
// (take a higher term) is for those who give terms; here the host does.
func cause(err error) error {
	var outer, inner *walimpls.Error
	if errors.As(err, &outer) && errors.As(outer.Err, &inner) {
		return outer.Err
	}
	return err
}
