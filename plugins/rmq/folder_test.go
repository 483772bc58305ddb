package rmq

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// holdFolder is the helper process's main: it opens the store, says so, and
// lets go when its stdin ends.
func holdFolder(dir string) {
	o, err := NewBuilder().Build(context.Background(), walimpls.Config{"dir": dir}, zap.NewNop())
	if err == nil {
		_, err = o.Open(context.Background(), rw("c", 1, 1))
	}
	fmt.Println("held", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startHolder starts another process that holds the folder.
func startHolder(t *testing.T, dir string) (pid int, kill func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lockHelperEnv+"="+dir)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = stdin.Close()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	if line != "held <nil>\n" {
		t.Fatalf("the other process says %q", line)
	}
	return cmd.Process.Pid, kill
}

func TestSecondProcessIsToldWhoHoldsTheFolder(t *testing.T) {
	s := newDiskStore(t)
	pid, kill := startHolder(t, s.dir)
	s.cfg = walimpls.Config{"open_timeout": "200ms"}
	o := s.opener()
	began := time.Now()
	for _, opt := range []walimpls.OpenOptions{rw("c", 2, 1), ro("c")} {
		_, err := o.Open(testContext(t), opt)
		wantIs(t, err, walimpls.ErrUnavailable)
		if text := err.Error(); !strings.Contains(text, fmt.Sprintf("pid %d", pid)) || !strings.Contains(text, s.dir) {
			t.Fatalf("the error does not say who holds which folder: %v", err)
		}
	}
	if waited := time.Since(began); waited < 400*time.Millisecond || waited > 5*time.Second {
		t.Fatalf("two opens waited %v, want twice the open timeout", waited)
	}
	// The same opener works as soon as the other one is gone.
	kill()
	mustAppend(t, mustOpen(t, o, rw("c", 2, 1)), "a")
}

func TestOpenWaitsForADyingOwner(t *testing.T) {
	s := newDiskStore(t)
	_, kill := startHolder(t, s.dir)
	o := s.opener()
	type opened struct {
		w   walimpls.WAL
		err error
	}
	done := make(chan opened, 4)
	for i := range 4 { // all join one attempt
		go func() {
			w, err := o.Open(testContext(t), rw(fmt.Sprint("c", i), 2, 1))
			done <- opened{w, err}
		}()
	}
	select {
	case r := <-done:
		t.Fatalf("open did not wait: %v", r.err)
	case <-time.After(150 * time.Millisecond):
	}
	kill()
	for range 4 {
		r := <-done
		must(t, r.err)
		mustAppend(t, r.w, "a")
	}
}

func TestSecondOpenerInTheProcessNeverSteals(t *testing.T) {
	s := newDiskStore(t)
	w := mustOpen(t, s.opener(), rw("c", 1, 1))
	s.cfg = walimpls.Config{"open_timeout": "50ms"}
	_, err := s.opener().Open(testContext(t), rw("c", 2, 1))
	wantIs(t, err, walimpls.ErrUnavailable)
	if !strings.Contains(err.Error(), "this very process") {
		t.Fatal(err)
	}
	mustAppend(t, w, "a")
}

func TestCallerMayLeaveAnOpenThatWaits(t *testing.T) {
	s := newDiskStore(t)
	mustOpen(t, s.opener(), rw("c", 1, 1))
	o := s.opener()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, err := o.Open(ctx, rw("c", 2, 1))
	wantIs(t, err, context.DeadlineExceeded)
	began := time.Now()
	must(t, o.Close(context.Background()))
	if waited := time.Since(began); waited > 2*time.Second {
		t.Fatalf("close waited %v for an attempt that was under way", waited)
	}
}

func TestStoreFolderIsPrivate(t *testing.T) {
	s := newDiskStore(t)
	s.dir = filepath.Join(s.dir, "a", "b")
	mustOpen(t, s.opener(), rw("c", 1, 1))
	info, err := os.Stat(s.dir)
	must(t, err)
	if got := info.Mode().Perm(); got != 0o700 {
		t.Fatalf("mode %o, want 700", got)
	}
}

func TestUnusableFoldersAreTypedErrorsWithThePath(t *testing.T) {
	file := func(dir, name, text string) {
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, c := range []struct {
		name string
		make func(dir string)
		want error
		text string
	}{
		{"a file", func(dir string) { file(filepath.Dir(dir), filepath.Base(dir), "x") }, walimpls.ErrInvalidArgument, "not a directory"},
		{"below a file", func(dir string) { file(filepath.Dir(filepath.Dir(dir)), filepath.Base(filepath.Dir(dir)), "x") }, walimpls.ErrInvalidArgument, "not a directory"},
		{"foreign content", func(dir string) { file(dir, "photo.jpg", "x") }, walimpls.ErrForeignStore, "photo.jpg"},
		{"foreign format file", func(dir string) { file(dir, "FORMAT", "something else\n") }, walimpls.ErrForeignStore, "another's"},
		{"damaged format file", func(dir string) { file(dir, "FORMAT", "walrig rmq store\nformat x\n") }, walimpls.ErrForeignStore, "damaged"},
		{"newer format", func(dir string) { file(dir, "FORMAT", "walrig rmq store\nformat 3\n") }, walimpls.ErrUnsupported, "format version 3, this build (rmq 0.2.0) reads version 2"},
		{"the format of rmq 0.1", func(dir string) { file(dir, "FORMAT", "walrig rmq store\nformat 1\n") }, walimpls.ErrUnsupported, "rmq 0.1.0 reads it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newDiskStore(t)
			s.dir = filepath.Join(s.dir, "x")
			c.make(s.dir)
			before := listTree(t, filepath.Dir(filepath.Dir(s.dir)))
			o := s.opener()
			for _, opt := range []walimpls.OpenOptions{rw("c", 1, 1), ro("c")} {
				_, err := o.Open(testContext(t), opt)
				wantIs(t, err, c.want)
				if !strings.Contains(err.Error(), s.dir) || !strings.Contains(err.Error(), c.text) {
					t.Fatalf("error %q, want the path and %q", err, c.text)
				}
			}
			if after := listTree(t, filepath.Dir(filepath.Dir(s.dir))); after != before {
				t.Fatalf("the folder was changed:\n%s\nwas\n%s", after, before)
			}
			// S-03: it works after correction, with the same opener.
			must(t, os.RemoveAll(filepath.Dir(s.dir)))
			mustAppend(t, mustOpen(t, o, rw("c", 1, 1)), "a")
		})
	}
}

func TestEmptyFolderOfAFreshDiskIsTaken(t *testing.T) {
	s := newDiskStore(t)
	must(t, os.MkdirAll(filepath.Join(s.dir, "lost+found"), 0o755))
	mustOpen(t, s.opener(), rw("c", 1, 1))
}

func listTree(t *testing.T, dir string) string {
	var b strings.Builder
	must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, path, info.Mode())
		}
		return err
	}))
	return b.String()
}
