package remote

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func records(sizes ...int) []message.Message {
	out := make([]message.Message, len(sizes))
	for i, n := range sizes {
		out[i].Payload = make([]byte, n)
	}
	return out
}

func takeAll(*message.Message) error { return nil }

func TestCallsAreCutIntoRequestsInOrder(t *testing.T) {
	q := queue{limits: walimpls.Limits{MaxBatchRecords: 3, MaxBatchBytes: 10}}
	a, b := &call{batch: records(1, 2)}, &call{batch: records(4, 4, 4)}
	q.push(a, takeAll)
	q.push(b, takeAll)
	r := q.take()
	if r.sequence != 1 || r.records != 3 || r.bytes != 7 || len(r.segments) != 2 || r.segments[1].to != 1 {
		t.Errorf("first request %+v", r)
	}
	r = q.take()
	if r.sequence != 2 || r.records != 2 || r.bytes != 8 || r.segments[0].from != 1 || q.take() != nil || q.bytes != 15 {
		t.Errorf("second request %+v, %d bytes", r, q.bytes)
	}
	stored := func(n int) []walimpls.Outcome {
		out := make([]walimpls.Outcome, n)
		for i := range out {
			out[i] = walimpls.Outcome{State: walimpls.Stored, ID: "x"}
		}
		return out
	}
	if done := q.answer(stored(3)); len(done) != 1 || done[0] != a {
		t.Errorf("finished by the first answer: %v", done)
	}
	if done := q.answer(stored(2)); len(done) != 1 || done[0] != b || q.bytes != 0 {
		t.Errorf("finished by the second: %v, %d bytes left", done, q.bytes)
	}
}

func TestRefusedRecordsLeaveTheirNeighbours(t *testing.T) {
	q := queue{limits: walimpls.Limits{MaxBatchRecords: 10, MaxBatchBytes: 100}}
	refuse := func(m *message.Message) error {
		if len(m.Payload) > 5 {
			return walimpls.ErrTooLarge
		}
		return nil
	}
	c := &call{batch: records(6, 1, 2, 7, 3, 8)}
	if q.push(c, refuse) {
		t.Fatal("finished")
	}
	r := q.take()
	if r.records != 3 || r.bytes != 6 || len(r.segments) != 2 {
		t.Fatalf("%+v", r)
	}
	if done := q.lose(walimpls.ErrUnknownOutcome); len(done) != 1 {
		t.Fatal("not finished")
	}
	for i, want := range []walimpls.State{walimpls.NotStored, walimpls.Unknown, walimpls.Unknown, walimpls.NotStored, walimpls.Unknown, walimpls.NotStored} {
		if c.outcomes[i].State != want {
			t.Errorf("record %d: %+v, want %s", i, c.outcomes[i], want)
		}
	}
	if c := (&call{batch: records(6, 6)}); !q.push(c, refuse) || !errors.Is(c.outcomes[1].Err, walimpls.ErrTooLarge) {
		t.Errorf("a call of refused records alone: %+v", c.outcomes)
	}
}

// The machine drives the queue with everything that can happen and keeps for each
// record what it knows: refused, waiting, in flight or settled.
func TestEveryRecordGetsExactlyOneOutcomeWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queue{limits: walimpls.Limits{
			MaxBatchRecords: rapid.IntRange(1, 4).Draw(t, "max records"), MaxBatchBytes: rapid.IntRange(1, 12).Draw(t, "max bytes"),
		}}
		type key struct {
			c *call
			i int
		}
		var (
			calls    []*call
			finished = map[*call]int{}
			sent     []key // in the order of the wire
			sentAt   = map[key]bool{}
			acked    int // of sent
			nextID   int
		)
		finish := func(done []*call) {
			for _, c := range done {
				finished[c]++
			}
		}
		errEnd := errors.New("ended")
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				c := &call{batch: records(rapid.SliceOfN(rapid.IntRange(0, 8), 1, 5).Draw(t, "sizes")...)}
				calls = append(calls, c)
				if q.push(c, func(m *message.Message) error {
					if len(m.Payload) > 6 {
						return walimpls.ErrTooLarge
					}
					return nil
				}) {
					finished[c]++
				}
			},
			"take": func(t *rapid.T) {
				r := q.take()
				if r == nil {
					return
				}
				if r.records == 0 || r.records > q.limits.MaxBatchRecords || (r.bytes > q.limits.MaxBatchBytes && r.records > 1) {
					t.Fatalf("request %+v with limits %+v", r, q.limits)
				}
				n := 0
				for _, s := range r.segments {
					for i := s.from; i < s.to; i++ {
						sent = append(sent, key{s.call, i})
						if sentAt[key{s.call, i}] {
							t.Fatal("sent twice")
						}
						sentAt[key{s.call, i}] = true
						n++
					}
				}
				if n != r.records {
					t.Fatalf("%d records in segments of a request of %d", n, r.records)
				}
			},
			"answer": func(t *rapid.T) {
				if len(q.inFlight) == 0 {
					return
				}
				out := make([]walimpls.Outcome, q.inFlight[0].records)
				for i := range out {
					nextID++
					out[i] = walimpls.Outcome{State: walimpls.Stored, ID: message.Uint64ID(uint64(nextID))}
				}
				finish(q.answer(out))
				for i := range out {
					k := sent[acked+i]
					if !k.c.gone && k.c.outcomes[k.i].ID != out[i].ID {
						t.Fatal("an outcome went to another record")
					}
				}
				acked += len(out)
			},
			"abandon": func(t *rapid.T) {
				if len(calls) == 0 {
					return
				}
				c := rapid.SampledFrom(calls).Draw(t, "call")
				if c.gone {
					return
				}
				if unknown, ok := q.abandon(c, context.Canceled, walimpls.ErrUnknownOutcome); ok {
					finished[c]++
					if unknown {
						finish(q.end(errEnd))
					}
				} else if finished[c] != 1 {
					t.Fatal("a call that is not finished was not abandoned")
				}
			},
			"end":  func(*rapid.T) { finish(q.end(errEnd)) },
			"lose": func(*rapid.T) { finish(q.end(errEnd)); finish(q.lose(walimpls.ErrUnknownOutcome)); acked = len(sent) },
			"": func(t *rapid.T) {
				bytes := 0
				for _, s := range q.waiting {
					bytes += s.bytes
				}
				for _, r := range q.inFlight {
					bytes += r.bytes
				}
				if bytes != q.bytes {
					t.Fatalf("%d bytes, counted %d", q.bytes, bytes)
				}
				if q.ended != nil && len(q.waiting) > 0 {
					t.Fatal("something waits in a queue that has ended")
				}
			},
		})
		finish(q.end(errEnd))
		finish(q.lose(walimpls.ErrUnknownOutcome))
		if q.bytes != 0 {
			t.Fatalf("%d bytes are left", q.bytes)
		}
		for _, c := range calls {
			if finished[c] != 1 || c.left != 0 {
				t.Fatalf("a call was finished %d times, %d records are left", finished[c], c.left)
			}
			for i, o := range c.outcomes {
				if o.State != walimpls.NotStored && !sentAt[key{c, i}] {
					t.Fatalf("a record that was not sent is %s", o.State)
				}
				if o.State == walimpls.NotStored && sentAt[key{c, i}] {
					t.Fatal("a record that was sent is not stored although nobody said so")
				}
			}
		}
	})
}
