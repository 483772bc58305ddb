package conformance

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Verdict is what became of a check or clause.
type Verdict string

// The verdicts. A clause has the worst of its checks.
const (
	Pass       Verdict = "pass"
	Fail       Verdict = "fail"
	Waived     Verdict = "waived"
	NotClaimed Verdict = "not claimed"
	NotRun     Verdict = "not run"
)

// State is what became of a level.
type State string

// The states of a level.
const (
	Reached          State = "reached"
	NotReached       State = "not reached"
	LevelNotClaimed  State = "not claimed"
	LevelIncomplete  State = "incomplete" // nothing failed, but something did not run
	reportSchemaName       = "walrig.conformance/v1"
)

// Result is what became of the run.
type Result string

// The results.
const (
	ResultPass       Result = "pass"       // every level is reached
	ResultIncomplete Result = "incomplete" // nothing failed; some levels are not claimed or not reached
	ResultFail       Result = "fail"
)

// Report is what a run found. Its JSON form is described by report.schema.json;
// fields are only ever added.
type Report struct {
	// Schema names the version of this form.
	Schema  string          `json:"schema"`
	Started time.Time       `json:"started"`
	Millis  int64           `json:"duration_ms"`
	Seed    uint64          `json:"seed"`
	Run     string          `json:"run"`
	Levels  []LevelResult   `json:"levels"`
	Result  Result          `json:"result"`
	Reasons []string        `json:"reasons"`
	Target  TargetInfo      `json:"target"`
	Backend BackendInfo     `json:"backend"`
	Host    HostInfo        `json:"host"`
	Counts  map[Verdict]int `json:"counts"`
	Clauses []ClauseResult  `json:"clauses"`
	// Warnings are claims below the deeds, and trouble with cleaning up.
	Warnings []string `json:"warnings"`
	// Left are the channels that could not be dropped.
	Left []string `json:"left_behind"`
}

// HostInfo identifies the program that ran the suite.
type HostInfo struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// BackendInfo is what the backend says of itself.
type BackendInfo struct {
	Name         string       `json:"name"`
	Version      string       `json:"version"`
	IDLayout     string       `json:"id_layout"`
	Fencing      string       `json:"fencing"`
	Durability   string       `json:"durability"`
	Truncation   string       `json:"truncation"`
	Drop         bool         `json:"drop"`
	ReadOnly     bool         `json:"read_only"`
	Exclusive    bool         `json:"exclusive_store"`
	MaxMessage   int          `json:"max_message_bytes"`
	MaxRecords   int          `json:"max_batch_records"`
	MaxBatch     int          `json:"max_batch_bytes"`
	Capabilities []Capability `json:"capabilities"`
}

// LevelResult is what became of a level.
type LevelResult struct {
	Level  Level           `json:"level"`
	State  State           `json:"state"`
	Counts map[Verdict]int `json:"counts"`
}

// ClauseResult is what became of a clause.
type ClauseResult struct {
	ID      string        `json:"id"`
	Group   string        `json:"group"`
	Level   Level         `json:"level"`
	Needs   []Capability  `json:"needs"`
	Text    string        `json:"text"`
	Verdict Verdict       `json:"verdict"`
	Reason  string        `json:"reason"`
	Millis  int64         `json:"duration_ms"`
	Checks  []CheckResult `json:"checks"`
	// After lists failed clauses that this failed one depends on: look there first.
	After []string `json:"after"`
}

// CheckResult is what became of a check.
type CheckResult struct {
	ID       string   `json:"id"`
	Clause   string   `json:"clause"`
	Verdict  Verdict  `json:"verdict"`
	Reason   string   `json:"reason"`
	Millis   int64    `json:"duration_ms"`
	Failure  *Failure `json:"failure"`
	Warnings []string `json:"warnings"`
	// Notes say what a passed check could not look at on this backend.
	Notes []string `json:"notes"`

	left []string
}

// Failure is all that is needed to understand and repeat a failed check.
type Failure struct {
	// Message is what was expected, and what came.
	Message string `json:"message"`
	// Trace are the numbered events.
	Trace   []string `json:"trace"`
	Seed    uint64   `json:"seed"`
	Command string   `json:"command"`
}

func newReport(target TargetInfo, opt Options, now time.Time) *Report {
	host := opt.Host
	host.Go, host.OS, host.Arch = runtime.Version(), runtime.GOOS, runtime.GOARCH
	r := &Report{
		Schema: reportSchemaName, Started: now.UTC().Truncate(time.Millisecond), Seed: opt.Seed, Run: opt.Run,
		Target: target, Host: host, Counts: map[Verdict]int{}, Reasons: []string{}, Warnings: []string{}, Left: []string{},
	}
	for _, c := range Clauses() {
		r.Clauses = append(r.Clauses, ClauseResult{
			ID: c.ID, Group: c.Group(), Level: c.Level, Needs: orEmpty(c.needs()), Text: c.Text,
			Checks: []CheckResult{}, After: []string{},
		})
	}
	return r
}

func orEmpty[E any](s []E) []E {
	if s == nil {
		return []E{}
	}
	return s
}

func (r *Report) describe(d walimpls.Description, claimed map[Capability]bool) {
	c := d.Capabilities
	r.Backend = BackendInfo{
		Name: d.Backend, Version: d.Version, IDLayout: string(d.IDLayout),
		Fencing: string(c.Fencing), Durability: string(c.Durability), Truncation: string(c.Truncation),
		Drop: c.Drop, ReadOnly: c.ReadOnly, Exclusive: c.ExclusiveStore,
		MaxMessage: d.Limits.MaxMessageBytes, MaxRecords: d.Limits.MaxBatchRecords, MaxBatch: d.Limits.MaxBatchBytes,
		Capabilities: []Capability{},
	}
	for _, l := range levelTable {
		if l.Needs != "" && claimed[l.Needs] {
			r.Backend.Capabilities = append(r.Backend.Capabilities, l.Needs)
		}
	}
}

