package wire

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// statusCodes gives each code of the contract its gRPC code. The gRPC code is for
// tools and proxies; walrig's own clients read the detail.
var statusCodes = map[walimpls.Code]codes.Code{
	walimpls.CodeFenced:           codes.FailedPrecondition,
	walimpls.CodeClosed:           codes.FailedPrecondition,
	walimpls.CodeReadOnly:         codes.FailedPrecondition,
	walimpls.CodeTooLarge:         codes.InvalidArgument,
	walimpls.CodeNotFound:         codes.NotFound,
	walimpls.CodeInvalidArgument:  codes.InvalidArgument,
	walimpls.CodeUnavailable:      codes.Unavailable,
	walimpls.CodeUnknownOutcome:   codes.Unknown,
	walimpls.CodeCorrupt:          codes.DataLoss,
	walimpls.CodeNoSpace:          codes.ResourceExhausted,
	walimpls.CodeUnsupported:      codes.Unimplemented,
	walimpls.CodePositionLost:     codes.OutOfRange,
	walimpls.CodeInternal:         codes.Internal,
	walimpls.CodeAlreadyExists:    codes.AlreadyExists,
	walimpls.CodeForeignStore:     codes.FailedPrecondition,
	walimpls.CodeTermExpired:      codes.FailedPrecondition,
	walimpls.CodeUnmatchedTerm:    codes.FailedPrecondition,
	walimpls.CodeShutdown:         codes.Unavailable,
	walimpls.CodeCanceled:         codes.Canceled,
	walimpls.CodeTimeout:          codes.DeadlineExceeded,
	walimpls.CodeUnreachable:      codes.Unavailable,
	walimpls.CodeConfig:           codes.InvalidArgument,
	walimpls.CodePluginStart:      codes.Unavailable,
	walimpls.CodeUnauthenticated:  codes.Unauthenticated,
	walimpls.CodePermissionDenied: codes.PermissionDenied,
	walimpls.CodeTxnNotFound:      codes.NotFound,
	walimpls.CodeTxnState:         codes.FailedPrecondition,
	walimpls.CodeTxnRolledBack:    codes.Aborted,
	walimpls.CodeNotConforming:    codes.FailedPrecondition,
}

// StatusError returns err as a gRPC status with the typed error as its detail;
// nil for nil. An error that is such a status already is returned as it is.
func StatusError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := detail(err); ok {
		return err
	}
	p := ErrorToProto(err)
	code, ok := statusCodes[walimpls.Code(p.Code)]
	if !ok {
		code = codes.Unknown
	}
	s := status.New(code, p.Message)
	// The outcomes of a big batch have no place in a trailer; the protocols carry
	// them in the stream.
	if len(p.Outcomes) > 64 {
		p.Outcomes = nil
	}
	with, err := s.WithDetails(p)
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

// FromStatus is the inverse of StatusError; nil for nil. A gRPC error without the
// detail did not come from walrig's code but from the transport or from another
// implementation: Unavailable becomes ErrUnavailable, DeadlineExceeded and
// Canceled become the codes timeout and canceled (errors.Is finds the context's
// error), Unimplemented becomes ErrUnsupported, everything else ErrInternal. An
// error that is no gRPC status at all is returned unchanged.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	if p, ok := detail(err); ok {
		return ErrorFromProto(p)
	}
	var typed *walimpls.Error
	if errors.As(err, &typed) {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.OK:
		return nil
	case codes.Unavailable:
		return walimpls.Errorf(walimpls.CodeUnavailable, "", "%s", s.Message())
	case codes.DeadlineExceeded:
		return walimpls.Errorf(walimpls.CodeTimeout, "", "%w", context.DeadlineExceeded)
	case codes.Canceled:
		return walimpls.Errorf(walimpls.CodeCanceled, "", "%w", context.Canceled)
	case codes.Unimplemented:
		return walimpls.Errorf(walimpls.CodeUnsupported, "", "%s", s.Message())
	}
	return walimpls.Errorf(walimpls.CodeInternal, "", "%s: %s", s.Code(), s.Message())
}

// detail returns the walrig error inside a gRPC status, if there is one.
func detail(err error) (*typesv1.Error, bool) {
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK {
		return nil, false
	}
	for _, d := range s.Details() {
		if p, ok := d.(*typesv1.Error); ok {
			return p, true
		}
	}
	return nil, false
}
