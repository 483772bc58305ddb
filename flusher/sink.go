package flusher

import (
	"context"

	"github.com/walrig/walrig/sdk/message"
)

// Sink keeps what the data sync services flush; one Sink serves all pchannels.
type Sink interface {
	// Open takes over one vchannel's output for a term: it reads the newest manifest, of whatever term, and chains from it.
	Open(ctx context.Context, key SinkKey) (VChannelSink, error)
	// VChannels lists the vchannels of the pchannel's log that have a manifest.
	VChannels(ctx context.Context, pchannel, storeID string) ([]string, error)
	Close() error
}

// SinkKey names one vchannel's output and its owner's term.
type SinkKey struct {
	PChannel, StoreID, VChannel string // VChannel "" = broadcast records
	Term                        int64
}

// VChannelSink is one vchannel's output.
type VChannelSink interface {
	// Checkpoint is what the newest manifest holds; the zero Checkpoint if there is none.
	Checkpoint() message.Checkpoint
	// Flush writes rows (in tick order, one unit's rows never split over two
	// calls) as files and then the manifest that lists them and holds cp. When it
	// returns nil both are durable. rows may be empty: the checkpoint alone moves.
	// On error nothing counts; the same rows may be given again. A newer term's
	// manifest => ErrFenced (walimpls), final.
	Flush(ctx context.Context, rows []message.Message, cp message.Checkpoint) ([]File, error)
	// Files lists what the manifest chain holds, oldest first.
	Files(ctx context.Context) ([]File, error)
	Drop(ctx context.Context, at message.Checkpoint) error // tombstone in the manifest; files are kept
	Close() error
}

// File is one file of flushed rows.
type File struct {
	Path                string
	Rows, Bytes         int64
	FirstTick, LastTick message.Tick
	Term                int64
}
