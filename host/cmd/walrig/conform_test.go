package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walrig/walrig/conformance"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestConformCommandHoldsNoSecrets(t *testing.T) {
	desc := walimpls.Description{Config: []walimpls.ConfigField{{Name: "dir"}, {Name: "password", Secret: true}}}
	o := conformOptions{sets: []string{"dir=/tmp/it's", "password=hunter2"}}
	o.in.File = "a b.yaml"
	got := conformCommand("./walrig-plugin-x", o, desc)
	want := " conform ./walrig-plugin-x --config 'a b.yaml' --set 'dir=/tmp/it'\\''s' --set 'password=(hidden)'"
	if !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want …%s", got, want)
	}
}

func TestABackendWithoutAPlaceForItsStoreGetsOne(t *testing.T) {
	with := walimpls.Description{Config: []walimpls.ConfigField{{Name: "dir", Type: walimpls.ConfigString}}}
	for _, c := range []struct {
		desc walimpls.Description
		cfg  walimpls.Config
		want bool
	}{
		{with, walimpls.Config{}, true},
		{with, walimpls.Config{"dir": "/x"}, false},
		{walimpls.Description{}, walimpls.Config{}, false},
	} {
		if got := wantsStore(c.desc, c.cfg); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestConformProgressOnATerminal(t *testing.T) {
	var screen bytes.Buffer
	p := &conformProgress{w: &screen, live: true, width: func() int { return 40 }}
	check := func(id string, v conformance.Verdict, f *conformance.Failure) conformance.CheckResult {
		return conformance.CheckResult{ID: id, Verdict: v, Millis: 7, Failure: f}
	}
	p.show(conformance.Progress{Done: 1, Total: 10, Check: check("WAL-A/x", conformance.Pass, nil)})
	p.show(conformance.Progress{Done: 2, Total: 10, Check: check("WAL-B/y", conformance.Fail, &conformance.Failure{Message: "this\nand that"})})
	p.show(conformance.Progress{Done: 3, Total: 10, Check: check("WAL-C/z", conformance.NotRun, nil)})
	p.stop()
	want := "\r[=                 ] 1/10  WAL-A/x\x1b[K" +
		"\r 2/10  fail     WAL-B/y  7 ms  this\x1b[K\n" +
		"\r" + "2/10  1 failed  WAL-B/y" + "\x1b[K" + "\r\x1b[K"
	if got := screen.String(); !sameButBars(got, want) {
		t.Errorf("the screen got %q, want %q", got, want)
	}
	for line := range strings.SplitSeq(screen.String(), "\r") {
		if n := len(strings.TrimSuffix(line, "\x1b[K")); n > 39 && !strings.HasSuffix(line, "\n") {
			t.Errorf("a line of %d characters on 40: %q", n, line)
		}
	}
}

// sameButBars compares screens without the bars, whose width is the room that is left.
func sameButBars(a, b string) bool {
	strip := func(s string) string {
		for {
			from := strings.Index(s, "[=")
			if from < 0 {
				from = strings.Index(s, "[ ")
			}
			if from < 0 {
				return s
			}
			s = s[:from] + s[from+strings.Index(s[from:], "] ")+2:]
		}
	}
	return strip(a) == strip(b)
}

func TestReportsAreThereWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	left := func(want string) {
		t.Helper()
		got, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("the report is %q (%v), want %q", got, err, want)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("%v lies beside it (%v)", all, err)
		}
	}
	files, err := reportPaths{json: path}.create()
	if err != nil {
		t.Fatal(err)
	}
	if err := files.discard(); err != nil {
		t.Fatal(err)
	}
	left("old")
	if _, err := (reportPaths{json: path, html: filepath.Join(dir, "none", "x.html")}).create(); walimpls.AsError(err).Code != walimpls.CodeInvalidArgument {
		t.Errorf("a folder that is not there: %v", err)
	}
	left("old")
	if files, err = (reportPaths{json: path}).create(); err != nil {
		t.Fatal(err)
	}
	if err := files.write(conformance.Report{}); err != nil {
		t.Fatal(err)
	}
	if err := files.discard(); err != nil {
		t.Fatal(err)
	}
	left("{")
}

func TestConformHintNamesWhereToBegin(t *testing.T) {
	failed := func(id string, after ...string) conformance.ClauseResult {
		return conformance.ClauseResult{ID: id, Verdict: conformance.Fail, After: after}
	}
	for _, c := range []struct {
		clauses []conformance.ClauseResult
		want    string
	}{
		{[]conformance.ClauseResult{failed("A"), failed("B", "A")}, "begin with what no other failed clause comes before: A"},
		{[]conformance.ClauseResult{failed("A")}, "the report shows"},
		{nil, "`walrig conform --list`"},
	} {
		err := conformVerdict(conformance.Report{Result: conformance.ResultFail, Reasons: []string{"x"}, Clauses: c.clauses})
		if e := walimpls.AsError(err); e.Code != walimpls.CodeNotConforming || !strings.HasPrefix(e.Hint, c.want) {
			t.Errorf("%v: %q", err, e.Hint)
		}
	}
	if err := conformVerdict(conformance.Report{Result: conformance.ResultIncomplete}); err != nil {
		t.Errorf("an incomplete run is no failure: %v", err)
	}
}
