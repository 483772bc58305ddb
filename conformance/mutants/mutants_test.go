package mutants

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/conformance"
)

// quick are options for a backend in memory.
func quick(seed uint64) conformance.Options {
	return conformance.Options{
		Seed: seed, Parallel: 8, Soak: 150 * time.Millisecond,
		Bound: 1500 * time.Millisecond, Grace: 500 * time.Millisecond, Quiet: 50 * time.Millisecond,
	}
}

// verdicts runs the suite and returns the failed clauses with the first failure of each.
func verdicts(t *testing.T, m Mutant, opt conformance.Options) (conformance.Report, map[string]string) {
	t.Helper()
	target, release := Target(m)
	defer release()
	report, err := conformance.Run(t.Context(), target, opt)
	if err != nil {
		t.Fatalf("%s: %v", m.Name, err)
	}
	why := map[string]string{}
	for _, c := range report.Clauses {
		for _, k := range c.Checks {
			if k.Verdict == conformance.Fail && why[c.ID] == "" {
				why[c.ID] = k.ID + ": " + strings.SplitN(k.Failure.Message, "\n", 2)[0]
			}
		}
	}
	return report, why
}

func TestReferencePassesWhateverTheSeed(t *testing.T) {
	seeds := 20
	for seed := 1; seed <= seeds; seed++ {
		report, why := verdicts(t, Mutant{}, quick(uint64(seed)))
		for id, w := range why {
			t.Errorf("seed %d: %s: %s", seed, id, w)
		}
		for _, l := range report.Levels {
			if l.State != conformance.Reached && l.Level != conformance.LevelSpace {
				t.Errorf("seed %d: level %s is %s", seed, l.Level, l.State)
			}
		}
	}
}

func TestEveryMutantIsKilledByItsClause(t *testing.T) {
	only := os.Getenv("WALRIG_TEST_MUTANT")
	kills := map[string][]string{}
	for _, m := range All() {
		if only != "" && !strings.Contains(m.Name, only) {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			_, why := verdicts(t, m, quick(7))
			allowed := conformance.Dependents(m.Clause)
			if why[m.Clause] == "" {
				t.Errorf("%s survives: %s does not see that %s", m.Name, m.Clause, m.Defect)
			}
			for id, w := range why {
				kills[m.Name] = append(kills[m.Name], id)
				if !slices.Contains(allowed, id) {
					t.Errorf("%s does not depend on %s, and fails too: %s", id, m.Clause, w)
				}
			}
			slices.Sort(kills[m.Name])
			if only != "" {
				t.Log(fmt.Sprint(why))
			}
		})
	}
}
