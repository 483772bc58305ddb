package walimpls

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/walrig/walrig/sdk/message"
)

// Code names a kind of error. It is what crosses the process boundary and what
// scripts see; its text never changes.
type Code string

// The codes of the contract come first, then those that the host adds for its
// own clients. Codes() holds the one table of their properties.
const (
	CodeFenced          Code = "fenced"
	CodeClosed          Code = "closed"
	CodeReadOnly        Code = "read_only"
	CodeTooLarge        Code = "too_large"
	CodeNotFound        Code = "not_found"
	CodeInvalidArgument Code = "invalid_argument"
	CodeUnavailable     Code = "unavailable"
	CodeUnknownOutcome  Code = "unknown_outcome"
	CodeCorrupt         Code = "corrupt"
	CodeNoSpace         Code = "no_space"
	CodeUnsupported     Code = "unsupported"
	CodePositionLost    Code = "position_lost"
	CodeInternal        Code = "internal"

	CodeAlreadyExists    Code = "already_exists"
	CodeForeignStore     Code = "foreign_store"
	CodeTermExpired      Code = "term_expired"
	CodeUnmatchedTerm    Code = "unmatched_term"
	CodeShutdown         Code = "shutdown"
	CodeCanceled         Code = "canceled"
	CodeTimeout          Code = "timeout"
	CodeUnreachable      Code = "unreachable"
	CodeConfig           Code = "config"
	CodePluginStart      Code = "plugin_start"
	CodeUnauthenticated  Code = "unauthenticated"
	CodePermissionDenied Code = "permission_denied"
	CodeTxnNotFound      Code = "txn_not_found"
	CodeTxnState         Code = "txn_state"
	CodeTxnRolledBack    Code = "txn_rolled_back"
	CodeNotConforming    Code = "not_conforming"
)

// Exit codes of the CLI.
const (
	ExitOK          = 0
	ExitFailure     = 1 // definite failure
	ExitUsage       = 2 // usage or configuration
	ExitUnknown     = 3 // outcome unknown
	ExitUnreachable = 4 // unreachable or timed out with nothing sent
	ExitInterrupted = 130
)

// CodeInfo is one row of the table of codes.
type CodeInfo struct {
	Code Code
	// Retryable is the default of Error.Retryable: the same call may succeed
	// later without anybody changing anything.
	Retryable bool
	// Exit is the CLI's exit code.
	Exit int
	// Doc says what the code means, for the documentation.
	Doc string
}

var codeTable = []CodeInfo{
	{CodeFenced, false, ExitFailure, "a handle with a higher (term, incarnation) owns the log; definite only for a record that was never handed to the store"},
	{CodeClosed, false, ExitFailure, "the handle, scanner or plugin was closed"},
	{CodeReadOnly, false, ExitFailure, "the handle was opened read-only"},
	{CodeTooLarge, false, ExitFailure, "the record exceeds the backend's limit; nothing was stored"},
	{CodeNotFound, false, ExitFailure, "no such channel, log, plugin or record"},
	{CodeInvalidArgument, false, ExitUsage, "a parameter is wrong; nothing was done"},
	{CodeUnavailable, true, ExitFailure, "the store or plugin does not answer now; nothing was stored"},
	{CodeUnknownOutcome, false, ExitUnknown, "the record may or may not be stored; it is stored at most once"},
	{CodeCorrupt, false, ExitFailure, "stored data is damaged"},
	{CodeNoSpace, true, ExitFailure, "the store is full; nothing was stored"},
	{CodeUnsupported, false, ExitFailure, "the backend does not offer this"},
	{CodePositionLost, false, ExitFailure, "the start position is not in the log (any more)"},
	{CodeInternal, false, ExitFailure, "a defect in walrig or in a plugin"},
	{CodeAlreadyExists, false, ExitFailure, "the channel exists already"},
	{CodeForeignStore, false, ExitFailure, "the log belongs to another backend, store or catalog"},
	{CodeTermExpired, false, ExitFailure, "the term is older than the channel's"},
	{CodeUnmatchedTerm, false, ExitFailure, "another term is open"},
	{CodeShutdown, true, ExitFailure, "the host is stopping; nothing was stored"},
	{CodeCanceled, false, ExitInterrupted, "the caller gave up; nothing was stored"},
	{CodeTimeout, true, ExitUnreachable, "the deadline passed with nothing sent"},
	{CodeUnreachable, true, ExitUnreachable, "the host cannot be reached; nothing was sent"},
	{CodeConfig, false, ExitUsage, "the configuration is wrong"},
	{CodePluginStart, true, ExitFailure, "a plugin process could not be started"},
	{CodeUnauthenticated, false, ExitFailure, "no valid credentials were given"},
	{CodePermissionDenied, false, ExitFailure, "the credentials do not allow this"},
	{CodeTxnNotFound, false, ExitFailure, "no such transaction is open: it ended, expired, or belongs to another term"},
	{CodeTxnState, false, ExitFailure, "the transaction is ending and takes neither records nor another end"},
	{CodeTxnRolledBack, false, ExitFailure, "the commit was refused because a record of the transaction failed; it was rolled back"},
	{CodeNotConforming, false, ExitFailure, "a backend does not keep its contract, or no check was executed that could tell"},
}

