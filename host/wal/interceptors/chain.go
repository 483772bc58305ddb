package interceptors

import (
	"context"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Result is what became of one record.
type Result struct {
	walimpls.Outcome
	// Tick, Term and Checkpoint are set for a stored record: a reader that
	// resumes from the checkpoint begins behind the record (for a body: behind
	// the unit before its transaction).
	Tick       message.Tick
	Term       int64
	Checkpoint message.Checkpoint
}

// Operation is one append on its way.
type Operation struct {
	Ctx     context.Context
	Channel string
	Batch   []message.Message
	// Barrier, if not 0: wait until everything up to it is settled, and take
	// ticks above it.
	Barrier message.Tick
	// Keepalive is for the record that begins a transaction.
	Keepalive time.Duration
	// Done is called exactly once, with one result a record. It must not block.
	Done func([]Result)
	// Settled, if not nil, is called exactly once, behind Done, when every record
	// is stored or never will be, or the WAL has ended. A caller that left is
	// answered long before.
	Settled func()
}

// Settle calls Settled.
func (op *Operation) Settle() {
	if op.Settled != nil {
		op.Settled()
	}
}

// Refuse answers the operation: no record was handed to a backend.
func (op *Operation) Refuse(err error) {
	defer op.Settle()
	results := make([]Result, len(op.Batch))
	for i := range results {
		results[i].Outcome = walimpls.Outcome{State: walimpls.NotStored, Err: err}
	}
	op.Done(results)
}

// Handler takes an operation on.
type Handler func(op *Operation)

// Interceptor is one step of the chain.
type Interceptor interface {
	// Name is for metrics and logs.
	Name() string
	// Ready is closed when the step takes operations.
	Ready() <-chan struct{}
	// Handle passes op to next, perhaps with another Done, or answers it.
	Handle(op *Operation, next Handler)
	// Close releases the step; no operation is under way any more.
	Close()
}

// Chain is a list of steps around a last handler. It is safe for concurrent use.
type Chain struct {
	steps []Interceptor
	first Handler

	mu       sync.Mutex // guards closed and underway
	closed   bool
	underway int
	idle     chan struct{} // closed when closed and nothing is under way
}

// NewChain returns the chain; the first step is the outermost.
func NewChain(last Handler, steps ...Interceptor) *Chain {
	c := &Chain{steps: steps, idle: make(chan struct{})}
	h := last
	for i := len(steps) - 1; i >= 0; i-- {
		step, next := steps[i], h
		h = func(op *Operation) { step.Handle(op, next) }
	}
	c.first = h
	return c
}

// Append sends op through the chain.
func (c *Chain) Append(op *Operation) {
	if !c.enter() {
		op.Refuse(walimpls.Errorf(walimpls.CodeClosed, op.Channel, "append: the WAL is closed"))
		return
	}
	done := op.Done
	op.Done = func(r []Result) {
		c.leave()
		done(r)
	}
	for _, step := range c.steps {
		select {
		case <-step.Ready():
		case <-op.Ctx.Done():
			op.Refuse(walimpls.Errorf(walimpls.CodeTimeout, op.Channel, "append: waiting for %s: %w", step.Name(), op.Ctx.Err()))
			return
		}
	}
	c.first(op)
}

func (c *Chain) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.underway++
	}
	return !c.closed
}

func (c *Chain) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underway--
	if c.closed && c.underway == 0 {
		close(c.idle)
	}
}

// Refuse makes the chain refuse new operations; those under way go on.
func (c *Chain) Refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.underway == 0 {
		close(c.idle)
	}
}

// Close refuses new operations, waits for those under way until ctx ends, and
// closes the steps. It reports whether all had been answered.
func (c *Chain) Close(ctx context.Context) bool {
	c.Refuse()
	drained := true
	select {
	case <-c.idle:
	case <-ctx.Done():
		drained = false
	}
	for _, step := range c.steps {
		step.Close()
	}
	return drained
}

// always is a channel that is closed: the Ready of a step that needs nothing.
var always = func() chan struct{} { ch := make(chan struct{}); close(ch); return ch }()
