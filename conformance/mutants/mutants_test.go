package mutants

import (
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/conformance"
)

var update = flag.Bool("update", false, "run the whole suite on every mutant and write docs/mutants.md anew")

const tablePath = "../../docs/mutants.md"

// full: 20 seeds of the reference, and the whole suite on each mutant.
var full = flag.Bool("full", false, "also run what takes minutes: every check on every mutant, 20 seeds of the reference")

// quick are options for a backend in memory.
func quick(seed uint64) conformance.Options {
	return conformance.Options{
		Seed: seed, Parallel: 8, Soak: 150 * time.Millisecond,
		Bound: 30 * time.Second, Grace: 30 * time.Second, Quiet: 50 * time.Millisecond, SpaceReserve: 2 << 20,
	}
}

// hurried are options for a mutant: it may hang, so it is not waited for as long.
func hurried(seed uint64) conformance.Options {
	opt := quick(seed)
	opt.Bound, opt.Grace = 2*time.Second, 2*time.Second
	if *full || *update { // what only a busy machine delays must not count as killed
		opt.Bound, opt.Grace = 6*time.Second, 6*time.Second
	}
	return opt
}

// verdicts runs the suite and returns the first failure of each failed clause.
func verdicts(t *testing.T, m Mutant, opt conformance.Options) (conformance.Report, map[string]string) {
	t.Helper()
	target, release := Target(m)
	defer release()
	report, err := conformance.Run(t.Context(), target, opt)
	if err != nil {
		t.Fatalf("%s: %v", m.Name, err)
	}
	why := map[string]string{}
	for i := range report.Clauses {
		c := &report.Clauses[i]
		for _, k := range c.Checks {
			if k.Verdict == conformance.Fail && why[c.ID] == "" {
				first, _, _ := strings.Cut(k.Failure.Message, "\n")
				why[c.ID] = k.ID + ": " + first
			}
		}
	}
	return report, why
}

func TestReferencePassesWhateverTheSeed(t *testing.T) {
	seeds := 1
	if *full || *update {
		seeds = 20
	}
	for seed := 1; seed <= seeds; seed++ {
		report, why := verdicts(t, Mutant{}, quick(uint64(seed)))
		for id, w := range why {
			t.Errorf("seed %d: %s: %s", seed, id, w)
		}
		if report.Result != conformance.ResultPass {
			t.Errorf("seed %d: %s: %v", seed, report.Result, report.Reasons)
		}
		for _, w := range report.Warnings {
			t.Errorf("seed %d: the reference earns a warning: %s", seed, w)
		}
		if len(report.Left) > 0 {
			t.Errorf("seed %d: left behind: %v", seed, report.Left)
		}
	}
}

// Each mutant is killed by the checks of its own clause.
func TestEveryMutantIsKilledByItsClause(t *testing.T) {
	for _, m := range All() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			opt := hurried(7)
			opt.Run = "^(" + strings.Join(append(m.Also[:len(m.Also):len(m.Also)], m.Clause), "|") + ")/"
			_, why := verdicts(t, m, opt)
			m.expectKilled(t, why)
		})
	}
}

// expectKilled fails unless the mutant's clauses failed.
func (m Mutant) expectKilled(t *testing.T, why map[string]string) {
	t.Helper()
	for _, id := range append(m.Also[:len(m.Also):len(m.Also)], m.Clause) {
		if why[id] == "" {
			t.Errorf("%s survives: %s does not see that %s", m.Name, id, m.Defect)
		}
	}
}

// Ids with holes break nothing, and the check for holes sees them.
func TestReferenceWithHolesPasses(t *testing.T) {
	report, why := verdicts(t, WithHoles, quick(1))
	for id, w := range why {
		t.Errorf("%s: %s", id, w)
	}
	if c, _ := report.Clause("WAL-SCAN-007"); c.Verdict != conformance.Pass {
		t.Errorf("WAL-SCAN-007 on ids with holes: %s %s", c.Verdict, c.Reason)
	}
}

// Every clause is one that a mutant breaks, or that fails with a mutant which
// breaks another: then nothing can break it alone.
func TestEveryClauseHasAMutant(t *testing.T) {
	broken := map[string]bool{}
	for _, m := range All() {
		broken[m.Clause] = true
		for _, id := range m.Also {
			broken[id] = true
			if !slices.Contains(conformance.Dependents(m.Clause), id) {
				t.Errorf("%s: %s does not depend on %s", m.Name, id, m.Clause)
			}
		}
	}
	for _, c := range conformance.Clauses() {
		if !broken[c.ID] {
			t.Errorf("%s has no mutant", c.ID)
		}
	}
}

// Nothing else fails on it but what depends on that clause. The runs take minutes,
// so they are made when the table is written, or asked for.
func TestEveryMutantIsKilledThereAlone(t *testing.T) {
	if !*update && !*full {
		t.Skip("every check on every mutant takes minutes: run it with -full, or make conformance")
	}
	var mu sync.Mutex
	kills := map[string][]string{}
	t.Run("mutants", func(t *testing.T) {
		for _, m := range All() {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				_, why := verdicts(t, m, hurried(7))
				allowed := conformance.Dependents(m.Clause)
				m.expectKilled(t, why)
				mu.Lock()
				defer mu.Unlock()
				for id, w := range why {
					kills[m.Name] = append(kills[m.Name], id)
					if !slices.Contains(allowed, id) {
						t.Errorf("%s does not depend on %s, and fails too: %s", id, m.Clause, w)
					}
				}
				slices.Sort(kills[m.Name])
			})
		}
	})
	if *update && !t.Failed() {
		if err := os.WriteFile(tablePath, []byte(RenderTable(kills)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTableOfKillsIsCurrent(t *testing.T) {
	text, err := os.ReadFile(tablePath)
	if err != nil {
		t.Fatal(err)
	}
	kills := readKills(string(text))
	if RenderTable(kills) != string(text) {
		t.Errorf("%s is out of date: go test ./conformance/mutants -run Every -update -timeout 30m", tablePath)
	}
	for _, m := range All() {
		if !slices.Contains(kills[m.Name], m.Clause) {
			t.Errorf("%s is not in the table", m.Name)
		}
		for _, k := range kills[m.Name] {
			if !slices.Contains(conformance.Dependents(m.Clause), k) {
				t.Errorf("%s: %s does not depend on %s", m.Name, k, m.Clause)
			}
		}
	}
}

func TestMutantsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range All() {
		if seen[m.Name] || m.Defect == "" || m.Clause == "" || m.hooks == nil {
			t.Errorf("mutant %q is not whole, or there twice", m.Name)
		}
		seen[m.Name] = true
	}
	if len(seen) < 30 {
		t.Errorf("%d mutants, want 30 at least", len(seen))
	}
}

// readKills reads the table back.
func readKills(text string) map[string][]string {
	kills := map[string][]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || !strings.Contains(cells[3], "WAL-") {
			continue
		}
		name := strings.TrimSpace(cells[0])
		kills[name] = append([]string{strings.TrimSpace(cells[3])}, strings.Fields(strings.ReplaceAll(cells[4], "*", ""))...)
	}
	return kills
}