// Codes returns the table of codes. The slice is the caller's.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codeTable...) }

// Info returns the row of c; an unknown code gets the row of CodeInternal
// under its own name.
func (c Code) Info() CodeInfo {
	for _, row := range codeTable {
		if row.Code == c {
			return row
		}
	}
	return CodeInfo{Code: c, Exit: ExitFailure, Doc: "unknown code"}
}

// Sentinels for errors.Is. Each matches every *Error of its code, and the typed
// errors below match theirs.
var (
	ErrFenced          = sentinel(CodeFenced)
	ErrClosed          = sentinel(CodeClosed)
	ErrReadOnly        = sentinel(CodeReadOnly)
	ErrTooLarge        = sentinel(CodeTooLarge)
	ErrNotFound        = sentinel(CodeNotFound)
	ErrInvalidArgument = sentinel(CodeInvalidArgument)
	ErrUnavailable     = sentinel(CodeUnavailable)
	ErrUnknownOutcome  = sentinel(CodeUnknownOutcome)
	ErrCorrupt         = sentinel(CodeCorrupt)
	ErrNoSpace         = sentinel(CodeNoSpace)
	ErrUnsupported     = sentinel(CodeUnsupported)
	ErrInternal        = sentinel(CodeInternal)

	ErrAlreadyExists = sentinel(CodeAlreadyExists)
	ErrForeignStore  = sentinel(CodeForeignStore)
	ErrTermExpired   = sentinel(CodeTermExpired)
	ErrUnmatchedTerm = sentinel(CodeUnmatchedTerm)
	ErrShutdown      = sentinel(CodeShutdown)
	ErrTimeout       = sentinel(CodeTimeout)
	ErrUnreachable   = sentinel(CodeUnreachable)
	ErrConfig        = sentinel(CodeConfig)
	ErrPluginStart   = sentinel(CodePluginStart)
)

func sentinel(c Code) error { return &Error{Code: c, Retryable: c.Info().Retryable} }

// Error is the error of every call of the contract, and of the host's API.
type Error struct {
	// Code is the kind.
	Code Code
	// Channel is the pchannel concerned, "" if none.
	Channel string
	// Message says what happened, without the code and channel.
	Message string
	// Hint says what to do about it, "" if there is nothing to say.
	Hint string
	// Retryable says that the same call may succeed later. For a record whose
	// outcome is unknown it is always false: only a re-open settles it.
	Retryable bool
	// Err is the cause, nil if none. It does not cross the process boundary;
	// its text is in Message when it matters.
	Err error
}

// Errorf returns an *Error with the code's default retryable bit. A %w verb
// keeps the cause for errors.Is and errors.As on this side of the boundary.
func Errorf(code Code, channel, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{
		Code: code, Channel: channel, Message: err.Error(),
		Retryable: code.Info().Retryable, Err: errors.Unwrap(err),
	}
}

// Error returns `message` with the channel in front where one is known.
func (e *Error) Error() string {
	msg := e.Message
	if msg == "" {
		msg = e.Code.Info().Doc
	}
	if e.Channel == "" {
		return fmt.Sprintf("%s (%s)", msg, e.Code)
	}
	return fmt.Sprintf("pchannel %q: %s (%s)", e.Channel, msg, e.Code)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is match by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == "" && t.Channel == ""
}

// FencedError is the ErrFenced of Open and Drop: the store holds a pair at or
// above the one that was asked for.
type FencedError struct {
	// Err is the *Error of code CodeFenced.
	Err *Error
	// Highest is the highest pair in the store.
	Highest Pair
}

// Error returns the text of Err.
func (e *FencedError) Error() string { return e.Err.Error() }

// Unwrap returns Err, so that the error is an ErrFenced.
func (e *FencedError) Unwrap() error { return e.Err }

// NewFencedError returns the error of an Open or Drop that was refused because of highest.
func NewFencedError(channel string, asked, highest Pair) *FencedError {
	return &FencedError{
		Err:     Errorf(CodeFenced, channel, "pair %s is at or below %s, the highest in the log", asked, highest),
		Highest: highest,
	}
}

// PositionLostError says that a start, or a running scanner's place, is not in
// the log: truncated, above the latest id, or of another log.
type PositionLostError struct {
	// Err is the *Error of code CodePositionLost.
	Err *Error
	// Earliest and Latest are the log's bounds; empty for a log without records.
	Earliest message.ID
	Latest   message.ID
}

