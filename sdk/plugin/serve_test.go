package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

// modeEnv makes this test binary a plugin that misbehaves in one way.
const modeEnv = "WALRIG_TEST_PLUGIN_MODE"

func init() {
	if os.Getenv(modeEnv) == "noise" {
		fmt.Println("hello from an init function")
	}
}

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		plugin.Serve(misbehaving(mode))
	}
	goleak.VerifyTestMain(m)
}

func misbehaving(mode string) walimpls.Builder {
	b := &membackend.Backend{}
	switch mode {
	case "noise":
		fmt.Println("hello from main")
		// The second append prints 10 MiB, in lines and as one.
		n := 0
		b.BeforeAppend = func(context.Context, []message.Message) error {
			if n++; n == 2 {
				for range 5 << 10 {
					fmt.Println(strings.Repeat("n", 1023))
				}
				_, _ = os.NewFile(1, "stdout").WriteString(strings.Repeat("m", 5<<20))
				fmt.Fprintln(os.Stderr, "last words of the noise")
			}
			return nil
		}
	case "panic":
		b.BeforeAppend = func(context.Context, []message.Message) error { panic("no such shard") }
	case "hang":
		b.BeforeClose = func() { select {} }
	case "log":
		b.OnBuild = func(_ walimpls.Values, log *zap.Logger) error {
			log.Named("store").Warn("opened", zap.Int("shards", 4), zap.Duration("took", time.Second), zap.Error(errors.New("why")))
			log.Debug("not at this level")
			return nil
		}
	case "description":
		b.Limits = walimpls.Limits{MaxMessageBytes: 1}
	}
	return b
}

// process is a plugin process under the real go-plugin client.
type process struct {
	*remote.Client
	plugin *goplugin.Client
	cmd    *exec.Cmd
	stdin  *os.File // the host's end of the life-line
	stderr *buffer
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, mode string) *process {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), modeEnv+"="+mode)
	// go-plugin gives the child its own stdin, whatever cmd says.
	defer func(old *os.File) { os.Stdin = old }(os.Stdin)
	os.Stdin = r
	p := &process{cmd: cmd, stdin: w, stderr: &buffer{}}
	p.plugin = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  plugin.Handshake,
		VersionedPlugins: plugin.Plugins(),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         mode == "plain", // its keys take their time
		Cmd:              cmd,
		Stderr:           p.stderr,
		Logger:           hclog.NewNullLogger(),
	})
	t.Cleanup(func() {
		p.plugin.Kill()
		_ = r.Close()
		_ = w.Close()
	})
	rpc, err := p.plugin.Client()
	_ = r.Close() // the child has its own
	if err != nil {
		t.Fatalf("start: %v\n%s", err, p.stderr)
	}
	raw, err := rpc.Dispense(plugin.Name)
	if err != nil {
		t.Fatal(err)
	}
	p.Client = raw.(*remote.Client)
	return p
}

// exited polls until the process is gone, and fails after the bound.
func (p *process) exited(t *testing.T, bound time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); !p.plugin.Exited(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the plugin runs %s later\n%s", bound, p.stderr)
		}
	}
}

