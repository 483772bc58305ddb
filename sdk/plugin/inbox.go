package plugin

import (
	"context"
	"sync"
)

// inbox is the queue between the receiver and the committer, bounded in bytes.
type inbox struct {
	limit int
	wake  chan struct{} // holds a token while the committer has something to see

	mu     sync.Mutex
	items  []*batch
	bytes  int // of items and of what was taken and not released
	err    error
	change chan struct{} // closed and replaced when bytes fall
}

func newInbox(limit int) *inbox {
	return &inbox{limit: limit, wake: make(chan struct{}, 1), change: make(chan struct{})}
}

// push adds b when there is room, and reports false when ctx ended first.
func (q *inbox) push(ctx context.Context, b *batch) bool {
	q.mu.Lock()
	for q.bytes > 0 && q.bytes+b.bytes > q.limit {
		change := q.change
		q.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			q.end(ctx.Err())
			return false
		}
		q.mu.Lock()
	}
	q.items = append(q.items, b)
	q.bytes += b.bytes
	q.mu.Unlock()
	q.signal()
	return true
}

// end says that nothing more comes, and why.
func (q *inbox) end(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	q.signal()
}

func (q *inbox) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns everything that waits, or, if nothing does, why nothing will.
func (q *inbox) take() ([]*batch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil, q.err
	}
	items := q.items
	q.items = nil
	return items, nil
}

// release makes room again for what was taken.
func (q *inbox) release(taken []*batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range taken {
		q.bytes -= b.bytes
	}
	close(q.change)
	q.change = make(chan struct{})
}
