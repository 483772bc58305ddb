package conformance

import (
	"slices"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Level is a set of clauses that a backend reaches as a whole.
type Level string

// The levels. Most need a capability of the same meaning.
const (
	LevelCore     Level = "Core"
	LevelReadOnly Level = "ReadOnly"
	LevelFenced   Level = "Fenced"
	LevelTruncate Level = "Truncate"
	LevelDrop     Level = "Drop"
	LevelOrdered  Level = "Ordered"
	LevelDurable  Level = "Durable"
	LevelShared   Level = "Shared"
	LevelSpace    Level = "Space"
	LevelSoak     Level = "Soak"
)

// Capability is something that a backend's Description claims.
type Capability string

// The capabilities.
const (
	CapFencing    Capability = "fencing"      // Fencing: strict
	CapDurability Capability = "durability"   // Durability: fsync or replicated
	CapTruncation Capability = "truncation"   // Truncation: immediate or deferred
	CapDrop       Capability = "drop"         // Drop
	CapReadOnly   Capability = "read-only"    // ReadOnly
	CapShared     Capability = "shared store" // not ExclusiveStore
)

type levelInfo struct {
	Level Level
	Needs Capability // "" for none
	// Extra: a run in which it is not claimed or not run is complete all the same.
	Extra bool
	Doc   string
}

var levelTable = []levelInfo{
	{LevelCore, "", false, "what every backend does: open, append, read, ids, limits, errors, close"},
	{LevelOrdered, "", false, "the host's scanner makes ordered records and whole transactions of it, from any checkpoint"},
	{LevelReadOnly, CapReadOnly, false, "read-only handles"},
	{LevelFenced, CapFencing, false, "an old owner is kept out, whatever it does"},
	{LevelTruncate, CapTruncation, false, "the log can be cut, and a reader learns of it"},
	{LevelDrop, CapDrop, false, "logs can be deleted"},
	{LevelDurable, CapDurability, false, "what was acknowledged survives a restart and a kill"},
	{LevelShared, CapShared, true, "several processes use one store at a time"},
	{LevelSpace, CapTruncation, true, "truncation gives space back, as far as the store can be measured"},
	{LevelSoak, "", true, "all of it at once, for a while"},
}

// Levels returns the levels in their order.
func Levels() []Level {
	out := make([]Level, len(levelTable))
	for i, row := range levelTable {
		out[i] = row.Level
	}
	return out
}

func (l Level) info() levelInfo {
	i := slices.IndexFunc(levelTable, func(r levelInfo) bool { return strings.EqualFold(string(r.Level), string(l)) })
	if i < 0 {
		return levelInfo{Level: l}
	}
	return levelTable[i]
}

// ParseLevel returns the level of that name, whatever its case.
func ParseLevel(name string) (Level, error) {
	names := make([]string, len(levelTable))
	for i, row := range levelTable {
		names[i] = string(row.Level)
		if strings.EqualFold(names[i], name) {
			return row.Level, nil
		}
	}
	err := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "level %q is not known%s", name, walimpls.Suggest(name, names))
	err.Hint = "levels: " + strings.Join(names, ", ")
	return "", err
}

// Clause is one numbered rule of the contract.
type Clause struct {
	// ID is WAL-<group>-<number>. It never changes its meaning.
	ID string
	// Level is the level that the clause belongs to.
	Level Level
	// Needs are capabilities that the clause needs beside its level's.
	Needs []Capability
	// Rule is the number of the rule of sdk/walimpls/doc.go that it spells out.
	Rule int
	// Text is the clause.
	Text string
	// Depends lists clauses without which this one can hardly be kept: where one
	// of them fails it is to be looked at first. Every clause depends on the roots,
	// which are seen through each other.
	Depends []string
	// Because is why it depends on them.
	Because string
}

// roots are the clauses that every check uses: it opens a log, appends single
// records and batches, and reads them.
var roots = []string{"WAL-LIFE-003", "WAL-APP-001", "WAL-APP-002", "WAL-SCAN-001"}

// groupTable gives the groups their names, in the order of the specification.
var groupTable = []struct{ Prefix, Name, Doc string }{
	{"LIFE", "lifecycle", "open, close, names, terms"},
	{"APP", "append", "batches, contents, order, concurrency, contexts"},
	{"SCAN", "scan", "starts, order, wake-up, independence, back-pressure"},
	{"ID", "ids", "layout, order, round trips, foreign ids"},
	{"LIM", "limits", "sizes of records and batches"},
	{"ERR", "errors", "types, codes, what they carry"},
	{"REORD", "reorder", "tick order through the host's scanner, repeats, late records, terms, resumption"},
	{"TXN", "txn", "transactions through the host's scanner"},
	{"RO", "read-only", "read-only handles"},
	{"FENCE", "fencing", "owners, zombies, late opens"},
	{"TRUNC", "truncate", "effect, repetition, readers below the cut, space"},
	{"DROP", "drop", "deletion of logs"},
	{"UNK", "unknown", "unknown outcomes and how they are settled"},
	{"RST", "restart", "an orderly stop and start"},
	{"CRASH", "crash", "kill -9"},
	{"SHARE", "shared", "several processes on one store"},
	{"AUD", "audit", "claims against deeds, in both directions"},
	{"SOAK", "soak", "everything at once"},
}

// Group returns the name of the clause's group.
func (c Clause) Group() string {
	prefix := strings.Split(c.ID, "-")[1]
	for _, g := range groupTable {
		if g.Prefix == prefix {
			return g.Name
		}
	}
	return prefix
}

// needs returns every capability that the clause needs.
func (c Clause) needs() []Capability {
	var out []Capability
	if own := c.Level.info().Needs; own != "" {
		out = append(out, own)
	}
	for _, n := range c.Needs {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// depends returns the ids of all clauses that c depends on, the roots included.
func (c Clause) depends() []string {
	out := slices.Clone(c.Depends)
	for _, r := range roots {
		if r != c.ID && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// Clauses returns the whole table, in the order of the specification.
func Clauses() []Clause {
	all := slices.Concat(lifecycleClauses, appendClauses, scanClauses, idClauses, limitClauses, errorClauses,
		reorderClauses, txnClauses, readOnlyClauses, fencingClauses, truncateClauses, dropClauses, unknownClauses, restartClauses,
		crashClauses, sharedClauses, auditClauses, soakClauses)
	return all
}

func clauseByID() map[string]Clause {
	m := map[string]Clause{}
	for _, c := range Clauses() {
		m[c.ID] = c
	}
	return m
}

// Dependents returns id and every clause that depends on it, directly or not,
// sorted.
func Dependents(id string) []string {
	table := Clauses()
	set := map[string]bool{id: true}
	for grown := true; grown; {
		grown = false
		for _, c := range table {
			if set[c.ID] {
				continue
			}
			for _, d := range c.depends() {
				if set[d] {
					set[c.ID], grown = true, true
				}
			}
		}
	}
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// claims returns the capabilities that a description claims.
func claims(d walimpls.Description) map[Capability]bool {
	c := d.Capabilities
	return map[Capability]bool{
		CapFencing:    c.Fencing == walimpls.FencingStrict,
		CapDurability: c.Durability == walimpls.DurabilityFsync || c.Durability == walimpls.DurabilityReplicated,
		CapTruncation: c.Truncation == walimpls.TruncationImmediate || c.Truncation == walimpls.TruncationDeferred,
		CapDrop:       c.Drop,
		CapReadOnly:   c.ReadOnly,
		CapShared:     !c.ExclusiveStore,
	}
}
