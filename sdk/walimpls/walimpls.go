package walimpls

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
)

// GracePeriod bounds every Close of the contract.
const GracePeriod = 5 * time.Second

// Builder makes one kind of backend. It is stateless and safe for concurrent use.
type Builder interface {
	// Name is the backend's name in lower case, such as "rmq".
	Name() string
	// Describe returns what the backend is and can do. It is constant for the
	// life of the process.
	Describe() Description
	// Build checks cfg and returns an Opener. It never touches the store: a
	// store that is down or missing is found by Open. cfg was checked against
	// Describe().Config already when it comes through a plugin; Build checks it
	// itself all the same (Config.Decode does it) and reports all problems at
	// once as ErrInvalidArgument. The logger stays valid until the Opener is closed.
	Build(ctx context.Context, cfg Config, log *zap.Logger) (Opener, error)
}

// Opener opens the logs of one configured store. It is safe for concurrent use.
type Opener interface {
	// Open opens a channel.
	//
	// Read-write: creates the log if it is missing, fences every earlier handle
	// (rule 1), writes the pair durably as a record of type message.TypeFence
	// and returns a handle that may append. A pair at or below the highest in
	// the store is *FencedError{Highest}; nothing was written or disturbed then.
	// Open re-syncs what it recovered before it returns.
	//
	// Read-only: fences nobody, writes nothing, creates nothing; a missing log is
	// ErrNotFound. The handle's Channel carries the highest pair found in the log.
	//
	// Errors: ErrInvalidArgument, *FencedError, ErrNotFound (read-only),
	// ErrUnavailable (retry can help), ErrCorrupt, ErrNoSpace, ErrClosed. If ctx
	// ends, Open gives up and returns its error; the log may then hold the pair
	// all the same, so a later Open takes the next incarnation.
	Open(ctx context.Context, opt OpenOptions) (WAL, error)
	// Drop deletes the channel's log. It is idempotent: a missing log is
	// success. A term below the highest in the log is *FencedError. Open handles
	// of the channel are fenced by it. A log created again later has another store id.
	Drop(ctx context.Context, channel string, term int64) error
	// Close closes every open WAL and releases the store. It is idempotent and
	// returns within GracePeriod whatever hangs below.
	Close(ctx context.Context) error
}

// WAL is a handle on one log. It is safe for concurrent use.
type WAL interface {
	// Channel returns name, store id and pair. It never blocks.
	Channel() Channel
	// Append stores the batch at the end of the log, in the batch's order, and
	// returns one id a record, ascending. When it returns without error every
	// record is durable as the Description says. Concurrent calls are allowed
	// and may interleave.
	//
	// ID, Term and Incarnation of the batch's records are ignored: the handle
	// stamps its own pair. The batch and what it points to belong to the
	// backend until Append returns.
	//
	// A failure that concerns the records is a *BatchError with one outcome a
	// record. Any other error means that no record was handed to the store.
	// Once ctx ends Append returns soon; records that were handed over are
	// ErrUnknownOutcome then, which ends the handle (rule 3). On a read-only
	// handle it is ErrReadOnly, on a fenced one ErrFenced, on a closed one ErrClosed.
	// An empty batch is a no-op.
	Append(ctx context.Context, batch []message.Message) ([]message.ID, error)
	// Read starts a scanner. It returns when the start is resolved: nothing
	// appended after that is missed or, for Latest, everything appended after
	// that is seen. Errors: *PositionLostError, ErrInvalidArgument (an empty or
	// all-zero id), ErrNotFound, ErrUnavailable, ErrClosed. ctx bounds Read
	// alone, not the scanner. Reads on a fenced handle may go on.
	Read(ctx context.Context, opt ReadOptions) (Scanner, error)
	// Truncate removes what lies before the id and keeps the record at the id.
	// It is durable when it returns. Behind the present truncation point it is a
	// no-op; above the latest id it is ErrInvalidArgument. On a read-only handle
	// it is ErrReadOnly, on a fenced one ErrFenced, and ErrUnsupported where the
	// Description says so.
	Truncate(ctx context.Context, before message.ID) error
	// Bounds returns the ends of the log as they are now, fence records included.
	Bounds(ctx context.Context) (Bounds, error)
	// Close ends scanners, and appends that were not handed to the store, with
	// ErrClosed, other appends with ErrUnknownOutcome. It is idempotent and
	// returns within GracePeriod whatever hangs below.
	Close(ctx context.Context) error
}

