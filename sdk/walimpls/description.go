package walimpls

import (
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/message"
)

// Description says what a backend is and can do. The conformance suite checks
// the claims in both directions.
type Description struct {
	// Backend is the Builder's name.
	Backend string
	// Version is the backend's version, for status and logs.
	Version string
	// IDLayout is the layout of the backend's ids.
	IDLayout message.Layout
	// Capabilities are the claims.
	Capabilities Capabilities
	// Limits bound what the backend takes.
	Limits Limits
	// Config lists every key that Build takes.
	Config []ConfigField
}

// Fencing says how an old owner is kept out.
type Fencing string

// FencingStrict keeps rule 1. FencingNone is for standalone use only; status
// says so, and conformance does not count it as passed.
const (
	FencingStrict Fencing = "strict"
	FencingNone   Fencing = "none"
)

// Durability says what an acknowledgement means.
type Durability string

// What survives: a power loss (fsync), the loss of a machine by way of copies
// on others (replicated), an interval's data excepted (interval), or nothing
// beyond the process (memory).
const (
	DurabilityFsync      Durability = "fsync"
	DurabilityReplicated Durability = "replicated"
	DurabilityInterval   Durability = "interval"
	DurabilityMemory     Durability = "memory"
)

// Truncation says when Truncate frees space.
type Truncation string

// TruncationNone: Truncate is ErrUnsupported. TruncationImmediate: space is
// free when it returns. TruncationDeferred: later, by the store's own work.
const (
	TruncationNone      Truncation = "none"
	TruncationImmediate Truncation = "immediate"
	TruncationDeferred  Truncation = "deferred"
)

// Capabilities are what a backend claims.
type Capabilities struct {
	Fencing    Fencing
	Durability Durability
	Truncation Truncation
	// Drop: Opener.Drop deletes logs; else it is ErrUnsupported.
	Drop bool
	// ReadOnly: read-only opens work; else they are ErrUnsupported.
	ReadOnly bool
	// ExclusiveStore: only one process can hold the store, so a second one
	// (a new version of the plugin) must wait for the first to let go.
	ExclusiveStore bool
}

// Limits bound what a backend takes. All must be positive.
type Limits struct {
	// MaxMessageBytes bounds message.Message.Size.
	MaxMessageBytes int
	// MaxBatchRecords and MaxBatchBytes (the sum of Size) bound one Append;
	// the host cuts batches to them.
	MaxBatchRecords int
	MaxBatchBytes   int
}

// Validate returns everything that is wrong with the description, or nil. The
// SDK refuses to serve an invalid one, the host refuses to load it.
func (d Description) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := ValidateName("backend", d.Backend); err != nil {
		errs = append(errs, err)
	}
	if err := d.IDLayout.Validate(); err != nil {
		errs = append(errs, err)
	}
	switch d.Capabilities.Fencing {
	case FencingStrict, FencingNone:
	default:
		bad("fencing %q is neither strict nor none", d.Capabilities.Fencing)
	}
	switch d.Capabilities.Durability {
	case DurabilityFsync, DurabilityReplicated, DurabilityInterval, DurabilityMemory:
	default:
		bad("durability %q is not fsync, replicated, interval or memory", d.Capabilities.Durability)
	}
	switch d.Capabilities.Truncation {
	case TruncationNone, TruncationImmediate, TruncationDeferred:
	default:
		bad("truncation %q is not none, immediate or deferred", d.Capabilities.Truncation)
	}
	if d.Limits.MaxMessageBytes <= 0 || d.Limits.MaxBatchRecords <= 0 || d.Limits.MaxBatchBytes < d.Limits.MaxMessageBytes {
		bad("limits must be positive, and MaxBatchBytes (%d) at least MaxMessageBytes (%d)", d.Limits.MaxBatchBytes, d.Limits.MaxMessageBytes)
	}
	seen := map[string]bool{}
	for _, f := range d.Config {
		if seen[f.Name] {
			bad("config field %q is declared twice", f.Name)
		}
		seen[f.Name] = true
		if f.Required && f.Default != nil {
			bad("config field %q is required and has a default", f.Name)
		}
		if f.Default != nil {
			if _, err := f.parse(f.Default); err != nil {
				bad("config field %q: its default: %v", f.Name, err)
			}
		}
		if len(f.OneOf) > 0 && f.Type != ConfigString {
			bad("config field %q: only a string can have OneOf", f.Name)
		}
		if !f.Type.valid() {
			bad("config field %q: type %q is not known", f.Name, f.Type)
		}
	}
	return errors.Join(errs...)
}
