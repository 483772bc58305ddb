package server

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Server is the host's API. Make one with New, run it with Serve, once.
type Server struct {
	walv1.UnimplementedWALServiceServer
	opt      Options
	log      *zap.Logger
	pid      int
	channels *channels
	health   *health.Server
	// calls counts the calls that Shutdown waits for.
	calls *gate
	ready chan struct{}
	// draining is closed when Shutdown begins; hard ends when its time for what
	// is under way is over.
	draining chan struct{}
	hard     context.Context
	hardStop context.CancelFunc
	// watched ends when those who watch the health have been told of the end.
	watched   context.Context
	watchStop context.CancelFunc
	// helpers counts goroutines that end soon after their stream or Shutdown.
	helpers sync.WaitGroup

	mu   sync.Mutex // guards all below
	grpc *grpc.Server
	addr string
	down chan struct{} // closed when Shutdown has ended; nil before it begins
}

// New returns a server; nothing runs before Serve.
func New(opt Options) *Server {
	opt = opt.withDefaults()
	s := &Server{
		opt: opt, log: opt.Log.Named("server"), pid: os.Getpid(), channels: newChannels(opt),
		health: health.NewServer(), calls: newGate(), ready: make(chan struct{}), draining: make(chan struct{}),
	}
	s.hard, s.hardStop = context.WithCancel(context.Background())
	s.watched, s.watchStop = context.WithCancel(context.Background())
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	return s
}

// Ready is closed when each plugin's first start has ended, well or badly, and
// each channel is open or has reported its first error.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Serve serves lis until ctx ends or Shutdown is called, and returns nil then,
// when Shutdown has ended. It takes lis over. Errors: ErrConfig for options
// that cannot work and for a listener that others can reach without TLS and
// Auth, the catalog's errors, and those of lis.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	g, err := s.begin(ctx, lis)
	if err != nil {
		_ = lis.Close()
		s.channels.close()
		s.hardStop()
		if errors.Is(err, walimpls.ErrShutdown) || ctx.Err() != nil { // the end came first
			return nil
		}
		return err
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	select {
	case <-ctx.Done():
		s.Shutdown(context.WithoutCancel(ctx))
		err = <-served // the end that Shutdown brought
		s.opt.Log.Debug("the listener ended", zap.Error(err))
		return nil
	case err = <-served:
	}
	// Without an error Shutdown has made it return, and may not be done.
	s.Shutdown(context.WithoutCancel(ctx))
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return walimpls.Errorf(walimpls.CodeUnavailable, "", "listener %s: %w", lis.Addr(), err)
	}
	return nil
}

// begin checks the options, takes in the channels and makes the gRPC server.
func (s *Server) begin(ctx context.Context, lis net.Listener) (*grpc.Server, error) {
	if err := s.opt.validate(); err != nil {
		return nil, err
	}
	if err := CheckListen(lis.Addr().String(), s.opt.TLS != nil, s.opt.Auth != nil, s.opt.Insecure); err != nil {
		return nil, err
	}
	g := grpc.NewServer(s.serverOptions()...)
	walv1.RegisterWALServiceServer(g, s)
	walv1.RegisterAdminServiceServer(g, &admin{s: s})
	healthv1.RegisterHealthServer(g, s.health)
	reflection.Register(g)

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down != nil:
		return nil, shutdownError("")
	case s.grpc != nil:
		return nil, walimpls.Errorf(walimpls.CodeInternal, "", "server: Serve was called twice")
	}
	if err := s.channels.load(ctx); err != nil {
		return nil, err
	}
	s.grpc, s.addr = g, lis.Addr().String()
	s.helpers.Add(1)
	go s.becomeReady()
	return g, nil
}

func (s *Server) serverOptions() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		// The backend's limit is the one that counts; it is checked for each record.
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.WaitForHandlers(true),
		grpc.ForceServerCodecV2(wire.Codec()),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}
	if s.opt.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.opt.TLS)))
	}
	return opts
}

// becomeReady waits for the first word of every plugin and channel.
func (s *Server) becomeReady() {
	defer s.helpers.Done()
	ctx := s.channels.ctx
	var wg sync.WaitGroup
	for _, plugin := range s.opt.Plugins.Plugins() {
		wg.Go(func() {
			if err := plugin.WaitFirstStart(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("plugin did not start", zap.String("plugin", plugin.Name()), zap.Error(err))
			}
		})
	}
	wg.Wait()
	for _, c := range s.channels.all() {
		select {
		case <-c.first:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return
	}
	close(s.ready)
	s.setHealth(healthv1.HealthCheckResponse_SERVING)
	s.log.Info("ready", zap.String("addr", s.addr))
}

func (s *Server) setHealth(st healthv1.HealthCheckResponse_ServingStatus) {
	for _, service := range []string{"", walv1.WALService_ServiceDesc.ServiceName, walv1.AdminService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, st)
	}
}

// isReady reports whether the host is ready and not stopping.
func (s *Server) isReady() bool {
	select {
	case <-s.draining:
		return false
	default:
	}
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// hardGrace is the time that calls get to answer once they have been cut short,
// and the time gRPC gets to send what they answered.
const hardGrace = 600 * time.Millisecond

// watchGrace is how long health watches may take to pass on NOT_SERVING.
const watchGrace = 100 * time.Millisecond

// Shutdown stops the server: health turns NOT_SERVING, new calls and readers
// end with ErrShutdown, appends under way end or are cut short after
// Options.DrainTimeout or when ctx ends. It returns within
// DrainTimeout + 2 s; every call waits for the first one's end.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	if s.down != nil {
		down := s.down
		s.mu.Unlock()
		<-down
		return
	}
	s.down = make(chan struct{})
	g := s.grpc
	s.mu.Unlock()
	defer close(s.down)

	s.log.Info("shutting down")
	s.health.Shutdown()
	time.AfterFunc(watchGrace, s.watchStop)
	close(s.draining)
	s.calls.close()
	drain, cancel := context.WithTimeout(ctx, s.opt.DrainTimeout)
	if !s.calls.wait(drain) {
		s.log.Warn("calls are still under way, cutting them short")
	}
	cancel()
	s.hardStop()
	if g != nil {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), hardGrace)
		s.calls.wait(short)
		cancel()
		s.stopBounded(g)
	}
	if !within(hardGrace/2, func() { s.channels.close(); s.helpers.Wait() }) {
		s.log.Warn("a channel or a stream does not end")
	}
}

// stopBounded lets gRPC send what was answered, then ends every connection, and
// then leaves a handler behind that heeds neither its context nor its stream.
func (s *Server) stopBounded(g *grpc.Server) {
	if within(hardGrace, g.GracefulStop) {
		return
	}
	if !within(hardGrace, g.Stop) {
		s.log.Warn("a call does not end")
	}
}

// within runs f and reports whether it returned in time. If not, its goroutine
// ends when f does.
func within(bound time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func shutdownError(channel string) error {
	e := walimpls.Errorf(walimpls.CodeShutdown, channel, "the host is stopping")
	e.Hint = "try again when it is back"
	return e
}