// Scanner reads one log in log order. Next is for one goroutine; Close may be
// called from any, also while Next blocks.
type Scanner interface {
	// Next returns the records that come next, at least one. At the end of the
	// log it blocks until a record is appended, ctx ends (the scanner stays
	// usable and nothing is lost), or the scanner is closed (ErrClosed). Only
	// durable records are returned. The slice belongs to the caller; the records
	// must not be written to. Any other error is final for the scanner:
	// *PositionLostError, ErrCorrupt, ErrUnavailable, ErrClosed.
	Next(ctx context.Context) ([]message.Message, error)
	// Close releases the scanner and wakes a blocked Next. It is idempotent.
	Close() error
}

// Access says what a handle may do.
type Access int

// The access modes. The zero value is not valid.
const (
	AccessReadWrite Access = 1
	AccessReadOnly  Access = 2
)

// String returns "read-write" or "read-only".
func (a Access) String() string {
	switch a {
	case AccessReadWrite:
		return "read-write"
	case AccessReadOnly:
		return "read-only"
	}
	return fmt.Sprintf("access(%d)", int(a))
}

// Pair is a term and the n-th open within it; pairs are compared in that order.
type Pair struct {
	Term        int64
	Incarnation int64
}

// Compare returns -1, 0 or +1.
func (p Pair) Compare(q Pair) int {
	if c := cmp.Compare(p.Term, q.Term); c != 0 {
		return c
	}
	return cmp.Compare(p.Incarnation, q.Incarnation)
}

// String returns "term.incarnation".
func (p Pair) String() string { return fmt.Sprintf("%d.%d", p.Term, p.Incarnation) }

// OpenOptions are the parameters of Open.
type OpenOptions struct {
	// Channel is the pchannel's name (see ValidateName).
	Channel string
	// Term is the ownership epoch, 1 or more. Ignored for read-only opens.
	Term int64
	// Incarnation counts the opens within the term from 1. 0 means "the highest
	// in the store for this term, plus one" and is for tools only: the host
	// always names the pair. Ignored for read-only opens.
	Incarnation int64
	// Access is read-write or read-only.
	Access Access
}

// Validate returns ErrInvalidArgument with everything that is wrong, or nil.
func (o OpenOptions) Validate() error {
	if err := ValidateName("channel", o.Channel); err != nil {
		return err
	}
	switch o.Access {
	case AccessReadOnly:
		return nil
	case AccessReadWrite:
	default:
		return Errorf(CodeInvalidArgument, o.Channel, "open: access mode %d is neither read-write nor read-only", int(o.Access))
	}
	if o.Term < 1 {
		return Errorf(CodeInvalidArgument, o.Channel, "open: term %d, want 1 or more", o.Term)
	}
	if o.Incarnation < 0 {
		return Errorf(CodeInvalidArgument, o.Channel, "open: incarnation %d, want 0 or more", o.Incarnation)
	}
	return nil
}

// Pair returns the pair that is asked for.
func (o OpenOptions) Pair() Pair { return Pair{Term: o.Term, Incarnation: o.Incarnation} }

// Channel identifies a handle.
type Channel struct {
	Name string
	// StoreID names this very log: a log that was dropped and created again,
	// or one of another store, has another. Printable ASCII, at most 200 bytes.
	StoreID string
	// Pair is the handle's own pair; on a read-only handle the highest pair
	// that was in the log when it was opened (zero for a log without records).
	Pair
	Access Access
}