// add notes the result of a check.
func (r *Report) add(res CheckResult) {
	res.Warnings, res.Notes = orEmpty(res.Warnings), orEmpty(res.Notes)
	r.Left = append(r.Left, res.left...)
	for _, w := range res.Warnings {
		r.Warnings = append(r.Warnings, res.ID+": "+w)
	}
	i := slices.IndexFunc(r.Clauses, func(c ClauseResult) bool { return c.ID == res.Clause })
	r.Clauses[i].Checks = append(r.Clauses[i].Checks, res)
}

// finish draws the conclusions: clauses, waivers, levels, result.
func (r *Report) finish(opt Options, took time.Duration) {
	r.Millis = took.Milliseconds()
	slices.Sort(r.Left)
	slices.Sort(r.Warnings)
	for i := range r.Clauses {
		r.Clauses[i].conclude()
	}
	r.blame()
	r.Reasons = append(r.Reasons, r.waive(opt)...)
	executed := 0
	for i := range r.Clauses {
		c := &r.Clauses[i]
		r.Counts[c.Verdict]++
		for _, k := range c.Checks {
			if k.Verdict == Pass || k.Verdict == Fail {
				executed++
			}
		}
	}
	r.concludeLevels()
	if n := r.Counts[Fail]; n > 0 {
		r.Reasons = append(r.Reasons, fmt.Sprintf("%d %s failed", n, plural(n, "clause", "clauses")))
	}
	if executed == 0 {
		r.Reasons = append(r.Reasons, "nothing was executed: no check matches the selection, or none can run on this target")
	}
	for _, want := range opt.Levels {
		for _, l := range r.Levels {
			if strings.EqualFold(string(l.Level), string(want)) && l.State != Reached {
				r.Reasons = append(r.Reasons, fmt.Sprintf("level %s was asked for and is %s", l.Level, l.State))
			}
		}
	}
	if len(r.Reasons) > 0 {
		r.Result = ResultFail
		return
	}
	r.Result = ResultPass
	var missing []string
	for _, l := range r.Levels {
		if l.State != Reached && !(l.Level.info().Extra && (l.State == LevelNotClaimed || l.State == LevelIncomplete)) {
			missing = append(missing, fmt.Sprintf("%s is %s", l.Level, l.State))
		}
	}
	if len(missing) > 0 {
		r.Result = ResultIncomplete
		r.Reasons = append(r.Reasons, "levels: "+strings.Join(missing, ", "))
	}
}

func plural(n int, singular, plural string) string {
	if n == 1 {
		return singular
	}
	return plural
}

// conclude gives the clause the worst verdict of its checks.
func (c *ClauseResult) conclude() {
	slices.SortFunc(c.Checks, func(a, b CheckResult) int { return strings.Compare(a.ID, b.ID) })
	rank := []Verdict{Fail, NotRun, NotClaimed, Pass}
	c.Verdict = NotRun
	best := len(rank)
	for _, k := range c.Checks {
		c.Millis += k.Millis
		if at := slices.Index(rank, k.Verdict); at < best {
			best, c.Verdict, c.Reason = at, k.Verdict, k.Reason
		}
	}
}

// blame tells each failed clause which failed ones it depends on.
func (r *Report) blame() {
	failed := map[string]bool{}
	for i := range r.Clauses {
		failed[r.Clauses[i].ID] = r.Clauses[i].Verdict == Fail
	}
	for _, c := range Clauses() {
		for _, d := range Dependents(c.ID) {
			if d == c.ID || !failed[c.ID] || !failed[d] {
				continue
			}
			i := slices.IndexFunc(r.Clauses, func(x ClauseResult) bool { return x.ID == d })
			r.Clauses[i].After = append(r.Clauses[i].After, c.ID)
		}
	}
}

func (r *Report) concludeLevels() {
	r.Levels = nil
	for _, info := range levelTable {
		l := LevelResult{Level: info.Level, Counts: map[Verdict]int{}}
		for i := range r.Clauses {
			if r.Clauses[i].Level == info.Level {
				l.Counts[r.Clauses[i].Verdict]++
			}
		}
		claimed := info.Needs == "" || slices.Contains(r.Backend.Capabilities, info.Needs)
		switch {
		case !claimed:
			l.State = LevelNotClaimed
		case l.Counts[Fail]+l.Counts[Waived] > 0:
			l.State = NotReached
		case l.Counts[NotRun] > 0 || l.Counts[Pass] == 0:
			l.State = LevelIncomplete
		default:
			l.State = Reached
		}
		r.Levels = append(r.Levels, l)
	}
}

// OK reports whether nothing speaks against the backend: no clause failed, the
// levels that were asked for are reached, and something was executed.
func (r Report) OK() bool { return r.Result == ResultPass || r.Result == ResultIncomplete }

// Clause returns the result of a clause.
func (r Report) Clause(id string) (ClauseResult, bool) {
	i := slices.IndexFunc(r.Clauses, func(c ClauseResult) bool { return c.ID == id })
	if i < 0 {
		return ClauseResult{}, false
	}
	return r.Clauses[i], true
}

// Failed returns the ids of the failed clauses, in order.
func (r Report) Failed() []string {
	var out []string
	for i := range r.Clauses {
		if r.Clauses[i].Verdict == Fail {
			out = append(out, r.Clauses[i].ID)
		}
	}
	return out
}
