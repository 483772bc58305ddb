package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// tourStep is a command of a page's console blocks, and what the page says that
// it prints.
type tourStep struct {
	line    int
	command string
	want    []string
}

var heredoc = regexp.MustCompile(`<<'(\w+)'`)

// tourSteps reads the ```console blocks of a page: a command begins with "$ " and
// takes its here-document with it, what follows is its output.
func tourSteps(page string) (steps []tourStep) {
	inside, end := false, ""
	for i, line := range strings.Split(page, "\n") {
		last := len(steps) - 1
		switch {
		case end != "":
			steps[last].command += "\n" + line
			if line == end {
				end = ""
			}
		case line == "```console":
			inside = true
		case strings.HasPrefix(line, "```"):
			inside = false
		case !inside:
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, tourStep{line: i + 1, command: line[2:]})
			if m := heredoc.FindStringSubmatch(line); m != nil {
				end = m[1]
			}
		default:
			steps[last].want = append(steps[last].want, line)
		}
	}
	return steps
}

// matches compares output with what the page says, where a line … stands for any
// lines and a … in a line for any text; blanks are as wide as they like.
func (s tourStep) matches(got string) bool {
	var b strings.Builder
	b.WriteString("^")
	for _, line := range s.want {
		if line == "…" {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		parts := strings.Split(line, "…")
		for i, p := range parts {
			var words []string
			for _, w := range regexp.MustCompile(`\s+`).Split(p, -1) {
				words = append(words, regexp.QuoteMeta(w))
			}
			parts[i] = strings.Join(words, `\s+`)
		}
		b.WriteString(strings.Join(parts, ".*?") + `[ \t]*\n`)
	}
	return regexp.MustCompile(b.String() + "$").MatchString(got)
}

// TestTourCanBeFollowed runs docs/writing-a-backend.md literally, in one shell, in
// an empty folder, and compares what it prints. A command fails the tour unless
// the page goes on with "echo $?".
func TestTourCanBeFollowed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("the tour builds a plugin several times, too long for -short")
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "writing-a-backend.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := tourSteps(string(page))
	if len(steps) < 30 {
		t.Fatalf("the page has %d commands only: is it read as it should be?", len(steps))
	}
	inScript(t, func(t *testing.T, path string) { runTour(t, steps, path) })
}

// inScript calls f with the PATH of a testscript, in which walrig is this program.
func inScript(t *testing.T, f func(t *testing.T, path string)) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tour.txtar"), []byte("call\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := ""
	t.Run("path", func(t *testing.T) {
		testscript.Run(t, testscript.Params{Dir: dir, Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"call": func(ts *testscript.TestScript, _ bool, _ []string) { path = ts.Getenv("PATH") },
		}})
	})
	f(t, path)
}

func runTour(t *testing.T, steps []tourStep, path string) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	addr := freeAddr(t)
	const mark = "::step::"
	var script strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&script, "%s\n{ code=$?; printf '%s %d %%d\\n' $code; (exit $code); } 2>&1\n", s.command, mark, i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", "exec 2>&1\n"+script.String())
	shell.Dir = t.TempDir()
	shell.Env = append(notOfMake(os.Environ()), "PATH="+path, "WALRIG="+root, "WALRIG_ADDR="+addr, "WALRIG_LISTEN="+addr, "GORACE=atexit_sleep_ms=0", "GOWORK=off")
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	shell.WaitDelay = 10 * time.Second
	text, err := shell.CombinedOutput()
	// A tour that went wrong may leave its host behind.
	_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	rest := string(text)
	for i, s := range steps {
		out, after, ok := strings.Cut(rest, fmt.Sprintf("%s %d ", mark, i))
		if !ok {
			t.Fatalf("line %d: %s\ndid not come to its end:\n%s", s.line, s.command, rest)
		}
		code, after, _ := strings.Cut(after, "\n")
		rest = after
		if told := i+1 < len(steps) && steps[i+1].command == "echo $?"; code != "0" && !told {
			t.Fatalf("line %d: %s\nexit code %s:\n%s", s.line, s.command, code, out)
		}
		if !s.matches(out) {
			t.Fatalf("line %d: %s\nprints\n%s\nthe page says\n%s", s.line, s.command, out, strings.Join(s.want, "\n"))
		}
	}
}

// freeAddr is a loopback address that was free a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// notOfMake drops what make tells its children: a reader of the tour is none.
func notOfMake(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
}
