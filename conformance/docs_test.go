package conformance

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files anew")

// drift compares a generated file with what it should hold.
func drift(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s is out of date (%v): go test ./conformance -run '^%s$' -update", path, err, t.Name())
	}
}

func TestSpecIsTheTable(t *testing.T) { drift(t, "SPEC.md", RenderSpec()) }

func TestSchemaIsTheTypes(t *testing.T) { drift(t, "report.schema.json", RenderSchema()) }

func TestTablesAreSound(t *testing.T) {
	clauses, seen := clauseByID(), map[string]bool{}
	for _, c := range Clauses() {
		if seen[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		seen[c.ID] = true
		if c.Group() == strings.Split(c.ID, "-")[1] || c.Text == "" || !slices.Contains(Levels(), c.Level) {
			t.Errorf("%s has no group, text or level", c.ID)
		}
		if (len(c.Depends) > 0) != (c.Because != "") {
			t.Errorf("%s depends on others without a reason, or has a reason without them", c.ID)
		}
		for _, d := range c.Depends {
			if _, ok := clauses[d]; !ok {
				t.Errorf("%s depends on %s, which does not exist", c.ID, d)
			}
			if slices.Contains(Dependents(c.ID), d) {
				t.Errorf("%s and %s depend on each other", c.ID, d)
			}
		}
	}
	proven, ids := map[string]bool{}, map[string]bool{}
	for _, c := range allChecks() {
		if _, ok := clauses[c.Clause]; !ok {
			t.Errorf("check %s proves a clause that does not exist", c.ID())
		}
		if ids[c.ID()] {
			t.Errorf("check %s is there twice", c.ID())
		}
		proven[c.Clause], ids[c.ID()] = true, true
	}
	for id := range clauses {
		if !proven[id] {
			t.Errorf("%s has no check", id)
		}
	}
}
