package wal

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// reader is a scanner that goes on behind its last record when the backend's
// handle is lost. Next is for one goroutine.
type reader struct {
	wal *adaptor
	opt walimpls.ReadOptions
	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc

	// Of Next's goroutine alone: where to go on, and the handle's generation.
	start      walimpls.Start
	generation int
	pause      backoff

	mu      sync.Mutex // guards scanner
	scanner walimpls.Scanner
}

// Read implements WAL.
func (a *adaptor) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	opt, err := opt.Normalize(a.claim.channel)
	if err != nil {
		return nil, err
	}
	r := &reader{wal: a, opt: opt, start: opt.Start, pause: backoff{first: 20 * time.Millisecond, most: 2 * time.Second}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.open(ctx); err != nil {
		r.cancel()
		return nil, err
	}
	a.mu.Lock()
	a.readers[r] = struct{}{}
	a.mu.Unlock()
	return r, nil
}

// open starts a scanner on the present handle, or on the next one when that is
// lost. Latest is resolved once, the first time.
func (r *reader) open(ctx context.Context) error {
	for {
		handle, generation, err := r.wal.awaitHandle(ctx, r.generation)
		if err != nil {
			return err
		}
		if err = r.openOn(ctx, handle); err == nil {
			r.generation = generation - 1
			return nil
		}
		if !resumable(err) || ctx.Err() != nil {
			return err
		}
		// The handle is there and does not read: leave it to the appends to find
		// out whether it is lost, and try again.
		if !r.pause.wait(ctx) {
			return contextError(ctx, r.wal.claim.channel, "read")
		}
	}
}

func (r *reader) openOn(ctx context.Context, handle asyncHandle) error {
	if r.start.Policy == walimpls.PolicyLatest {
		start, err := latestStart(ctx, handle)
		if err != nil {
			return err
		}
		r.start = start
	}
	opt := r.opt
	opt.Start = r.start
	scanner, err := handle.Read(ctx, opt)
	if err != nil {
		return err
	}
	r.mu.Lock()
	closed := r.ctx.Err() != nil
	if !closed {
		r.scanner = scanner
	}
	r.mu.Unlock()
	if closed {
		_ = scanner.Close()
		return r.closedError()
	}
	return nil
}

// resumable reports whether a reader goes on with a new scanner after err.
func resumable(err error) bool {
	return errors.Is(err, walimpls.ErrUnavailable) || errors.Is(err, walimpls.ErrClosed) || errors.Is(err, walimpls.ErrFenced)
}

// Next implements walimpls.Scanner. Fence records are dropped.
func (r *reader) Next(ctx context.Context) ([]message.Message, error) {
	merged, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(r.closedError()) })()
	for {
		msgs, err := r.next(merged)
		if len(msgs) > 0 {
			return msgs, nil
		}
		if err == nil {
			continue
		}
		switch {
		case r.ctx.Err() != nil:
			return nil, r.closedError()
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !resumable(err):
			return nil, err
		}
		if err := r.wal.Err(); err != nil {
			return nil, err
		}
		r.drop()
		if !r.pause.wait(merged) {
			continue
		}
	}
}

// next returns what the present scanner gives, without fence records; it may
// be nothing.
func (r *reader) next(ctx context.Context) ([]message.Message, error) {
	r.mu.Lock()
	scanner := r.scanner
	r.mu.Unlock()
	if scanner == nil {
		if err := r.open(ctx); err != nil {
			return nil, err
		}
		r.mu.Lock()
		scanner = r.scanner
		r.mu.Unlock()
		if scanner == nil {
			return nil, r.closedError()
		}
	}
	msgs, err := scanner.Next(ctx)
	if err != nil {
		return nil, err
	}
	if len(msgs) == 0 {
		return nil, walimpls.Errorf(walimpls.CodeInternal, r.wal.claim.channel, "read: the backend returned no record and no error")
	}
	r.start = startBehind(msgs[len(msgs)-1].ID)
	r.pause.reset()
	kept := msgs[:0]
	for _, m := range msgs {
		if m.Type != message.TypeFence {
			kept = append(kept, m)
		}
	}
	return kept, nil
}

func (r *reader) drop() {
	r.mu.Lock()
	scanner := r.scanner
	r.scanner = nil
	r.mu.Unlock()
	if scanner != nil {
		_ = scanner.Close()
	}
}

func (r *reader) closedError() error {
	if err := r.wal.Err(); err != nil {
		return err
	}
	return walimpls.Errorf(walimpls.CodeClosed, r.wal.claim.channel, "the reader is closed")
}

// Close implements walimpls.Scanner.
func (r *reader) Close() error {
	r.cancel()
	r.drop()
	r.wal.mu.Lock()
	delete(r.wal.readers, r)
	r.wal.mu.Unlock()
	return nil
}
