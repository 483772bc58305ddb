package faultbackend

import "slices"

// plan is what the rules want to happen to one call.
type plan struct {
	before []*liveRule // waits ahead of the store, each once however many records it fired at
	after  []*liveRule // waits ahead of the answer
	// fates has one entry a record, nil where no rule decided; nil if none did at all.
	fates []*liveRule
	// whole ends the call, nil for none; it fired at the record with this index.
	whole *liveRule
	at    int
}

// fate returns the rule that decides about record i, nil for none.
func (p *plan) fate(i int) *liveRule {
	if p.fates == nil {
		return nil
	}
	return p.fates[i]
}

// plan asks the rules about a call, record by record. The rules are asked in
// the order of their lines; the first that decides about a record is the last
// one that sees it, and one that ends the call is the last one that sees anything.
func (c *Controller) plan(cl call) plan {
	c.refresh()
	c.mu.Lock()
	defer c.mu.Unlock()
	var p plan
	if len(c.rules) == 0 {
		return p
	}
	var rules []*liveRule
	for _, r := range c.rules {
		if r.matches(cl) {
			rules = append(rules, r)
		}
	}
	for i := 0; i < cl.n && len(rules) > 0 && p.whole == nil; i++ {
		for _, r := range rules {
			if r.perCall && i > 0 || p.fate(i) != nil {
				continue
			}
			if r.fire() {
				c.stats.fault(r)
				p.add(r, i, cl.n)
			}
			if p.whole != nil {
				break
			}
		}
	}
	if p.before != nil || p.after != nil || p.fates != nil || p.whole != nil {
		c.touch()
	}
	return p
}

// add notes that r fired at record i of n.
func (p *plan) add(r *liveRule, i, n int) {
	switch r.kind {
	case kindWaitBefore:
		if !slices.Contains(p.before, r) {
			p.before = append(p.before, r)
		}
	case kindWaitAfter:
		if !slices.Contains(p.after, r) {
			p.after = append(p.after, r)
		}
	case kindWhole:
		p.whole, p.at = r, i
	case kindFate:
		if p.fates == nil {
			p.fates = make([]*liveRule, n)
		}
		p.fates[i] = r
		if r.perCall {
			for j := i + 1; j < n; j++ {
				p.fates[j] = r
			}
		}
	}
}
