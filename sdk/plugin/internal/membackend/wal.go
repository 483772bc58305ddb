package membackend

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

type wal struct {
	o      *opener
	l      *memLog
	ch     walimpls.Channel
	closed chan struct{}
	null   uint64

	closing atomic.Bool
}

func (w *wal) Channel() walimpls.Channel { return w.ch }

func (w *wal) isClosed() bool {
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

func (w *wal) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	b := w.o.b
	b.Appends.Add(1)
	if w.ch.Access == walimpls.AccessReadOnly {
		return nil, walimpls.Errorf(walimpls.CodeReadOnly, w.ch.Name, "append")
	}
	if b.BeforeAppend != nil {
		if err := b.BeforeAppend(ctx, batch); err != nil {
			return nil, err
		}
	}
	if w.isClosed() {
		return nil, walimpls.Errorf(walimpls.CodeClosed, w.ch.Name, "append")
	}
	ids := make([]message.ID, len(batch))
	w.l.mu.Lock()
	if w.l.highest != w.ch.Pair {
		w.l.mu.Unlock()
		return nil, walimpls.Errorf(walimpls.CodeFenced, w.ch.Name, "append: %s owns the log", w.l.highest)
	}
	for i, m := range batch {
		if b.Null {
			w.null++
			ids[i] = message.Uint64ID(w.null)
			continue
		}
		m.Term, m.Incarnation = w.ch.Term, w.ch.Incarnation
		ids[i] = w.l.append(m)
	}
	w.l.mu.Unlock()
	if b.AfterAppend != nil {
		if err := b.AfterAppend(batch); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (w *wal) Truncate(_ context.Context, before message.ID) error {
	if w.isClosed() {
		return walimpls.Errorf(walimpls.CodeClosed, w.ch.Name, "truncate")
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	v, ok := before.Uint64()
	if !ok || v >= w.l.first+uint64(len(w.l.records)) {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, w.ch.Name, "truncate: id %s is above the latest", before)
	}
	if v > w.l.first {
		w.l.records = w.l.records[v-w.l.first:]
		w.l.first = v
	}
	return nil
}

func (w *wal) Bounds(context.Context) (walimpls.Bounds, error) {
	if w.isClosed() {
		return walimpls.Bounds{}, walimpls.Errorf(walimpls.CodeClosed, w.ch.Name, "bounds")
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	return w.l.bounds(), nil
}

func (w *wal) Close(context.Context) error {
	if w.closing.Swap(true) {
		<-w.closed // a second closer waits for the first
		return nil
	}
	if w.o.b.BeforeClose != nil {
		w.o.b.BeforeClose()
	}
	w.o.mu.Lock()
	delete(w.o.wals, w)
	w.o.mu.Unlock()
	w.o.b.Handles.Add(-1)
	close(w.closed)
	return nil
}

func (w *wal) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	opt, err := opt.Normalize(w.ch.Name)
	if err != nil {
		return nil, err
	}
	if w.o.b.BeforeRead != nil {
		if err := w.o.b.BeforeRead(ctx, opt); err != nil {
			return nil, err
		}
	}
	if w.isClosed() {
		return nil, walimpls.Errorf(walimpls.CodeClosed, w.ch.Name, "read")
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	s := &scanner{w: w, opt: opt, closed: make(chan struct{})}
	end := w.l.first + uint64(len(w.l.records))
	v, _ := opt.Start.ID.Uint64()
	switch opt.Start.Policy {
	case walimpls.PolicyAll:
		s.next = w.l.first
	case walimpls.PolicyLatest:
		s.next = end
	case walimpls.PolicyFrom, walimpls.PolicyAfter:
		if v < w.l.first || v >= end {
			return nil, walimpls.NewPositionLostError(w.ch.Name, w.l.bounds(), "read: start %s", opt.Start.ID)
		}
		s.next = v
		if opt.Start.Policy == walimpls.PolicyAfter {
			s.next++
		}
	}
	w.o.b.Scanners.Add(1)
	return s, nil
}

type scanner struct {
	w      *wal
	opt    walimpls.ReadOptions
	next   uint64
	closed chan struct{}
	once   sync.Once
}

func (s *scanner) Next(ctx context.Context) ([]message.Message, error) {
	l := s.w.l
	for {
		select {
		case <-s.closed:
			return nil, walimpls.Errorf(walimpls.CodeClosed, s.w.ch.Name, "scanner")
		case <-s.w.closed:
			return nil, walimpls.Errorf(walimpls.CodeClosed, s.w.ch.Name, "scanner")
		default:
		}
		l.mu.Lock()
		if s.next < l.first {
			defer l.mu.Unlock()
			return nil, walimpls.NewPositionLostError(s.w.ch.Name, l.bounds(), "read: truncated below the scanner")
		}
		rest := l.records[s.next-l.first:]
		grown := l.grown
		l.mu.Unlock()
		if len(rest) > 0 {
			n, bytes := 0, 0
			for n < len(rest) && n < s.opt.BufferRecords && bytes < s.opt.BufferBytes {
				bytes += rest[n].Size()
				n++
			}
			s.next += uint64(n)
			return append([]message.Message(nil), rest[:n]...), nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.closed:
			return nil, walimpls.Errorf(walimpls.CodeClosed, s.w.ch.Name, "scanner")
		case <-s.w.closed:
			return nil, walimpls.Errorf(walimpls.CodeClosed, s.w.ch.Name, "scanner")
		}
	}
}

func (s *scanner) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.w.o.b.Scanners.Add(-1)
	})
	return nil
}
