package remote

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// callError turns the error of an RPC into a typed one with the channel in it. ctx
// is the caller's.
func callError(ctx context.Context, channel string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !isTyped(err) {
		return ctxError(ctx, channel)
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.Canceled && !isTyped(err) {
		// Not this caller's doing: the connection was closed, or the plugin has
		// stopped its server.
		e := walimpls.Errorf(walimpls.CodeUnavailable, channel, "the connection to the plugin ended: %s", s.Message())
		return e
	}
	err = wire.FromStatus(err)
	var typed *walimpls.Error
	if !errors.As(err, &typed) {
		return walimpls.Errorf(walimpls.CodeUnavailable, channel, "the connection to the plugin ended: %w", err)
	}
	if typed.Channel == "" {
		typed.Channel = channel // fresh from the wire, so it is ours
	}
	return err
}

// isTyped reports that the plugin itself, not the transport, gave the error.
func isTyped(err error) bool {
	s, ok := status.FromError(err)
	return ok && len(s.Details()) > 0
}

// ctxError returns the error of a ctx that has ended; errors.Is finds ctx.Err().
func ctxError(ctx context.Context, channel string) error {
	code := walimpls.CodeCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = walimpls.CodeTimeout
	}
	return walimpls.Errorf(code, channel, "%w", ctx.Err())
}

func closedError(channel, what string) error {
	return walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the handle was closed", what)
}

// protocolError is for answers that no plugin may give.
func protocolError(channel, format string, args ...any) error {
	e := walimpls.Errorf(walimpls.CodeInternal, channel, "the plugin breaks the protocol: "+format, args...)
	e.Hint = "this is a defect of the plugin; report it to its author"
	return e
}

// tooLate is the error of appends on a handle that has ended for cause.
func tooLate(channel string, cause error) error {
	e := walimpls.Errorf(walimpls.CodeUnavailable, channel, "append: the handle has ended: %v", cause)
	e.Hint = "open the channel again with the next incarnation"
	return e
}
