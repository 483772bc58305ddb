package plugin

import (
	"context"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Server serves one Builder over the protocol plugin/v1. Serve makes one; tests
// make their own.
type Server struct {
	pluginv1.UnimplementedBackendServiceServer
}

// NewServer returns a server for b. log nil means no logs.
func NewServer(b walimpls.Builder, log *zap.Logger) *Server { return &Server{} }

// Register adds the service to r.
func (s *Server) Register(r grpc.ServiceRegistrar) { pluginv1.RegisterBackendServiceServer(r, s) }

// Close closes the Opener and everything that is open, within walimpls.GracePeriod.
func (s *Server) Close(ctx context.Context) error { return nil }

// Serve is the whole main of a plugin. It does not return.
func Serve(b walimpls.Builder) {}
