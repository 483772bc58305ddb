package wal

import (
	"context"
	"errors"
	"time"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// readerHandle is one running scanner.
type readerHandle struct {
	scanner *scanner.Scanner
	number  uint64
}

// Read implements WAL.
func (w *termWAL) Read(ctx context.Context, opt scanner.Options) (*scanner.Scanner, error) {
	r := &readerHandle{}
	s, err := scanner.New(ctx, source{w}, opt, func() {
		st := r.scanner.Status()
		w.mu.Lock()
		delete(w.readers, r)
		w.violations += st.Violations
		w.mu.Unlock()
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	r.scanner = s
	w.lastReader++
	r.number = w.lastReader
	err = w.err
	if err == nil {
		w.readers[r] = struct{}{}
	}
	w.mu.Unlock()
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// source is the WAL as its scanners see it.
type source struct{ w *termWAL }

func (s source) Channel() (name, storeID string) { return s.w.claim.channel, s.w.claim.storeID }
func (s source) Term() int64                     { return s.w.claim.term }
func (s source) Buffer() *wab.Buffer             { return s.w.buffer }
func (s source) Done() <-chan struct{}           { return s.w.done }
func (s source) Err() error                      { return s.w.Err() }

func (s source) Now() (at message.Checkpoint, direct bool) {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	at = message.Checkpoint{StoreID: w.claim.storeID, ID: w.core.LastConfirmed(), Term: w.claim.term, Tick: w.core.Highest()}
	return at, len(w.core.Txns()) == 0
}

func (s source) Truncation(ctx context.Context) (*catalog.Checkpoint, error) {
	row, err := s.w.claim.catalog.Get(ctx, s.w.claim.channel)
	if err != nil {
		return nil, err
	}
	return row.TruncatedBefore, nil
}

func (s source) Read(ctx context.Context, start walimpls.Start) (walimpls.Scanner, error) {
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		handle, err := s.w.awaitHandle(ctx)
		if err != nil {
			return nil, err
		}
		backend, err := handle.Read(ctx, walimpls.ReadOptions{Name: "scanner", Start: start})
		if err == nil || !endsHandle(err) || ctx.Err() != nil {
			return backend, err
		}
		// The handle is there and does not read: it may be lost and nobody has
		// noticed yet. Appends and its own signal find that out.
		if !pause.wait(ctx) {
			return nil, walimpls.ContextError(ctx, s.w.claim.channel, "read")
		}
	}
}

// awaitHandle returns the present handle, or the next one.
func (w *termWAL) awaitHandle(ctx context.Context) (asyncHandle, error) {
	for {
		w.mu.Lock()
		handle, change, err := w.handle, w.progressed(), w.err
		w.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if handle != nil {
			return handle, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, walimpls.ContextError(ctx, w.claim.channel, "waiting for the backend")
		}
	}
}

// withHandle calls do, on the next handle again when one is lost meanwhile. do
// must be idempotent.
func (w *termWAL) withHandle(ctx context.Context, do func(asyncHandle) error) error {
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		handle, err := w.awaitHandle(ctx)
		if err != nil {
			return err
		}
		if err = do(handle); err == nil || !endsHandle(err) || ctx.Err() != nil {
			return err
		}
		w.giveUp(handle, err)
		if !pause.wait(ctx) {
			return err
		}
	}
}

// giveUp says that the handle is of no more use.
func (w *termWAL) giveUp(handle asyncHandle, why error) {
	w.mu.Lock()
	if w.handle == handle {
		w.lost, w.lastErr = true, why
	}
	w.mu.Unlock()
	poke(w.wake)
}

// Bounds implements WAL.
func (w *termWAL) Bounds(ctx context.Context) (b walimpls.Bounds, err error) {
	err = w.withHandle(ctx, func(h asyncHandle) error {
		b, err = h.Bounds(ctx)
		return err
	})
	return b, err
}

// Truncate implements WAL. The row's truncation point is saved first, with the
// (term, tick) up to which units may have lost records, so that a checkpoint
// below it is judged right even when the host dies in between.
func (w *termWAL) Truncate(ctx context.Context, before message.ID) error {
	w.mu.Lock()
	limit := w.core.LastConfirmed()
	w.mu.Unlock()
	if before > limit {
		b, err := w.Bounds(ctx)
		if err != nil {
			return err
		}
		if before > b.Latest {
			return walimpls.Errorf(walimpls.CodeInvalidArgument, w.claim.channel, "truncate: the id is above the latest one")
		}
		before = limit
	}
	var point catalog.Checkpoint
	err := w.withHandle(ctx, func(h asyncHandle) (err error) {
		point, err = truncationPoint(ctx, h, before)
		return err
	})
	var lost *walimpls.PositionLostError
	if errors.As(err, &lost) {
		return nil // behind the present truncation point
	}
	if err != nil {
		return err
	}
	return w.TruncateAt(ctx, point)
}

// TruncateAt implements WAL.
func (w *termWAL) TruncateAt(ctx context.Context, point catalog.Checkpoint) error {
	_, err := w.claim.catalog.Update(ctx, w.claim.channel, w.claim.term, func(row *catalog.Row) error {
		last := row.TruncatedBefore
		if last != nil && last.ID >= point.ID {
			return nil
		}
		// What went before may have gone from a unit that lies higher.
		if last != nil && (last.LastUnitTerm > point.LastUnitTerm || (last.LastUnitTerm == point.LastUnitTerm && last.LastUnitTick > point.LastUnitTick)) {
			point.LastUnitTerm, point.LastUnitTick = last.LastUnitTerm, last.LastUnitTick
		}
		row.TruncatedBefore = &point
		return nil
	})
	if err != nil {
		return err
	}
	return w.withHandle(ctx, func(h asyncHandle) error { return h.Truncate(ctx, point.ID) })
}

// truncationPoint describes a truncation before the id: the (term, tick) of the
// last unit that loses a record. Units wholly below the last confirmed id of a
// record ended below that record's tick, so the walk goes back from one last
// confirmed id to the one before, until a unit was met that lies above all which
// it has not seen.
func truncationPoint(ctx context.Context, h asyncHandle, before message.ID) (catalog.Checkpoint, error) {
	at, err := firstExactly(ctx, h, before)
	if err != nil {
		return catalog.Checkpoint{}, err
	}
	point := catalog.Checkpoint{ID: before, Term: at.Term, Tick: at.TimeTick}
	for range maxWalkBack {
		from := at.LastConfirmed
		if from == "" {
			from = at.ID
		}
		if err := lastUnitRemoved(ctx, h, from, &point); err != nil {
			return point, err
		}
		if point.LastUnitTerm > at.Term || (point.LastUnitTerm == at.Term && point.LastUnitTick >= at.TimeTick) {
			return point, nil
		}
		next, err := firstExactly(ctx, h, from)
		if err != nil || next.ID >= at.ID {
			break // an older term's records, or the beginning
		}
		at = next
	}
	return point, lastUnitRemoved(ctx, h, "", &point)
}

// maxWalkBack bounds the walk; behind it everything is read that will go.
const maxWalkBack = 8

// lastUnitRemoved raises the point's last unit to the highest one that has a
// record between from and the point. All transactions among them have ended,
// because a truncation is never above the last confirmed id; those that go on
// behind the point are followed to their end.
func lastUnitRemoved(ctx context.Context, h asyncHandle, from message.ID, point *catalog.Checkpoint) error {
	if from >= point.ID {
		return nil
	}
	s, err := readFrom(ctx, h, from)
	if err != nil {
		return err
	}
	defer s.Close()
	open := map[uint64]int64{} // transactions that lose a record, and their terms
	for {
		batch, err := s.Next(ctx)
		if err != nil {
			return err
		}
		for i := range batch {
			m := &batch[i]
			removed := m.ID < point.ID
			unit := removed && m.Type == message.TypeData
			switch {
			case m.Type == message.TypeCommitTxn || m.Type == message.TypeRollbackTxn:
				_, lost := open[m.TxnID]
				delete(open, m.TxnID)
				bodies, ok := owner.BodyCount(m)
				unit = m.Type == message.TypeCommitTxn && (removed || lost) && (bodies > 0 || !ok)
			case m.TxnID != 0:
				if removed {
					open[m.TxnID] = m.Term
				}
				unit = false
			case m.Type == message.TypeTimeTick:
				for id, term := range open {
					if term < m.Term {
						delete(open, id)
					}
				}
			}
			if unit && (m.Term > point.LastUnitTerm || (m.Term == point.LastUnitTerm && m.TimeTick > point.LastUnitTick)) {
				point.LastUnitTerm, point.LastUnitTick = m.Term, m.TimeTick
			}
			if m.ID >= point.ID && len(open) == 0 {
				return nil
			}
		}
	}
}

// firstExactly returns the record at the id, or the first behind it with a tick.
func firstExactly(ctx context.Context, h asyncHandle, id message.ID) (message.Message, error) {
	s, err := h.Read(ctx, walimpls.ReadOptions{Name: "truncate", Start: walimpls.StartFrom(id)})
	if err != nil {
		return message.Message{}, err
	}
	defer s.Close()
	for {
		batch, err := s.Next(ctx)
		if err != nil {
			return message.Message{}, err
		}
		for i := range batch {
			if batch[i].TimeTick > 0 {
				return batch[i], nil
			}
		}
	}
}
