package conformance

import (
	"fmt"
	"strings"
)

// RenderSpec returns the contents of SPEC.md.
func RenderSpec() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("# The backend contract, clause by clause\n\n")
	p("<!-- Generated from the table in conformance/clauses*.go. Do not edit: go test ./conformance -run Spec -update -->\n\n")
	p("The rules are those of `sdk/walimpls/doc.go`; 0 stands for the comments of its types. An id never changes its meaning;\n")
	p("a clause that is withdrawn leaves its number unused. What a backend claims is in its Description.\n\n")
	p("A clause that needs a capability which the backend does not claim, or that is empty for it (holes in ids that are\n")
	p("consecutive), is *not claimed*; one that the target could not make happen is *not run*. Neither counts as passed. A level is reached when\n")
	p("every clause of it that the backend claims has passed. The run is *complete* without the extra levels.\n\n## Levels\n\n")
	p("| level | needs | clauses | extra | what it means |\n|---|---|---|---|---|\n")
	clauses, checks := Clauses(), List()
	for _, l := range levelTable {
		n := 0
		for _, c := range clauses {
			if c.Level == l.Level {
				n++
			}
		}
		extra := ""
		if l.Extra {
			extra = "yes"
		}
		p("| %s | %s | %d | %s | %s |\n", l.Level, dash(string(l.Needs)), n, extra, l.Doc)
	}
	for _, g := range groupTable {
		p("\n## %s: %s\n\n", g.Name, g.Doc)
		p("| id | level | needs besides | rule | clause | checks |\n|---|---|---|---|---|---|\n")
		for _, c := range clauses {
			if c.Group() != g.Name {
				continue
			}
			var needs, names []string
			for _, n := range c.Needs {
				needs = append(needs, string(n))
			}
			for _, k := range checks {
				if k.Clause == c.ID {
					names = append(names, strings.TrimPrefix(k.ID, c.ID+"/"))
				}
			}
			p("| %s | %s | %s | %d | %s | %s |\n", c.ID, c.Level, dash(strings.Join(needs, ", ")), c.Rule, c.Text, strings.Join(names, ", "))
		}
	}
	p("\n## Dependencies\n\nWhere a clause and one that it depends on both fail, the one it depends on is to be looked at first. Every clause depends on %s, which are seen through each other.\n\n", strings.Join(roots, ", "))
	p("| clause | depends on | because |\n|---|---|---|\n")
	for _, c := range clauses {
		if len(c.Depends) > 0 {
			p("| %s | %s | %s |\n", c.ID, strings.Join(c.Depends, ", "), c.Because)
		}
	}
	return b.String()
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
