package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/client"
)

// binaries is where the programs under test are.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "walrig-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	args := append([]string{"build", "-o", dir + "/"}, raceFlag...)
	args = append(args, "./host/cmd/walrig", "./plugins/rmq/cmd/...", "./plugins/kafka/cmd/...", "./plugins/pulsar/cmd/...", "./conformance/faultbackend/cmd/...")
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go %s: %v\n%s", strings.Join(args, " "), err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// host is a running walrig serve.
type host struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string
	log  *lockedBuffer
	gone chan struct{} // closed when the process was reaped
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var readyLine = regexp.MustCompile(`^walrig ready addr=(\S+) data_dir=(\S+) pid=(\d+)$`)

// startHost serves dataDir on a free port and waits until it is ready.
func startHost(t *testing.T, dataDir string, within time.Duration, args ...string) *host {
	t.Helper()
	h := &host{t: t, log: &lockedBuffer{}, gone: make(chan struct{})}
	h.cmd = exec.Command(filepath.Join(binaries, "walrig"), append([]string{"serve", "--listen", "127.0.0.1:0", "--data-dir", dataDir}, args...)...)
	h.cmd.Env = cleanEnv()
	h.cmd.Stderr = h.log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.stop)
	ready := make(chan string, 1)
	go func() {
		defer close(h.gone)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			}
		}
		_ = h.cmd.Wait()
	}()
	select {
	case h.addr = <-ready:
	case <-h.gone:
		t.Fatalf("the host ended before it was ready:\n%s", h.log)
	case <-time.After(within):
		t.Fatalf("the host is not ready after %v:\n%s", within, h.log)
	}
	return h
}

func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "WALRIG_") {
			env = append(env, e)
		}
	}
	return env
}

// kill ends the host's process alone with SIGKILL.
func (h *host) kill() {
	h.t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		h.t.Fatal(err)
	}
	<-h.gone
}

// stop ends the host as a user does, and by force if that takes too long.
func (h *host) stop() {
	select {
	case <-h.gone:
		return
	default:
	}
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-h.gone:
		return
	case <-time.After(15 * time.Second):
		h.t.Errorf("the host did not stop within 15 s of SIGTERM")
		_ = h.cmd.Process.Kill()
		<-h.gone
	}
}

// client dials the host.
func (h *host) client() *client.Client {
	h.t.Helper()
	c, err := client.Dial(timeout(h.t, 10*time.Second), h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// pluginPID returns the process of the first plugin, 0 while there is none.
func pluginPID(t *testing.T, c *client.Client) int {
	t.Helper()
	st, err := c.Status(timeout(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if p := st.GetPlugins()[0]; p.GetState() == "running" {
		return int(p.GetPid())
	}
	return 0
}

// alive reports whether a process runs; one that waits to be reaped does not.
func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && len(b) > 0
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that another process makes true.
func eventually(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(d)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, d)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// walrig runs a command of the CLI against the host and returns what it prints.
func (h *host) walrig(stdin string, args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "walrig"), args...)
	cmd.Env = append(cleanEnv(), "WALRIG_ADDR="+h.addr)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		h.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
