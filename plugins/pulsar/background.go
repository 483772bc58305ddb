package pulsar

import (
	"context"
	"sync"
	"time"
)

// background owns the goroutines that call what does not know contexts: the
// Pulsar client. Whoever waited for one may leave; the goroutine ends with the
// client's own timeouts, and the opener's Close waits for it.
type background struct {
	mu      sync.Mutex // guards what follows
	running int
	idle    chan struct{} // closed when nothing runs; nil while nothing waits
}

func (b *background) goFunc(f func()) {
	b.mu.Lock()
	b.running++
	b.mu.Unlock()
	go func() {
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.running--
			if b.running == 0 && b.idle != nil {
				close(b.idle)
				b.idle = nil
			}
		}()
		f()
	}()
}

// wait waits until nothing runs, at most for d.
func (b *background) wait(d time.Duration) bool {
	b.mu.Lock()
	if b.running == 0 {
		b.mu.Unlock()
		return true
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// bounded runs f, and leaves it alone when ctx ends first; what it makes then
// goes to discard.
func bounded[T any](ctx context.Context, b *background, f func() (T, error), discard func(T)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result) // unbuffered: either the caller takes it, or it is discarded
	left := make(chan struct{})
	defer close(left)
	b.goFunc(func() {
		v, err := f()
		select {
		case done <- result{v, err}:
		case <-left:
			if err == nil {
				discard(v)
			}
		}
	})
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
}
