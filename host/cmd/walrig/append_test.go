package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// outcomes parses `append -o json`.
func outcomes(t *testing.T, stdout string) []outcomeJSON {
	t.Helper()
	var list []outcomeJSON
	for line := range strings.Lines(stdout) {
		var o outcomeJSON
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if o.Line != int64(len(list)+1) {
			t.Fatalf("line %d comes after %d others", o.Line, len(list))
		}
		list = append(list, o)
	}
	return list
}

func failure(t *testing.T, stderr string) errorJSON {
	t.Helper()
	var e struct {
		Error errorJSON `json:"error"`
	}
	if err := json.Unmarshal([]byte(stderr), &e); err != nil || strings.Count(stderr, "\n") != 1 {
		t.Fatalf("stderr is not one line of JSON (%v): %q", err, stderr)
	}
	return e.Error
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "record %d\n", i+1)
	}
	return b.String()
}

func TestAppendSumsUpInOneLine(t *testing.T) {
	h := &fakeHost{}
	addr := startFakeHost(t, h)
	r := runApp(t.Context(), addr, strings.NewReader("a\n\nb"), "append", "orders")
	want := regexp.MustCompile(`^appended 3 records \(2 B\) to orders in \S+, ids 1 to 3\n$`)
	if r.exit != 0 || r.stderr != "" || !want.MatchString(r.stdout) {
		t.Fatalf("%+v", r)
	}
	if got := fmt.Sprintf("%q", h.stored()); got != `["a" "" "b"]` {
		t.Errorf("stored %s", got)
	}
	if r := runApp(t.Context(), addr, strings.NewReader(""), "append", "orders"); r.exit != 0 || !strings.HasPrefix(r.stdout, "appended 0 records") {
		t.Errorf("nothing to append: %+v", r)
	}
}

func TestAppendJSONHasALineForEachRecord(t *testing.T) {
	addr := startFakeHost(t, &fakeHost{})
	r := runApp(t.Context(), addr, strings.NewReader("a\n"), "append", "orders", "-o", "json")
	if want := `{"line":1,"outcome":"stored","id":"1","time_tick":null,"term":3,"checkpoint":null,"error":null}` + "\n"; r.stdout != want || r.exit != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	r = runApp(t.Context(), addr, strings.NewReader(lines(5000)), "append", "orders", "-o", "json")
	for _, o := range outcomes(t, r.stdout) {
		if o.Outcome != "stored" || o.ID == nil {
			t.Fatalf("%+v", o)
		}
	}
}

func TestAppendStopsAtTheFirstFailureAndSaysWhereToGoOn(t *testing.T) {
	refuse := func(from, to int, state typesv1.Outcome_State, code walimpls.Code) func(int) *walv1.AppendResult {
		return func(n int) *walv1.AppendResult {
			if n >= from && n <= to {
				return failed(state, code, "no")
			}
			return nil
		}
	}
	notStored, unknown := typesv1.Outcome_STATE_NOT_STORED, typesv1.Outcome_STATE_UNKNOWN
	for name, c := range map[string]struct {
		outcome func(int) *walv1.AppendResult
		exit    int
		resume  int64
		hint    string
	}{
		"the rest not stored": {refuse(3, 9, notStored, walimpls.CodeUnavailable), 1, 3,
			"2 records stored (ids 1 to 2); nothing from line 3 on was appended, resume with `tail -n +3 | walrig append orders`"},
		"one refused, later ones stored": {refuse(3, 3, notStored, walimpls.CodeTooLarge), 1, 6,
			"4 records stored (ids 1 to 4); not stored though later ones are: line 3; nothing from line 6 on was appended, resume with `tail -n +6 | walrig append orders`"},
		"unknown": {refuse(2, 3, unknown, walimpls.CodeUnknownOutcome), 3, 6,
			"3 records stored (ids 1 to 3); stored or not, read the channel to see: lines 2-3; nothing from line 6 on was appended, resume with `tail -n +6 | walrig append orders`"},
		"invalid": {refuse(1, 5, notStored, walimpls.CodeInvalidArgument), 2, 1, "0 records stored; nothing from line 1 on"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := startFakeHost(t, &fakeHost{outcome: c.outcome})
			r := runApp(t.Context(), addr, strings.NewReader(lines(5)), "append", "orders", "-o", "json")
			e := failure(t, r.stderr)
			if r.exit != c.exit || e.ResumeLine != c.resume || e.Hint == nil || !strings.HasPrefix(*e.Hint, c.hint) {
				t.Errorf("exit %d, error %+v, hint %q", r.exit, e, shown(e.Hint))
			}
			for _, o := range outcomes(t, r.stdout) {
				if (o.Outcome == "stored") != (o.Error == nil) || (o.ID != nil) != (o.Outcome == "stored") {
					t.Errorf("%+v", o)
				}
			}
		})
	}
}

