package walmanager

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/walimpls"
)

// UnmatchedTermError is the ErrUnmatchedTerm of Get: another term than the one
// that was asked for is open, or being opened.
type UnmatchedTermError struct {
	// Err is the *walimpls.Error of code CodeUnmatchedTerm.
	Err *walimpls.Error
	// Expected is the term that was asked for, Current the one there is.
	Expected, Current int64
}

// Error returns the text of Err.
func (e *UnmatchedTermError) Error() string { return e.Err.Error() }

// Unwrap returns Err, so that the error is an ErrUnmatchedTerm.
func (e *UnmatchedTermError) Unwrap() error { return e.Err }

func unmatched(channel string, expected, current int64) error {
	err := walimpls.Errorf(walimpls.CodeUnmatchedTerm, channel,
		"another term is open: expected term %d, current term %d", expected, current)
	err.Hint = "ask for the channel's state again: another owner may have it"
	return &UnmatchedTermError{Err: err, Expected: expected, Current: current}
}

// expired is the refusal of a call that would move the channel back.
func expired(channel, op string, asked, actual state) error {
	was := "open"
	if !actual.available {
		was = "removed"
	}
	err := walimpls.Errorf(walimpls.CodeTermExpired, channel,
		"%s: term %d is expired: expected term %d, actual term %d (%s)", op, asked.term, asked.term, actual.term, was)
	if asked.available {
		err.Hint = fmt.Sprintf("open the channel with a term above %d", actual.term)
	}
	return err
}

func shutdown() error {
	return walimpls.Errorf(walimpls.CodeShutdown, "", "the wal manager is closed")
}

// gaveUp is the error of a caller whose own context ended.
func gaveUp(ctx context.Context, channel, op string, term int64) error {
	code := walimpls.CodeCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = walimpls.CodeTimeout
	}
	err := walimpls.Errorf(code, channel, "%s: stopped waiting for term %d: %w", op, term, ctx.Err())
	err.Hint = "the host goes on with it; repeat the call to get its result"
	return err
}

// openError is the error of a term whose open failed. It keeps the cause and its
// code, but the end of an opener's context must not look as if the caller had
// given up, and the same call cannot succeed later: the term has ended.
func openError(channel string, term int64, cause error) error {
	if cause == nil {
		cause = walimpls.Errorf(walimpls.CodeInternal, "", "the opener returned neither a wal nor an error")
	}
	code := walimpls.AsError(cause).Code
	if code == walimpls.CodeCanceled || code == walimpls.CodeTimeout {
		code = walimpls.CodeUnavailable
	}
	return because(code, channel, fmt.Sprintf("open: term %d failed", term), cause)
}

// because returns an error of its own code that quotes the cause and keeps it
// for errors.Is and errors.As.
func because(code walimpls.Code, channel, what string, cause error) *walimpls.Error {
	err := walimpls.Errorf(code, channel, "%s: %w", what, cause)
	err.Retryable = false
	err.Hint = "open the channel with a higher term"
	var inner *walimpls.Error
	if errors.As(cause, &inner) && inner.Message != "" {
		err.Message = what + ": " + inner.Message
		if inner.Hint != "" && inner.Hint != err.Hint {
			err.Hint = inner.Hint + "; then " + err.Hint
		}
	}
	return err
}

// errForgotten marks the error that ends a lifetime whose name is forgotten.
var errForgotten = errors.New("forgotten")

func forgotten(channel string) error {
	return walimpls.Errorf(walimpls.CodeNotFound, channel, "the channel is removed from this host: %w", errForgotten)
}

func unknown(channel string) error {
	err := walimpls.Errorf(walimpls.CodeNotFound, channel, "no such channel is open on this host")
	err.Hint = "open it, or ask the host that owns it"
	return err
}
