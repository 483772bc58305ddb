package faultbackend

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Op names a call of the contract, as rules and Stats write it.
type Op string

// The calls that rules can act on. OpClose is the Close of a WAL; the Close of
// an Opener closes its WALs.
const (
	OpOpen     Op = "open"
	OpAppend   Op = "append"
	OpRead     Op = "read"
	OpNext     Op = "next"
	OpTruncate Op = "truncate"
	OpBounds   Op = "bounds"
	OpDrop     Op = "drop"
	OpClose    Op = "close"

	opAny Op = "any" // rules only: every call
)

func opNames() []string {
	return []string{
		string(OpOpen), string(OpAppend), string(OpRead), string(OpNext), string(OpTruncate),
		string(OpBounds), string(OpDrop), string(OpClose), string(opAny),
	}
}

// action names what a rule does.
type action string

const (
	actBlock          action = "block"
	actBlockAck       action = "block-ack"
	actDelay          action = "delay"
	actDelayAck       action = "delay-ack"
	actHang           action = "hang"
	actError          action = "error"
	actPermanent      action = "permanent"
	actFailBefore     action = "fail-before-write"
	actFailAfter      action = "fail-after-write"
	actLate           action = "late"
	actLoseConnection action = "lose-connection"
	actExit           action = "exit"
)

// kind says at which point of a call an action works.
type kind int

const (
	kindWaitBefore kind = iota // waits before the store is touched
	kindWaitAfter              // waits between the store and the answer
	kindFate                   // decides what becomes of one record, or of a call without records
	kindWhole                  // ends the whole call, and more
)

// actionSpec is one row of the table of actions.
type actionSpec struct {
	act  action
	kind kind
	// ops are the calls that the action makes sense for; nil is all of them.
	ops []Op
}

// actions is the table that the parser and the engine share.
func actions() []actionSpec {
	writes := []Op{OpOpen, OpAppend, OpTruncate, OpDrop}
	return []actionSpec{
		{actBlock, kindWaitBefore, nil},
		{actBlockAck, kindWaitAfter, writes},
		{actDelay, kindWaitBefore, nil},
		{actDelayAck, kindWaitAfter, writes},
		{actHang, kindWaitBefore, nil},
		{actError, kindFate, nil},
		{actPermanent, kindFate, nil},
		{actFailBefore, kindFate, writes},
		{actFailAfter, kindFate, writes},
		{actLate, kindFate, []Op{OpOpen, OpAppend}},
		{actLoseConnection, kindWhole, nil},
		{actExit, kindWhole, nil},
	}
}

func actionNames() []string {
	var names []string
	for _, s := range actions() {
		names = append(names, string(s.act))
	}
	return names
}

func findAction(name string) (actionSpec, bool) {
	i := slices.IndexFunc(actions(), func(s actionSpec) bool { return string(s.act) == name })
	if i < 0 {
		return actionSpec{}, false
	}
	return actions()[i], true
}

// when says how much of the call reached the store before a connection was lost
// or the process left.
type when string

const (
	whenBefore when = "before" // nothing
	whenHalf   when = "half"   // the records ahead of the one that the rule fired at
	whenAfter  when = "after"  // everything; only the answer is missing
	whenTorn   when = "torn"   // half of the bytes, in a store with a file; else nothing
)

func whenNames() []string {
	return []string{string(whenBefore), string(whenHalf), string(whenAfter), string(whenTorn)}
}

// defaultLate is how long after the answer a late record lands.
const defaultLate = 50 * time.Millisecond

// rule is one parsed line.
type rule struct {
	op   Op
	act  action
	kind kind

	// Arguments of the action; which of them count depends on it.
	outcome  walimpls.State
	code     walimpls.Code
	text     string
	duration time.Duration // 0: until released
	status   int
	when     when

	// Selectors. 0 and "" select everything.
	channel     string // a pattern for path.Match
	term        int64
	incarnation int64
	after       int64
	every       int64
	count       int64
	prob        float64 // 0: always
	seed        uint64
	hasSeed     bool
	perCall     bool
	name        string
}

// String returns the rule in its canonical form, which parses to the same rule.
// Rules with equal forms are the same rule when the set is replaced.
func (r rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", r.op, r.act)
	switch r.act {
	case actDelay, actDelayAck, actLate:
		fmt.Fprintf(&b, " %s", r.duration)
	case actHang:
		if r.duration > 0 {
			fmt.Fprintf(&b, " %s", r.duration)
		}
	case actError:
		fmt.Fprintf(&b, " %s", r.code)
	case actFailBefore, actFailAfter:
		if r.op == OpAppend {
			fmt.Fprintf(&b, " %s", r.outcome)
		}
	case actExit:
		fmt.Fprintf(&b, " %d %s", r.status, r.when)
	case actLoseConnection:
		fmt.Fprintf(&b, " %s", r.when)
	}
	if r.text != "" {
		fmt.Fprintf(&b, " %s", strconv.Quote(r.text))
	}
	number := func(key string, v int64) {
		if v != 0 {
			fmt.Fprintf(&b, " %s=%d", key, v)
		}
	}
	if r.channel != "" {
		fmt.Fprintf(&b, " channel=%s", r.channel)
	}
	number("term", r.term)
	number("incarnation", r.incarnation)
	number("after", r.after)
	number("every", r.every)
	number("count", r.count)
	if r.prob != 0 {
		fmt.Fprintf(&b, " prob=%s", strconv.FormatFloat(r.prob, 'g', -1, 64))
	}
	if r.hasSeed {
		fmt.Fprintf(&b, " seed=%d", r.seed)
	}
	if r.perCall {
		b.WriteString(" per=call")
	}
	if r.name != "" {
		fmt.Fprintf(&b, " name=%s", r.name)
	}
	return b.String()
}

// label is what Stats and error texts call the rule.
func (r rule) label() string {
	if r.name != "" {
		return r.name
	}
	return r.String()
}
