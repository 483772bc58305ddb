package plugin

import (
	"context"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// attachTimeout is how long a handle waits for its Append stream. A host opens the
// stream before its Open returns, so a handle that waits longer has nobody who
// knows of it: the answer to Open was lost.
const attachTimeout = 30 * time.Second

// Server serves one Builder over the protocol plugin/v1. Serve makes one; a test
// harness makes its own. It is safe for concurrent use.
type Server struct {
	pluginv1.UnimplementedBackendServiceServer
	builder walimpls.Builder
	log     *zap.Logger

	configuring sync.Mutex // held over Build; taken before mu

	mu      sync.Mutex // guards what follows
	opener  walimpls.Opener
	closed  bool
	handles map[uint64]*handle
	last    uint64

	// running counts goroutines that may outlive the RPC that started them.
	running tracker
}

// NewServer returns a server for b. log nil means no logs.
func NewServer(b walimpls.Builder, log *zap.Logger) *Server {
	if log == nil {
		log = zap.NewNop()
	}
	return &Server{builder: b, log: log, handles: map[uint64]*handle{}}
}

// ServerOptions are what a gRPC server needs that serves a Server: no limit of 4
// MiB, since the backend's own limits are the ones that count, and the codec of the
// messages that carry records.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.ForceServerCodecV2(wire.Codec()),
	}
}

// Register adds the service to r, which must have been made with ServerOptions.
func (s *Server) Register(r grpc.ServiceRegistrar) { pluginv1.RegisterBackendServiceServer(r, s) }

// Close ends every handle and closes the Opener, within walimpls.GracePeriod
// whatever hangs below. Later calls are ErrClosed. It is idempotent.
func (s *Server) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, walimpls.GracePeriod)
	defer cancel()
	s.mu.Lock()
	s.closed = true
	opener := s.opener
	s.opener = nil
	var handles []*handle
	for _, h := range s.handles {
		handles = append(handles, h)
	}
	clear(s.handles)
	s.mu.Unlock()

	for _, h := range handles {
		s.running.start(func() { _ = h.close(ctx) })
	}
	var err error
	if opener != nil {
		err = bounded(ctx, opener.Close)
	}
	if !s.running.wait(ctx) && err == nil {
		err = walimpls.Errorf(walimpls.CodeTimeout, "", "close: calls are still under way in the backend: %w", ctx.Err())
	}
	return err
}

// bounded runs f and returns its error, or a timeout when ctx ends first; f goes on then.
func bounded(ctx context.Context, f func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return walimpls.Errorf(walimpls.CodeTimeout, "", "close: the backend did not return in time: %w", ctx.Err())
	}
}

// Describe implements the service.
func (s *Server) Describe(context.Context, *pluginv1.DescribeRequest) (resp *pluginv1.DescribeResponse, err error) {
	defer s.recovered("Describe", &err)
	resp, err = wire.DescriptionToProto(s.builder.Describe())
	return resp, wire.StatusError(err)
}

// Configure implements the service.
func (s *Server) Configure(ctx context.Context, req *pluginv1.ConfigureRequest) (resp *pluginv1.ConfigureResponse, err error) {
	defer s.recovered("Configure", &err)
	s.configuring.Lock()
	defer s.configuring.Unlock()
	if err := s.mayConfigure(); err != nil {
		return nil, wire.StatusError(err)
	}
	cfg, err := wire.ConfigFromJSON(req.GetConfigJson())
	if err != nil {
		return nil, wire.StatusError(walimpls.Errorf(walimpls.CodeInvalidArgument, "", "configuration: %w", err))
	}
	if _, err := cfg.Decode(s.builder.Describe().Config); err != nil {
		return nil, wire.StatusError(err)
	}
	opener, err := s.builder.Build(ctx, cfg, s.log)
	if err != nil {
		return nil, wire.StatusError(err)
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.opener = opener
	}
	s.mu.Unlock()
	if closed {
		_ = bounded(ctx, opener.Close)
		return nil, wire.StatusError(errClosing())
	}
	return &pluginv1.ConfigureResponse{}, nil
}

func (s *Server) mayConfigure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosing()
	}
	if s.opener != nil {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "the plugin is configured already")
		e.Hint = "a plugin process takes one configuration; start another process for another one"
		return e
	}
	return nil
}

// recovered turns a panic of Describe or Build into an error: nothing is open yet,
// so nothing can be half changed. Everything that touches the store is not
// covered on purpose (see doc.go, point 6).
func (s *Server) recovered(call string, err *error) {
	if p := recover(); p != nil {
		s.log.Error("the backend panicked", zap.String("call", call), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		*err = wire.StatusError(walimpls.Errorf(walimpls.CodeInternal, "", "%s: the backend panicked: %v", call, p))
	}
}

func errClosing() error {
	return walimpls.Errorf(walimpls.CodeClosed, "", "the plugin is stopping")
}

// backend returns the Opener.
func (s *Server) backend() (walimpls.Opener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosing()
	}
	if s.opener == nil {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "the plugin is not configured yet: call Configure first")
	}
	return s.opener, nil
}

