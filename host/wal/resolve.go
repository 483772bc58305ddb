package wal

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal/owner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// place names an unknown record.
type place struct {
	batch *owner.Batch
	index int
}

// resolve settles every unknown record on a handle that was just opened, and
// installs it: what a reader finds between the oldest unknown record's last
// confirmed id and a barrier written now is stored; everything else never will
// be, because the open fenced whoever could still have stored it.
func (w *termWAL) resolve(handle walimpls.WAL) error {
	w.mu.Lock()
	from, some := w.core.ReadBackFrom()
	unknown := map[message.Tick]place{}
	for _, b := range w.core.Unresolved() {
		for i, s := range b.States {
			if s == owner.Unknown {
				unknown[b.Messages[i].TimeTick] = place{b, i}
			}
		}
	}
	w.mu.Unlock()
	found := map[message.Tick]message.Message{}
	if some {
		ctx, cancel := context.WithTimeout(w.ctx, w.opt.ResolveTimeout)
		defer cancel()
		barrier, err := w.writeBarrier(ctx, handle)
		if err != nil {
			return err
		}
		if found, err = readBack(ctx, handle, w.claim.term, from, barrier, unknown); err != nil {
			return err
		}
	}
	due := w.settleUnknown(unknown, found)
	w.install(handle)
	for _, f := range due {
		f()
	}
	return nil
}

// writeBarrier appends the control record that ends the read-back.
func (w *termWAL) writeBarrier(ctx context.Context, handle walimpls.WAL) (message.ID, error) {
	tick, err := w.takeTick(ctx)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	m := message.Message{Type: message.TypeBarrier, TimeTick: tick, LastConfirmed: w.core.LastConfirmed()}
	w.mu.Unlock()
	ids, err := handle.Append(ctx, []message.Message{m})
	out := walimpls.Outcomes(w.claim.channel, 1, ids, err)[0]
	if out.State != walimpls.Stored {
		return "", out.Err
	}
	w.mu.Lock()
	w.core.Observe(out.ID)
	w.mu.Unlock()
	return out.ID, nil
}

// takeTick takes one tick and extends the window if need be.
func (w *termWAL) takeTick(ctx context.Context) (message.Tick, error) {
	for {
		w.mu.Lock()
		tick, ok := w.clock.Take(1)
		change, err := w.progressed(), w.err
		w.mu.Unlock()
		if ok {
			return tick, nil
		}
		if err != nil {
			return 0, err
		}
		poke(w.pulse)
		select {
		case <-change:
		case <-ctx.Done():
			return 0, walimpls.ContextError(ctx, w.claim.channel, "waiting for a tick window")
		}
	}
}

// readBack reads as a scanner does, from the id to the barrier, and returns the
// wanted records that are there. Records whose pair is below the highest seen
// are dropped: they landed although they were fenced.
func readBack(ctx context.Context, handle walimpls.WAL, term int64, from, barrier message.ID, want map[message.Tick]place) (map[message.Tick]message.Message, error) {
	s, err := readFrom(ctx, handle, from)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	found := map[message.Tick]message.Message{}
	var highest walimpls.Pair
	for {
		batch, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		for i := range batch {
			m := &batch[i]
			if pair := (walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}); pair.Compare(highest) >= 0 {
				highest = pair
				if p, ok := want[m.TimeTick]; ok && m.Term == term && m.Type == p.batch.Messages[p.index].Type {
					found[m.TimeTick] = *m
				}
			}
			if m.ID >= barrier {
				return found, nil
			}
		}
	}
}

// readFrom starts at the id, or at the earliest record when the id was
// truncated meanwhile: nothing unresolved is ever truncated.
func readFrom(ctx context.Context, handle walimpls.WAL, from message.ID) (walimpls.Scanner, error) {
	start := walimpls.FromAll()
	if !from.IsZero() {
		start = walimpls.StartFrom(from)
	}
	s, err := handle.Read(ctx, walimpls.ReadOptions{Name: "read-back", Start: start})
	var lost *walimpls.PositionLostError
	if errors.As(err, &lost) {
		return handle.Read(ctx, walimpls.ReadOptions{Name: "read-back", Start: walimpls.FromAll()})
	}
	return s, err
}

// settleUnknown makes every unknown record stored or failed, or queues it again
// if its caller still waits. It returns the answers that are due.
func (w *termWAL) settleUnknown(unknown map[message.Tick]place, found map[message.Tick]message.Message) []func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	stored, again := 0, 0
	var due []func()
	finish := func(b *owner.Batch) {
		if f := w.finish(b); f != nil {
			due = append(due, f)
		}
	}
	for tick, p := range unknown {
		if m, ok := found[tick]; ok {
			w.core.SetStored(p.batch, p.index, m.ID, m.Term, m.Incarnation)
			stored++
			finish(p.batch)
		} else {
			p.batch.States[p.index] = owner.Queued
		}
	}
	for _, b := range w.core.Unresolved() {
		for i, s := range b.States {
			switch {
			case s != owner.Queued:
			case b.IsTick() || !b.Waiting:
				w.fail(b, i, walimpls.Errorf(walimpls.CodeUnavailable, w.claim.channel, "append: the backend was lost before it stored the record"))
			default:
				again++
			}
		}
		finish(b)
	}
	if len(unknown) > 0 {
		w.log.Info("settled unknown outcomes", zap.Int("unknown", len(unknown)), zap.Int("stored", stored), zap.Int("sent_again", again))
	}
	return due
}
