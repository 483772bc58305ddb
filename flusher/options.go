package flusher

import (
	"time"

	"go.uber.org/zap"
)

// Options are the parameters of Start. Zero values mean the defaults.
type Options struct {
	// MaxBytes and MaxAge say when a vchannel's rows are flushed: when there are
	// so many bytes (64 MiB), or when the oldest has waited so long (10 s).
	MaxBytes int
	MaxAge   time.Duration
	// MaxMemory bounds the rows of one pchannel that are held in memory (256
	// MiB), those in flight included. A single unit may exceed it.
	MaxMemory int
	// Parallel bounds the flushes of one pchannel that run at once (4). One that
	// hangs does not count.
	Parallel int
	// SaveEvery is how often the pchannel checkpoint is saved while it moves (1 s).
	SaveEvery time.Duration
	// MinAge is how old records have to be before they are truncated (0).
	MinAge time.Duration
	// MaxPinAge is how long a reader that lags holds a truncation back (1 h).
	MaxPinAge time.Duration
	// FlushTimeout bounds one call of a sink (1 min). StallAfter is when a call
	// that still runs, or fails, stops counting as work (10 s).
	FlushTimeout, StallAfter time.Duration
	// RecoverWait is how long the start waits for vchannels whose sink does not
	// open (10 s); they catch up by themselves when it does.
	RecoverWait time.Duration
	// RetryMin and RetryMax bound the pause before something is tried again (100
	// ms, 10 s).
	RetryMin, RetryMax time.Duration
	// Log is the logger.
	Log *zap.Logger
	// Now is the clock.
	Now func() time.Time
}

// Bounds of what runs at once beside the flushes.
const (
	// catchUps is how many detached services read the log at once. Each holds at
	// most its share of a quarter of MaxMemory.
	catchUps = 4
	// parallelOpens is how many vchannels' outputs are opened at once at a start.
	parallelOpens = 64
	// readBytes bounds what the shared scanner hands out at once.
	readBytes = 1 << 20
	// rowOverhead is what a row counts beside its own bytes.
	rowOverhead = 200
)

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// WithDefaults returns the options with every default filled in.
func (o Options) WithDefaults() Options {
	orDefault(&o.MaxBytes, 64<<20)
	orDefault(&o.MaxAge, 10*time.Second)
	orDefault(&o.MaxMemory, 256<<20)
	orDefault(&o.Parallel, 4)
	orDefault(&o.SaveEvery, time.Second)
	orDefault(&o.MaxPinAge, time.Hour)
	orDefault(&o.FlushTimeout, time.Minute)
	orDefault(&o.StallAfter, 10*time.Second)
	orDefault(&o.RecoverWait, 10*time.Second)
	orDefault(&o.RetryMin, 100*time.Millisecond)
	orDefault(&o.RetryMax, 10*time.Second)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// serviceLimit is what one vchannel may hold before it is detached: a flush on
// its way and as much again.
func (o *Options) serviceLimit() int { return 2 * o.MaxBytes }

// sharedMemory is the part of MaxMemory for what dispatch buffers.
func (o *Options) sharedMemory() int { return o.MaxMemory - o.MaxMemory/4 }

// catchUpBytes is what one service that catches up holds at most.
func (o *Options) catchUpBytes() int { return min(o.MaxBytes, max(o.MaxMemory/4/catchUps, 1)) }