// Policy is the kind of a start position.
type Policy int

// The start policies. The zero value is not valid.
const (
	PolicyAll    Policy = 1 // the earliest readable record
	PolicyLatest Policy = 2 // behind the newest record at the time of Read
	PolicyFrom   Policy = 3 // the record with the id, inclusive
	PolicyAfter  Policy = 4 // the record behind the id, exclusive
)

// Start is where a read begins. Make one with FromAll, FromLatest, StartFrom
// or StartAfter. With StartFrom an id that lies in a hole of the log, between
// the earliest and the latest id, starts at the next record.
type Start struct {
	Policy Policy
	ID     message.ID
}

// FromAll starts at the earliest readable record.
func FromAll() Start { return Start{Policy: PolicyAll} }

// FromLatest starts behind the newest record there is when Read returns.
func FromLatest() Start { return Start{Policy: PolicyLatest} }

// StartFrom starts at the record with the id.
func StartFrom(id message.ID) Start { return Start{Policy: PolicyFrom, ID: id} }

// StartAfter starts behind the record with the id.
func StartAfter(id message.ID) Start { return Start{Policy: PolicyAfter, ID: id} }

// ReadOptions are the parameters of Read.
type ReadOptions struct {
	// Name is for logs and status; it need not be unique.
	Name string
	// Start is where to begin.
	Start Start
	// BufferRecords and BufferBytes bound what the scanner reads ahead, and
	// what one Next returns; a single record may exceed BufferBytes. 0 means
	// DefaultBufferRecords and DefaultBufferBytes.
	BufferRecords int
	BufferBytes   int
}

// Defaults of ReadOptions.
const (
	DefaultBufferRecords = 1024
	DefaultBufferBytes   = 4 << 20
)

// Normalize checks the options and fills in the defaults. channel is for the error.
func (o ReadOptions) Normalize(channel string) (ReadOptions, error) {
	switch o.Start.Policy {
	case PolicyAll, PolicyLatest:
	case PolicyFrom, PolicyAfter:
		if o.Start.ID.IsZero() {
			return o, Errorf(CodeInvalidArgument, channel, "read: an empty or all-zero id is not a start; use all for the earliest record")
		}
	default:
		return o, Errorf(CodeInvalidArgument, channel, "read: start policy %d is not known", int(o.Start.Policy))
	}
	if o.BufferRecords <= 0 {
		o.BufferRecords = DefaultBufferRecords
	}
	if o.BufferBytes <= 0 {
		o.BufferBytes = DefaultBufferBytes
	}
	return o, nil
}

// Bounds are the ends of a log.
type Bounds struct {
	// Empty says that the log holds no readable record, not even a fence
	// record; the ids are empty then.
	Empty bool
	// Earliest and Latest are the ids of the first and the newest readable record.
	Earliest message.ID
	Latest   message.ID
	// LatestRecord is the id of the newest readable record that is not a fence
	// record; empty if there is none.
	LatestRecord message.ID
}

const maxNameBytes = 200

// ValidateName checks the name of a channel or vchannel:
// [A-Za-z0-9][A-Za-z0-9._-]{0,199}. kind is for the error text.
func ValidateName(kind, name string) error {
	bad := name == "" || len(name) > maxNameBytes
	for i := 0; i < len(name) && !bad; i++ {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case (c == '.' || c == '_' || c == '-') && i > 0:
		default:
			bad = true
		}
	}
	if !bad {
		return nil
	}
	shown := name
	if len(shown) > 64 {
		shown = shown[:64] + "…"
	}
	e := Errorf(CodeInvalidArgument, "", "%s name %q is not valid", kind, shown)
	e.Hint = "use 1 to 200 letters, digits, '.', '_' or '-', starting with a letter or digit"
	return e
}
