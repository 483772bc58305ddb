package brokers

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bound is what these tests wait for something that takes a second.
const bound = 60 * time.Second

// envHelper makes TestHelper a second process of these tests: it gets a broker
// as the variable says, prints its address, and ends when its stdin does.
const envHelper = "WALRIG_BROKERS_HELPER"

func TestHelper(t *testing.T) {
	var addr string
	switch what := os.Getenv(envHelper); what {
	case "":
		return // not asked: nothing to test here
	case "shared kafka":
		addr = Kafka(t).Addr
	case "shared pulsar":
		addr = Pulsar(t).ServiceURL
	case "private kafka":
		addr = StartKafka(t, KafkaOptions{}).Addr
	case "private pulsar":
		addr = StartPulsar(t, PulsarOptions{}).ServiceURL
	default:
		t.Fatalf("unknown helper %q", what)
	}
	fmt.Printf("\nADDR %s\n", addr)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Fatal(err)
	}
}

// helper is a running TestHelper whose brokers live below tmp.
type helper struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

func startHelper(t *testing.T, what, tmp string) *helper {
	t.Helper()
	return startAs(t, exec.Command(os.Args[0], "-test.run=^TestHelper$", "-test.v"), what, tmp)
}

func startAs(t *testing.T, cmd *exec.Cmd, what, tmp string) *helper {
	t.Helper()
	cmd.Env = append(os.Environ(), envHelper+"="+what, "TMPDIR="+tmp, EnvKafka+"=", EnvPulsar+"=", "XDG_CACHE_HOME="+filepath.Dir(cacheDir()))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &helper{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
	t.Cleanup(func() { h.kill() })
	return h
}

// addr waits for the next address that the helper prints.
func (h *helper) addr(t *testing.T) string {
	t.Helper()
	var said []string
	for h.lines.Scan() {
		if addr, ok := strings.CutPrefix(h.lines.Text(), "ADDR "); ok {
			return addr
		}
		said = append(said, h.lines.Text())
	}
	t.Fatalf("the helper ended without a broker: %s", strings.Join(said, "\n"))
	return ""
}

// kill ends the helper with SIGKILL, as a crash would.
func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// finish lets the helper's test end, which must pass.
func (h *helper) finish(t *testing.T) {
	t.Helper()
	h.stdin.Close()
	for h.lines.Scan() {
		t.Log(h.lines.Text())
	}
	if err := h.cmd.Wait(); err != nil {
		t.Fatalf("helper: %v", err)
	}
}

// processesOf lists the processes that have dir in their command line: brokers,
// watchdogs and recipes.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(all) == 0 {
		t.Fatalf("no processes in /proc: %v", err)
	}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(dir)) {
			found = append(found, path+": "+string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// brokersOf counts the Java processes below dir.
func brokersOf(t *testing.T, dir string) int {
	t.Helper()
	n := 0
	for _, p := range processesOf(t, dir) {
		if strings.Contains(p, "java") {
			n++
		}
	}
	return n
}

// awaitNothing waits until no process and no folder of dir's rooms is left.
func awaitNothing(t *testing.T, dir string) {
	t.Helper()
	var processes, rooms []string
	ok := eventually(func() bool {
		processes = processesOf(t, dir)
		rooms = rooms[:0]
		for _, pattern := range []string{"walrig-kafka-*", "walrig-pulsar-*", "walrig-brokers-*/*"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern))
			rooms = append(rooms, found...)
		}
		return len(processes) == 0 && len(rooms) == 0
	})
	if !ok {
		t.Fatalf("left behind: rooms %v, processes:\n%s", rooms, strings.Join(processes, "\n"))
	}
}

func eventually(cond func() bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return cond()
		case <-tick.C:
		}
	}
	return true
}

// needBrokers ends a test that would start brokers in a helper, by the rules of
// the package: the helper's own skip would look like a failure.
func needBrokers(t *testing.T, rec recipe, kind string) {
	t.Helper()
	skipIfShort(t)
	if err := rec.require(); err != nil {
		end(t, kind, err)
	}
}

func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && len(b) > 0
}
