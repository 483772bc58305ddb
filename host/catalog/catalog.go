package catalog

import (
	"context"

	"github.com/walrig/walrig/sdk/message"
)

// Catalog is the metadata of all pchannels: one row each. Every write is atomic
// and durable when it returns, and is a compare-and-set on the row's term. It
// is safe for concurrent use.
//
// Errors are *walimpls.Error: ErrNotFound for a missing row, ErrAlreadyExists
// from Create, ErrTermExpired when the row holds another term than the caller's
// (or, from Claim, one that is not lower), ErrUnavailable and ErrCorrupt from
// the store below.
type Catalog interface {
	// Create adds a row with term 0: nobody has owned the channel yet.
	Create(ctx context.Context, row Row) error
	// Get returns a copy of the row.
	Get(ctx context.Context, channel string) (Row, error)
	// List returns copies of all rows, sorted by channel. Rows that cannot be
	// read are left out and named in the error, which comes with the others.
	List(ctx context.Context) ([]Row, error)
	// Claim raises the row's term to a strictly higher one and returns the row.
	Claim(ctx context.Context, channel string, term int64) (Row, error)
	// Update changes the row if its term is the given one: change gets a copy,
	// and what it leaves there is written unless it returns an error. It may
	// not change Channel or Term, and TickBound and TruncatedBefore (in the order
	// of its id, within one StoreID) never go back. change may run again if
	// another write came between.
	Update(ctx context.Context, channel string, term int64, change func(*Row) error) (Row, error)
	// Delete removes the row if its term is the given one.
	Delete(ctx context.Context, channel string, term int64) error
	// Close releases the store.
	Close() error
}

// Row is what is known about one pchannel.
type Row struct {
	Channel string `json:"channel"`
	// Plugin is the configured plugin's name, Backend the backend's.
	Plugin  string `json:"plugin"`
	Backend string `json:"backend"`
	// StoreID names the log that the row belongs to; "" until the first open.
	StoreID string `json:"store_id"`
	// Term is the highest term that claimed the row; 0: none yet.
	Term int64 `json:"term"`
	// TickBound is above every tick that an owner may have given out.
	TickBound message.Tick `json:"tick_bound"`
	// Checkpoints are the remembered pchannel checkpoints, oldest first.
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	// TruncatedBefore is the truncation point; nil for none. It never goes back.
	TruncatedBefore *Checkpoint `json:"truncated_before,omitempty"`
	// VChannels are the declared vchannels and the tombstones of dropped ones.
	VChannels []VChannel `json:"vchannels,omitempty"`
	// VChannelsKnown says that VChannels is complete. It is false for a log that
	// was adopted, until its owner has looked through it.
	VChannelsKnown bool `json:"vchannels_known,omitempty"`
}

// Checkpoint is a position together with the (term, tick) of the last data unit
// that has a record before its id.
type Checkpoint struct {
	ID           message.ID   `json:"id"`
	Term         int64        `json:"term"`
	Tick         message.Tick `json:"tick"`
	LastUnitTerm int64        `json:"last_unit_term"`
	LastUnitTick message.Tick `json:"last_unit_tick"`
}

// VChannel is a declared vchannel, or the tombstone of a dropped one, or both
// when it was created again behind its drop.
type VChannel struct {
	Name string `json:"name"`
	// StartTick is one below the tick of the record that created it.
	StartTick message.Tick `json:"start_tick"`
	// DroppedTick is the tick of the record that dropped it, 0 for none.
	DroppedTick message.Tick `json:"dropped_tick,omitempty"`
	// Dropping says that it takes no more records, and that the record which
	// drops it may not be in the log yet, or not flushed.
	Dropping bool `json:"dropping,omitempty"`
}

// Declared reports whether the vchannel takes records.
func (v VChannel) Declared() bool { return !v.Dropping && v.Live() }

// Live reports whether the vchannel has no tombstone that ended it.
func (v VChannel) Live() bool { return v.DroppedTick == 0 || v.StartTick >= v.DroppedTick }
