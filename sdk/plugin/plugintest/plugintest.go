// Package plugintest serves a backend over the real protocol inside `go test`:
// gRPC on a unix socket, the SDK's server on one end and its client on the other,
// without a process. What passes here and fails in a process is a matter of the
// process alone (environment, working folder, signals).
//
//	client := plugintest.Serve(t, mybackend.Builder{})
//	err := client.Configure(ctx, walimpls.Config{"dir": t.TempDir()})
//	wal, err := client.Open(ctx, walimpls.OpenOptions{…})
//
// Everything is stopped when the test ends.
package plugintest

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/walrig/walrig/sdk/plugin"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

// maxSocketPath is what the shortest sun_path of the systems we know can hold.
const maxSocketPath = 100

// Harness is one served backend.
type Harness struct {
	// Client is not configured yet.
	Client *remote.Client
	// Server is the other end.
	Server *plugin.Server
	// Address is the path of the unix socket.
	Address string

	conn *grpc.ClientConn
	grpc *grpc.Server
	kill sync.Once
}

// Serve serves b until the test ends and returns a client that is not configured yet.
func Serve(t testing.TB, b walimpls.Builder) *remote.Client {
	t.Helper()
	return Start(t, b).Client
}

// Start is Serve for tests that need more than the client.
func Start(t testing.TB, b walimpls.Builder) *Harness {
	t.Helper()
	dir := socketDir(t)
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatalf("plugintest: %v", err)
	}
	h := &Harness{
		Server:  plugin.NewServer(b, zap.NewNop()),
		Address: listener.Addr().String(),
		grpc:    grpc.NewServer(plugin.ServerOptions()...),
	}
	h.Server.Register(h.grpc)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.grpc.Serve(listener)
	}()
	h.conn, err = grpc.NewClient("unix:"+h.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("plugintest: %v", err)
	}
	h.Client = remote.New(h.conn)
	t.Cleanup(func() {
		ctx := context.Background()
		if err := h.Client.Close(ctx); err != nil {
			t.Logf("plugintest: closing the client: %v", err)
		}
		_ = h.conn.Close()
		h.Kill()
		if err := h.Server.Close(ctx); err != nil {
			t.Logf("plugintest: closing the backend: %v", err)
		}
		<-served
	})
	return h
}

// Kill cuts every connection at once and takes no new ones, as the death of the
// process would. The backend itself lives on until the test ends.
func (h *Harness) Kill() { h.kill.Do(h.grpc.Stop) }

// Disconnect ends the client's side of the connection for good, as the death of
// the host would.
func (h *Harness) Disconnect() error { return h.conn.Close() }

// socketDir returns a folder whose path is short enough for a socket, whatever
// TMPDIR and the test's name are.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "walrig")
	if err == nil && len(dir) > maxSocketPath {
		_ = os.Remove(dir)
		err = fs.ErrInvalid
	}
	if err != nil {
		dir, err = os.MkdirTemp("/tmp", "walrig")
	}
	if err != nil {
		t.Fatalf("plugintest: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
