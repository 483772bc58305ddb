package faultbackend

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// steered is a backend that is steered through files, as a process is.
func steered(t *testing.T) (f *fixture, rules, stats string) {
	t.Helper()
	dir := t.TempDir()
	rules, stats = filepath.Join(dir, "rules"), filepath.Join(dir, "stats")
	f = &fixture{ctl: NewController(), store: NewStore(), ctx: testContext(t)}
	f.Opener = f.build(t, walimpls.Config{"rules_file": rules, "stats_file": stats, "rules": "bounds error corrupt"})
	t.Cleanup(func() {
		check(t, f.Opener.Close(context.Background()))
		check(t, f.store.Close())
	})
	return f, rules, stats
}

func TestARulesFileSteersARunningBackend(t *testing.T) {
	f, file, _ := steered(t)
	w := f.open(t, 1, 1)
	appendAll(t, w, "no file, no rules")
	for i := range 50 { // the same size, and faster than the clock of the file system
		code := []string{"corrupt", "timeout"}[i%2]
		check(t, os.WriteFile(file, []byte("append error "+code), 0o600))
		if out := appendOne(f.ctx, w, "x"); string(walimpls.AsError(out.Err).Code) != code {
			t.Fatalf("change %d to %s: %v", i, code, out.Err)
		}
	}
	_, err := w.Bounds(f.ctx)
	wantErr(t, err, walimpls.ErrCorrupt) // the configuration's rules stay beside the file's
	check(t, os.Remove(file))
	appendAll(t, w, "gone")
}

func TestARulesFileReleasesWhatItHoldsWithoutAnotherCall(t *testing.T) {
	f, file, _ := steered(t)
	check(t, WriteRules(file, "append block"))
	w := f.open(t, 1, 1)
	got := make(chan walimpls.Outcome)
	go func() { got <- appendOne(f.ctx, w, "a") }()
	f.waiting(t, OpAppend, 1)
	check(t, WriteRules(file, ""))
	if out := <-got; out.State != walimpls.Stored {
		t.Fatal(out.Err)
	}
}

func TestABrokenRulesFileChangesNothingAndSaysSo(t *testing.T) {
	f, file, _ := steered(t)
	wantErr(t, WriteRules(file, "nonsense"), walimpls.ErrInvalidArgument)
	check(t, WriteRules(file, "append error corrupt"))
	w := f.open(t, 1, 1)
	check(t, os.WriteFile(file, []byte("append blok"), 0o600))
	if out := appendOne(f.ctx, w, "a"); !errors.Is(out.Err, walimpls.ErrCorrupt) {
		t.Fatalf("%v", out.Err)
	}
	if got := f.ctl.Stats().RulesError; !strings.Contains(got, `"blok"`) {
		t.Fatalf("stats say %q", got)
	}
	check(t, WriteRules(file, ""))
	appendAll(t, w, "a")
	if got := f.ctl.Stats().RulesError; got != "" {
		t.Fatalf("stats still say %q", got)
	}
	_, err := NewBuilder().Build(t.Context(), walimpls.Config{"rules_file": t.TempDir()}, nil) // a folder
	wantErr(t, err, walimpls.ErrInvalidArgument)
	check(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	_, err = NewBuilder().Build(t.Context(), walimpls.Config{"rules_file": file}, nil)
	wantErr(t, err, walimpls.ErrInvalidArgument)
}

func TestTheStatsFileFollowsTheCounters(t *testing.T) {
	f, rules, file := steered(t)
	check(t, WriteRules(rules, "append error corrupt 1/2 name=second; append block after=2"))
	w := f.open(t, 1, 1)
	for range 4 {
		appendOne(f.ctx, w, "a")
	}
	done := make(chan struct{})
	go func() { defer close(done); appendOne(f.ctx, w, "a") }()
	f.waiting(t, OpAppend, 1)
	var s Stats
	for s.Waiting[OpAppend] != 1 {
		if f.ctx.Err() != nil {
			t.Fatalf("the file says %+v", s)
		}
		s = readStats(t, file)
		time.Sleep(time.Millisecond) // another process could not wait in another way
	}
	if s.Calls[OpAppend] != 5 || s.Records != 5 || s.Faults["second"] != 2 || s.Handles[channel] != 1 {
		t.Fatalf("%+v", s)
	}
	check(t, f.Close(f.ctx))
	<-done
	if s := readStats(t, file); s.Handles[channel] != 0 || s.MaxHandles[channel] != 1 {
		t.Fatalf("at the end: %+v", s)
	}
}

// readStats returns the zero value for a file that is not there yet.
func readStats(t *testing.T, file string) Stats {
	t.Helper()
	var s Stats
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return s
	}
	check(t, err)
	check(t, json.Unmarshal(data, &s))
	return s
}

func TestTheStatsFileIsWrittenBeforeTheProcessLeaves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stats")
	var at Stats
	o := buildOpener(t, walimpls.Config{"stats_file": file, "rules": "append exit 3"}, WithExit(func(int) { at = readStats(t, file) }))
	appendOne(t.Context(), mustOpen(testContext(t), t, o, 1, 1), "a")
	check(t, o.Close(t.Context()))
	if at.Faults["append exit 3 before"] != 1 {
		t.Fatalf("the file said %+v", at)
	}
}
