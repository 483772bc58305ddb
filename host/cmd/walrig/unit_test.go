package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func noLimit() int64 { return 1 << 40 }

func splitAll(t interface{ Fatal(...any) }, s *splitter) []string {
	records := []string{}
	for {
		rec, err := s.next()
		if errors.Is(err, io.EOF) {
			return records
		}
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, string(rec))
		if s.line != int64(len(records)) {
			t.Fatal("line number", s.line, "at record", len(records))
		}
	}
}

func TestInputIsSplitAtTheDelimiterOnly(t *testing.T) {
	for _, c := range []struct {
		in    string
		delim byte
		whole bool
		want  []string
	}{
		{"", '\n', false, []string{}},
		{"\n", '\n', false, []string{""}},
		{"a\nb\n", '\n', false, []string{"a", "b"}},
		{"a\n\n\nb", '\n', false, []string{"a", "", "", "b"}},
		{"a\r\nb\x00c\n", '\n', false, []string{"a\r", "b\x00c"}},
		{"a\nb\x00\x00c", 0, false, []string{"a\nb", "", "c"}},
		{"a\nb\n", '\n', true, []string{"a\nb\n"}},
		{"", '\n', true, []string{""}},
	} {
		got := splitAll(t, newSplitter(strings.NewReader(c.in), c.delim, c.whole, "orders", noLimit))
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
			t.Errorf("%q split at %q (whole %v): %q, want %q", c.in, c.delim, c.whole, got, c.want)
		}
	}
}

// What the splitter cuts, raw output with the same delimiter puts together again.
func TestSplitAndRawOutputAreInverse(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		piece := rapid.OneOf(
			rapid.SliceOfN(rapid.Byte(), 0, 20),
			rapid.Map(rapid.IntRange(0, 3*splitBuffer), func(n int) []byte { return bytes.Repeat([]byte{'x'}, n) }),
		)
		var input []byte
		for _, p := range rapid.SliceOfN(piece, 0, 6).Draw(r, "pieces") {
			input = append(append(input, p...), '\n')
		}
		var output []byte
		for _, rec := range splitAll(r, newSplitter(iotest.HalfReader(bytes.NewReader(input)), '\n', false, "orders", noLimit)) {
			output = append(append(output, rec...), '\n')
		}
		if !bytes.Equal(input, output) {
			r.Fatalf("%d bytes in, %d out", len(input), len(output))
		}
	})
}

func TestRecordAboveTheLimitIsRefusedWithoutBeingRead(t *testing.T) {
	asked := 0
	limit := func() int64 { asked++; return 1 << 20 }
	endless := io.MultiReader(strings.NewReader("first\n"), &zeros{})
	s := newSplitter(endless, '\n', false, "orders", limit)
	if rec, err := s.next(); err != nil || string(rec) != "first" {
		t.Fatalf("first record: %q, %v", rec, err)
	}
	_, err := s.next()
	if !errors.Is(err, walimpls.ErrTooLarge) || s.line != 2 || asked != 1 {
		t.Fatalf("error %v at line %d, limit asked %d times", err, s.line, asked)
	}
	if _, err := s.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	exact := strings.Repeat("y", 1<<20)
	if got := splitAll(t, newSplitter(strings.NewReader(exact+"\n"+exact), '\n', false, "orders", limit)); len(got) != 2 || got[0] != exact {
		t.Errorf("records of exactly the limit: %d", len(got))
	}
}

type zeros struct{}

func (*zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestInputErrorIsReported(t *testing.T) {
	s := newSplitter(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(syscall.EIO)), '\n', false, "orders", noLimit)
	if rec, err := s.next(); err != nil || string(rec) != "a" {
		t.Fatalf("%q, %v", rec, err)
	}
	if _, err := s.next(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("error %v", err)
	}
}

