package pulsar

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

const hintReopen = "open the channel again with the next incarnation; that settles what is unknown"

var (
	// errMissing says that Pulsar has no such topic, subscription or namespace.
	errMissing = errors.New("not found in pulsar")
	// errNoEntry says that a topic has no such message.
	errNoEntry = errors.New("there is no such message")
)

func closedError(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the handle is closed", what)
}

func missingError(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeNotFound, channel, "%s: there is no such log", what)
}

func unavailable(channel, what string, err error) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeUnavailable, channel, "%s: %w", what, err)
	e.Hint = "check that the brokers run and that the keys service_url and admin_url name them"
	return e
}

// unknownOutcome is the error of records that were handed to the client, and of
// which nobody can say yet whether they are stored.
func unknownOutcome(channel string, why error) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "append: %w; the records may or may not be stored", why)
	e.Hint = hintReopen
	return e
}

// fencedUnknown is unknownOutcome on a handle that lost the log to another: it
// is an ErrFenced and an ErrUnknownOutcome.
func fencedUnknown(channel string, why error) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeFenced, channel, "%w", unknownOutcome(channel, why))
	e.Hint = hintReopen
	return e
}

// typed gives an error of a call the channel and a code.
func typed(ctx context.Context, channel, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return walimpls.ContextError(ctx, channel, what)
	}
	var fenced *walimpls.FencedError
	var lost *walimpls.PositionLostError
	if errors.As(err, &fenced) || errors.As(err, &lost) {
		return err
	}
	var e *walimpls.Error
	if errors.As(err, &e) {
		if e.Channel == "" {
			named := *e
			named.Channel, named.Message = channel, fmt.Sprintf("%s: %s", what, e.Message)
			return &named
		}
		return e
	}
	switch {
	case errors.Is(err, errMissing):
		return missingError(channel, what)
	case errors.Is(err, errBadFormat):
		return walimpls.Errorf(walimpls.CodeUnsupported, channel, "%s: %w", what, err)
	case errors.Is(err, errForeign), errors.Is(err, message.ErrBadRecord):
		e := walimpls.Errorf(walimpls.CodeCorrupt, channel, "%s: %w", what, err)
		e.Hint = "nobody but walrig may write to the topics of its namespace"
		return e
	}
	return unavailable(channel, what, err)
}
