package pluginhost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// shellProcess returns a process that will run the script, and a folder for its files.
func shellProcess(t *testing.T, script string) (*process, string) {
	t.Helper()
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "script"), "#!/bin/sh\ncd "+dir+"\n"+script+"\n", 0o755)
	img, fail := openImage(t.Context(), path, "", dir)
	if fail != nil {
		t.Fatal(fail.what)
	}
	out, l := newOutput(zap.NewNop()), newLauncher()
	p := newProcess(l, img, out)
	p.dir, p.env = t.TempDir(), []string{"PATH=" + os.Getenv("PATH")}
	t.Cleanup(func() {
		_ = p.Kill(context.Background())
		img.close()
		out.close()
		l.close()
	})
	return p, dir
}

// awaitFile waits for a file that a process writes, and returns its text.
func awaitFile(t *testing.T, path string) string {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(text), "\n") {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("%s was not written", path)
	return ""
}

// quick fails the test if f takes long.
func quick(t *testing.T, what string, f func()) {
	t.Helper()
	begun := time.Now()
	f()
	if d := time.Since(begun); d > groupWait {
		t.Errorf("%s took %s", what, d)
	}
}

func TestKillBeforeTheStartLaunchesNothing(t *testing.T) {
	t.Parallel()
	p, dir := shellProcess(t, "echo > started")
	quick(t, "Kill", func() {
		if err := p.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := p.Start(t.Context()); !errors.Is(err, errKilled) {
		t.Errorf("Start after Kill: %v", err)
	}
	quick(t, "Kill again", func() { _ = p.Kill(t.Context()) })
	if _, err := os.Stat(filepath.Join(dir, "started")); err == nil || p.started() || p.pid() != 0 || p.ID() != "" {
		t.Error("a process was started")
	}
}

func TestProcessIsStartedOnce(t *testing.T) {
	t.Parallel()
	p, dir := shellProcess(t, "echo x >> started; echo >&2 done; exit 3")
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); !errors.Is(err, errKilled) {
		t.Errorf("a second Start: %v", err)
	}
	if err := p.Wait(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	quick(t, "Kill after the end", func() { _ = p.Kill(t.Context()) })
	if err := p.Start(t.Context()); !errors.Is(err, errKilled) {
		t.Errorf("Start after the end: %v", err)
	}
	text, byItself := p.exit()
	if text != "exit status 3" || !byItself || awaitFile(t, filepath.Join(dir, "started")) != "x" {
		t.Errorf("exit %q, by itself %v", text, byItself)
	}
	if stderr, _ := p.out.traces(); len(stderr) != 1 || stderr[0] != "done" {
		t.Errorf("stderr %q", stderr)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	q, _ := shellProcess(t, "")
	if err := q.Start(canceled); !errors.Is(err, context.Canceled) || q.started() {
		t.Errorf("Start with a context that has ended: %v", err)
	}
}

func TestKillIsForEverybodyAndForTheWholeGroup(t *testing.T) {
	t.Parallel()
	p, dir := shellProcess(t, "trap '' TERM INT HUP; sleep 300 & echo $! > child; wait; wait")
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	child, _ := strconv.Atoi(awaitFile(t, filepath.Join(dir, "child")))
	pid := p.pid()
	quick(t, "Kill by 8", func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := p.Kill(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	gone(t, "the process", pid, 0)
	gone(t, "its child", child, time.Second)
	if text, byItself := p.exit(); text != "signal: killed" || byItself || p.pid() != 0 {
		t.Errorf("exit %q, by itself %v", text, byItself)
	}
}

// A leader that ends by itself takes its group with it, and one that was left
// behind outside the group holds nothing up although it holds the pipes.
func TestEndOfALeaderIsTheEndOfItsGroup(t *testing.T) {
	t.Parallel()
	p, dir := shellProcess(t, "sleep 300 & echo $! > child; setsid sleep 300 & echo $! > stray; sleep 0.2; exit 0")
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	child, _ := strconv.Atoi(awaitFile(t, filepath.Join(dir, "child")))
	stray, _ := strconv.Atoi(awaitFile(t, filepath.Join(dir, "stray")))
	defer func() { _ = syscall.Kill(stray, syscall.SIGKILL) }()
	if err := p.Wait(within(t, 200*time.Millisecond+groupWait+pipeWait+5*time.Second)); err != nil {
		t.Fatal("the end is not noticed")
	}
	gone(t, "the child", child, time.Second)
}

func TestKillAndStartAtOnceLeaveNothing(t *testing.T) {
	t.Parallel()
	for range 20 {
		p, _ := shellProcess(t, "sleep 300")
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Start(t.Context()) })
		wg.Go(func() { _ = p.Kill(t.Context()) })
		wg.Wait()
		if p.started() {
			if err := p.Wait(within(t, 5*time.Second)); err != nil {
				t.Fatal("it was killed and still runs")
			}
			gone(t, "the process", p.proc.Pid, 0)
		}
	}
}

func TestLifelineIsTheProcessesStdin(t *testing.T) {
	t.Parallel()
	p, dir := shellProcess(t, "echo > ready; cat > /dev/null; echo > ended")
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitFile(t, filepath.Join(dir, "ready"))
	if _, err := os.Stat(filepath.Join(dir, "ended")); err == nil {
		t.Error("it ended too early")
	}
	p.cutLifeline()
	p.cutLifeline()
	if err := p.Wait(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
	awaitFile(t, filepath.Join(dir, "ended"))
}

// The process sees the environment that it is given, its three pipes, and
// nothing else that the host has open.
func TestProcessInheritsNothing(t *testing.T) {
	t.Parallel()
	secret, err := os.Open(writeFile(t, filepath.Join(t.TempDir(), "secret"), "", 0o600))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = secret.Close() }()
	if _, err := unix.FcntlInt(secret.Fd(), unix.F_SETFD, 0); err != nil { // as if the host had inherited it
		t.Fatal(err)
	}
	p, dir := shellProcess(t, "ls -l /proc/self/fd > fds; env > env; ps -o comm= -p $$ > name || echo none > name")
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	fds, env := awaitFile(t, filepath.Join(dir, "fds")), awaitFile(t, filepath.Join(dir, "env"))
	if strings.Contains(fds, "secret") || !strings.Contains(fds, "pipe:") {
		t.Errorf("open files: %s", fds)
	}
	for line := range strings.SplitSeq(env, "\n") {
		if k, _, _ := strings.Cut(line, "="); k != "PATH" && k != "PWD" && k != "_" && k != "SHLVL" && k != "OLDPWD" {
			t.Errorf("environment: %s", line)
		}
	}
	if name := awaitFile(t, filepath.Join(dir, "name")); name != "none" && name != "script" {
		t.Errorf("it is listed as %q", name)
	}
}

// The parent-death signal follows the thread that forked; threads of the host
// come and go, and no plugin may go with them.
func TestProcessOutlivesTheThreadsOfTheHost(t *testing.T) {
	t.Parallel()
	p, dir := shellProcess(t, "echo > ready; exec sleep 300")
	var wg sync.WaitGroup
	started := make(chan error, 1)
	wg.Go(func() {
		runtime.LockOSThread() // this thread ends with its goroutine
		started <- p.Start(t.Context())
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	awaitFile(t, filepath.Join(dir, "ready"))
	for range 20 {
		wg.Go(runtime.LockOSThread)
	}
	wg.Wait()
	if err := p.Wait(within(t, 300*time.Millisecond)); err == nil {
		text, _ := p.exit()
		t.Errorf("it ended: %s", text)
	}
}