// Open implements the service.
func (s *Server) Open(ctx context.Context, req *pluginv1.OpenRequest) (*pluginv1.OpenResponse, error) {
	opener, err := s.backend()
	if err != nil {
		return nil, wire.StatusError(err)
	}
	opt := walimpls.OpenOptions{
		Channel: req.GetChannel(), Term: req.GetTerm(), Incarnation: req.GetIncarnation(), Access: walimpls.AccessReadWrite,
	}
	if req.GetReadOnly() {
		opt.Access = walimpls.AccessReadOnly
	}
	if err := opt.Validate(); err != nil {
		return nil, wire.StatusError(err)
	}
	wal, err := opener.Open(ctx, opt)
	if err != nil {
		return nil, wire.StatusError(err)
	}
	h := newHandle(wal, s.builder.Describe().Limits)
	if err := s.adopt(h); err != nil {
		s.discard(h)
		return nil, wire.StatusError(err)
	}
	// The host has left: it will never learn the number of this handle.
	if ctx.Err() != nil {
		s.discard(h)
		return nil, wire.StatusError(ctx.Err())
	}
	ch := wal.Channel()
	s.log.Debug("opened", zap.String("channel", ch.Name), zap.Stringer("pair", ch.Pair), zap.Stringer("access", opt.Access), zap.Uint64("handle", h.id))
	return &pluginv1.OpenResponse{
		Handle: h.id, StoreId: ch.StoreID,
		Pair: &typesv1.Pair{Term: ch.Term, Incarnation: ch.Incarnation},
	}, nil
}

// adopt gives h a number and starts its wait for the Append stream.
func (s *Server) adopt(h *handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosing()
	}
	s.last++
	h.id = s.last
	s.handles[h.id] = h
	h.orphaned = time.AfterFunc(attachTimeout, func() {
		s.log.Warn("closing a handle that nobody attached to", zap.String("channel", h.name), zap.Uint64("handle", h.id))
		s.discard(h)
	})
	return nil
}

// discard forgets h and closes it in the background.
func (s *Server) discard(h *handle) {
	s.forget(h)
	s.running.start(func() {
		if err := h.close(context.Background()); err != nil {
			s.log.Warn("closing a handle", zap.String("channel", h.name), zap.Uint64("handle", h.id), zap.Error(err))
		}
	})
}

func (s *Server) forget(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handles[h.id] == h {
		delete(s.handles, h.id)
	}
}

// handle returns an open handle.
func (s *Server) handle(id uint64) (*handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.handles[id]; h != nil {
		return h, nil
	}
	return nil, walimpls.Errorf(walimpls.CodeClosed, "", "handle %d is not open", id)
}

// Drop implements the service.
func (s *Server) Drop(ctx context.Context, req *pluginv1.DropRequest) (*pluginv1.DropResponse, error) {
	opener, err := s.backend()
	if err == nil {
		err = walimpls.ValidateName("channel", req.GetChannel())
	}
	if err == nil {
		err = opener.Drop(ctx, req.GetChannel(), req.GetTerm())
	}
	if err != nil {
		return nil, wire.StatusError(err)
	}
	return &pluginv1.DropResponse{}, nil
}

// Truncate implements the service.
func (s *Server) Truncate(ctx context.Context, req *pluginv1.TruncateRequest) (*pluginv1.TruncateResponse, error) {
	h, err := s.handle(req.GetHandle())
	if err == nil {
		err = h.wal.Truncate(ctx, message.ID(req.GetBefore()))
	}
	if err != nil {
		return nil, wire.StatusError(err)
	}
	return &pluginv1.TruncateResponse{}, nil
}

// Bounds implements the service.
func (s *Server) Bounds(ctx context.Context, req *pluginv1.BoundsRequest) (*pluginv1.BoundsResponse, error) {
	h, err := s.handle(req.GetHandle())
	if err != nil {
		return nil, wire.StatusError(err)
	}
	b, err := h.wal.Bounds(ctx)
	if err != nil {
		return nil, wire.StatusError(err)
	}
	return wire.BoundsToProto(b), nil
}

// CloseWAL implements the service. A handle that is not open is closed already.
func (s *Server) CloseWAL(ctx context.Context, req *pluginv1.CloseWALRequest) (*pluginv1.CloseWALResponse, error) {
	h, err := s.handle(req.GetHandle())
	if err != nil {
		return &pluginv1.CloseWALResponse{}, nil
	}
	s.forget(h)
	if err := h.close(ctx); err != nil {
		return nil, wire.StatusError(err)
	}
	return &pluginv1.CloseWALResponse{}, nil
}
