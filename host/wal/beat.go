package wal

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// beat keeps time: it widens the tick window, writes time ticks and lets
// transactions expire.
func (w *termWAL) beat() {
	defer w.wg.Done()
	ticker := time.NewTicker(w.opt.TickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-ticker.C:
		case <-w.pulse:
		}
		if err := w.extendWindow(); err != nil {
			w.end(err)
			return
		}
		w.timeTick()
		w.expireTxns()
	}
}

// extendWindow asks the row for a wider window when half of the present one is
// used. A row of another term ends this one.
func (w *termWAL) extendWindow() error {
	w.mu.Lock()
	bound, due := w.clock.Want(w.opt.Window, maxBatchRecords)
	w.mu.Unlock()
	if !due {
		return nil
	}
	err := w.claim.raiseBound(w.ctx, bound)
	if errors.Is(err, walimpls.ErrTermExpired) || errors.Is(err, walimpls.ErrNotFound) {
		return walimpls.Errorf(walimpls.CodeTermExpired, w.claim.channel, "term %d ended: %w", w.claim.term, err)
	}
	if err != nil {
		if w.ctx.Err() == nil {
			w.log.Warn("the catalog grants no tick window, trying again", zap.Error(err))
		}
		return nil
	}
	w.mu.Lock()
	w.clock.Extend(bound)
	w.changed()
	w.mu.Unlock()
	return nil
}

// maxBatchRecords is what one batch may hold at most; a window holds more.
const maxBatchRecords = 1 << 16

// raiseBound raises the row's tick bound.
func (c *claim) raiseBound(ctx context.Context, bound message.Tick) error {
	ctx, cancel := context.WithTimeout(ctx, c.attemptTimeout)
	defer cancel()
	_, err := c.catalog.Update(ctx, c.channel, c.term, func(row *catalog.Row) error {
		row.TickBound = max(row.TickBound, bound)
		return nil
	})
	return err
}

// timeTick persists a time tick when records came since the last, and moves the
// tick of an idle channel on in memory.
func (w *termWAL) timeTick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	records, bytes := w.core.Unticked()
	switch {
	case w.err != nil:
	case records > 0 && !w.core.TickPending() && (bytes >= w.opt.TickBytes || time.Since(w.lastPersisted) >= w.opt.TickInterval):
		if tick, ok := w.clock.Take(1); ok {
			w.core.AcceptTick(tick)
			w.lastPersisted = time.Now()
			w.settle()
		}
	case records == 0 && w.core.Settled():
		if tick, ok := w.clock.Take(1); ok && w.core.Idle(tick) {
			w.settle()
		}
	}
}

// lastTick tries to leave a time tick at the end of the log, so that the next
// reader that has no owner sees everything.
func (w *termWAL) lastTick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.opt.LastTickTimeout)
	defer cancel()
	var mine *owner.Batch
	for {
		w.mu.Lock()
		records, _ := w.core.Unticked()
		stop := w.err != nil || w.handle == nil || (records == 0 && w.core.Settled())
		if !stop && mine == nil && w.core.Settled() {
			if tick, ok := w.clock.Take(1); ok {
				mine = w.core.AcceptTick(tick)
				w.settle()
			}
		}
		stop = stop || mine != nil && mine.Resolved()
		change := w.progressed()
		w.mu.Unlock()
		if stop {
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			return
		}
	}
}
