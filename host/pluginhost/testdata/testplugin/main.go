// Command testplugin is the plugin of the tests. It does what its mode says; those
// modes that are not named in runAs serve without the SDK, as a plugin of another
// author might. They are started by a script that hides the cookie, because
// the SDK takes over stdout otherwise.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The mode and its argument come in by the environment.
const (
	modeVariable   = "WALRIG_TEST_MODE"
	argVariable    = "WALRIG_TEST_ARG"
	cookieVariable = "WALRIG_TEST_COOKIE"
)

func main() { runAs(os.Getenv(modeVariable), os.Getenv(argVariable)) }

func runAs(mode, arg string) {
	switch mode {
	case "sdk":
		plugin.Serve(memBuilder{})
	case "sleep": // before it serves
		d, _ := time.ParseDuration(arg)
		time.Sleep(d)
		plugin.Serve(memBuilder{})
	case "grandchild": // that holds stdout and stderr
		startGrandchild(arg)
		plugin.Serve(memBuilder{})
	case "env":
		_ = os.WriteFile(arg, []byte(strings.Join(os.Environ(), "\n")), 0o600)
		plugin.Serve(memBuilder{})
	case "flood":
		go flood()
		plugin.Serve(memBuilder{})
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot load the frobnicator")
		os.Exit(3)
	case "panic":
		panic("frobnicated")
	case "backend":
		plugin.Serve(memBuilder{name: arg})
	default:
		serveRaw(mode, arg)
	}
}

// startGrandchild starts a sleep and writes its pid to a file. It inherits the
// plugin's stdout, stderr and life-line.
func startGrandchild(pidFile string) {
	c := exec.Command("sleep", "300")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	if strings.HasSuffix(pidFile, ".setsid") {
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	if err := c.Start(); err != nil {
		panic(err)
	}
	_ = os.WriteFile(pidFile, fmt.Append(nil, c.Process.Pid), 0o600)
}

func flood() {
	_, _ = os.Stderr.WriteString(strings.Repeat("x", 1<<20)) // no newline
	for i := range 200_000 {
		_, _ = fmt.Fprintf(os.Stderr, "short line %d\n", i)
	}
	junk := make([]byte, 100_000)
	for i := range junk {
		junk[i] = byte(i * 7)
	}
	_, _ = os.Stderr.Write(junk)
	for i := 0; ; i++ {
		_, _ = fmt.Fprintf(os.Stderr, "\n{\"@level\":\"info\",\"@message\":\"after the flood\",\"n\":%d}\n", i)
		time.Sleep(100 * time.Millisecond)
	}
}

// rawServer is a plugin without the SDK.
type rawServer struct {
	goplugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedBackendServiceServer
	mode string
}

func (r *rawServer) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	if r.mode != "noservice" {
		pluginv1.RegisterBackendServiceServer(s, r)
	}
	return nil
}

func (*rawServer) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (r *rawServer) Describe(ctx context.Context, _ *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	switch r.mode {
	case "describe-fails":
		return nil, status.Error(codes.Internal, "no idea what I am")
	case "describe-hangs":
		<-ctx.Done()
		time.Sleep(time.Minute)
	case "describe-exits":
		_, _ = syscall.Write(2, []byte("I quit\n")) // go-plugin redirects os.Stderr
		os.Exit(7)
	case "describe-invalid":
		return &pluginv1.DescribeResponse{Backend: "mem"}, nil
	}
	return &pluginv1.DescribeResponse{
		Backend: "mem", Version: "raw", IdLayout: "u64",
		Capabilities: &pluginv1.Capabilities{Fencing: "none", Durability: "memory", Truncation: "none"},
		Limits:       &pluginv1.Limits{MaxMessageBytes: 1000, MaxBatchRecords: 10, MaxBatchBytes: 10_000},
	}, nil
}

func (r *rawServer) Configure(context.Context, *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	switch r.mode {
	case "configure-refuses":
		return nil, status.Error(codes.Unavailable, "not today")
	case "stdout": // prints more than any pipe holds
		go func() {
			for range 10 << 10 {
				fmt.Println(strings.Repeat("y", 1023))
			}
			fmt.Println(strings.Repeat("z", 1<<20))
			for range 10 << 10 {
				_, _ = syscall.Write(1, bytes.Repeat([]byte("w"), 1024))
			}
			for {
				time.Sleep(100 * time.Millisecond)
				_, _ = syscall.Write(1, []byte("\nthe end\n"))
			}
		}()
	}
	return &pluginv1.ConfigureResponse{}, nil
}

