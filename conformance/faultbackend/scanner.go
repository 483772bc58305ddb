package faultbackend

import (
	"context"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// scanner is the walimpls.Scanner of one Read.
type scanner struct {
	handle *handle
	opt    walimpls.ReadOptions

	// pos is the id of the next record, err what ended the scanner. Both belong
	// to the goroutine that calls Next.
	pos uint64
	err error

	done      chan struct{}
	closeOnce sync.Once
}

// Next implements walimpls.Scanner. The rules are asked when there is something
// to return, so a rule that is set while the scanner waits at the end of the log
// takes hold of the very next record.
func (sc *scanner) Next(ctx context.Context) ([]message.Message, error) {
	h := sc.handle
	h.engine.called(OpNext, 0)
	if err := sc.await(ctx); err != nil {
		return nil, err
	}
	var recs []message.Message
	err := h.engine.step(ctx, sc.done, h.call(OpNext, 1), stepFuncs{ended: h.end, do: func() (err error) {
		recs, _, err = sc.look(true)
		return err
	}})
	switch {
	case err == nil:
		sc.pos += uint64(len(recs))
		return recs, nil
	case sc.isClosed():
		return nil, errClosed(h.channel.Name, "scanner")
	case ctx.Err() == nil:
		sc.err = err
	}
	return nil, err
}

// await returns nil when a record is there to be read.
func (sc *scanner) await(ctx context.Context) error {
	for {
		switch {
		case sc.isClosed():
			return errClosed(sc.handle.channel.Name, "scanner")
		case sc.err != nil:
			return sc.err
		case ctx.Err() != nil:
			return errGaveUp(sc.handle.channel.Name, OpNext, ctx.Err())
		}
		_, wake, err := sc.look(false)
		if err != nil {
			sc.err = err
			return err
		}
		if wake == nil {
			return nil
		}
		select {
		case <-wake:
		case <-sc.done:
		case <-ctx.Done():
		}
	}
}

// look returns records (with take) or nothing if there are some, and a channel
// that announces the next change if there are none.
func (sc *scanner) look(take bool) (recs []message.Message, wake <-chan struct{}, err error) {
	h := sc.handle
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	l := h.log
	switch {
	case h.store.closed:
		return nil, nil, errClosed(h.channel.Name, "store")
	case l.dropped:
		return nil, nil, errDropped(h.channel.Name)
	case sc.pos < l.first:
		return nil, nil, walimpls.NewPositionLostError(h.channel.Name, l.bounds(), "the scanner's place %d was truncated; the earliest id is %d", sc.pos, l.first)
	case sc.pos >= l.next():
		return nil, l.waiter(), nil
	case take:
		recs = l.take(sc.pos, sc.opt.BufferRecords, sc.opt.BufferBytes)
	}
	return recs, nil, nil
}

func (sc *scanner) isClosed() bool {
	select {
	case <-sc.done:
		return true
	default:
		return false
	}
}

// Close implements walimpls.Scanner.
func (sc *scanner) Close() error {
	sc.closeOnce.Do(func() {
		close(sc.done)
		sc.handle.forget(sc)
	})
	return nil
}
