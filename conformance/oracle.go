package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// oracle is the one judgement that most checks share: what was acknowledged is in
// the log once, with its id; what was refused is not; what is unknown is there at
// most once. Payloads are unique.
type oracle struct {
	t *T

	mu      sync.Mutex // guards what follows
	state   map[string]walimpls.State
	ids     map[string]message.ID
	order   []string // as the appends ended, for the text of a failure
	unknown int
	anyID   bool // ids are not compared
}

func newOracle(t *T) *oracle {
	return &oracle{t: t, state: map[string]walimpls.State{}, ids: map[string]message.ID{}}
}

// append appends one record, notes its outcome, and reports whether it was stored.
func (o *oracle) append(ctx context.Context, h *handle, payload string) bool {
	return o.appendBatch(ctx, h, payload)[0].State == walimpls.Stored
}

// appendBatch appends records as one batch and notes their outcomes. An error
// that gives no outcomes means that nothing was stored.
func (o *oracle) appendBatch(ctx context.Context, h *handle, payloads ...string) []walimpls.Outcome {
	batch := make([]message.Message, len(payloads))
	for i, p := range payloads {
		batch[i] = data(p)
	}
	ids, err := h.tryAppend(ctx, batch...)
	outcomes := o.t.outcomes(h.ch.Name, len(batch), ids, err)
	o.note(payloads, outcomes)
	return outcomes
}

func (o *oracle) note(payloads []string, outcomes []walimpls.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range payloads {
		o.state[p] = outcomes[i].State
		o.order = append(o.order, p)
		switch outcomes[i].State {
		case walimpls.Stored:
			o.ids[p] = outcomes[i].ID
		case walimpls.Unknown:
			o.unknown++
		}
	}
}

// outcomes turns the result of an Append into outcomes, and fails if the result
// breaks the contract.
func (t *T) outcomes(channel string, n int, ids []message.ID, err error) []walimpls.Outcome {
	var batch *walimpls.BatchError
	switch {
	case err == nil:
		t.expect(len(ids) == n, "Append of %d records without an error returns one id a record; got %d", n, len(ids))
	case errors.As(err, &batch):
		t.expect(len(batch.Outcomes) == n, "a BatchError of %d records has one outcome a record; got %d", n, len(batch.Outcomes))
	}
	return walimpls.Outcomes(channel, n, ids, err)
}

// expectNotStored fails unless the error says of all n records that they are not stored.
func (t *T) expectNotStored(err error, n int, what string) {
	for i, out := range t.outcomes("", n, nil, err) {
		t.expect(out.State == walimpls.NotStored, "%s: record %d is not stored; its outcome is %s: %v", what, i, out.State, err)
	}
}

// verify judges the messages of a log.
func (o *oracle) verify(log []message.Message) {
	t := o.t
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[string]int{}
	for i := range log {
		m := &log[i]
		p := string(m.Payload)
		state, known := o.state[p]
		t.expect(known, "every message in the log was appended by this check; %s was not", showBatch(log[i:i+1]))
		seen[p]++
		t.expect(seen[p] == 1, "%q is in the log once, its outcome was %s; it is there again at %s", p, state, showID(m.ID))
		t.expect(state != walimpls.NotStored, "%q, whose outcome was not_stored, is not in the log; it is at %s", p, showID(m.ID))
		if state == walimpls.Stored && !o.anyID {
			t.expect(m.ID == o.ids[p], "%q has the id %s that was acknowledged; it is at %s", p, showID(o.ids[p]), showID(m.ID))
		}
	}
	for _, p := range o.order {
		t.expect(o.state[p] != walimpls.Stored || seen[p] == 1, "%q, which was acknowledged with the id %s, is in the log; it is missing among %d messages", p, showID(o.ids[p]), len(log))
	}
	t.notef("verified: %d appended, %d in the log, %d unknown", len(o.state), len(log), o.unknown)
}

// verifyOrder fails unless each writer's messages, "writer/number" with any
// prefix before the writer, are in ascending order.
func (o *oracle) verifyOrder(log []message.Message) {
	last := map[string]int{}
	for i := range log {
		writer, number, ok := cutLast(string(log[i].Payload))
		if !ok {
			continue
		}
		before, seen := last[writer]
		o.t.expect(!seen || number > before, "the messages of writer %s are in its order; %d lies behind %d", writer, number, before)
		last[writer] = number
	}
}

func cutLast(payload string) (writer string, number int, ok bool) {
	at := strings.LastIndexByte(payload, '-')
	if at < 0 {
		return "", 0, false
	}
	_, err := fmt.Sscan(payload[at+1:], &number)
	return payload[:at], number, err == nil
}

// pause waits, but not longer than the check may take.
func (t *T) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
	}
}

// duration draws a time up to the bound.
func (t *T) duration(most time.Duration) time.Duration {
	return time.Duration(t.intn(int(most) + 1))
}
