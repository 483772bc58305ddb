package conformance

import (
	_ "embed" // the HTML page
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteJSON writes the report in the form that report.schema.json describes.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// ReadJSON reads a report that WriteJSON wrote.
func ReadJSON(rd io.Reader) (Report, error) {
	var r Report
	if err := json.NewDecoder(rd).Decode(&r); err != nil {
		return r, fmt.Errorf("read a report: %w", err)
	}
	if r.Schema != reportSchemaName {
		return r, fmt.Errorf("the report has the schema %q, this build reads %q", r.Schema, reportSchemaName)
	}
	return r, nil
}

// WriteTable writes the report for a terminal: the failures with all that belongs
// to them, what did not run and why, the levels, the result.
func (r Report) WriteTable(w io.Writer) error {
	out := &keeper{w: w}
	out.printf("%s (%s) · backend %s %s · seed %d · %s\n\n", r.Target.Name, r.Target.Kind, r.Backend.Name, r.Backend.Version, r.Seed, (time.Duration(r.Millis) * time.Millisecond).Round(100*time.Millisecond))
	for i := range r.Clauses {
		c := &r.Clauses[i]
		for k := range c.Checks {
			if c.Checks[k].Verdict == Fail && c.Verdict != Waived {
				out.printf("FAIL %s\n", c.explain(&c.Checks[k]))
			}
		}
	}
	tw := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "CLAUSE\tLEVEL\tVERDICT\tTIME\tNOTE")
	selected := 0
	for _, c := range r.Clauses {
		if c.Verdict == NotRun && c.Reason == notSelected {
			continue
		}
		selected++
		note := c.Reason
		for _, k := range c.Checks {
			if note == "" && len(k.Notes) > 0 {
				note = k.Notes[0]
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d ms\t%s\n", c.ID, c.Level, c.Verdict, c.Millis, note)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if n := len(r.Clauses) - selected; n > 0 {
		out.printf("%d more were not selected\n", n)
	}
	out.printf("\n")
	for _, s := range r.Warnings {
		out.printf("warning: %s\n", s)
	}
	if len(r.Left) > 0 {
		out.printf("left behind, because the backend cannot drop: %s\n", some(r.Left))
	}
	tw = tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "LEVEL\tSTATE\tPASS\tFAIL\tWAIVED\tNOT CLAIMED\tNOT RUN")
	for _, l := range r.Levels {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", l.Level, l.State, l.Counts[Pass], l.Counts[Fail], l.Counts[Waived], l.Counts[NotClaimed], l.Counts[NotRun])
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	out.printf("\nresult: %s\n", r.Result)
	for _, reason := range r.Reasons {
		out.printf("  %s\n", reason)
	}
	return out.err
}

// some shows a few of many names; the JSON report has them all.
func some(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// keeper writes and remembers the first error.
type keeper struct {
	w   io.Writer
	err error
}

func (k *keeper) Write(p []byte) (int, error) {
	if k.err != nil {
		return 0, k.err
	}
	n, err := k.w.Write(p)
	k.err = err
	return n, err
}

func (k *keeper) printf(format string, args ...any) { fmt.Fprintf(k, format, args...) }

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string     `xml:"classname,attr"`
	Name    string     `xml:"name,attr"`
	Time    string     `xml:"time,attr"`
	Failure *junitText `xml:"failure,omitempty"`
	Skipped *junitText `xml:"skipped,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func seconds(millis int64) string { return fmt.Sprintf("%.3f", float64(millis)/1000) }

// WriteJUnit writes the report as JUnit XML: a suite for each group, a case for
// each check. What is not claimed, not run or waived is skipped. A run that fails
// for a reason beside its checks has a failing case that says so.
func (r Report) WriteJUnit(w io.Writer) error {
	all := junitSuites{Name: "walrig conformance: " + r.Target.Name, Time: seconds(r.Millis)}
	add := func(s *junitSuite, c junitCase) {
		s.Cases = append(s.Cases, c)
		s.Tests++
		all.Tests++
		if c.Failure != nil {
			s.Failures++
			all.Failures++
		}
		if c.Skipped != nil {
			s.Skipped++
			all.Skipped++
		}
	}
	for _, g := range groupTable {
		suite := junitSuite{Name: g.Name}
		for i := range r.Clauses {
			cl := &r.Clauses[i]
			if cl.Group != g.Name {
				continue
			}
			for k := range cl.Checks {
				check := &cl.Checks[k]
				c := junitCase{Class: "walrig." + string(cl.Level) + "." + g.Name, Name: check.ID, Time: seconds(check.Millis)}
				switch {
				case check.Verdict == Fail && cl.Verdict == Waived:
					c.Skipped = &junitText{Message: clean("waived: " + cl.Reason)}
				case check.Verdict == Fail:
					c.Failure = &junitText{Message: clean(check.Failure.Message), Text: clean(cl.explain(check))}
				case check.Verdict != Pass:
					c.Skipped = &junitText{Message: clean(string(check.Verdict) + ": " + check.Reason)}
				}
				add(&suite, c)
			}
		}
		all.Suites = append(all.Suites, suite)
	}
	verdict := junitSuite{Name: "result"}
	c := junitCase{Class: "walrig", Name: "result", Time: "0"}
	if !r.OK() {
		c.Failure = &junitText{Message: clean(string(r.Result)), Text: clean(strings.Join(r.Reasons, "\n"))}
	}
	add(&verdict, c)
	all.Suites = append(all.Suites, verdict)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// clean leaves out what XML cannot hold.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' || r >= 0x20 && r != 0xFFFE && r != 0xFFFF && r != 0xFFFD {
			return r
		}
		return '?'
	}, s)
}

//go:embed report.html.tmpl
var pageText string

// WriteHTML writes the report as one page that needs nothing else.
func (r Report) WriteHTML(w io.Writer) error {
	page, err := template.New("report").Funcs(template.FuncMap{
		"class": func(v any) string { return strings.ReplaceAll(fmt.Sprint(v), " ", "-") },
		"join":  strings.Join,
		"count": func(c map[Verdict]int, v string) int { return c[Verdict(v)] },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return page.Execute(w, r)
}

// Change is a clause whose verdict differs between two reports.
type Change struct {
	Clause string  `json:"clause"`
	Before Verdict `json:"before"` // "" if the report does not know the clause
	After  Verdict `json:"after"`
	// Worse: it passed, or was waived, and does not any more.
	Worse bool `json:"worse"`
}

// Difference is what Diff finds.
type Difference struct {
	Target  []string `json:"target"` // what differs about the targets, a line each
	Changes []Change `json:"changes"`
	// Levels are those whose state differs, as "Durable: reached → incomplete".
	Levels []string `json:"levels"`
}

// Worse reports whether something that was well is not any more.
func (d Difference) Worse() bool {
	for _, c := range d.Changes {
		if c.Worse {
			return true
		}
	}
	return false
}

// Diff compares two reports, the older one first.
func Diff(a, b Report) Difference {
	d := Difference{Target: []string{}, Changes: []Change{}, Levels: []string{}}
	line := func(what, x, y string) {
		if x != y {
			d.Target = append(d.Target, fmt.Sprintf("%s: %s → %s", what, dash(x), dash(y)))
		}
	}
	line("target", a.Target.Name, b.Target.Name)
	line("kind", a.Target.Kind, b.Target.Kind)
	line("sha256", a.Target.SHA256, b.Target.SHA256)
	line("backend", a.Backend.Name+" "+a.Backend.Version, b.Backend.Name+" "+b.Backend.Version)
	line("capabilities", fmt.Sprint(a.Backend.Capabilities), fmt.Sprint(b.Backend.Capabilities))
	line("host", a.Host.Version, b.Host.Version)
	seen := map[string]bool{}
	for _, list := range [][]ClauseResult{a.Clauses, b.Clauses} {
		for _, c := range list {
			if seen[c.ID] {
				continue
			}
			seen[c.ID] = true
			before, _ := a.Clause(c.ID)
			after, _ := b.Clause(c.ID)
			if before.Verdict != after.Verdict {
				worse := after.Verdict == Fail || before.Verdict == Pass
				d.Changes = append(d.Changes, Change{Clause: c.ID, Before: before.Verdict, After: after.Verdict, Worse: worse})
			}
		}
	}
	state := func(r Report, l Level) string {
		for _, x := range r.Levels {
			if x.Level == l {
				return string(x.State)
			}
		}
		return ""
	}
	for _, l := range Levels() {
		if x, y := state(a, l), state(b, l); x != y {
			d.Levels = append(d.Levels, fmt.Sprintf("%s: %s → %s", l, dash(x), dash(y)))
		}
	}
	return d
}

// Write writes the difference for a terminal.
func (d Difference) Write(w io.Writer) error {
	out := &keeper{w: w}
	for _, t := range d.Target {
		out.printf("%s\n", t)
	}
	for _, c := range d.Changes {
		mark := " "
		if c.Worse {
			mark = "!"
		}
		out.printf("%s %s: %s → %s\n", mark, c.Clause, dash(string(c.Before)), dash(string(c.After)))
	}
	for _, l := range d.Levels {
		out.printf("level %s\n", l)
	}
	if len(d.Target)+len(d.Changes)+len(d.Levels) == 0 {
		out.printf("no difference\n")
	}
	return out.err
}