func TestTallyKnowsWhereToGoOn(t *testing.T) {
	// s: stored, n: not stored, u: unknown, in the order of the lines.
	for _, c := range []struct {
		outcomes         string
		resume           int64
		unknown, skipped string
	}{
		{"", 1, "", ""},
		{"sss", 4, "", ""},
		{"ssnnn", 3, "", ""},
		{"ssuunn", 5, "lines 3-4", ""},
		{"snssnn", 5, "", "line 2"},
		{"nnn", 1, "", ""},
		{"susnnusn", 8, "lines 2, 6", "lines 4-5"},
	} {
		var tl tally
		for i, o := range c.outcomes {
			r := client.Result{State: walimpls.Stored, ID: fmt.Sprint(i)}
			if o != 's' {
				r = client.Result{Err: errors.New("x")}
			}
			if o == 'n' {
				r.State = walimpls.NotStored
			}
			tl.add(int64(i+1), 10, r)
		}
		unknown, skipped := "", ""
		if len(tl.unknown) > 0 {
			unknown = tl.unknown.String()
		}
		if s := tl.notStored.below(tl.resume()); len(s) > 0 {
			skipped = s.String()
		}
		if tl.resume() != c.resume || unknown != c.unknown || skipped != c.skipped {
			t.Errorf("%s: resume %d, unknown %q, skipped %q; want %+v", c.outcomes, tl.resume(), unknown, skipped, c)
		}
	}
}