// Error returns the text of Err.
func (e *PositionLostError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PositionLostError) Unwrap() error { return e.Err }

// NewPositionLostError returns the error for a position outside b. format says which.
func NewPositionLostError(channel string, b Bounds, format string, args ...any) *PositionLostError {
	err := Errorf(CodePositionLost, channel, format, args...)
	err.Hint = "read from all to continue with the earliest record that is left"
	return &PositionLostError{Err: err, Earliest: b.Earliest, Latest: b.Latest}
}

// State is the outcome of one record.
type State int

// The outcomes. The zero value is Unknown, so that what nobody set promises nothing.
const (
	Unknown   State = 0 // it may be stored, once
	Stored    State = 1 // it is stored and durable
	NotStored State = 2 // it is not stored and never will be
)

// String returns "unknown", "stored" or "not_stored".
func (s State) String() string {
	switch s {
	case Stored:
		return "stored"
	case NotStored:
		return "not_stored"
	}
	return "unknown"
}

// Outcome is what became of one record of a batch.
type Outcome struct {
	State State
	// ID is set for Stored.
	ID message.ID
	// Err is set for NotStored and Unknown.
	Err error
}

// BatchError is the error of an Append that did not store the whole batch.
// errors.Is and errors.As look into the outcomes' errors.
type BatchError struct {
	Channel string
	// Outcomes has one entry a record, in the batch's order.
	Outcomes []Outcome
}

// Error counts the outcomes and quotes the first error.
func (e *BatchError) Error() string {
	var n [3]int
	var first error
	for _, o := range e.Outcomes {
		switch o.State {
		case Stored, NotStored:
			n[o.State]++
		default: // a state that this version does not know promises nothing
			n[Unknown]++
		}
		if first == nil {
			first = o.Err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "append: %d stored, %d not stored, %d unknown of %d records", n[Stored], n[NotStored], n[Unknown], len(e.Outcomes))
	if first != nil {
		fmt.Fprintf(&b, ": %v", first)
	}
	return b.String()
}

// Unwrap returns the outcomes' distinct errors.
func (e *BatchError) Unwrap() []error {
	var errs []error
	var last *Error
	for _, o := range e.Outcomes {
		//nolint:errorlint // one error object shared by neighbours is listed once; wrapping does not matter
		own, _ := o.Err.(*Error)
		if o.Err == nil || (own != nil && own == last) {
			continue
		}
		last = own
		errs = append(errs, o.Err)
	}
	return errs
}

// BatchFailure returns a *BatchError that gives all n records one outcome.
func BatchFailure(channel string, n int, state State, err error) *BatchError {
	e := &BatchError{Channel: channel, Outcomes: make([]Outcome, n)}
	for i := range e.Outcomes {
		e.Outcomes[i] = Outcome{State: state, Err: err}
	}
	return e
}

// Outcomes turns the result of an Append of n records into one outcome a
// record: ids without error are stored; a *BatchError speaks for itself; any
// other error means that nothing was handed to the store, unless it says that
// the outcome is unknown or the result breaks the contract.
func Outcomes(channel string, n int, ids []message.ID, err error) []Outcome {
	if err == nil && len(ids) == n {
		out := make([]Outcome, n)
		for i, id := range ids {
			out[i] = Outcome{State: Stored, ID: id}
		}
		return out
	}
	var batch *BatchError
	if errors.As(err, &batch) && len(batch.Outcomes) == n {
		return batch.Outcomes
	}
	if err == nil || batch != nil {
		err = Errorf(CodeUnknownOutcome, channel, "append: the backend answered %d records with %d ids", n, len(ids))
		return BatchFailure(channel, n, Unknown, err).Outcomes
	}
	if errors.Is(err, ErrUnknownOutcome) {
		return BatchFailure(channel, n, Unknown, err).Outcomes
	}
	return BatchFailure(channel, n, NotStored, err).Outcomes
}

// AsError returns err as an *Error: itself if there is one in its tree, a
// wrapper for the context errors and for everything untyped, nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(CodeTimeout, "", "%w", err)
	case errors.Is(err, context.Canceled):
		return Errorf(CodeCanceled, "", "%w", err)
	}
	return Errorf(CodeInternal, "", "%w", err)
}

// ContextError types the end of ctx, which must have ended: its cause if that is
// an *Error, else CodeTimeout or CodeCanceled. what says what was being done.
func ContextError(ctx context.Context, channel, what string) *Error {
	cause := context.Cause(ctx)
	var typed *Error
	if errors.As(cause, &typed) {
		return typed
	}
	code := CodeCanceled
	if errors.Is(cause, context.DeadlineExceeded) {
		code = CodeTimeout
	}
	return Errorf(code, channel, "%s: %w", what, cause)
}
