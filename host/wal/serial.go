package wal

import (
	"context"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// asyncHandle is a backend's handle that takes appends in call order without
// waiting for them; the remote WAL of a plugin is one.
type asyncHandle interface {
	walimpls.WAL
	// AppendAsync hands a batch over in call order; done is called exactly once.
	AppendAsync(batch []message.Message, done func([]walimpls.Outcome))
}

// breaker is a handle that tells when it is lost, also without traffic.
type breaker interface{ Broken() <-chan struct{} }

// async returns handle as an asyncHandle, wrapped if need be. Close of the
// result closes handle.
func async(handle walimpls.WAL) asyncHandle {
	if a, ok := handle.(asyncHandle); ok {
		return a
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &serialHandle{WAL: handle, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go s.run()
	return s
}

// serialHandle appends to a backend in process, one call at a time, and gives
// each call everything that came meanwhile.
type serialHandle struct {
	walimpls.WAL
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	ended  chan struct{}

	mu      sync.Mutex // guards waiting and closed
	waiting []serialCall
	closed  bool
}

type serialCall struct {
	batch []message.Message
	done  func([]walimpls.Outcome)
}

// maxSerialRecords bounds what one Append gets.
const maxSerialRecords = 4096

func (s *serialHandle) AppendAsync(batch []message.Message, done func([]walimpls.Outcome)) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.waiting = append(s.waiting, serialCall{batch, done})
	}
	s.mu.Unlock()
	if closed {
		go s.refuse(serialCall{batch, done})
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *serialHandle) refuse(c serialCall) {
	name := s.WAL.Channel().Name
	c.done(notStored(name, len(c.batch), walimpls.Errorf(walimpls.CodeClosed, name, "append: the handle is closed")))
}

func (s *serialHandle) run() {
	defer close(s.ended)
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			s.mu.Lock()
			s.closed = true
			rest := s.waiting
			s.waiting = nil
			s.mu.Unlock()
			for _, c := range rest {
				s.refuse(c)
			}
			return
		}
		for calls := s.take(); len(calls) > 0; calls = s.take() {
			s.append(calls)
		}
	}
}

// take returns the calls of the next Append: as many as fit.
func (s *serialHandle) take() []serialCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, records := 0, 0
	for n < len(s.waiting) && (n == 0 || records+len(s.waiting[n].batch) <= maxSerialRecords) {
		records += len(s.waiting[n].batch)
		n++
	}
	calls := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	return calls
}

func (s *serialHandle) append(calls []serialCall) {
	batch := calls[0].batch
	if len(calls) > 1 {
		batch = nil
		for _, c := range calls {
			batch = append(batch, c.batch...)
		}
	}
	ids, err := s.WAL.Append(s.ctx, batch)
	outcomes := walimpls.Outcomes(s.WAL.Channel().Name, len(batch), ids, err)
	for _, c := range calls {
		c.done(outcomes[:len(c.batch):len(c.batch)])
		outcomes = outcomes[len(c.batch):]
	}
}

// Close closes the backend's handle, then waits for the goroutine, both within
// the backend's grace period.
func (s *serialHandle) Close(ctx context.Context) error {
	s.cancel()
	err := s.WAL.Close(ctx)
	select {
	case <-s.ended:
	case <-ctx.Done():
	}
	return err
}
