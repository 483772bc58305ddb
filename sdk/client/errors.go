package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

const (
	hintAddress = "an address looks like 127.0.0.1:7700"
	hintStart   = "start the host with `walrig serve`, or name its address with --addr or WALRIG_ADDR"
	hintUnknown = "read the channel to see whether the record is there before you append it again"
	hintRepeat  = "look at what the host did (list, describe), and repeat the call if it did nothing"
)

// PositionLostError is the walimpls.PositionLostError that a host sends,
// together with the bounds in text form: what a read can start from.
type PositionLostError struct {
	*walimpls.PositionLostError
	// EarliestText and LatestText are the log's bounds; empty for an empty log.
	EarliestText string
	LatestText   string
}

// Unwrap returns the walimpls.PositionLostError.
func (e *PositionLostError) Unwrap() error { return e.PositionLostError }

// detail returns the typed error that a host put into err's status, or nil.
func detail(err error) *typesv1.Error {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range st.Details() {
		if e, ok := d.(*typesv1.Error); ok {
			return e
		}
	}
	return nil
}

// fromHost turns a host's typed error into a Go error.
func fromHost(p *typesv1.Error) error {
	err := wire.ErrorFromProto(p)
	var lost *walimpls.PositionLostError
	if pos := p.GetPositionLost(); pos != nil && errors.As(err, &lost) {
		return &PositionLostError{PositionLostError: lost, EarliestText: pos.GetEarliestText(), LatestText: pos.GetLatestText()}
	}
	return err
}

// handed says what a call had done when it failed.
type handed int

const (
	nothingSent handed = iota // the connection was not handed the request
	readOnly                  // it was, and the request changes nothing
	mutation                  // it was, and the request may have been carried out
)

// callError types the error of a call. err comes from gRPC.
func (c *Client) callError(ctx context.Context, err error, h handed) error {
	if p := detail(err); p != nil {
		return fromHost(p)
	}
	code := status.Code(err)
	switch code {
	case codes.Unauthenticated, codes.PermissionDenied:
		e := walimpls.Errorf(walimpls.CodeUnauthenticated, "", "%s: %s", c.addr, status.Convert(err).Message())
		if code == codes.PermissionDenied {
			e.Code = walimpls.CodePermissionDenied
		}
		return e
	case codes.Unimplemented:
		e := walimpls.Errorf(walimpls.CodeUnsupported, "", "%s: %s", c.addr, status.Convert(err).Message())
		e.Hint = "is a walrig host of the same version at this address?"
		return e
	}
	if h == mutation {
		e := walimpls.Errorf(walimpls.CodeUnknownOutcome, "", "the call was sent and not answered: %s", c.reason(ctx, err))
		e.Hint = hintRepeat
		return e
	}
	switch code {
	case codes.Canceled:
		if ctx.Err() == nil {
			return errClosed()
		}
		return walimpls.Errorf(walimpls.CodeCanceled, "", "%w", context.Canceled)
	case codes.DeadlineExceeded:
		return c.tooLate()
	case codes.Unavailable:
		return c.unreachable(err)
	case codes.ResourceExhausted:
		return walimpls.Errorf(walimpls.CodeTooLarge, "", "%s", status.Convert(err).Message())
	}
	return wire.FromStatus(err)
}

func (c *Client) tooLate() error {
	e := walimpls.Errorf(walimpls.CodeTimeout, "", "no answer from %s in time: %w", c.addr, context.DeadlineExceeded)
	e.Hint = "give it more time with --timeout"
	return e
}

// reason says in a few words why a call failed that the host did not answer.
func (c *Client) reason(ctx context.Context, err error) string {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return "the deadline passed"
	case codes.Canceled:
		if ctx.Err() != nil {
			return "the caller gave up"
		}
		return "the client was closed"
	case codes.Unavailable:
		return "the connection to " + c.addr + " was lost"
	}
	return status.Convert(err).Message()
}

// unreachable returns ErrUnreachable with the best reason there is.
func (c *Client) unreachable(err error) error {
	c.mu.Lock()
	cause := c.dialErr
	c.mu.Unlock()
	if cause == nil {
		cause = err
	}
	msg := fmt.Sprintf("the walrig host at %s cannot be reached", c.addr)
	switch {
	case cause == nil:
	case errors.Is(cause, context.DeadlineExceeded):
		msg += ": no connection in time"
	case status.Code(cause) == codes.Unknown:
		msg += ": " + cause.Error()
	default:
		msg += ": " + status.Convert(cause).Message()
	}
	e := walimpls.Errorf(walimpls.CodeUnreachable, "", "%s", msg)
	e.Hint = hintStart
	e.Err = cause
	return e
}

// unknownAppend is the ErrUnknownOutcome of records that a connection was handed.
func (c *Client) unknownAppend(ctx context.Context, channel string, err error) error {
	e := walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "append: the record was sent and not answered: %s", c.reason(ctx, err))
	e.Hint = hintUnknown
	return e
}

func errClosed() error { return walimpls.Errorf(walimpls.CodeClosed, "", "the client is closed") }