func TestAppendOverALostConnectionIsUnknown(t *testing.T) {
	h := &fakeHost{cutAt: 3}
	addr := startFakeHost(t, h)
	r := runApp(t.Context(), addr, strings.NewReader(lines(5)), "append", "orders", "-o", "json")
	e := failure(t, r.stderr)
	if r.exit != walimpls.ExitUnknown || e.Code != walimpls.CodeUnknownOutcome {
		t.Fatalf("%+v", r)
	}
	for i, o := range outcomes(t, r.stdout) {
		if o.Outcome == "stored" && i >= len(h.stored()) {
			t.Errorf("%+v, but the host has %d", o, len(h.stored()))
		}
	}
}

// Nothing was under way, so nothing is unknown: the code must not say so.
func TestConnectionLostWithNothingUnderWayIsUnreachable(t *testing.T) {
	h := &fakeHost{leaveAfter: 2}
	addr := startFakeHost(t, h)
	stdin, feed := io.Pipe()
	defer feed.Close()
	go func() {
		_, _ = io.WriteString(feed, "a\nb\n")
		waitFor(t, func() bool { return len(h.stored()) == 2 })
		for { // until the client has noticed
			if _, err := io.WriteString(feed, "c\n"); err != nil {
				return
			}
		}
	}()
	r := runApp(t.Context(), addr, stdin, "append", "orders", "-o", "json")
	stdin.Close()
	e := failure(t, r.stderr)
	unknown := strings.Contains(r.stdout, `"outcome":"unknown"`)
	if want := map[bool]int{true: walimpls.ExitUnknown, false: walimpls.ExitUnreachable}[unknown]; r.exit != want || (e.Code == walimpls.CodeUnknownOutcome) != unknown || e.Code == walimpls.CodeClosed {
		t.Errorf("%+v", r)
	}
}

// A terminal or a pipe gives no more input for now: the failure must be told all the same.
func TestAppendFailsWhileItsInputIsSilent(t *testing.T) {
	addr := startFakeHost(t, &fakeHost{outcome: func(int) *walv1.AppendResult {
		return failed(typesv1.Outcome_STATE_NOT_STORED, walimpls.CodeNoSpace, "full")
	}})
	stdin, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = io.WriteString(feed, "a\n") }()
	r := runApp(t.Context(), addr, stdin, "append", "orders")
	if r.exit != 1 || !strings.Contains(r.stderr, "error: line 1: pchannel \"orders\": full (no_space)\nhint: 0 records stored") {
		t.Fatalf("%+v", r)
	}
}

