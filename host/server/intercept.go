package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// unary stands around every unary call.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	leave, err := s.admit(&ctx, info.FullMethod)
	if err != nil {
		return nil, statusError(err)
	}
	defer leave()
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opt.CallTimeout)
		defer cancel()
	}
	ctx, cancel := s.callContext(ctx, info.FullMethod)
	defer cancel()
	defer s.recovered(info.FullMethod, &err)
	resp, err = handler(ctx, req)
	return resp, statusError(err)
}

// stream stands around every stream.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx := ss.Context()
	leave, err := s.admit(&ctx, info.FullMethod)
	if err != nil {
		return statusError(err)
	}
	defer leave()
	ctx, cancel := s.callContext(ctx, info.FullMethod)
	defer cancel()
	defer s.recovered(info.FullMethod, &err)
	return statusError(handler(srv, &contextStream{ServerStream: ss, ctx: ctx}))
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }

// admit asks Auth and lets the call through the gate. The status can be asked
// for while the host stops; health, reflection and readers are not waited for:
// a reader may be slow for ever, and loses nothing.
func (s *Server) admit(ctx *context.Context, method string) (leave func(), err error) {
	if s.opt.Auth != nil {
		if *ctx, err = s.opt.Auth(*ctx, method); err != nil {
			return nil, err
		}
	}
	if method == walv1.AdminService_Status_FullMethodName || !ours(method) {
		return func() {}, nil
	}
	if method == walv1.WALService_Read_FullMethodName {
		if s.calls.isClosed() {
			return nil, shutdownError("")
		}
		return func() {}, nil
	}
	if !s.calls.enter() {
		return nil, shutdownError("")
	}
	return s.calls.leave, nil
}

// ours reports whether a method is of walrig's own services, not of health and
// reflection.
func ours(method string) bool { return strings.HasPrefix(method, "/walrig.") }

// callContext ends a little before the caller's deadline, so that the answer,
// which knows more than "too late", arrives before the caller hangs up; and it
// ends when Shutdown cuts calls short.
func (s *Server) callContext(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	short := s.hard
	if !ours(method) {
		short = s.watched
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := context.AfterFunc(short, func() { cancel(shutdownError("")) })
	stop := func() { end(); cancel(nil) }
	deadline, has := ctx.Deadline()
	if !has {
		return ctx, stop
	}
	margin := min(max(time.Until(deadline)/5, 0), 300*time.Millisecond)
	ctx, cancelDeadline := context.WithDeadline(ctx, deadline.Add(-margin))
	return ctx, func() { cancelDeadline(); stop() }
}

// recovered turns a panic into an error. An append may have happened by then,
// so that its outcome is unknown.
func (s *Server) recovered(method string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	s.log.Error("panic in a handler", zap.String("method", method), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
	code := walimpls.CodeInternal
	if strings.HasPrefix(method, "/"+walv1.WALService_ServiceDesc.ServiceName+"/Append") {
		code = walimpls.CodeUnknownOutcome
	}
	e := walimpls.Errorf(code, "", "%s: a defect in the host: %s", method, fmt.Sprint(p))
	e.Hint = "the host's log has the details; please report it"
	*err = statusError(e)
}

// boundsError is a *walimpls.PositionLostError with its bounds in text form.
type boundsError struct {
	error
	earliest, latest string
}

func (e *boundsError) Unwrap() error { return e.error }

// withBounds adds the text forms to a lost position.
func withBounds(err error, desc walimpls.Description) error {
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) {
		return err
	}
	ids := newIDFormat(desc.IDLayout)
	return &boundsError{error: err, earliest: ids.text(lost.Earliest), latest: ids.text(lost.Latest)}
}

// statusError is wire.StatusError, and keeps the text of bounds besides.
func statusError(err error) error {
	if err == nil {
		return nil
	}
	out := wire.StatusError(err)
	var b *boundsError
	if !errors.As(err, &b) {
		return out
	}
	st := status.Convert(out)
	for _, d := range st.Details() {
		if p, ok := d.(*typesv1.Error); ok && p.GetPositionLost() != nil {
			p.PositionLost.EarliestText, p.PositionLost.LatestText = b.earliest, b.latest
			if with, err := status.New(st.Code(), st.Message()).WithDetails(p); err == nil {
				return with.Err()
			}
		}
	}
	return out
}