// serveRaw serves through go-plugin alone. It never looks at its stdin.
func serveRaw(mode, arg string) {
	_ = os.Setenv(plugin.Handshake.MagicCookieKey, os.Getenv(cookieVariable))
	versions := map[int]goplugin.PluginSet{}
	switch mode {
	case "versions":
		for v := range strings.SplitSeq(arg, ",") {
			versions[int(v[0]-'0')] = goplugin.PluginSet{plugin.Name: &rawServer{mode: mode}}
		}
	case "nocert":
		_ = os.Unsetenv("PLUGIN_CLIENT_CERT")
		fallthrough
	default:
		versions[plugin.ProtocolVersion] = goplugin.PluginSet{plugin.Name: &rawServer{mode: mode}}
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: plugin.Handshake, VersionedPlugins: versions, GRPCServer: goplugin.DefaultGRPCServer,
		Logger: hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true}),
	})
	if mode == "lingers" {
		time.Sleep(time.Minute)
	}
}

// memBuilder is a backend in memory, the smallest that does the job.
type memBuilder struct{ name string }

func (b memBuilder) Name() string {
	if b.name != "" {
		return b.name
	}
	return "mem"
}

func (b memBuilder) Describe() walimpls.Description {
	return walimpls.Description{
		Backend: b.Name(), Version: "1.2.3", IDLayout: "u64",
		Capabilities: walimpls.Capabilities{Fencing: walimpls.FencingNone, Durability: walimpls.DurabilityMemory, Truncation: walimpls.TruncationNone},
		Limits:       walimpls.Limits{MaxMessageBytes: 16 << 20, MaxBatchRecords: 1000, MaxBatchBytes: 16 << 20},
		Config:       []walimpls.ConfigField{{Name: "dir", Type: walimpls.ConfigString, Doc: "must exist, if given"}},
	}
}

func (b memBuilder) Build(_ context.Context, cfg walimpls.Config, log *zap.Logger) (walimpls.Opener, error) {
	v, err := cfg.Decode(b.Describe().Config)
	if err != nil {
		return nil, err
	}
	if dir := v.String("dir"); dir != "" {
		if _, err := os.Stat(dir); err != nil {
			return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "key \"dir\": %v", err)
		}
	}
	log.Info("built", zap.Int("answer", 42))
	return &memOpener{}, nil
}

type memOpener struct{}

// Open does what the channel's name says, if it says something.
func (*memOpener) Open(_ context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	switch opt.Channel {
	case "exit":
		os.Exit(3)
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Minute) // the signal may take a moment
	case "refuse":
		return nil, walimpls.NewFencedError("refuse", opt.Pair(), walimpls.Pair{Term: 9, Incarnation: 9})
	}
	return &memWAL{channel: walimpls.Channel{Name: opt.Channel, StoreID: "mem", Pair: opt.Pair(), Access: opt.Access}}, nil
}

func (*memOpener) Drop(_ context.Context, channel string, _ int64) error {
	if channel == "refuse" {
		return walimpls.Errorf(walimpls.CodeUnsupported, channel, "no")
	}
	return nil
}

func (*memOpener) Close(context.Context) error { return nil }

type memWAL struct {
	channel walimpls.Channel
	mu      sync.Mutex
	log     []message.Message
}

func (w *memWAL) Channel() walimpls.Channel { return w.channel }

func (w *memWAL) Append(_ context.Context, batch []message.Message) ([]message.ID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]message.ID, len(batch))
	for i, m := range batch {
		m.ID = message.ID(binary.BigEndian.AppendUint64(nil, uint64(len(w.log)+1)))
		w.log = append(w.log, m)
		ids[i] = m.ID
	}
	return ids, nil
}

func (w *memWAL) Bounds(context.Context) (walimpls.Bounds, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.log)
	if n == 0 {
		return walimpls.Bounds{Empty: true}, nil
	}
	return walimpls.Bounds{Earliest: w.log[0].ID, Latest: w.log[n-1].ID, LatestRecord: w.log[n-1].ID}, nil
}

// Read returns what is there now, from the start on, and then waits for ever.
func (w *memWAL) Read(context.Context, walimpls.ReadOptions) (walimpls.Scanner, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &memScanner{left: w.log, closed: make(chan struct{})}, nil
}

type memScanner struct {
	left   []message.Message
	once   sync.Once
	closed chan struct{}
}

func (s *memScanner) Next(ctx context.Context) ([]message.Message, error) {
	if len(s.left) == 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.closed:
			return nil, walimpls.Errorf(walimpls.CodeClosed, "", "closed")
		}
	}
	next := s.left[:min(len(s.left), 100)]
	s.left = s.left[len(next):]
	return next, nil
}

func (s *memScanner) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (w *memWAL) Truncate(context.Context, message.ID) error {
	return walimpls.Errorf(walimpls.CodeUnsupported, w.channel.Name, "truncate")
}

func (w *memWAL) Close(context.Context) error { return nil }
