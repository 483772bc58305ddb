package plugin

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// answers is an appendStream that only takes answers.
type answers struct {
	appendStream
	got []*answered
}

type answered struct {
	sequence uint64
	outcomes []walimpls.Outcome
}

func (a *answers) Send(r *pluginv1.AppendResponse) error {
	out := &answered{sequence: r.GetSequence()}
	if err := wire.ErrorFromProto(r.GetError()); err != nil {
		var each *walimpls.BatchError
		if !errors.As(err, &each) {
			return fmt.Errorf("an answer without outcomes: %w", err)
		}
		out.outcomes = each.Outcomes
	}
	for _, id := range r.GetIds() {
		out.outcomes = append(out.outcomes, walimpls.Outcome{State: walimpls.Stored, ID: message.ID(id)})
	}
	a.got = append(a.got, out)
	return nil
}

// committer returns an appender over the backend and what it answers.
func committer(t testing.TB, b *membackend.Backend) (*appender, *answers) {
	t.Helper()
	opener, err := b.Build(context.Background(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := opener.Open(context.Background(), walimpls.OpenOptions{Channel: "orders", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	got := &answers{}
	return &appender{h: newHandle(w, b.Describe().Limits), stream: got}, got
}

func sized(size int) message.Message {
	return message.Message{Type: message.TypeData, Payload: make([]byte, size)}
}

func TestWaitingBatchesBecomeOneAppendAndAreAnsweredInOrder(t *testing.T) {
	b := &membackend.Backend{}
	a, got := committer(t, b)
	if err := a.commit([]*batch{
		{sequence: 1, messages: []message.Message{sized(1), sized(2)}},
		{sequence: 2},
		{sequence: 3, messages: []message.Message{sized(3)}},
	}); err != nil {
		t.Fatal(err)
	}
	if b.Appends.Load() != 1 || len(got.got) != 3 {
		t.Fatalf("%d appends, %d answers", b.Appends.Load(), len(got.got))
	}
	for i, want := range []int{2, 0, 1} {
		if got.got[i].sequence != uint64(i+1) || len(got.got[i].outcomes) != want {
			t.Errorf("answer %d: %+v", i, got.got[i])
		}
	}
}

func TestNoAppendExceedsTheLimitsAndEveryRecordGetsItsOutcome(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limits := walimpls.Limits{MaxMessageBytes: 20, MaxBatchRecords: rapid.IntRange(1, 5).Draw(rt, "records"), MaxBatchBytes: rapid.IntRange(20, 40).Draw(rt, "bytes")}
		b := &membackend.Backend{Limits: limits}
		b.BeforeAppend = func(_ context.Context, batch []message.Message) error {
			sum := 0
			for i := range batch {
				sum += batch[i].Size()
			}
			if len(batch) > limits.MaxBatchRecords || sum > limits.MaxBatchBytes {
				rt.Errorf("an append of %d records and %d bytes with %+v", len(batch), sum, limits)
			}
			return nil
		}
		a, got := committer(t, b)
		var batches []*batch
		for i := range rapid.IntRange(1, 6).Draw(rt, "batches") {
			sizes := rapid.SliceOfN(rapid.IntRange(0, 22), 0, 6).Draw(rt, "sizes")
			next := &batch{sequence: uint64(i + 1)}
			for _, size := range sizes {
				next.messages = append(next.messages, sized(size))
			}
			batches = append(batches, next)
		}
		if err := a.commit(batches); err != nil || len(got.got) != len(batches) {
			rt.Fatalf("%d answers, %v", len(got.got), err)
		}
		last := message.ID("")
		for i, next := range batches {
			for k, o := range got.got[i].outcomes {
				if tooLarge := next.messages[k].Size() > 20; tooLarge != errors.Is(o.Err, walimpls.ErrTooLarge) || tooLarge == (o.State == walimpls.Stored) {
					rt.Errorf("a record of %d bytes: %+v", next.messages[k].Size(), o)
				}
				if o.State == walimpls.Stored {
					if !last.Less(o.ID) {
						rt.Errorf("id %s behind %s", o.ID, last)
					}
					last = o.ID
				}
			}
			if len(got.got[i].outcomes) != len(next.messages) {
				rt.Errorf("%d outcomes of %d records", len(got.got[i].outcomes), len(next.messages))
			}
		}
	})
}

// A backend may refuse a whole batch for one bad record without saying which; the
// other records are other callers'.
func TestOneBadRecordDoesNotFailItsNeighbours(t *testing.T) {
	b := &membackend.Backend{}
	b.BeforeAppend = func(_ context.Context, batch []message.Message) error {
		for i := range batch {
			if string(batch[i].Payload) == "bad" {
				return walimpls.Errorf(walimpls.CodeInvalidArgument, "orders", "bad record")
			}
		}
		return nil
	}
	a, got := committer(t, b)
	var batches []*batch
	for i := range 64 {
		m := message.Message{Type: message.TypeData, Payload: []byte("good")}
		if i == 17 || i == 40 {
			m.Payload = []byte("bad")
		}
		batches = append(batches, &batch{sequence: uint64(i + 1), messages: []message.Message{m}})
	}
	if err := a.commit(batches); err != nil {
		t.Fatal(err)
	}
	for i, answer := range got.got {
		want := walimpls.Stored
		if i == 17 || i == 40 {
			want = walimpls.NotStored
		}
		if answer.outcomes[0].State != want {
			t.Errorf("record %d: %+v", i, answer.outcomes[0])
		}
	}
	if n := b.Appends.Load(); n > 30 {
		t.Errorf("%d appends to find two records of 64", n)
	}
}

func TestOtherFailuresAreNotTriedAgain(t *testing.T) {
	b := &membackend.Backend{BeforeAppend: func(context.Context, []message.Message) error {
		return walimpls.Errorf(walimpls.CodeUnavailable, "orders", "down")
	}}
	a, got := committer(t, b)
	if err := a.commit([]*batch{{sequence: 1, messages: []message.Message{sized(1), sized(1)}}}); err != nil {
		t.Fatal(err)
	}
	if o := got.got[0].outcomes; b.Appends.Load() != 1 || o[1].State != walimpls.NotStored || !errors.Is(o[1].Err, walimpls.ErrUnavailable) {
		t.Errorf("%d appends, %+v", b.Appends.Load(), o)
	}
}

func TestNothingIsHandedOverAfterAnUnknownOutcome(t *testing.T) {
	b := &membackend.Backend{Limits: walimpls.Limits{MaxMessageBytes: 10, MaxBatchRecords: 2, MaxBatchBytes: 100}}
	b.AfterAppend = func([]message.Message) error {
		return walimpls.Errorf(walimpls.CodeUnknownOutcome, "orders", "connection lost")
	}
	a, got := committer(t, b)
	// The second half of the first batch is behind the limit already.
	if err := a.commit([]*batch{{sequence: 1, messages: []message.Message{sized(1), sized(1), sized(1)}}, {sequence: 2, messages: []message.Message{sized(1)}}}); err != nil {
		t.Fatal(err)
	}
	if err := a.commit([]*batch{{sequence: 3, messages: []message.Message{sized(1)}}}); err != nil {
		t.Fatal(err)
	}
	first := got.got[0].outcomes
	if b.Appends.Load() != 1 || first[1].State != walimpls.Unknown || !errors.Is(first[1].Err, walimpls.ErrUnknownOutcome) {
		t.Errorf("%d appends, %+v", b.Appends.Load(), first)
	}
	for _, o := range []walimpls.Outcome{first[2], got.got[1].outcomes[0], got.got[2].outcomes[0]} {
		if o.State != walimpls.NotStored || !errors.Is(o.Err, walimpls.ErrUnavailable) || walimpls.AsError(o.Err).Hint == "" {
			t.Errorf("behind it: %+v", o)
		}
	}
}

func TestInboxHoldsBackAboveItsBound(t *testing.T) {
	q := newInbox(100)
	ctx, cancel := context.WithCancel(t.Context())
	if !q.push(ctx, &batch{sequence: 1, bytes: 500}) {
		t.Fatal("one batch above the bound is let in on its own")
	}
	pushed := make(chan bool)
	go func() { pushed <- q.push(ctx, &batch{sequence: 2, bytes: 1}) }()
	taken, err := q.take()
	if err != nil || len(taken) != 1 {
		t.Fatal(taken, err)
	}
	select {
	case <-pushed:
		t.Fatal("a batch came in while the first was not released")
	default:
	}
	q.release(taken)
	if !<-pushed {
		t.Fatal("refused")
	}
	go func() { pushed <- q.push(ctx, &batch{sequence: 3, bytes: 100}) }()
	cancel()
	if <-pushed {
		t.Error("a stream that ended pushed")
	}
	if taken, err = q.take(); err != nil || len(taken) != 1 {
		t.Error("what waits comes before the end")
	}
	if _, err = q.take(); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
