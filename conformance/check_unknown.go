package conformance

import "fmt"

// Breaking a connection ends everything on it, so these checks run alone.
var unknownChecks = []check{
	{Clause: "WAL-UNK-001", Name: "ends-the-handle", Alone: true, Run: checkUnknownEndsTheHandle},
	{Clause: "WAL-UNK-002", Name: "settled", Alone: true, Run: checkUnknownIsSettled},
	{Clause: "WAL-UNK-003", Name: "once", Alone: true, Run: checkUnknownIsStoredOnce},
}

func checkUnknownEndsTheHandle(t *T) {
	c := t.channel()
	o := newOracle(t)
	o.provoke(c, func(h *handle) {
		pair := h.ch.Pair
		for i := range 5 {
			p := fmt.Sprintf("after %s-%d", pair, i)
			_, err := h.tryAppend(t.ctx, data(p))
			t.expect(err != nil, "after an unknown outcome the handle refuses appends; it acknowledged one")
			t.expectNotStored(err, 1, "an append after an unknown outcome")
			o.note([]string{p}, t.outcomes(c, 1, nil, err))
		}
		h.close()
		next := t.open(c, pair.Term, pair.Incarnation+1)
		t.expect(o.append(t.ctx, next, fmt.Sprintf("works %s", pair)), "the next incarnation appends")
		o.verify(next.messages())
		next.close()
	})
}

func checkUnknownIsSettled(t *T) {
	c := t.channel()
	o := newOracle(t)
	o.provoke(c, func(h *handle) {
		pair := h.ch.Pair
		next := t.open(c, pair.Term, pair.Incarnation+1) // while the old handle is still there
		before := next.log()
		own := fmt.Sprintf("settled %s", pair)
		t.expect(o.append(t.ctx, next, own), "the next incarnation appends")
		t.pause(t.quiet) // for what lands late
		o.verify(withoutFences(t.expectSettled(next, before, own)))
		h.close()
		next.close()
	})
}

func checkUnknownIsStoredOnce(t *T) {
	c := t.channel()
	o := newOracle(t)
	o.provoke(c, func(h *handle) {
		pair := h.ch.Pair
		h.close()
		next := t.open(c, pair.Term, pair.Incarnation+1)
		log := next.messages()
		o.verify(log)
		o.verifyOrder(log)
		next.close()
	})
}
