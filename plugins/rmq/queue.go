package rmq

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/walrig/walrig/sdk/walimpls"
)

// request is one thing that the committer shall do to one log.
type request struct {
	kind   requestKind
	log    *logState
	handle *handle // the appending or truncating one; nil for the rest
	// first is the id that a truncation keeps; for appends and fences the
	// committer puts the first record's id here.
	first uint64
	pair  walimpls.Pair // of a fence
	data  []byte        // encoded records, one behind the other
	ends  []int         // where in data each record ends
	// frame is what a move copies, with data as its body; runs is where the
	// records are then.
	frame frame
	runs  []*run

	// Guarded by engine.mu; whoever sees done closed may read err and state.
	state requestState
	err   error
	done  chan struct{}
}

type requestKind int

const (
	requestAppend requestKind = iota
	requestFence
	requestTruncate
	requestDrop
	// requestMove copies a frame out of a segment that shall be given back.
	requestMove
	// requestBarrier changes nothing: it is done when what lies before it is.
	requestBarrier
)

func (k requestKind) String() string {
	return [...]string{"append", "open", "truncate", "drop", "move", "drop"}[k]
}

type requestState int

const (
	requestQueued  requestState = iota
	requestTaken                // the committer has it
	requestDone                 // durable
	requestUnknown              // it may be durable
	requestRefused              // it did not happen, and will not
)

func newRequest(kind requestKind, l *logState) *request {
	return &request{kind: kind, log: l, done: make(chan struct{})}
}

func (r *request) count() int { return len(r.ends) }

// finishLocked ends the request once; the caller holds engine.mu.
func (r *request) finishLocked(state requestState, err error) {
	if r.state > requestTaken {
		return
	}
	r.state, r.err = state, err
	close(r.done)
}

// abandonLocked ends a request that the committer has and nobody waits for any
// longer. Only an append has an unknown outcome; it ends its handle. The rest
// can simply be asked for again. The caller holds engine.mu.
func (r *request) abandonLocked(why error) {
	switch {
	case r.state != requestTaken:
	case r.kind == requestAppend:
		r.handle.dead = true
		r.finishLocked(requestUnknown, unknownOutcome(r.log.name, why.Error()))
	default:
		r.finishLocked(requestUnknown, walimpls.Errorf(walimpls.CodeUnavailable, r.log.name, "%s: %w; it may have happened all the same, and can be repeated", r.kind, why))
	}
}

// queue is what waits for the committer. engine.mu guards requests and bytes.
type queue struct {
	requests []*request
	bytes    int // of the records in requests
	limit    int // of bytes
	// room bounds bytes. It serves those who wait in their order, so that a
	// large batch is not kept waiting by small ones.
	room *semaphore.Weighted
	// wake tells the committer that there is something to do.
	wake chan struct{}
}

func newQueue(limit int) queue {
	return queue{limit: limit, room: semaphore.NewWeighted(int64(limit)), wake: make(chan struct{}, 1)}
}

// weight is a request's share of the room; one above the limit takes all of it.
func (q *queue) weight(r *request) int64 { return int64(min(len(r.data), q.limit)) }

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) pushLocked(r *request) {
	q.requests = append(q.requests, r)
	q.bytes += len(r.data)
	q.signal()
}

// pushMoveLocked queues the keeper's own request, which needs no room.
func (q *queue) pushMoveLocked(r *request) {
	q.requests = append(q.requests, r)
	q.signal()
}

// leaveLocked frees the room of a request that is queued no longer.
func (q *queue) leaveLocked(r *request) {
	if r.kind == requestMove {
		return
	}
	q.bytes -= len(r.data)
	if len(r.data) > 0 {
		q.room.Release(q.weight(r))
	}
}

// takeLocked moves requests of up to limit bytes, at least one, out of the queue.
func (q *queue) takeLocked(limit int) []*request {
	var taken []*request
	bytes, n := 0, 0
	for _, r := range q.requests {
		if r.state != requestQueued {
			n++ // its caller gave up, and freed its bytes
			continue
		}
		if len(taken) > 0 && bytes+len(r.data) > limit {
			break
		}
		r.state = requestTaken
		bytes += len(r.data)
		q.leaveLocked(r)
		taken = append(taken, r)
		n++
	}
	rest := copy(q.requests, q.requests[n:])
	clear(q.requests[rest:])
	q.requests = q.requests[:rest]
	return taken
}

// refuseLocked ends what waits and fits, as not done.
func (q *queue) refuseLocked(fits func(*request) bool, err func(*request) error) {
	for _, r := range q.requests {
		if r.state == requestQueued && fits(r) {
			r.finishLocked(requestRefused, err(r))
			q.leaveLocked(r)
		}
	}
}

// submit queues a request of a handle, after it waited for room. An error means
// that nothing of it was or will be handed to the store.
func (e *engine) submit(ctx context.Context, r *request) error {
	room := e.takeRoom(ctx, r)
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.mayWriteLocked(r.handle, r.kind.String())
	if err == nil && !room {
		err = gaveUp(r.log.name, r.kind.String()+": waiting for room in the queue", ctx.Err())
	}
	if err != nil {
		if room && len(r.data) > 0 {
			e.queue.room.Release(e.queue.weight(r))
		}
		return err
	}
	e.queue.pushLocked(r)
	return nil
}

// takeRoom waits for room in the queue. It returns false when ctx ends, or the
// handle or the engine, first.
func (e *engine) takeRoom(ctx context.Context, r *request) bool {
	if len(r.data) == 0 || e.queue.room.TryAcquire(e.queue.weight(r)) {
		return true
	}
	ctx, cancel := context.WithCancel(ctx)
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		defer cancel()
		select {
		case <-r.handle.done:
		case <-e.stopped:
		case <-ctx.Done():
		}
	}()
	err := e.queue.room.Acquire(ctx, e.queue.weight(r))
	cancel()
	<-watcher
	return err == nil
}

// await waits for the request to end and returns its error; it returns soon
// after ctx ends. An append is settled then, one way or the other. Anything
// else stays queued and happens all the same: a fence, once it was decided on,
// has fenced the handles before it, and must land.
func (e *engine) await(ctx context.Context, r *request) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if r.kind != requestAppend {
		return gaveUp(r.log.name, r.kind.String()+", which may happen all the same", ctx.Err())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.state {
	case requestQueued:
		r.finishLocked(requestRefused, gaveUp(r.log.name, "append: it was still queued", ctx.Err()))
		e.queue.leaveLocked(r)
	case requestTaken:
		r.abandonLocked(ctx.Err())
	}
	return r.err
}

func (e *engine) mayWrite(h *handle, what string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mayWriteLocked(h, what)
}

func (e *engine) mayWriteLocked(h *handle, what string) error {
	if e.state == engineClosing {
		return closedError(h.ch.Name, what)
	}
	if err := h.mayWriteLocked(what); err != nil {
		return err
	}
	return e.usableLocked(h.ch.Name)
}
