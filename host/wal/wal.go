package wal

import (
	"context"
	"time"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/host/wal/wab"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Opener opens the WAL of a pchannel at a term. It is safe for concurrent use;
// the manager never opens one pchannel twice at the same time.
type Opener interface {
	// Open claims the catalog row for the term, fences every earlier owner,
	// writes the term's opening time tick and returns a WAL that appends. When
	// ctx ends it gives up within a bound.
	Open(ctx context.Context, channel string, term int64) (WAL, error)
	// Close releases what the opener itself holds, after its WALs were closed.
	Close(ctx context.Context) error
}

// WAL is one pchannel, owned at one term. It survives its backend's crashes by
// opening it again with the next incarnation, and settles unknown outcomes by
// reading back. It is safe for concurrent use.
type WAL interface {
	// Channel returns name, store id and the present pair.
	Channel() walimpls.Channel
	// Append stores the batch and returns one result a record. Until a record
	// has its tick the end of ctx stops it (not stored); from then on the end of
	// ctx only ends the wait (unknown), and the append goes on.
	Append(ctx context.Context, batch []message.Message) []Result
	// AppendAsync hands the batch over and calls done once with its results,
	// from another goroutine; done must not block. The records of successive
	// calls get ticks in the order of the calls. It blocks itself while too much
	// is unresolved (until ctx ends). It takes the batch over. Only data records
	// may be appended; a TxnID makes them bodies of that open transaction.
	AppendAsync(ctx context.Context, batch []message.Message, done func([]Result))
	// AppendAfter is Append with a barrier: it waits until everything with a
	// tick at or below the barrier is settled, and its own ticks are above it.
	AppendAfter(ctx context.Context, barrier message.Tick, batch []message.Message) []Result
	// Begin opens a transaction on a vchannel ("" for all). It expires when
	// nothing was appended to it for keepalive (0: the default), and is rolled
	// back in the log then. The result is that of its first record.
	Begin(ctx context.Context, vchannel string, keepalive time.Duration) (Txn, error)
	// Commit waits until every record of the transaction is resolved and makes
	// it visible at the commit's tick. With a failed record it is refused
	// (CodeTxnRolledBack) and the transaction rolled back.
	Commit(ctx context.Context, id uint64) Result
	// Rollback ends a transaction without a trace for readers.
	Rollback(ctx context.Context, id uint64) Result
	// FailTxn says that a record of the transaction was refused before it came
	// to the WAL. Its commit is refused then, as after any failed record.
	FailTxn(id uint64)
	// Read starts a scanner; it survives the backend's crashes.
	Read(ctx context.Context, opt scanner.Options) (*scanner.Scanner, error)
	// Truncate removes what lies before the id. It is refused above the last
	// confirmed id: what is unresolved, or part of an open transaction, stays.
	Truncate(ctx context.Context, before message.ID) error
	// TruncateAt is Truncate to a checkpoint that was handed out, by somebody who
	// knows the last unit that loses a record. The row's truncation point is saved
	// first and never goes back.
	TruncateAt(ctx context.Context, point catalog.Checkpoint) error
	// CreateVChannels declares vchannels, so that they take records. Those that
	// are declared already are left alone; created says which were not.
	CreateVChannels(ctx context.Context, names []string) (created []string, err error)
	// DropVChannel makes a vchannel take no more records, for ever unless it is
	// created again, and writes the record that drops it. ErrNotFound: it is not
	// declared.
	DropVChannel(ctx context.Context, name string) error
	// VChannels returns the declared vchannels and the tombstones.
	VChannels(ctx context.Context) ([]catalog.VChannel, error)
	// NoteVChannel declares the vchannel that the record of the tick created,
	// unless the row knows it or that it was dropped; VChannelDropped leaves its
	// tombstone. Both are for whoever replays the log.
	NoteVChannel(ctx context.Context, name string, tick message.Tick) error
	VChannelDropped(ctx context.Context, name string, tick message.Tick) error
	// Flush writes the record that asks for a flush of a vchannel, or of all for "".
	Flush(ctx context.Context, vchannel string) Result
	// Bounds returns the ends of the log.
	Bounds(ctx context.Context) (walimpls.Bounds, error)
	// Status returns what is known without asking the backend.
	Status() Status
	// Done is closed when the WAL can never append again: its term has ended
	// (another term owns the row or the log), or it was closed. Err says why.
	Done() <-chan struct{}
	// Err returns why Done is closed, nil before.
	Err() error
	// Close writes a last time tick if it can, ends appends and readers and
	// closes the backend's handle, within walimpls.GracePeriod. It is idempotent.
	Close(ctx context.Context) error
}

// Result is what became of one record.
type Result = interceptors.Result

// Txn is an open transaction.
type Txn struct {
	ID        uint64
	Keepalive time.Duration
	Expires   time.Time
}

// Status is what a WAL tells about itself.
type Status struct {
	Channel walimpls.Channel
	// Reopening says that the backend's handle is lost and a new one is being
	// opened; LastError is why.
	Reopening bool
	LastError error
	// LastTick is the tick up to which everything is settled.
	LastTick      message.Tick
	LastConfirmed message.ID
	// OpenTxns and UnresolvedBytes say what is under way.
	OpenTxns        int
	UnresolvedBytes int
	WAB             wab.Stats
	// Violations counts the late records that scanners met since the term began.
	Violations int64
	// Readers are the running scanners.
	Readers []scanner.Status
}
