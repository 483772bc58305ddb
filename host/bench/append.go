package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Target is a log under load. Append stores one batch and returns when it is
// acknowledged; it is safe for concurrent use, and must not write to payloads nor
// keep them.
type Target interface {
	Append(ctx context.Context, payloads [][]byte) error
}

// AppendOptions are the load of Append.
type AppendOptions struct {
	// Appenders is how many batches are under way at most.
	Appenders int
	// Rate is the number of records a second of an open loop; 0 is a closed loop.
	Rate float64
	// Size is the payload's in bytes, Batch the number of records of a batch.
	Size, Batch int
	// Duration is what is counted, Warmup what passes before.
	Duration, Warmup time.Duration
}

// Validate returns what is wrong with the options.
func (o AppendOptions) Validate() error {
	switch {
	case o.Appenders < 1 || o.Appenders > 1<<16:
		return fmt.Errorf("appenders: %d is not between 1 and %d", o.Appenders, 1<<16)
	case o.Batch < 1:
		return fmt.Errorf("batch: %d is below 1", o.Batch)
	case o.Size < 0:
		return fmt.Errorf("size: %d is below 0", o.Size)
	case o.Rate < 0:
		return fmt.Errorf("rate: %g is below 0", o.Rate)
	case o.Duration <= 0:
		return fmt.Errorf("duration: %s is not above 0", o.Duration)
	case o.Warmup < 0:
		return fmt.Errorf("warmup: %s is below 0", o.Warmup)
	}
	return nil
}

// Append runs the load and returns what was measured. When ctx ends early it
// returns ctx's error.
func Append(ctx context.Context, target Target, opt AppendOptions) (Result, error) {
	if err := opt.Validate(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	l := &load{
		opt: opt, target: target, ctx: ctx, cancel: cancel,
		counted: start.Add(opt.Warmup), end: start.Add(opt.Warmup + opt.Duration), start: start,
	}
	payloads := payloads(opt)
	parts := make([]*recorder, min(opt.Appenders, maxRecorders))
	for i := range parts {
		parts[i] = newRecorder()
	}
	var wg sync.WaitGroup
	for i := range opt.Appenders {
		wg.Go(func() { l.appender(parts[i%len(parts)], payloads) })
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	return merge(parts, opt.Duration, opt.Size), nil
}

// payloads are random bytes, so that a store that compresses does not measure its
// compressor. All batches share them.
func payloads(opt AppendOptions) [][]byte {
	random := rand.NewChaCha8([32]byte{})
	out := make([][]byte, opt.Batch)
	for i := range out {
		out[i] = make([]byte, opt.Size)
		_, _ = random.Read(out[i])
	}
	return out
}

// load is one run.
type load struct {
	opt    AppendOptions
	target Target
	ctx    context.Context
	cancel context.CancelCauseFunc
	// start, counted and end are when the warm-up begins, when it is over, and
	// when the run is.
	start, counted, end time.Time
	ticket              atomic.Int64 // of an open loop: the next batch
}

// appender sends batch after batch until the end.
func (l *load) appender(r *recorder, payloads [][]byte) {
	for {
		intended, ok := l.next()
		if !ok {
			return
		}
		if err := l.target.Append(l.ctx, payloads); err != nil {
			if !errors.Is(context.Cause(l.ctx), err) {
				l.cancel(err)
			}
			return
		}
		now := time.Now()
		if !intended.Before(l.counted) && now.Before(l.end) {
			r.add(now.Sub(intended), len(payloads))
		}
	}
}

// next waits until the next batch is to be sent, and returns when that was.
func (l *load) next() (time.Time, bool) {
	if l.opt.Rate == 0 {
		now := time.Now()
		return now, now.Before(l.end) && l.ctx.Err() == nil
	}
	i := l.ticket.Add(1) - 1
	at := l.start.Add(time.Duration(float64(i) * float64(l.opt.Batch) / l.opt.Rate * float64(time.Second)))
	if !at.Before(l.end) {
		return at, false
	}
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		// A log that is too slow is not measured for ever: what was not sent by the
		// end is missing from the count.
		return at, time.Now().Before(l.end)
	case <-l.ctx.Done():
		return at, false
	}
}

// Fill appends records of opt.Size, opt.Batch at a time from opt.Appenders. It
// appends no fewer than asked, and less than a batch more.
func Fill(ctx context.Context, target Target, records int64, opt AppendOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	payloads := payloads(opt)
	var given atomic.Int64
	var wg sync.WaitGroup
	for range opt.Appenders {
		wg.Go(func() {
			for given.Add(int64(opt.Batch)) < records+int64(opt.Batch) && ctx.Err() == nil {
				if err := target.Append(ctx, payloads); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
