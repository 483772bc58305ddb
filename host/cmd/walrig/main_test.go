package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"walrig": main})
}

// leakChecked fails a run whose tests leave goroutines behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// pluginDir builds the real plugin binaries, once.
var pluginDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "walrig-cli-plugins-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir+"/", "../../../plugins/rmq/cmd/walrig-plugin-rmq", "../../../conformance/faultbackend/cmd/walrig-plugin-fault")
	if text, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, text)
	}
	return dir, nil
})

// TestScripts runs the real commands, as processes of their own, against real
// hosts with a real plugin. The scripts in testdata tell what they promise.
func TestScripts(t *testing.T) {
	dir, err := pluginDir()
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err != nil {
		t.Fatal(err)
	}
	sdk, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			// The race detector sleeps a second at the end of every process otherwise.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			env.Setenv("WALRIG_PLUGIN_DIR", dir)
			env.Setenv("PLUGIN", filepath.Join(dir, "walrig-plugin-rmq"))
			env.Setenv("SDK", sdk)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  cmdExits,
			"up":     cmdUp,
			"down":   cmdDown,
			"gone":   cmdGone,
			"seqgen": cmdSeq,
			"flip":   cmdFlip,
		},
	})
}

// exits CODE COMMAND ARGS... runs a command and compares its exit code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// up READYFILE waits until a host that was started in the background is ready,
// and makes the commands that follow talk to it.
func cmdUp(ts *testscript.TestScript, neg bool, args []string) {
	path := ts.MkAbs(args[0])
	poll(ts, "the host is not ready", func() bool {
		data, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		addr, _, _ := strings.Cut(strings.TrimPrefix(string(data), `{"addr":"`), `"`)
		ts.Setenv("WALRIG_ADDR", addr)
		_, rest, _ := strings.Cut(string(data), `"pid":`)
		pid, _, _ := strings.Cut(rest, ",")
		ts.Setenv("HOST_PID", pid)
		return true
	})
}

// down SIGNAL sends a signal to the host that up found.
func cmdDown(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL}
	pid, err := strconv.Atoi(ts.Getenv("HOST_PID"))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, signals[args[0]]))
}

// gone PATH waits until a file is not there any more.
func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	path := ts.MkAbs(args[0])
	poll(ts, path+" is still there", func() bool {
		_, err := os.Lstat(path)
		return errors.Is(err, os.ErrNotExist)
	})
}

// seqgen FILE N writes N different lines.
func cmdSeq(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(lines(n)), 0o600))
}

func poll(ts *testscript.TestScript, failure string, done func() bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(60 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			ts.Fatalf("%s", failure)
		}
	}
}

// flip FILE TEXT changes one bit of the file, where the text is.
func cmdFlip(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	at := strings.Index(string(b), args[1])
	if at < 0 {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	b[at] ^= 1
	ts.Check(os.WriteFile(path, b, 0o600))
}
