package plugin

import (
	"context"
	"sync"
)

// tracker counts running goroutines. Unlike a sync.WaitGroup it may grow from zero
// while somebody waits: a stream that ends during a close starts a last clean-up.
type tracker struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // set while n > 0 and somebody waits; closed when n is 0
}

// start runs f in a goroutine that wait waits for.
func (t *tracker) start(f func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		defer t.done()
		f()
	}()
}

func (t *tracker) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// wait returns true when nothing runs, false when ctx ends first.
func (t *tracker) wait(ctx context.Context) bool {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return true
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}
