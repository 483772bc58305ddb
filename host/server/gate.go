package server

import (
	"context"
	"sync"
)

// gate counts the calls that are inside, and lets nobody in once it is closed.
type gate struct {
	mu     sync.Mutex // guards all below
	inside int
	closed bool
	empty  chan struct{} // closed when the gate is closed and nobody is inside
}

func newGate() *gate { return &gate{empty: make(chan struct{})} }

// enter reports whether the caller is in; then it must leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside++
	return true
}

// isClosed reports whether nobody is let in any more.
func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.closed && g.inside == 0 {
		close(g.empty)
	}
}

// close lets nobody in any more. It is called once.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.inside == 0 {
		close(g.empty)
	}
}

// wait waits until all have left, or ctx ends.
func (g *gate) wait(ctx context.Context) bool {
	select {
	case <-g.empty:
		return true
	case <-ctx.Done():
		return false
	}
}

// keyLock is one mutex for each name in use, with waits that end with a context.
type keyLock struct {
	mu   sync.Mutex // guards held
	held map[string]*heldKey
}

type heldKey struct {
	users int
	turn  chan struct{} // holds one token while nobody has the key
}

// lock waits for the key. unlock must be called once.
func (k *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*heldKey{}
	}
	h := k.held[key]
	if h == nil {
		h = &heldKey{turn: make(chan struct{}, 1)}
		h.turn <- struct{}{}
		k.held[key] = h
	}
	h.users++
	k.mu.Unlock()
	drop := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(k.held, key)
		}
	}
	select {
	case <-h.turn:
		return func() { h.turn <- struct{}{}; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, ctx.Err()
	}
}
