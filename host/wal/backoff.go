package wal

import (
	"context"
	"time"
)

// backoff waits longer each time: first, then twice as long, up to most.
type backoff struct {
	first, most time.Duration
	present     time.Duration
}

// wait sleeps once; false means that ctx ended.
func (b *backoff) wait(ctx context.Context) bool {
	b.present = min(max(b.present*2, b.first), b.most)
	timer := time.NewTimer(b.present)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *backoff) reset() { b.present = 0 }