func TestAppendedRecordsAreAnsweredWhileTheInputGoesOn(t *testing.T) {
	addr := startFakeHost(t, &fakeHost{})
	stdin, feed := io.Pipe()
	results, stdout := io.Pipe()
	done := make(chan result, 1)
	go func() {
		done <- runWith(t.Context(), addr, stdin, stdout, &bytes.Buffer{}, "append", "orders", "-o", "json")
		stdout.Close()
	}()
	for i := range 3 {
		if _, err := io.WriteString(feed, "x\n"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := results.Read(buf)
		if want := fmt.Sprintf(`{"line":%d,`, i+1); err != nil || !strings.HasPrefix(string(buf[:n]), want) {
			t.Fatalf("%q, %v", buf[:n], err)
		}
	}
	feed.Close()
	if r := <-done; r.exit != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestLineAboveTheBackendsLimitIsRefusedAndTheOnesBeforeAreStored(t *testing.T) {
	h := &fakeHost{limit: 1 << 20}
	addr := startFakeHost(t, h)
	input := io.MultiReader(strings.NewReader("one\ntwo\n"), &zeros{})
	r := runApp(t.Context(), addr, input, "append", "orders", "-o", "json")
	e := failure(t, r.stderr)
	if r.exit != 1 || e.Code != walimpls.CodeTooLarge || e.Message != `line 3: the record is larger than 1.0 MiB, the most that the backend takes` || e.ResumeLine != 3 {
		t.Errorf("exit %d, %+v", r.exit, e)
	}
	got := outcomes(t, r.stdout)
	if len(got) != 3 || got[0].Outcome != "stored" || got[1].Outcome != "stored" || got[2].Outcome != "not_stored" || len(h.stored()) != 2 {
		t.Errorf("%+v", got)
	}
}

func TestInterruptedAppendReportsWhatIsUnderWay(t *testing.T) {
	for name, h := range map[string]*fakeHost{"answered": {}, "hanging": {hangAt: 2}} {
		t.Run(name, func(t *testing.T) {
			addr := startFakeHost(t, h)
			stdin, feed := io.Pipe()
			defer feed.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				_, _ = io.WriteString(feed, "a\n")
				waitFor(t, func() bool { return len(h.stored()) == 1 })
				_, _ = io.WriteString(feed, "b\n")
				cancel(errInterrupted)
			}()
			start := time.Now()
			r := runApp(ctx, addr, stdin, "append", "orders")
			if r.exit != walimpls.ExitInterrupted || !strings.Contains(r.stderr, "error: interrupted") || !strings.Contains(r.stderr, "resume with") {
				t.Errorf("%+v", r)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestAppendTimeout(t *testing.T) {
	addr := startFakeHost(t, &fakeHost{hangAt: 2})
	stdin, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = io.WriteString(feed, "a\n") }()
	r := runApp(t.Context(), addr, stdin, "append", "orders", "--timeout", "300ms")
	if r.exit != walimpls.ExitUnreachable || !strings.Contains(r.stderr, "(timeout)") {
		t.Errorf("with nothing under way: %+v", r)
	}
	stdin, feed2 := io.Pipe()
	defer feed2.Close()
	go func() { _, _ = io.WriteString(feed2, "a\nb\n") }()
	r = runApp(t.Context(), addr, stdin, "append", "orders", "--timeout", "300ms")
	if r.exit != walimpls.ExitUnknown {
		t.Errorf("with a record under way: %+v", r)
	}
}

// failingWriter fails from the n-th write on.
type failingWriter struct {
	n   int
	err error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.n--; w.n < 0 {
		return 0, w.err
	}
	return len(p), nil
}

func TestAppendGoesOnWithoutAReaderOfItsResults(t *testing.T) {
	h := &fakeHost{}
	addr := startFakeHost(t, h)
	var stderr bytes.Buffer
	r := runWith(t.Context(), addr, strings.NewReader(lines(2000)), &failingWriter{1, syscall.EPIPE}, &stderr, "append", "orders", "-o", "json")
	if r.exit != 0 || r.stderr != "" || len(h.stored()) != 2000 {
		t.Errorf("%+v, %d stored", r, len(h.stored()))
	}
	r = runWith(t.Context(), addr, strings.NewReader(lines(2000)), &failingWriter{1, syscall.ENOSPC}, &stderr, "append", "orders", "-o", "json")
	if r.exit != 1 || failure(t, r.stderr).Code != walimpls.CodeNoSpace {
		t.Errorf("full disk under the results: %+v", r)
	}
}

func TestAppendRefusesBadInput(t *testing.T) {
	addr := startFakeHost(t, &fakeHost{})
	dir := t.TempDir()
	for name, c := range map[string]struct {
		args []string
		exit int
		want string
	}{
		"unknown channel": {[]string{"append", "nope"}, 1, "(not_found)"},
		"no file":         {[]string{"append", "orders", "-f", filepath.Join(dir, "none")}, 2, "no such file"},
		"a folder":        {[]string{"append", "orders", "-f", dir}, 2, "is a folder"},
		"bad property":    {[]string{"append", "orders", "-p", "x"}, 2, "not key=value"},
		"twice":           {[]string{"append", "orders", "-p", "x=1", "-p", "x=2"}, 2, "given twice"},
		"null and whole":  {[]string{"append", "orders", "-0", "--whole"}, 2, "exclude each other"},
		"no channel":      {[]string{"append"}, 2, "append needs CHANNEL"},
		"too many":        {[]string{"append", "orders", "b"}, 2, `does not take "b"`},
		"raw":             {[]string{"append", "orders", "-o", "raw"}, 2, `output format "raw"`},
		"no host":         {[]string{"append", "orders", "--addr", "127.0.0.1:1"}, 4, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := runApp(t.Context(), addr, strings.NewReader("a\n"), c.args...)
			if r.exit != c.exit || !strings.Contains(r.stderr, c.want) || r.stdout != "" || !strings.HasPrefix(r.stderr, "error: ") {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestAppendReadsFilesWholeAndNULSeparated(t *testing.T) {
	h := &fakeHost{}
	addr := startFakeHost(t, h)
	file := filepath.Join(t.TempDir(), "in put")
	if err := os.WriteFile(file, []byte("a\nb\x00c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--whole", "-0", "-q"} {
		if r := runApp(t.Context(), addr, nil, "append", "orders", "-f", file, flag); r.exit != 0 {
			t.Fatalf("%s: %+v", flag, r)
		}
	}
	if got := fmt.Sprintf("%q", h.stored()); got != `["a\nb\x00c\n" "a\nb" "c\n" "a" "b\x00c"]` {
		t.Errorf("stored %s", got)
	}
}

// waitFor polls a condition with a deadline.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Error("timed out waiting")
			return
		}
	}
}
