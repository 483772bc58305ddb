package conformance

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Environment variables that select what Test runs, so that a failed check can be
// repeated without a change of code.
const (
	runVariable  = "WALRIG_TEST_CONFORM_RUN"
	seedVariable = "WALRIG_TEST_CONFORM_SEED"
)

// slow is how many milliseconds of a check are worth a line.
const slow = 2000

// Test runs the suite on a target inside `go test`, with a subtest for each check.
// What is not claimed or not run is skipped with the reason. It returns the report.
func Test(t *testing.T, target Target, opts ...Options) Report {
	t.Helper()
	var opt Options
	if len(opts) > 0 {
		opt = opts[0]
	}
	if re := os.Getenv(runVariable); re != "" {
		opt.Run = re
	}
	if text := os.Getenv(seedVariable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
		opt.Seed = seed
	}
	if testing.Short() && opt.Soak == 0 {
		opt.Soak = DefaultSoak / 6
	}
	if opt.Repeat == nil {
		opt.Repeat = repeatTest(t.Name())
	}
	report, err := Run(t.Context(), target, opt)
	if err != nil {
		t.Fatalf("the suite did not run: %v", err)
	}
	t.Logf("%s: %s, seed %d, %d ms", report.Target.Name, report.Result, report.Seed, report.Millis)
	for i := range report.Clauses {
		c := &report.Clauses[i]
		for k := range c.Checks {
			if c.Checks[k].Millis > slow {
				t.Logf("slow: %s took %d ms", c.Checks[k].ID, c.Checks[k].Millis)
			}
			t.Run(c.Checks[k].ID, func(t *testing.T) { c.Checks[k].tell(t, c) })
		}
	}
	for _, w := range report.Warnings {
		t.Log("warning: " + w)
	}
	for _, l := range report.Levels {
		t.Logf("level %-9s %s", l.Level, l.State)
	}
	if !report.OK() {
		t.Errorf("conformance of %s: %s: %s", report.Target.Name, report.Result, strings.Join(report.Reasons, "; "))
	}
	return report
}

// tell gives the check's verdict to its subtest.
func (k *CheckResult) tell(t *testing.T, c *ClauseResult) {
	switch {
	case k.Verdict == Fail && c.Verdict != Waived:
		t.Error(c.explain(k))
	case k.Verdict == Fail:
		t.Skip("waived: " + c.Reason)
	case k.Verdict != Pass:
		t.Skipf("%s: %s", k.Verdict, k.Reason)
	}
}

// explain is the whole story of a failed check.
func (c *ClauseResult) explain(k *CheckResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n  clause:   %s\n  expected: %s\n", k.ID, c.Level, c.Text, indent(k.Failure.Message, "            "))
	if len(c.After) > 0 {
		fmt.Fprintf(&b, "  first:    it depends on %s, which %s too: look there first\n", strings.Join(c.After, ", "), plural(len(c.After), "fails", "fail"))
	}
	fmt.Fprintf(&b, "  seed:     %d\n  repeat:   %s\n  events:\n", k.Failure.Seed, k.Failure.Command)
	for _, line := range k.Failure.Trace {
		b.WriteString("    " + indent(line, "      ") + "\n")
	}
	return b.String()
}

func indent(text, with string) string { return strings.ReplaceAll(text, "\n", "\n"+with) }

// repeatTest is the command that repeats one check of a test, in its folder.
func repeatTest(name string) func(string, uint64) string {
	return func(id string, seed uint64) string {
		return fmt.Sprintf("%s='^%s$' %s=%d go test -run '^%s$' .",
			runVariable, regexp.QuoteMeta(id), seedVariable, seed, regexp.QuoteMeta(name))
	}
}