func opened(t *testing.T, c *remote.Client) *remote.WAL {
	t.Helper()
	if err := c.Configure(soon(t), walimpls.Config{"dir": "x"}); err != nil {
		t.Fatalf("Configure: %v", err)
	}
	w, err := c.Open(soon(t), walimpls.OpenOptions{Channel: "orders", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return w.(*remote.WAL)
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func data(payload string) []message.Message {
	return []message.Message{{Type: message.TypeData, Payload: []byte(payload)}}
}

func TestPluginProcessServesOverAutoMTLS(t *testing.T) {
	p := start(t, "plain")
	d, err := p.Describe(soon(t))
	if err != nil || d.Backend != "mem" || p.plugin.NegotiatedVersion() != plugin.ProtocolVersion {
		t.Fatalf("%+v %v, protocol %d", d, err, p.plugin.NegotiatedVersion())
	}
	w := opened(t, p.Client)
	// Above gRPC's 4 MiB: 1000 records of 10 KiB in one call, and the largest record.
	batch := make([]message.Message, 1000)
	for i := range batch {
		batch[i] = message.Message{Type: message.TypeData, Payload: bytes.Repeat([]byte{byte(i)}, 10<<10)}
	}
	if ids, err := w.Append(soon(t), batch); err != nil || len(ids) != 1000 {
		t.Fatalf("%d ids, %v", len(ids), err)
	}
	if _, err := w.Append(soon(t), data(strings.Repeat("x", 1<<20))); err != nil {
		t.Fatal(err)
	}
	p.plugin.Kill()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d after an orderly stop\n%s", code, p.stderr)
	}
}

func TestPrintsNeverReachTheHandshakeNorBlock(t *testing.T) {
	p := start(t, "noise")
	w := opened(t, p.Client)
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := w.Append(ctx, data("x"))
		cancel()
		if err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
	}
	p.plugin.Kill()
	log := p.stderr.String()
	for _, want := range []string{"hello from an init function", "hello from main", "last words of the noise"} {
		if !strings.Contains(log, want) {
			t.Errorf("%q is not in the log", want)
		}
	}
	if len(log) > 2<<20 {
		t.Errorf("10 MiB of noise made a log of %d bytes", len(log))
	}
}

func TestLogsAreHCLogLines(t *testing.T) {
	p := start(t, "log")
	opened(t, p.Client)
	p.plugin.Kill()
	var found bool
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, "not at this level") {
			t.Errorf("a debug line at level info: %s", line)
		}
		found = found || (strings.Contains(line, `"@level":"warn"`) && strings.Contains(line, `"@module":"store"`) &&
			strings.Contains(line, `"@message":"opened"`) && strings.Contains(line, `"@timestamp":"2`) &&
			strings.Contains(line, `"shards":4`) && strings.Contains(line, `"took":"1s"`) && strings.Contains(line, `"error":"why"`))
	}
	if !found {
		t.Errorf("no such line in\n%s", p.stderr)
	}
}

func TestPluginWhoseHostDiesExitsWithinTwoSeconds(t *testing.T) {
	for _, mode := range []string{"plain", "hang"} {
		t.Run(mode, func(t *testing.T) {
			p := start(t, mode)
			opened(t, p.Client)
			_ = p.stdin.Close()
			p.exited(t, 2*time.Second)
		})
	}
}

func TestSIGTERMClosesTheBackendAndExits(t *testing.T) {
	p := start(t, "plain")
	w := opened(t, p.Client)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.Broken():
	case <-soon(t).Done():
		t.Fatal("the handle is not broken")
	}
	p.exited(t, walimpls.GracePeriod)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestSIGINTIsIgnored(t *testing.T) {
	p := start(t, "plain")
	w := opened(t, p.Client)
	for range 3 {
		_ = p.cmd.Process.Signal(os.Interrupt)
		if _, err := w.Append(soon(t), data("x")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPanicInAppendIsUnknownAndItsStackIsLogged(t *testing.T) {
	p := start(t, "panic")
	w := opened(t, p.Client)
	if _, err := w.Append(soon(t), data("x")); !errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Errorf("Append: %v", err)
	}
	if _, err := w.Append(soon(t), data("y")); !errors.Is(err, walimpls.ErrUnavailable) || errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Errorf("Append behind it: %v", err)
	}
	p.exited(t, 5*time.Second)
	if log := p.stderr.String(); !strings.Contains(log, "no such shard") || !strings.Contains(log, "goroutine") {
		t.Errorf("the log lacks the stack:\n%s", log)
	}
	if err := w.Close(soon(t)); err != nil {
		t.Errorf("Close of a handle in a process that is gone: %v", err)
	}
}

func TestPluginStartedByHandSaysWhatItIs(t *testing.T) {
	cmd := exec.CommandContext(soon(t), os.Args[0])
	cmd.Env = append(os.Environ(), modeEnv+"=plain")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("%v", err)
	}
	for _, want := range []string{`backend "mem"`, "version 1.2.3", "protocol 1", "walrig plugin verify"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestInvalidDescriptionIsRefusedAtTheStart(t *testing.T) {
	cmd := exec.CommandContext(soon(t), os.Args[0])
	cmd.Env = append(os.Environ(), modeEnv+"=description", plugin.Handshake.MagicCookieKey+"="+plugin.Handshake.MagicCookieValue)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "limits must be positive") {
		t.Errorf("%v\n%s", err, out)
	}
}
