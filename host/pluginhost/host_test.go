package pluginhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// raw returns a script that starts the test plugin without the cookie, after
// the given lines.
func raw(t *testing.T, before string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "raw"), fmt.Sprintf("#!/bin/sh\n%s\n%s=$WALRIG_PLUGIN_COOKIE; export %s; unset WALRIG_PLUGIN_COOKIE\nexec %s\n",
		before, cookieVariable, cookieVariable, testPlugin(t)), 0o755)
}

// mode returns the entry of a plugin of that mode.
func mode(t *testing.T, mode, arg string) Config {
	t.Helper()
	path := testPlugin(t)
	switch mode {
	case "sdk", "sleep", "grandchild", "env", "flood", "exit", "panic", "backend":
	default:
		path = raw(t, "")
	}
	return Config{Name: mode, Backend: "mem", Path: path, Env: map[string]string{modeVariable: mode, argVariable: arg}}
}

func newHost(t *testing.T, opt Options) *Host {
	t.Helper()
	h, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func onePlugin(t *testing.T, cfg Config, opt Options) *Plugin {
	t.Helper()
	opt.Plugins = []Config{cfg}
	return newHost(t, opt).Plugins()[0]
}

// within returns a context that ends a test's wait.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func channel(name string) walimpls.OpenOptions {
	return walimpls.OpenOptions{Channel: name, Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite}
}

// reach waits until ok says yes; it looks at every change of the plugin.
func (p *Plugin) reach(t *testing.T, what string, ok func(Status) bool) Status {
	t.Helper()
	ctx := within(t, 20*time.Second)
	for {
		p.mu.Lock()
		st, changed := p.status, p.changed
		p.mu.Unlock()
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never %s: %+v", what, st)
		}
	}
}

// gone waits until no process has the pid, or a zombie that its new parent has
// to reap.
func gone(t *testing.T, what string, pid int, d time.Duration) {
	t.Helper()
	if pid <= 0 {
		t.Fatalf("%s: pid %d", what, pid)
	}
	deadline := time.Now().Add(d)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			if syscall.Kill(pid, 0) != nil {
				return
			}
		} else if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "Z") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s (%d) still runs after %s", what, pid, d)
		}
		time.Sleep(5 * time.Millisecond) // a process tells nobody of its end but its parent
	}
}

