package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Waiver excuses one clause for a while: it may fail, and its level is not
// reached. A waiver that has expired fails the run, and so does one whose clause
// passes: it is to be deleted then.
type Waiver struct {
	Clause string `yaml:"clause"`
	Reason string `yaml:"reason"`
	Owner  string `yaml:"owner"`
	// Expires is the last day on which it holds, as 2006-01-02.
	Expires string `yaml:"expires"`
}

// noWaivers are the backends that walrig itself vouches for.
var noWaivers = []string{"rmq", "kafka", "pulsar"}

const waiverDay = "2006-01-02"

// ReadWaivers reads a file of waivers: a YAML list of clause, reason, owner and
// expires. All problems are reported at once.
func ReadWaivers(r io.Reader) ([]Waiver, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var waivers []Waiver
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&waivers); err != nil && !errors.Is(err, io.EOF) {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "waivers: %w", err)
	}
	return waivers, checkWaiverIDs(waivers)
}

func checkWaiverIDs(waivers []Waiver) error {
	var problems []string
	known := clauseByID()
	seen := map[string]bool{}
	for i, w := range waivers {
		bad := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("waiver %d (%s): ", i+1, w.Clause)+fmt.Sprintf(format, args...))
		}
		if _, ok := known[w.Clause]; !ok {
			bad("there is no such clause")
		}
		if seen[w.Clause] {
			bad("the clause is waived twice")
		}
		seen[w.Clause] = true
		if strings.TrimSpace(w.Reason) == "" {
			bad("it has no reason")
		}
		if strings.TrimSpace(w.Owner) == "" {
			bad("it has no owner")
		}
		if _, err := time.Parse(waiverDay, w.Expires); err != nil {
			bad("expires is %q, want a day such as 2026-12-31", w.Expires)
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return walimpls.Errorf(walimpls.CodeInvalidArgument, "", "waivers: %s", strings.Join(problems, "; "))
}

// waive applies the waivers and returns what is wrong with them.
func (r *Report) waive(opt Options) []string {
	var reasons []string
	if len(opt.Waivers) > 0 && slices.Contains(noWaivers, r.Backend.Name) {
		reasons = append(reasons, fmt.Sprintf("%s must keep every clause: it may have no waivers", r.Backend.Name))
		return reasons
	}
	for _, w := range opt.Waivers {
		i := slices.IndexFunc(r.Clauses, func(c ClauseResult) bool { return c.ID == w.Clause })
		c := &r.Clauses[i]
		last, _ := time.Parse(waiverDay, w.Expires)
		switch {
		case !opt.Now().Before(last.AddDate(0, 0, 1)):
			reasons = append(reasons, fmt.Sprintf("the waiver of %s expired on %s: ask its owner, %s", w.Clause, w.Expires, w.Owner))
		case c.Verdict == Pass:
			reasons = append(reasons, fmt.Sprintf("%s passes and has a waiver: delete the waiver", w.Clause))
		case c.Verdict == Fail:
			c.Verdict = Waived
			c.Reason = fmt.Sprintf("%s (%s, until %s)", w.Reason, w.Owner, w.Expires)
		}
	}
	return reasons
}
