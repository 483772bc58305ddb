package wal

import (
	"context"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Opener opens the WAL of a pchannel at a term. It is safe for concurrent use;
// the manager never opens one pchannel twice at the same time.
type Opener interface {
	// Open claims the catalog row for the term, fences every earlier owner and
	// returns a WAL that appends. When ctx ends it gives up within a bound.
	Open(ctx context.Context, channel string, term int64) (WAL, error)
	// Close releases what the opener itself holds, after its WALs were closed.
	Close(ctx context.Context) error
}

// WAL is one pchannel, owned at one term. It survives its backend's crashes by
// opening it again with the next incarnation. It is safe for concurrent use.
type WAL interface {
	// Channel returns name, store id and the present pair.
	Channel() walimpls.Channel
	// Append stores the batch and returns one outcome a record (see
	// walimpls.Outcome). ctx bounds the wait: records that were not handed to
	// the backend by then are not stored, others are unknown.
	Append(ctx context.Context, batch []message.Message) []walimpls.Outcome
	// AppendAsync hands the batch over in the order of the calls and calls done
	// once with its outcomes, from another goroutine; done must not block. It
	// blocks itself while too much waits (until ctx ends). It takes the batch over.
	AppendAsync(ctx context.Context, batch []message.Message, done func([]walimpls.Outcome))
	// Read starts a reader; it survives the backend's crashes and goes on behind
	// its last record.
	Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error)
	// Truncate removes what lies before the id.
	Truncate(ctx context.Context, before message.ID) error
	// Bounds returns the ends of the log.
	Bounds(ctx context.Context) (walimpls.Bounds, error)
	// Status returns what is known without asking the backend.
	Status() Status
	// Done is closed when the WAL can never append again: its term has ended
	// (another term owns the row or the log), or it was closed. Err says why.
	Done() <-chan struct{}
	// Err returns why Done is closed, nil before.
	Err() error
	// Close ends appends and readers and closes the backend's handle, within
	// walimpls.GracePeriod. It is idempotent.
	Close(ctx context.Context) error
}

// Status is what a WAL tells about itself.
type Status struct {
	Channel walimpls.Channel
	// Reopening says that the backend's handle is lost and a new one is being
	// opened; LastError is why.
	Reopening bool
	LastError error
	// Readers are the running readers.
	Readers []ReaderStatus
}

// ReaderStatus describes one running reader.
type ReaderStatus struct {
	Name string
}