func TestPluginStartsAndServes(t *testing.T) {
	t.Parallel()
	log, logs := observed(zap.DebugLevel)
	cfg := mode(t, "sdk", "")
	p := onePlugin(t, cfg, Options{Log: log})
	if err := p.WaitFirstStart(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	st := p.Status()
	want := Status{
		Name: "sdk", Backend: "mem", Version: "1.2.3", PID: st.PID, State: "running", SHA256: sum(t, testPlugin(t)),
		Protocol: 1, Path: testPlugin(t), Fencing: "none",
	}
	if st != want || st.PID == 0 {
		t.Errorf("status %+v, want %+v", st, want)
	}
	d, err := p.Description(t.Context())
	if err != nil || d.Limits.MaxMessageBytes != 16<<20 {
		t.Errorf("description %+v, %v", d, err)
	}
	wal, err := p.Open(t.Context(), channel("orders"))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := wal.Append(t.Context(), []message.Message{{Type: message.TypeData, Payload: []byte("x")}})
	if err != nil || len(ids) != 1 {
		t.Errorf("append: %v, %v", ids, err)
	}
	if _, ok := wal.(interface{ Broken() <-chan struct{} }); !ok {
		t.Error("the WAL is not the remote one")
	}
	if err := p.Drop(t.Context(), "refuse", 1); !errors.Is(err, walimpls.ErrUnsupported) {
		t.Errorf("drop: %v", err)
	}
	var fenced *walimpls.FencedError
	if _, err := p.Open(t.Context(), channel("refuse")); !errors.As(err, &fenced) || fenced.Highest.Term != 9 {
		t.Errorf("refused open: %v", err)
	}
	built := logs.FilterMessage("built").All()
	if len(built) != 1 || built[0].ContextMap()["plugin"] != "sdk" || fmt.Sprint(built[0].ContextMap()["answer"]) != "42" {
		t.Errorf("the plugin's log lines: %+v", built)
	}
}

// P-09: gRPC's limit of 4 MiB is nobody's.
func TestOnlyTheBackendLimitsARecord(t *testing.T) {
	t.Parallel()
	p := onePlugin(t, mode(t, "sdk", ""), Options{})
	ctx := within(t, 60*time.Second)
	wal, err := p.Open(ctx, channel("big"))
	if err != nil {
		t.Fatal(err)
	}
	record := func(n int) message.Message {
		return message.Message{Type: message.TypeData, Payload: bytes.Repeat([]byte{byte(n), byte(n >> 8)}, n/2)}
	}
	batches := [][]message.Message{{record(3900 << 10)}, {record(4 << 20)}, {record(4100 << 10)}, {record(16 << 20)}, nil}
	for i := range 1000 {
		batches[4] = append(batches[4], record(10<<10+2*i))
	}
	var want []message.Message
	for _, b := range batches {
		if _, err := wal.Append(ctx, b); err != nil {
			t.Fatal(err)
		}
		want = append(want, b...)
	}
	if _, err := wal.Append(ctx, []message.Message{record(16<<20 + 2)}); !errors.Is(err, walimpls.ErrTooLarge) {
		t.Errorf("above the limit: %v", err)
	}
	sc, err := wal.Read(ctx, walimpls.ReadOptions{Start: walimpls.FromAll()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sc.Close() }()
	for len(want) > 0 {
		got, err := sc.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range got {
			if i >= len(want) || !bytes.Equal(m.Payload, want[i].Payload) {
				t.Fatalf("a record of %d bytes came back changed", len(m.Payload))
			}
		}
		want = want[len(got):]
	}
	if st := p.Status(); st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
}

func TestHostNamesItsPlugins(t *testing.T) {
	t.Parallel()
	h := newHost(t, Options{Plugins: []Config{{Name: "local", Backend: "none"}, {Name: "kafka-eu", Backend: "none"}}})
	if p, err := h.Plugin("kafka-eu"); err != nil || p.Name() != "kafka-eu" || p.Backend() != "none" {
		t.Errorf("%v %v", p, err)
	}
	_, err := h.Plugin("locla")
	if !errors.Is(err, walimpls.ErrNotFound) || !strings.Contains(err.Error(), `"local"`) || !strings.Contains(walimpls.AsError(err).Hint, "local, kafka-eu") {
		t.Errorf("%v", err)
	}
	_, err = New(Options{Plugins: []Config{{Name: "a", Backend: "b"}, {Name: "a", Backend: "b"}, {Name: "?", Backend: "b"}}})
	if !errors.Is(err, walimpls.ErrConfig) || !strings.Contains(err.Error(), "twice") || !strings.Contains(err.Error(), `"?"`) {
		t.Errorf("%v", err)
	}
}

func TestCrashedPluginIsRestarted(t *testing.T) {
	t.Parallel()
	other := mode(t, "sdk", "")
	other.Name = "other"
	h := newHost(t, Options{Plugins: []Config{mode(t, "sdk", ""), other}})
	p, bystander := h.Plugins()[0], h.Plugins()[1]
	ctx := within(t, 20*time.Second)
	wal, err := p.Open(ctx, channel("orders"))
	if err != nil {
		t.Fatal(err)
	}
	calm, err := bystander.Open(ctx, channel("orders"))
	if err != nil {
		t.Fatal(err)
	}
	first, untouched := p.Status().PID, bystander.Status().PID
	if _, err := p.Open(ctx, channel("exit")); !errors.Is(err, walimpls.ErrUnavailable) {
		t.Errorf("an open whose process ends: %v", err)
	}
	select {
	case <-wal.(interface{ Broken() <-chan struct{} }).Broken():
	case <-ctx.Done():
		t.Fatal("the WAL of the dead process does not break")
	}
	// A caller sees latency, no error.
	again, err := p.Open(ctx, channel("orders"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Append(ctx, []message.Message{{Type: message.TypeData}}); err != nil {
		t.Error(err)
	}
	st := p.Status()
	if st.PID == first || st.Restarts != 1 || st.LastExit != "exit status 3" || st.State != "running" {
		t.Errorf("status %+v", st)
	}
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.reach(t, "restarted", func(s Status) bool { return s.Restarts == 2 && s.State == "running" })
	if st := p.Status(); st.LastExit != "signal: killed" {
		t.Errorf("status %+v", st)
	}
	if _, err := calm.Append(ctx, []message.Message{{Type: message.TypeData}}); err != nil || bystander.Status().PID != untouched || bystander.Status().Restarts != 0 {
		t.Errorf("another plugin noticed: %v, %+v", err, bystander.Status())
	}
}

// However often a process is killed, and whatever is going on, the next one works
// and the host holds no more than before.
func TestManyCrashesLeaveNothingBehind(t *testing.T) {
	p := onePlugin(t, mode(t, "sdk", ""), Options{MinBackoff: 5 * time.Millisecond, MaxBackoff: 10 * time.Millisecond})
	ctx := within(t, 60*time.Second)
	before := 0
	for round := range 10 {
		var wg sync.WaitGroup
		// One that comes late opens on the process after the killed one, which
		// nobody kills in this round.
		var over atomic.Bool
		for i := range 4 {
			wg.Go(func() {
				wal, err := p.Open(ctx, channel(fmt.Sprint("c", i)))
				for err == nil && !over.Load() {
					_, err = wal.Append(ctx, []message.Message{{Type: message.TypeData, Payload: make([]byte, 1000)}})
				}
				if ctx.Err() != nil || wal != nil && err != nil && !errors.Is(err, walimpls.ErrUnknownOutcome) && !errors.Is(err, walimpls.ErrUnavailable) {
					t.Errorf("round %d: %v", round, err)
				}
				if wal != nil {
					_ = wal.Close(ctx)
				}
			})
		}
		st := p.reach(t, "running", func(s Status) bool { return s.State == "running" && s.Restarts == int64(round) })
		if round == 1 {
			before = openFiles(t)
		}
		time.Sleep(time.Duration(round) * 3 * time.Millisecond) // another moment each time
		if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.reach(t, "running again", func(s Status) bool { return s.State == "running" && s.Restarts == int64(round)+1 })
		over.Store(true)
		wg.Wait()
		gone(t, "the process", st.PID, time.Second)
	}
	st := p.reach(t, "running", func(s Status) bool { return s.State == "running" && s.Restarts == 10 })
	if after := openFiles(t); after > before+2 {
		t.Errorf("%d files were open in the second round, %d after the last: %+v", before, after, st)
	}
}

func TestHangingPluginIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	cfg := mode(t, "sdk", "")
	cfg.HealthInterval, cfg.HealthMisses = 300*time.Millisecond, 2
	p := onePlugin(t, cfg, Options{})
	ctx := within(t, 20*time.Second)
	if err := p.WaitFirstStart(ctx); err != nil {
		t.Fatal(err)
	}
	first := p.Status().PID
	if _, err := p.Open(ctx, channel("stop")); !errors.Is(err, walimpls.ErrUnavailable) {
		t.Errorf("an open in a process that hangs: %v", err)
	}
	st := p.reach(t, "restarted", func(s Status) bool { return s.Restarts == 1 && s.State == "running" })
	if !strings.Contains(st.LastExit, "health checks") {
		t.Errorf("last exit %q", st.LastExit)
	}
	gone(t, "the hanging process", first, 0)
}

// P-06: what a plugin has started goes with it, and never holds up a Close.
func TestGrandchildrenEndWithThePlugin(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"pid", "pid.setsid"} {
		t.Run(file, func(t *testing.T) {
			pidFile := filepath.Join(t.TempDir(), file)
			h := newHost(t, Options{Plugins: []Config{mode(t, "grandchild", pidFile)}})
			p := h.Plugins()[0]
			if err := p.WaitFirstStart(within(t, 20*time.Second)); err != nil {
				t.Fatal(err)
			}
			pid := readPid(t, pidFile)
			plugin := p.Status().PID
			begun := time.Now()
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if d := time.Since(begun); d > 3*time.Second {
				t.Errorf("Close took %s", d)
			}
			gone(t, "the plugin", plugin, 0)
			if strings.HasSuffix(file, ".setsid") { // it left the group: only Close is promised
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			gone(t, "the grandchild", pid, time.Second)
		})
	}
}

func readPid(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestCloseIsBoundedAndFinal(t *testing.T) {
	t.Parallel()
	for name, ctx := range map[string]context.Context{"with time": context.Background(), "without": func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}()} {
		t.Run(name, func(t *testing.T) {
			// This one does not end when it is asked to.
			h := newHost(t, Options{Plugins: []Config{mode(t, "lingers", ""), mode(t, "sleep", "1m"), {Name: "none", Backend: "none"}}})
			p := h.Plugins()[0]
			if err := p.WaitFirstStart(within(t, 20*time.Second)); err != nil {
				t.Fatal(err)
			}
			pid := p.Status().PID
			begun := time.Now()
			done := make(chan error, 2)
			for range 2 {
				go func() { done <- h.Close(ctx) }()
			}
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			limit := walimpls.GracePeriod + killWait
			if ctx.Err() != nil {
				limit = killWait
			}
			if d := time.Since(begun); d > limit {
				t.Errorf("Close took %s", d)
			}
			gone(t, "the plugin", pid, 0)
			for _, p := range h.Plugins() {
				if st := p.Status(); st.State != "stopped" || st.PID != 0 {
					t.Errorf("status %+v", st)
				}
				if _, err := p.Open(t.Context(), channel("c")); !errors.Is(err, walimpls.ErrShutdown) {
					t.Errorf("open after close: %v", err)
				}
			}
		})
	}
}

func TestOpenWaitsForARunningProcess(t *testing.T) {
	t.Parallel()
	p := onePlugin(t, mode(t, "sleep", "700ms"), Options{})
	if _, err := p.Open(within(t, 100*time.Millisecond), channel("c")); !errors.Is(err, walimpls.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an open that gives up: %v", err)
	}
	if err := p.WaitFirstStart(within(t, 10*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that gives up: %v", err)
	}
	if _, err := p.Open(within(t, 20*time.Second), channel("c")); err != nil {
		t.Errorf("an open that waits: %v", err)
	}
}

func TestVerifyStartsAndStopsAPlugin(t *testing.T) {
	t.Parallel()
	st, d, err := Verify(within(t, 20*time.Second), mode(t, "sdk", ""), Options{})
	if err != nil || d.Backend != "mem" {
		t.Fatalf("%+v %v", d, err)
	}
	want := Status{Name: "sdk", Backend: "mem", Version: "1.2.3", State: "stopped", LastExit: "exit status 0", SHA256: sum(t, testPlugin(t)), Protocol: 1, Path: testPlugin(t), Fencing: "none"}
	if st != want {
		t.Errorf("status %+v, want %+v", st, want)
	}
	for _, cfg := range []Config{mode(t, "sdk", ""), mode(t, "versions", "1")} { // a program and a script
		cfg.SHA256 = sum(t, cfg.Path)
		if st, _, err := Verify(within(t, 20*time.Second), cfg, Options{}); err != nil || st.SHA256 != cfg.SHA256 {
			t.Errorf("pinned: %+v %v", st, err)
		}
	}
	st, _, err = Verify(within(t, 20*time.Second), mode(t, "exit", ""), Options{})
	var start *StartError
	if !errors.As(err, &start) || start.Exit != "exit status 3" || st.SHA256 == "" || !strings.HasPrefix(st.LastExit, "start failed: ") {
		t.Errorf("%+v %v", st, err)
	}
}
