package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

var unknownChecks = []check{
	{Clause: "WAL-UNK-001", Name: "ends-the-handle", Run: checkUnknownEndsTheHandle},
	{Clause: "WAL-UNK-002", Name: "settled", Run: checkUnknownIsSettled},
	{Clause: "WAL-UNK-003", Name: "once", Run: checkUnknownIsStoredOnce},
}

// provokeAttempts is how many appends provoke makes before it gives up.
const provokeAttempts = 150

// provoke makes appends whose contexts end under way until one of them is
// unknown. false: the backend always knew.
func (o *oracle) provoke(h *handle, prefix string) bool {
	for i := range provokeAttempts {
		ctx, cancel := context.WithTimeout(o.t.ctx, o.t.duration(2*time.Millisecond))
		outcomes := o.appendBatch(ctx, h, fmt.Sprintf("%s-%d", prefix, 2*i), fmt.Sprintf("%s-%d", prefix, 2*i+1))
		cancel()
		for _, out := range outcomes {
			if out.State == walimpls.Unknown {
				o.t.expect(errors.Is(out.Err, walimpls.ErrUnknownOutcome), "an unknown outcome is ErrUnknownOutcome; got %v", out.Err)
				o.t.expect(!walimpls.AsError(out.Err).Retryable, "no retry can settle an unknown outcome; the error says that one can: %v", out.Err)
				return true
			}
		}
	}
	o.t.remarkf("no outcome was unknown in %d appends with short deadlines", provokeAttempts)
	return false
}

func checkUnknownEndsTheHandle(t *T) {
	c := t.channel()
	o := newOracle(t)
	h := t.open(c, 1, 1)
	if !o.provoke(h, "p") {
		return
	}
	for i := range 5 {
		p := fmt.Sprint("after-", i)
		_, err := h.tryAppend(t.ctx, data(p))
		t.expect(err != nil, "after an unknown outcome the handle refuses appends; it acknowledged one")
		t.expectNotStored(err, 1, "an append after an unknown outcome")
		o.note([]string{p}, t.outcomes(c, 1, nil, err))
	}
	h.close()
	next := t.open(c, 1, 2)
	t.expect(o.append(t.ctx, next, "works"), "the next incarnation appends")
	o.verify(next.messages())
}

func checkUnknownIsSettled(t *T) {
	c := t.channel()
	o := newOracle(t)
	for round := range 3 {
		h := t.open(c, int64(round+1), 1)
		known := !o.provoke(h, fmt.Sprint("r", round))
		next := t.open(c, int64(round+1), 2) // while the old handle is still there
		before := next.log()
		t.expect(o.append(t.ctx, next, fmt.Sprint("settled-", round)), "the next incarnation appends")
		t.pause(t.quiet) // for what lands late
		after := next.log()
		for i := range before {
			t.expect(i < len(after) && after[i].ID == before[i].ID, "what lay in the log when the next pair was opened stays")
		}
		for i := len(before); i < len(after); i++ {
			own := after[i].Term == next.ch.Term && after[i].Incarnation == next.ch.Incarnation
			known := string(after[i].Payload) == fmt.Sprint("settled-", round)
			t.expect(own && known, "after the Open of %s no record of an earlier handle appears; %s did", next.ch.Pair, showBatch(after[i:i+1]))
		}
		o.verify(withoutFences(after))
		h.close()
		next.close()
		if known {
			return
		}
	}
}

func checkUnknownIsStoredOnce(t *T) {
	c := t.channel()
	o := newOracle(t)
	for round := range 4 {
		h := t.open(c, 1, int64(round+1))
		known := !o.provoke(h, fmt.Sprint("r", round))
		h.close()
		if known {
			break
		}
	}
	log := t.open(c, 2, 1).messages()
	o.verify(log)
	o.verifyOrder(log)
}
