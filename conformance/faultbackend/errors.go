package faultbackend

import (
	"context"
	"errors"

	"github.com/walrig/walrig/sdk/walimpls"
)

const hintReopen = "open the channel again with a higher (term, incarnation)"

func errClosed(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeClosed, channel, "the %s is closed", what)
}

// errEnded refuses what is asked of a handle whose last word was "unknown". It
// is retryable because a host that opens again can serve the same call.
func errEnded(channel string) *walimpls.Error {
	err := walimpls.Errorf(walimpls.CodeUnavailable, channel, "the handle ended with an unknown outcome; nothing was stored")
	err.Hint = hintReopen
	return err
}

func errFencedHandle(channel string, own, highest walimpls.Pair) *walimpls.Error {
	err := walimpls.Errorf(walimpls.CodeFenced, channel, "the handle's pair %s is fenced by %s", own, highest)
	err.Hint = hintReopen
	return err
}

func errDropped(channel string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeNotFound, channel, "the log was dropped")
}

func errUnknown(channel, why string) *walimpls.Error {
	err := walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "%s", why)
	err.Hint = hintReopen
	return err
}

// errGaveUp is the error of a call whose context ended before anything was done.
func errGaveUp(channel string, op Op, cause error) *walimpls.Error {
	code := walimpls.CodeCanceled
	if errors.Is(cause, context.DeadlineExceeded) {
		code = walimpls.CodeTimeout
	}
	return walimpls.Errorf(code, channel, "%s gave up, nothing was done: %w", op, cause)
}

// injected is the error that a rule gives to a call or record.
func (r *liveRule) injected(cl call) error {
	text := r.text
	switch {
	case text == "":
		text = "injected by the rule `" + r.label() + "`"
	case r.act == actPermanent:
		text = "unrecoverable: " + text
	}
	code := r.code
	if code == "" { // late, lose-connection and exit
		code = walimpls.CodeUnavailable
		if cl.op == OpAppend {
			code = walimpls.CodeUnknownOutcome
		}
	}
	switch {
	case code == walimpls.CodeFenced && (cl.op == OpOpen || cl.op == OpDrop):
		return &walimpls.FencedError{Err: walimpls.Errorf(code, cl.channel, "%s", text), Highest: cl.pair}
	case code == walimpls.CodePositionLost:
		return walimpls.NewPositionLostError(cl.channel, walimpls.Bounds{}, "%s", text)
	case code == walimpls.CodeUnknownOutcome:
		return errUnknown(cl.channel, text)
	}
	return walimpls.Errorf(code, cl.channel, "%s", text)
}
