package plugin

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/walimpls"
)

// orphanGrace bounds how long a plugin whose host died works on its way out; the
// promise is 2 s.
const orphanGrace = 1500 * time.Millisecond

const gcPercent = 400

// Exit codes of a plugin process.
const (
	exitOK      = 0
	exitFailure = 1
	exitByHand  = 2 // started without the host's cookie
)

// Serve is the whole main of a plugin:
//
//	func main() { plugin.Serve(rmq.Builder{}) }
//
// It serves b to the host that started the process and exits when the host says
// so (go-plugin's Shutdown, SIGTERM) or dies (end of stdin, if that is a pipe),
// after it has closed the backend. It never returns. Started by hand it says what
// the binary is and exits with 2.
//
// Logs are to go through the logger that Build is given. Prints to stdout or
// stderr do no harm: they become log lines too, as far as they are not a flood.
// SIGINT is ignored: Ctrl-C reaches the whole process group, and the host decides.
//
// Unless GOGC is set the garbage collector's target is raised to 400 %: records
// pass through quickly, and collecting for them is most of what they would cost.
func Serve(b walimpls.Builder) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(serve(b))
}

func serve(b walimpls.Builder) int {
	d := b.Describe()
	if os.Getenv(Handshake.MagicCookieKey) != Handshake.MagicCookieValue {
		writeByHand(os.Stderr, filepath.Base(os.Args[0]), d)
		return exitByHand
	}
	// A host that died leaves a broken stderr; writing to it must not kill the
	// process before the backend is closed.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGPIPE)

	std := ownStdio
	if std == nil {
		fmt.Fprintln(os.Stderr, "plugin: stdout could not be redirected")
		return exitFailure
	}
	log := std.log
	if err := checkBuilder(b, d); err != nil {
		log.Error("this backend cannot be served: its description is not valid", zap.Error(err))
		return exitFailure
	}
	server := NewServer(b, log)
	p := &process{server: server, log: log, stdio: std, restored: sync.OnceFunc(std.restore)}
	if life := lifeline(os.Stdin); life != nil {
		go p.watch(life)
	}
	go p.stopOn(signals)

	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: Handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{
			ProtocolVersion: {Name: GRPCPlugin{Builder: b, server: server}},
		},
		GRPCServer: p.newGRPCServer,
		Logger:     newHCLog(std.out),
	})
	return p.finish()
}

// checkBuilder refuses what the host would refuse.
func checkBuilder(b walimpls.Builder, d walimpls.Description) error {
	if err := d.Validate(); err != nil {
		return err
	}
	if b.Name() != d.Backend {
		return fmt.Errorf("the Builder is called %q and describes itself as %q", b.Name(), d.Backend)
	}
	return nil
}

// writeByHand tells somebody who started the binary what it is.
func writeByHand(w io.Writer, program string, d walimpls.Description) {
	_, _ = fmt.Fprintf(w, `%s is a walrig plugin: backend %q, version %s, plugin protocol %d.
It is started by the walrig host and does nothing on its own.
To use it, put it beside the walrig binary or into the host's plugin_dir, and configure it:
  plugins:
    mylog: {backend: %s}
To check it: walrig plugin verify ./%s
`, program, d.Backend, d.Version, ProtocolVersion, d.Backend, program)
}

// process is the life of one plugin process.
type process struct {
	server   *Server
	log      *zap.Logger
	stdio    *stdio
	restored func() // stdio.restore, once

	mu   sync.Mutex // guards grpc
	grpc *grpc.Server

	stopping sync.Once
	stopErr  error
}

// newGRPCServer is go-plugin's hook.
func (p *process) newGRPCServer(opts []grpc.ServerOption) *grpc.Server {
	opts = append(opts, ServerOptions()...)
	opts = append(opts,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			p.restored()
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			p.restored()
			return next(srv, ss)
		}),
	)
	s := grpc.NewServer(opts...)
	p.mu.Lock()
	p.grpc = s
	p.mu.Unlock()
	p.stdio.lend()
	return s
}

// stopOn closes the backend first, so that appends under way still get their
// answer, then the server; goplugin.Serve returns then.
func (p *process) stopOn(signals <-chan os.Signal) {
	<-signals
	p.log.Info("stopping on a signal")
	_ = p.stop(walimpls.GracePeriod)
	p.mu.Lock()
	s := p.grpc
	p.mu.Unlock()
	if s == nil {
		os.Exit(exitOK) // not even serving yet
	}
	s.Stop()
}

// watch ends the process within 2 s after the other end of the life-line, which
// only the host holds, is gone.
func (p *process) watch(life *os.File) {
	_, _ = io.Copy(io.Discard, life)
	time.AfterFunc(orphanGrace+200*time.Millisecond, func() { os.Exit(exitFailure) })
	p.log.Warn("the host is gone, stopping")
	if p.stop(orphanGrace) != nil {
		os.Exit(exitFailure)
	}
	os.Exit(exitOK)
}

// stop closes the backend once; later callers wait for the first.
func (p *process) stop(grace time.Duration) error {
	p.stopping.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		p.stopErr = p.server.Close(ctx)
	})
	return p.stopErr
}

// finish is called when the gRPC server has stopped, or could not start.
func (p *process) finish() int {
	p.mu.Lock()
	started := p.grpc != nil
	p.mu.Unlock()
	if !started {
		return exitFailure // go-plugin has logged why
	}
	if err := p.stop(walimpls.GracePeriod); err != nil {
		p.log.Error("closing the backend", zap.Error(err))
		return exitFailure
	}
	return exitOK
}

// lifeline returns stdin if it can tell of the host's death: a pipe or a socket.
// A terminal, a file or /dev/null says nothing.
func lifeline(stdin *os.File) *os.File {
	info, err := stdin.Stat()
	if err != nil || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
		return nil
	}
	return stdin
}
