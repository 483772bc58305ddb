package wal

import (
	"context"
	"errors"

	"github.com/walrig/walrig/sdk/walimpls"
)

// endsHandle reports whether an error of a record or call that was not handed
// to the store says that the handle itself is of no more use.
func endsHandle(err error) bool {
	return errors.Is(err, walimpls.ErrUnavailable) || errors.Is(err, walimpls.ErrFenced) ||
		errors.Is(err, walimpls.ErrClosed) || errors.Is(err, walimpls.ErrUnknownOutcome)
}

// transient reports whether an Open that failed with err may succeed later
// with the next incarnation. An Open whose time was up is tried again too: the
// store may be slow, and the next incarnation settles what the last one did.
func transient(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var e *walimpls.Error
	return errors.As(err, &e) && e.Retryable
}

// notStored is the outcome of a whole batch that no backend has seen.
func notStored(channel string, n int, err error) []walimpls.Outcome {
	return walimpls.BatchFailure(channel, n, walimpls.NotStored, err).Outcomes
}
