package flush

import (
	"context"
	"errors"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// walLog is a WAL as its flusher sees it.
type walLog struct{ wal.WAL }

// Channel implements flusher.Log.
func (l walLog) Channel() (name, storeID string, term int64) {
	c := l.WAL.Channel()
	return c.Name, c.StoreID, c.Pair.Term
}

// progressEvery is the longest time without progress while ticks come: empty
// ticks between are thinned out.
const progressEvery = 200 * time.Millisecond

// Read implements flusher.Log.
func (l walLog) Read(ctx context.Context, opt flusher.ReadOptions) (flusher.Reader, error) {
	s, err := l.WAL.Read(ctx, scanner.Options{
		Name: opt.Name, Start: scanner.Checkpoint, Checkpoint: opt.From, VChannel: opt.VChannel, System: true,
		OnUnit: opt.OnUnit, MaxBytes: opt.MaxBytes, ProgressEvery: progressEvery,
	})
	if err != nil {
		return nil, err
	}
	return reader{s}, nil
}

type reader struct{ s *scanner.Scanner }

func (r reader) Next(ctx context.Context) ([]flusher.Unit, error) {
	units, err := r.s.Next(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]flusher.Unit, len(units))
	for i := range units {
		u := &units[i]
		out[i] = flusher.Unit{Messages: u.Messages, Term: u.Term, Tick: u.Tick, Checkpoint: u.Checkpoint, CaughtUp: u.CaughtUp}
	}
	return out, nil
}

func (r reader) Close() error { return r.s.Close() }

// Truncate implements flusher.Log.
func (l walLog) Truncate(ctx context.Context, point flusher.Saved) error {
	return l.WAL.TruncateAt(ctx, toCheckpoint(point))
}

// Readers implements flusher.Log.
func (l walLog) Readers() []flusher.ReaderPosition {
	readers := l.WAL.Status().Readers
	out := make([]flusher.ReaderPosition, len(readers))
	for i := range readers {
		out[i] = flusher.ReaderPosition{Number: readers[i].Number, ID: readers[i].Checkpoint.ID}
	}
	return out
}

// LastTick implements flusher.Log.
func (l walLog) LastTick() message.Tick { return l.WAL.Status().LastTick }

// row is the channel's catalog row at the WAL's term.
type row struct {
	catalog catalog.Catalog
	wal     wal.WAL
}

// Load implements flusher.Store.
func (r row) Load(ctx context.Context) (flusher.Row, error) {
	c := r.wal.Channel()
	got, err := r.catalog.Get(ctx, c.Name)
	if err != nil {
		return flusher.Row{}, termOver(err)
	}
	if got.Term != c.Pair.Term {
		return flusher.Row{}, walimpls.Errorf(walimpls.CodeTermExpired, c.Name, "the catalog holds term %d", got.Term)
	}
	if !got.VChannelsKnown {
		return flusher.Row{}, walimpls.Errorf(walimpls.CodeUnavailable, c.Name, "the declared vchannels are not known yet")
	}
	return toRow(got), nil
}

// Save implements flusher.Store.
func (r row) Save(ctx context.Context, change func(*flusher.Row)) error {
	c := r.wal.Channel()
	_, err := r.catalog.Update(ctx, c.Name, c.Pair.Term, func(row *catalog.Row) error {
		f := toRow(*row)
		change(&f)
		row.Checkpoints = row.Checkpoints[:0]
		for _, s := range f.Checkpoints {
			row.Checkpoints = append(row.Checkpoints, toCheckpoint(s))
		}
		row.VChannels = pruned(row.VChannels, f.VChannels)
		return nil
	})
	return termOver(err)
}

// pruned keeps what the flusher kept: it forgets tombstones, nothing else.
func pruned(all []catalog.VChannel, kept []flusher.VChannel) []catalog.VChannel {
	tombstones := make(map[string]message.Tick, len(kept))
	for _, v := range kept {
		tombstones[v.Name] = v.Dropped
	}
	out := all[:0]
	for _, v := range all {
		dropped, ok := tombstones[v.Name]
		if !ok {
			continue
		}
		v.DroppedTick = dropped
		out = append(out, v)
	}
	return out
}

// Declare implements flusher.Store.
func (r row) Declare(ctx context.Context, vchannel string, created message.Tick) error {
	return termOver(r.wal.NoteVChannel(ctx, vchannel, created))
}

// Dropped implements flusher.Store.
func (r row) Dropped(ctx context.Context, vchannel string, tick message.Tick) error {
	return termOver(r.wal.VChannelDropped(ctx, vchannel, tick))
}

// termOver: a row that is gone ends the term like one that another has.
func termOver(err error) error {
	if errors.Is(err, walimpls.ErrNotFound) {
		return walimpls.Errorf(walimpls.CodeTermExpired, "", "the channel was removed: %w", err)
	}
	return err
}

func toRow(row catalog.Row) flusher.Row {
	var out flusher.Row
	for _, c := range row.Checkpoints {
		out.Checkpoints = append(out.Checkpoints, toSaved(c))
	}
	if row.TruncatedBefore != nil {
		s := toSaved(*row.TruncatedBefore)
		out.Truncated = &s
	}
	for _, v := range row.VChannels {
		out.VChannels = append(out.VChannels, flusher.VChannel{Name: v.Name, Start: v.StartTick, Dropped: v.DroppedTick})
	}
	return out
}

func toSaved(c catalog.Checkpoint) flusher.Saved {
	return flusher.Saved{ID: c.ID, Term: c.Term, Tick: c.Tick, LastUnitTerm: c.LastUnitTerm, LastUnitTick: c.LastUnitTick}
}

func toCheckpoint(s flusher.Saved) catalog.Checkpoint {
	return catalog.Checkpoint{ID: s.ID, Term: s.Term, Tick: s.Tick, LastUnitTerm: s.LastUnitTerm, LastUnitTick: s.LastUnitTick}
}
