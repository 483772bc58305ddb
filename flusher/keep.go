package flusher

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// idleSaves is how many periods a checkpoint whose tick alone moves is not saved.
const idleSaves = 10

// keep saves the pchannel checkpoint when it has moved, and truncates.
func (r *run) keep() {
	defer r.wg.Done()
	k := keeper{r: r, savedAt: r.opt.Now(), retry: r.opt.RetryMin}
	for wait(r.ctx, k.next(), nil) {
		if err := k.save(); err != nil {
			if final(err) {
				r.fail(err)
				return
			}
			continue
		}
		k.truncate()
	}
}

type keeper struct {
	r       *run
	savedAt time.Time
	// retry is the pause after a failure; failed says that there was one.
	retry  time.Duration
	failed bool
	pins   Pins
	// cutAgain is when a truncation that failed is tried again.
	cutAgain time.Time
	cutPause time.Duration
}

// next returns how long to wait.
func (k *keeper) next() time.Duration {
	if !k.failed {
		return k.r.opt.SaveEvery
	}
	pause := k.retry
	k.retry = min(2*k.retry, k.r.opt.RetryMax)
	return pause
}

// save saves the newest place at or below the minimum, if that has moved. The
// minimum is read anew at every try.
func (k *keeper) save() error {
	r := k.r
	r.mu.Lock()
	mark := r.marks.Floor(r.cps.Minimum(r.pos))
	last := r.saved
	r.mu.Unlock()
	moved := last.Term < mark.Term || (last.Term == mark.Term && last.Tick < mark.Tick)
	now := r.opt.Now()
	if !moved || mark.ID < last.ID || (mark.ID == last.ID && mark.Term == last.Term && now.Sub(k.savedAt) < idleSaves*r.opt.SaveEvery) {
		k.failed, k.retry = false, r.opt.RetryMin
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
	defer cancel()
	var list []Saved
	err := r.f.store.Save(ctx, func(row *Row) {
		row.Checkpoints = Remember(row.Checkpoints, mark, now, r.opt.MinAge)
		row.VChannels = prune(row.VChannels, mark.Tick)
		list = row.Checkpoints
	})
	r.mu.Lock()
	r.saveErr = err
	if err == nil {
		r.saved, r.list = mark, list
		r.set.Forget(mark.Tick)
		r.changed()
	}
	r.mu.Unlock()
	if err != nil {
		k.failed = true
		if r.ctx.Err() == nil {
			r.f.log.Warn("the pchannel checkpoint cannot be saved, trying again", zap.Error(err))
		}
		return err
	}
	k.failed, k.retry, k.savedAt = false, r.opt.RetryMin, now
	if r.fromEarliest {
		r.f.mu.Lock()
		r.f.lost = false
		r.f.mu.Unlock()
	}
	return nil
}

// truncate removes what is flushed, old enough and not needed by a reader.
func (k *keeper) truncate() {
	r := k.r
	now := r.opt.Now()
	r.mu.Lock()
	list, truncated := r.list, r.truncated
	r.mu.Unlock()
	want, ok := Target(list, truncated.ID, now, r.opt.MinAge, nil)
	if !ok || now.Before(k.cutAgain) {
		return
	}
	held := k.pins.Held(r.f.wal.Readers(), want.ID, now, r.opt.MaxPinAge)
	if want, ok = Target(list, truncated.ID, now, r.opt.MinAge, held); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.opt.FlushTimeout)
	defer cancel()
	err := r.f.wal.Truncate(ctx, want)
	switch {
	case err == nil:
		r.mu.Lock()
		r.truncated = want
		r.mu.Unlock()
		r.f.count(func(c *Counters) { c.Truncations++ })
		k.cutPause = 0
	case r.ctx.Err() != nil:
	case errors.Is(err, walimpls.ErrTermExpired):
		r.fail(err)
	default:
		k.cutPause = min(max(2*k.cutPause, r.opt.RetryMin), r.opt.RetryMax)
		k.cutAgain = now.Add(k.cutPause)
		r.f.log.Warn("the log cannot be truncated, trying again", zap.Error(err))
	}
}
