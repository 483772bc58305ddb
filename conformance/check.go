package conformance

import (
	"slices"
	"time"
)

// check is one proof of one clause.
type check struct {
	// Clause is what it proves, Name tells it from the clause's other checks.
	Clause string
	Name   string
	// Alone: it stops or kills the instance, so nothing runs beside it.
	Alone bool
	// Kills: it needs an instance that is a Killer. Sizes: it needs a Sizer.
	Kills bool
	Sizes bool
	// Configures: it needs a target that is a ConfigChecker.
	Configures bool
	// Bound is how long it may take; 0 means defaultCheckBound.
	Bound time.Duration
	Run   func(*T)
}

// defaultCheckBound is for two noisy cores under the race detector.
const defaultCheckBound = 3 * time.Minute

// ID is the clause's id and the name.
func (c check) ID() string { return c.Clause + "/" + c.Name }

// allChecks returns every check in the order of the specification.
func allChecks() []check {
	return slices.Concat(lifecycleChecks, appendChecks, scanChecks, idChecks, limitChecks, errorChecks,
		reorderChecks, txnChecks, readOnlyChecks, fencingChecks, truncateChecks, dropChecks, unknownChecks, restartChecks,
		crashChecks, sharedChecks, auditChecks, soakChecks)
}

// CheckInfo describes a check, for lists.
type CheckInfo struct {
	ID     string `json:"id"`
	Clause string `json:"clause"`
	Group  string `json:"group"`
	Level  Level  `json:"level"`
	// Needs are capabilities that the backend must claim.
	Needs []Capability `json:"needs"`
	// Alone, and the abilities that the target must have.
	Alone bool   `json:"alone"`
	Kills bool   `json:"kills"`
	Text  string `json:"text"`
}

// List returns every check with its clause, in the order of the specification.
func List() []CheckInfo {
	clauses := clauseByID()
	var out []CheckInfo
	for _, c := range allChecks() {
		cl := clauses[c.Clause]
		out = append(out, CheckInfo{
			ID: c.ID(), Clause: c.Clause, Group: cl.Group(), Level: cl.Level, Needs: cl.needs(),
			Alone: c.Alone, Kills: c.Kills, Text: cl.Text,
		})
	}
	return out
}