func TestDelimiterEscapes(t *testing.T) {
	for in, want := range map[string]string{`\n`: "\n", `\0`: "\x00", `\t|\r`: "\t|\r", `\\n`: `\n`, `\x1e`: "\x1e", "": "", "é": "é"} {
		if got, err := parseDelimiter(in); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{`\`, `\q`, `\x1`, `\xzz`} {
		if _, err := parseDelimiter(in); exitCode(context.Background(), err) != walimpls.ExitUsage {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestTextOutputCannotDisturbATerminal(t *testing.T) {
	m := &client.Message{Type: message.TypeData, Payload: []byte("tab\there \x1b[31m\nnew\x00 \xff é \u2028\u202e")}
	got := string(appendTextRecord(nil, m))
	want := "tab\there \\x1b[31m\\nnew\\x00 \\xff é \\u2028\\u202e\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	m = &client.Message{Type: message.TypeTimeTick, ID: "7"}
	if got := string(appendTextRecord(nil, m)); got != "[time_tick 7] \n" {
		t.Errorf("system record: %q", got)
	}
}

// The hand-written JSON says the same as encoding/json would.
func TestJSONOutputIsJSON(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &client.Message{
			ID: rapid.String().Draw(r, "id"), Type: message.TypeData, VChannel: rapid.String().Draw(r, "v"),
			Term: rapid.Int64().Draw(r, "term"), TimeTick: message.Tick(rapid.Uint64().Draw(r, "tick")), TxnID: rapid.Uint64().Draw(r, "txn"),
			Properties: rapid.MapOf(rapid.String(), rapid.String()).Draw(r, "props"),
			Payload:    rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })).Draw(r, "payload"),
			Checkpoint: rapid.String().Draw(r, "cp"),
		}
		line := appendJSONRecord(nil, "orders", m)
		if bytes.Count(line, []byte("\n")) != 1 || !bytes.HasSuffix(line, []byte("\n")) {
			r.Fatalf("not one line: %q", line)
		}
		var got struct {
			Channel, ID, VChannel, Type string
			TimeTick                    *string `json:"time_tick"`
			Time                        *time.Time
			Term                        int64
			TxnID                       *string `json:"txn_id"`
			Properties                  map[string]string
			Payload                     string
			Text                        *string
			Checkpoint                  *string
		}
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			r.Fatalf("%v: %s", err, line)
		}
		payload, err := base64.StdEncoding.DecodeString(got.Payload)
		if err != nil || !bytes.Equal(payload, m.Payload) || got.ID != m.ID || got.Term != m.Term || got.VChannel != m.VChannel || got.Channel != "orders" {
			r.Fatalf("%s: %+v", line, got)
		}
		if len(got.Properties) != len(m.Properties) || got.Properties == nil {
			r.Fatalf("properties: %s", line)
		}
		if (got.TimeTick == nil) != (m.TimeTick == 0) || (got.Time == nil) != (m.TimeTick == 0) || (got.TxnID == nil) != (m.TxnID == 0) || (got.Checkpoint == nil) != (m.Checkpoint == "") {
			r.Fatalf("what is not there must be null: %s", line)
		}
		if got.Text != nil && *got.Text != string(m.Payload) {
			r.Fatalf("text: %s", line)
		}
	})
}

func TestTextIsThereForValidUTF8Only(t *testing.T) {
	for payload, want := range map[string]bool{"": true, "é<>&": true, "\xff": false} {
		line := appendJSONRecord(nil, "c", &client.Message{Payload: []byte(payload)})
		if got := bytes.Contains(line, []byte(`"text":`)); got != want {
			t.Errorf("%q: %s", payload, line)
		}
	}
}

func TestExitCodesFollowTheTable(t *testing.T) {
	ctx := context.Background()
	stopped, stop := context.WithCancelCause(ctx)
	stop(errInterrupted)
	for _, info := range walimpls.Codes() {
		err := fmt.Errorf("line 3: %w", walimpls.Errorf(info.Code, "orders", "x"))
		if got := exitCode(ctx, err); got != info.Exit {
			t.Errorf("%s: exit %d, want %d", info.Code, got, info.Exit)
		}
	}
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{ctx, nil, 0},
		{ctx, errStdoutClosed, 0},
		{ctx, stdoutError(fmt.Errorf("write: %w", syscall.EPIPE)), 0},
		{ctx, stdoutError(syscall.ENOSPC), 1},
		{ctx, errors.New("untyped"), 1},
		{ctx, &config.Error{Problems: []config.Problem{{Message: "x"}}}, 2},
		{ctx, walimpls.BatchFailure("c", 2, walimpls.Unknown, walimpls.Errorf(walimpls.CodeUnknownOutcome, "c", "x")), 3},
		{ctx, context.DeadlineExceeded, 4},
		{stopped, errInterrupted, 130},
		{stopped, context.Canceled, 130},
		{ctx, &exitError{err: errors.New("x"), exit: 3}, 3},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("%v: exit %d, want %d", c.err, got, c.want)
		}
	}
}

func TestErrorsAreOneLineInBothForms(t *testing.T) {
	e := walimpls.Errorf(walimpls.CodePluginStart, "orders", "exit status 3\nlast lines:\n\x1b[31mboom")
	e.Hint = "look\nthere"
	var text, js bytes.Buffer
	printError(&text, false, e)
	if want := "error: pchannel \"orders\": exit status 3 | last lines: | ?[31mboom (plugin_start)\nhint: look | there\n"; text.String() != want {
		t.Errorf("text: %q", text.String())
	}
	printError(&js, true, e)
	if want := `{"error":{"code":"plugin_start","message":"exit status 3\nlast lines:\n\u001b[31mboom","hint":"look\nthere","retryable":true,"channel":"orders"}}` + "\n"; js.String() != want {
		t.Errorf("json: %s", js.String())
	}
	js.Reset()
	printError(&js, true, walimpls.Errorf(walimpls.CodeInternal, "", "x"))
	if want := `{"error":{"code":"internal","message":"x","hint":null,"retryable":false,"channel":null}}` + "\n"; js.String() != want {
		t.Errorf("json without channel: %s", js.String())
	}
	text.Reset()
	printError(&text, false, &config.Error{Problems: []config.Problem{{Key: "a", Message: "x"}, {Key: "b", Message: "y"}}})
	if !strings.HasPrefix(text.String(), "error: a: x\nerror: b: y\nhint: ") {
		t.Errorf("config: %q", text.String())
	}
}

func TestOutputIsFoundInABrokenCommandLine(t *testing.T) {
	for line, want := range map[string]string{
		"read x": "text", "read -o json x": "json", "-ojson read": "json", "read --output=json --bogus": "json",
		"read --output raw": "raw", "append -- -o json": "text", "read -o=json": "json", "read -o": "text",
	} {
		if got := wantedOutput(strings.Fields(line)); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestProgressLineFitsItsWidth(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		width := rapid.IntRange(0, 200).Draw(r, "width")
		n := rapid.Int64Range(0, 1<<50)
		line := progressLine(time.Duration(n.Draw(r, "elapsed")), n.Draw(r, "records"), n.Draw(r, "bytes"), n.Draw(r, "total"), width)
		if len(line) > width {
			r.Fatalf("%d characters: %q", len(line), line)
		}
	})
	got := progressLine(10*time.Second, 1000, 5<<20, 10<<20, 120)
	if want := " 50% [===============               ] 1000 records  5.0 MiB  512.0 KiB/s  100 records/s  ETA 10s"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"a/b.txt": "a/b.txt", "a b": "'a b'", "it's": `'it'\''s'`} {
		if got := shellQuote(in); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}
