package scanner

import (
	"flag"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write what the scenarios print into testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// playScenarios plays a file of scenarios. "== name" begins one; every other
// line is an event or a comment, and the indented lines below an event are what
// it prints. play returns the scenario's text with what is printed now.
func playScenarios(t *testing.T, path string, play func(t *testing.T, events string) string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	scenarios := strings.Split(strings.TrimRight(string(text), "\n"), "\n== ")
	out := scenarios[:1:1]
	for _, scenario := range scenarios[1:] {
		name, events, _ := strings.Cut(strings.TrimRight(scenario, "\n"), "\n")
		got := ""
		t.Run(name, func(t *testing.T) {
			if got = play(t, events); got != events && !*update {
				t.Errorf("%s, %q: got\n%s\nwant\n%s", path, name, got, events)
			}
		})
		out = append(out, name+"\n"+got+"\n")
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.TrimRight(strings.Join(out, "\n== "), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// playEvents plays the events of one scenario and returns its new text.
func playEvents(events string, play func(event string) []string) string {
	var out []string
	for line := range strings.SplitSeq(events, "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out = append(out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, printed := range play(line) {
			out = append(out, "  "+printed)
		}
	}
	return strings.Join(out, "\n")
}
