package faultbackend

import (
	"hash/fnv"
	"path"
	"sync"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Controller steers one backend while it runs and tells what happened in it.
// It is safe for concurrent use. Give it to a Builder with WithController.
type Controller struct {
	mu sync.Mutex // guards all below

	text  string // the rules of Build and SetRules
	extra string // the rules of the rules file
	rules []*liveRule
	seed  uint64

	stats   statsData
	changed chan struct{} // closed and dropped when something above changes; nil if nobody waits

	// file is read under fileMu alone, so that no I/O happens under mu.
	// Lock order: fileMu, then mu.
	fileMu sync.Mutex
	file   rulesFile
}

// NewController returns a Controller without rules.
func NewController() *Controller {
	return &Controller{seed: defaultSeed, stats: newStatsData()}
}

const defaultSeed = 1

// liveRule is a rule in force.
type liveRule struct {
	rule
	seed uint64
	gone chan struct{} // closed when the rule is not in the set any more

	seen  int64 // guarded by Controller.mu, like fired
	fired int64
}

// SetRules replaces the rules that were given to Build or to an earlier
// SetRules; those of a rules file stay. A rule that the old and the new set have
// in common keeps its counters and goes on holding the calls that wait for it;
// give it another name= to begin anew. Calls that wait for a rule that is not in
// the new set go on. If text has an error, which CheckRules describes, nothing changes.
func (c *Controller) SetRules(text string) error {
	if err := CheckRules(text); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = text
	c.rebuild()
	return nil
}

// Rules returns the rules in force in their canonical form, one a line.
func (c *Controller) Rules() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, len(c.rules))
	for i, r := range c.rules {
		out[i] = r.String()
	}
	return out
}

// setSeed is the seed for rules without seed=. It holds for rules set later.
func (c *Controller) setSeed(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seed = seed
	c.rebuild()
}

// setExtra replaces the rules of the rules file, which were checked.
func (c *Controller) setExtra(text string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.rulesError = ""
	if err != nil {
		c.stats.rulesError = err.Error()
	} else {
		c.extra = text
		c.rebuild()
	}
	c.touch()
}

// rebuild makes the live rules from both texts. mu is held.
func (c *Controller) rebuild() {
	old := map[string][]*liveRule{}
	for _, r := range c.rules {
		old[r.String()] = append(old[r.String()], r)
	}
	c.rules = nil
	for _, text := range []string{c.text, c.extra} {
		parsed, _ := parseRules(text) // both were checked
		for _, r := range parsed {
			key := r.String()
			if same := old[key]; len(same) > 0 {
				c.rules = append(c.rules, same[0])
				old[key] = same[1:]
				continue
			}
			live := &liveRule{rule: r, seed: r.seed, gone: make(chan struct{})}
			if !r.hasSeed {
				// Two rules must not roll the same dice.
				h := fnv.New64a()
				h.Write([]byte(key))
				live.seed = c.seed ^ h.Sum64()
			}
			c.rules = append(c.rules, live)
		}
	}
	for _, rest := range old {
		for _, r := range rest {
			close(r.gone)
		}
	}
	c.touch()
}

// call is what the selectors look at.
type call struct {
	op      Op
	channel string
	pair    walimpls.Pair
	n       int // records of an append, else 1
}

func (r *liveRule) matches(c call) bool {
	if r.op != opAny && r.op != c.op || r.term != 0 && r.term != c.pair.Term ||
		r.incarnation != 0 && r.incarnation != c.pair.Incarnation {
		return false
	}
	if r.channel == "" {
		return true
	}
	ok, _ := path.Match(r.channel, c.channel)
	return ok
}

// fire counts one call or record and says whether the rule acts on it.
// Controller.mu is held.
func (r *liveRule) fire() bool {
	r.seen++
	n := r.seen - r.after
	switch {
	case n <= 0, r.count > 0 && r.fired >= r.count, r.every > 1 && n%r.every != 0:
		return false
	case r.prob > 0 && r.prob < 1 && draw(r.seed, uint64(n)) >= r.prob:
		return false
	}
	r.fired++
	return true
}

// draw is the n-th number in [0, 1) of a seed (splitmix64). It has no state, so
// the decision about the n-th record depends on seed and n alone.
func draw(seed, n uint64) float64 {
	z := seed + n*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}
