package flusher

import (
	"context"

	"github.com/walrig/walrig/sdk/message"
)

// Unit is what a Reader hands out at once: a record, a whole transaction, or
// progress alone.
type Unit struct {
	// Messages are the unit's records, system records too; empty for progress.
	Messages []message.Message
	// Term and Tick place the unit: a transaction's are its commit's.
	Term int64
	Tick message.Tick
	// Checkpoint is behind the unit.
	Checkpoint message.Checkpoint
	// CaughtUp is set once, when everything was handed out that the log held
	// when the reader began.
	CaughtUp bool
}

// Reader reads units in (term, tick) order, each once. Next is for one
// goroutine and blocks until there is a unit; its errors, but for the end of
// ctx, are final.
type Reader interface {
	Next(ctx context.Context) ([]Unit, error)
	Close() error
}

// ReadOptions are the parameters of Log.Read.
type ReadOptions struct {
	Name string
	// From is the checkpoint to begin behind; one with an empty id begins at the
	// earliest record.
	From message.Checkpoint
	// VChannel lets that vchannel's records pass, and those of ""; "" lets all pass.
	VChannel string
	// MaxBytes bounds what one Next returns; a single unit may exceed it.
	MaxBytes int
	// OnUnit, if not nil, is called by Next for each data unit that the reader
	// meets, also for those that it skips and before they are handed out, with
	// the id of the unit's first record.
	OnUnit func(first message.ID, term int64, tick message.Tick)
}

// Log is one pchannel at one term, as the flusher needs it. It is safe for
// concurrent use.
type Log interface {
	// Channel names the pchannel, its log and the owner's term.
	Channel() (name, storeID string, term int64)
	// Read starts a reader. A start that is gone is a *walimpls.PositionLostError,
	// unless nothing behind the checkpoint was removed.
	Read(ctx context.Context, opt ReadOptions) (Reader, error)
	// Truncate saves the point in the row, where it never goes back, and then
	// removes what lies before its id.
	Truncate(ctx context.Context, point Saved) error
	// Readers returns the restart positions of the running readers.
	Readers() []ReaderPosition
	// LastTick is the tick up to which everything is settled.
	LastTick() message.Tick
	// Done is closed when the term has ended.
	Done() <-chan struct{}
}

// ReaderPosition is where a running reader would resume. Number names the
// reader as long as it runs.
type ReaderPosition struct {
	Number uint64
	ID     message.ID
}

// Store is the pchannel's row in the catalog. Every write is a compare-and-set
// on the term: ErrTermExpired if the row holds another one.
type Store interface {
	Load(ctx context.Context) (Row, error)
	// Save changes checkpoints and vchannels; what change leaves is written.
	Save(ctx context.Context, change func(*Row)) error
	// Declare notes that the vchannel was created by the record of the tick, if
	// the row does not say so yet.
	Declare(ctx context.Context, vchannel string, created message.Tick) error
	// Dropped turns the vchannel into a tombstone: its drop was flushed.
	Dropped(ctx context.Context, vchannel string, tick message.Tick) error
}

// Row is what the flusher reads and writes of a pchannel's row.
type Row struct {
	// Checkpoints are the remembered pchannel checkpoints, oldest first.
	Checkpoints []Saved
	// Truncated is the truncation point, nil for none. The flusher only reads it.
	Truncated *Saved
	VChannels []VChannel
}

// Saved is a pchannel checkpoint with the (term, tick) of the last data unit
// that has a record before its id.
type Saved struct {
	ID           message.ID
	Term         int64
	Tick         message.Tick
	LastUnitTerm int64
	LastUnitTick message.Tick
}

// VChannel is a declared vchannel, the tombstone of a dropped one, or both when
// it was created again: then Start is not below Dropped.
type VChannel struct {
	Name string
	// Start is one below the tick of the record that created it.
	Start message.Tick
	// Dropped is the tick of the record that dropped it, 0 for none.
	Dropped message.Tick
}

// Declared reports whether the vchannel takes records.
func (v VChannel) Declared() bool { return v.Dropped == 0 || v.Start >= v.Dropped }
