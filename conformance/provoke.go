package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The bounds of what provoke tries.
const (
	provokeAttempts = 1000
	provokeTime     = 5 * time.Second
	breakAttempts   = 12
)

// appendTime is how long an append of such a batch takes here, so that contexts
// can be made to end under way on a backend in memory as well as on a broker.
func (o *oracle) appendTime(h *handle, payloads func(i int) []string) time.Duration {
	var longest time.Duration
	for i := range 3 {
		began := time.Now()
		for _, out := range o.appendBatch(o.t.ctx, h, payloads(i)...) {
			o.t.expect(out.State == walimpls.Stored, "an append on the owner's handle succeeds; got %v", out.Err)
		}
		longest = max(longest, time.Since(began))
	}
	return longest
}

// someTime draws a time up to the bound, of any order of magnitude: on a busy
// machine a measured time says little.
func (t *T) someTime(most time.Duration) time.Duration {
	return t.duration(most >> (2 * t.intn(5)))
}

// byContext makes appends whose contexts end under way until an outcome is
// unknown. false: the backend always knew.
func (o *oracle) byContext(h *handle, prefix string) bool {
	number := 0
	next := func(int) []string {
		number += 2
		return []string{fmt.Sprintf("%s-%d", prefix, number-2), fmt.Sprintf("%s-%d", prefix, number-1)}
	}
	most := o.appendTime(h, next) + time.Millisecond
	until := time.Now().Add(provokeTime)
	last := most // what the last append took that was given enough time
	for i := range provokeAttempts {
		limit := o.t.someTime(most)
		if i%2 == 1 {
			limit = o.t.duration(last * 3 / 2)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(o.t.ctx, limit)
		outcomes := o.appendBatch(ctx, h, next(0)...)
		cancel()
		if o.expectUnknown(outcomes) {
			return true
		}
		if outcomes[0].State == walimpls.Stored {
			last = time.Since(began)
		}
		if time.Now().After(until) {
			break
		}
	}
	return false
}

// expectUnknown reports whether an outcome is unknown, and judges what it says.
func (o *oracle) expectUnknown(outcomes []walimpls.Outcome) (found bool) {
	for _, out := range outcomes {
		if out.State != walimpls.Unknown {
			continue
		}
		found = true
		o.t.expect(errors.Is(out.Err, walimpls.ErrUnknownOutcome), "an unknown outcome is ErrUnknownOutcome; got %v", out.Err)
		o.t.expect(!walimpls.AsError(out.Err).Retryable, "no retry can settle an unknown outcome; the error says that one can: %v", out.Err)
	}
	return found
}

// byBreak loses the connection to the backend under appends until an outcome is
// unknown, and returns the handle whose outcome it is; nil if there was none.
func (o *oracle) byBreak(h *handle, prefix string) *handle {
	for round := range breakAttempts {
		unknown := o.unknown
		writing := o.t.start(func() {
			o.t.parallel(8, func(w int) {
				for i := 0; ; i++ {
					outcomes := o.appendBatch(o.t.ctx, h, fmt.Sprintf("%s.%d.%d-%d", prefix, round, w, i))
					o.expectUnknown(outcomes)
					if outcomes[0].State != walimpls.Stored {
						return
					}
				}
			})
		})
		o.t.pause(o.t.killWindow())
		o.t.breakOff()
		writing.wait()
		if !o.t.claimed(CapDurability) {
			o.mayBeGone()
		}
		if o.unknown > unknown {
			return h
		}
		h = o.t.open(h.ch.Name, h.ch.Pair.Term, h.ch.Pair.Incarnation+1)
	}
	return nil
}

// mayBeGone: the store has ended, and outlives nothing.
func (o *oracle) mayBeGone() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p, s := range o.state {
		if s == walimpls.Stored {
			o.state[p] = walimpls.Unknown
		}
	}
}

// provoke makes an outcome unknown in every way that the target has, one after
// the other, and hands the handle whose outcome it is to f. Each begins with a
// handle of its own, of a new term. A target and backend on which every outcome
// was known proves nothing.
func (o *oracle) provoke(channel string, f func(h *handle)) {
	t := o.t
	var ways []string
	term := int64(1)
	if h := t.open(channel, term, 1); o.byContext(h, "ctx") {
		ways = append(ways, "contexts that ended")
		f(h)
	} else {
		h.close()
	}
	if t.breaker() != nil {
		term++
		if h := o.byBreak(t.open(channel, term, 1), "cut"); h != nil {
			ways = append(ways, "a connection that broke")
			f(h)
		}
	}
	if len(ways) == 0 {
		t.notRun("no outcome was unknown: the backend always knew, and this target has no connection that can be broken; run the backend as a plugin")
	}
	t.remarkf("outcomes were unknown by %s", strings.Join(ways, " and "))
}

// expectSettled fails if anything of an earlier handle appears behind what lay in
// the log when the handle next was opened.
func (t *T) expectSettled(next *handle, before []message.Message, own string) []message.Message {
	after := next.log()
	for i := range before {
		t.expect(i < len(after) && after[i].ID == before[i].ID, "what lay in the log when the next pair was opened stays")
	}
	for i := len(before); i < len(after); i++ {
		pair := after[i].Term == next.ch.Pair.Term && after[i].Incarnation == next.ch.Pair.Incarnation
		t.expect(pair && string(after[i].Payload) == own, "after the Open of %s no record of an earlier handle appears; %s did", next.ch.Pair, showBatch(after[i:i+1]))
	}
	return after
}
