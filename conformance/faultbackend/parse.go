package faultbackend

import (
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// ruleParser reads the tokens of one rule from left to right.
type ruleParser struct {
	rest []token
	r    rule
}

func parseRule(tokens []token) (rule, error) {
	p := ruleParser{rest: tokens}
	if err := p.head(); err != nil {
		return rule{}, err
	}
	if err := p.arguments(); err != nil {
		return rule{}, err
	}
	if err := p.selectors(); err != nil {
		return rule{}, err
	}
	return p.r, nil
}

// head reads the op and the action.
func (p *ruleParser) head() error {
	op := p.rest[0]
	if op.quoted || !slices.Contains(opNames(), op.text) {
		return tokenError(op, "no such call%s; want one of %s", walimpls.Suggest(op.text, opNames()), strings.Join(opNames(), ", "))
	}
	if len(p.rest) < 2 {
		return tokenError(op, "an action must follow: one of %s", strings.Join(actionNames(), ", "))
	}
	act := p.rest[1]
	spec, ok := findAction(act.text)
	if act.quoted || !ok {
		return tokenError(act, "no such action%s; want one of %s", walimpls.Suggest(act.text, actionNames()), strings.Join(actionNames(), ", "))
	}
	p.r.op, p.r.act, p.r.kind = Op(op.text), spec.act, spec.kind
	if spec.ops != nil && !slices.Contains(spec.ops, p.r.op) {
		return tokenError(act, "works for %v, not for %s", spec.ops, p.r.op)
	}
	p.rest = p.rest[2:]
	return nil
}

// word takes the next token if it is a bare word that ok accepts.
func (p *ruleParser) word(ok func(string) bool) (string, bool) {
	if len(p.rest) == 0 || p.rest[0].quoted || !ok(p.rest[0].text) {
		return "", false
	}
	text := p.rest[0].text
	p.rest = p.rest[1:]
	return text, true
}

// oneOf takes the next token if it is one of names.
func (p *ruleParser) oneOf(names ...string) (string, bool) {
	return p.word(func(s string) bool { return slices.Contains(names, s) })
}

// arguments reads what belongs to the action.
func (p *ruleParser) arguments() error {
	r := &p.r
	switch r.act {
	case actBlock, actBlockAck:
		if _, ok := p.oneOf("until"); ok {
			if _, ok := p.oneOf("released"); !ok {
				return p.missing("until", "the word released")
			}
		}
	case actDelay, actDelayAck:
		if !p.duration() {
			return p.missing(string(r.act), "a duration such as 20ms")
		}
	case actHang:
		p.duration()
	case actLate:
		if !p.duration() {
			r.duration = defaultLate
		}
	case actError:
		return p.errorCode()
	case actPermanent:
		p.permanent()
	case actFailBefore:
		p.failBefore()
	case actFailAfter:
		r.code = walimpls.CodeUnavailable
		if r.op == OpAppend {
			p.oneOf(walimpls.Unknown.String())
			r.outcome, r.code = walimpls.Unknown, walimpls.CodeUnknownOutcome
		}
		p.text()
	case actLoseConnection:
		r.when = whenAfter
		p.when()
	case actExit:
		return p.exit()
	}
	return nil
}

// missing says what should have followed the token before.
func (p *ruleParser) missing(before, want string) error {
	if len(p.rest) > 0 {
		return tokenError(p.rest[0], "%s must follow %q", want, before)
	}
	return tokenError(token{text: before}, "%s must follow", want)
}

func (p *ruleParser) duration() bool {
	text, ok := p.word(func(s string) bool {
		d, err := time.ParseDuration(s)
		return err == nil && d > 0
	})
	if ok {
		p.r.duration, _ = time.ParseDuration(text)
	}
	return ok
}

func (p *ruleParser) text() {
	if len(p.rest) > 0 && p.rest[0].quoted {
		p.r.text = p.rest[0].text
		p.rest = p.rest[1:]
	}
}

func (p *ruleParser) when() {
	if text, ok := p.oneOf(whenNames()...); ok {
		p.r.when = when(text)
	}
}

func (p *ruleParser) errorCode() error {
	var names []string
	for _, info := range walimpls.Codes() {
		names = append(names, string(info.Code))
	}
	code, ok := p.oneOf(names...)
	if !ok {
		return p.missing(string(actError), "an error code such as unavailable, no_space or corrupt")
	}
	p.r.code, p.r.outcome = walimpls.Code(code), walimpls.NotStored
	if p.r.code == walimpls.CodeUnknownOutcome {
		p.r.outcome = walimpls.Unknown
	}
	p.text()
	return nil
}

func (p *ruleParser) permanent() {
	p.r.code, p.r.outcome = walimpls.CodeInternal, walimpls.NotStored
	p.text()
	if p.r.text == "" {
		p.r.text, _ = p.word(func(s string) bool { return !isSelector(s) })
	}
}

func (p *ruleParser) failBefore() {
	p.r.code, p.r.outcome = walimpls.CodeUnavailable, walimpls.NotStored
	if p.r.op == OpAppend {
		if text, ok := p.oneOf(walimpls.NotStored.String(), walimpls.Unknown.String()); ok && text == walimpls.Unknown.String() {
			p.r.code, p.r.outcome = walimpls.CodeUnknownOutcome, walimpls.Unknown
		}
	}
	p.text()
}

func (p *ruleParser) exit() error {
	p.r.status, p.r.when = 1, whenBefore
	text, ok := p.word(func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" })
	if ok {
		n, err := strconv.Atoi(text)
		if err != nil || n > 255 {
			return tokenError(token{text: text}, "an exit status is a number from 0 to 255")
		}
		p.r.status = n
	}
	p.when()
	return nil
}

// isSelector reports whether the word is meant as one.
func isSelector(s string) bool { return strings.Contains(s, "=") || strings.HasPrefix(s, "1/") }

// selectorKeys are the keys of the selectors.
func selectorKeys() []string {
	return []string{"channel", "term", "incarnation", "after", "every", "count", "prob", "seed", "per", "name"}
}

func (p *ruleParser) selectors() error {
	var seen []string
	for _, t := range p.rest {
		key, value, ok := strings.Cut(t.text, "=")
		if n, short := strings.CutPrefix(t.text, "1/"); short && !ok {
			key, value, ok = "every", n, true
		}
		if t.quoted || !ok {
			return tokenError(t, "%s does not take this; selectors are key=value or 1/N", p.r.act)
		}
		if slices.Contains(seen, key) {
			return tokenError(t, "%s is given twice", key)
		}
		seen = append(seen, key)
		if err := p.selector(t, key, value); err != nil {
			return err
		}
	}
	if p.r.hasSeed && p.r.prob == 0 {
		return tokenError(token{text: "seed"}, "means nothing without prob=")
	}
	return nil
}

func (p *ruleParser) selector(t token, key, value string) error {
	r := &p.r
	switch key {
	case "channel":
		if _, err := path.Match(value, "x"); err != nil || value == "" {
			return tokenError(t, "not a channel name or pattern such as orders-*")
		}
		r.channel = value
	case "term":
		return positive(t, value, &r.term)
	case "incarnation":
		return positive(t, value, &r.incarnation)
	case "after":
		return positive(t, value, &r.after)
	case "every":
		return positive(t, value, &r.every)
	case "count":
		return positive(t, value, &r.count)
	case "prob":
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(v) || v <= 0 || v > 1 {
			return tokenError(t, "a probability is above 0 and at most 1")
		}
		r.prob = v
	case "seed":
		v, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return tokenError(t, "a seed is a number from 0")
		}
		r.seed, r.hasSeed = v, true
	case "per":
		if value != "call" && value != "record" || r.op != OpAppend {
			return tokenError(t, "per=call and per=record are for append rules")
		}
		r.perCall = value == "call"
	case "name":
		if walimpls.ValidateName("rule", value) != nil {
			return tokenError(t, "a rule name is made of letters, digits, '.', '_' and '-'")
		}
		r.name = value
	default:
		return tokenError(t, "no such selector%s; want one of %s", walimpls.Suggest(key, selectorKeys()), strings.Join(selectorKeys(), ", "))
	}
	return nil
}

func positive(t token, value string, dst *int64) error {
	v, err := strconv.ParseInt(value, 10, 64)
	if err != nil || v < 1 {
		return tokenError(t, "want a number from 1")
	}
	*dst = v
	return nil
}
