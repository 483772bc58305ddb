package interceptors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// step is an interceptor that writes down what happens.
type step struct {
	name  string
	trail *[]string
	ready chan struct{}
}

func (s step) Name() string { return s.name }
func (s step) Ready() <-chan struct{} {
	if s.ready != nil {
		return s.ready
	}
	return always
}
func (s step) Close() { *s.trail = append(*s.trail, "close "+s.name) }
func (s step) Handle(op *Operation, next Handler) {
	*s.trail = append(*s.trail, s.name)
	done := op.Done
	op.Done = func(r []Result) {
		*s.trail = append(*s.trail, "answer "+s.name)
		done(r)
	}
	next(op)
}

func op(ctx context.Context, answer *[]Result, batch ...message.Message) *Operation {
	if len(batch) == 0 {
		batch = []message.Message{{Type: message.TypeData}}
	}
	return &Operation{Ctx: ctx, Channel: "p", Batch: batch, Done: func(r []Result) { *answer = r }}
}

func store(op *Operation) {
	results := make([]Result, len(op.Batch))
	for i := range results {
		results[i].State = walimpls.Stored
	}
	op.Done(results)
	op.Settle()
}

func TestFirstStepIsTheOutermost(t *testing.T) {
	var trail []string
	c := NewChain(func(op *Operation) { trail = append(trail, "last"); store(op) }, step{name: "a", trail: &trail}, step{name: "b", trail: &trail})
	var answer []Result
	c.Append(op(context.Background(), &answer))
	if !c.Close(context.Background()) {
		t.Error("something was under way")
	}
	if got := strings.Join(trail, ", "); got != "a, b, last, answer b, answer a, close a, close b" {
		t.Error(got)
	}
	if len(answer) != 1 || answer[0].State != walimpls.Stored {
		t.Errorf("answered %+v", answer)
	}
}

func TestOperationsWaitForEveryStepUntilTheirContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trail []string
		ready := make(chan struct{})
		c := NewChain(store, step{name: "slow", trail: &trail, ready: ready})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var answer []Result
		start := time.Now()
		c.Append(op(ctx, &answer))
		if took := time.Since(start); took != time.Second || answer[0].State != walimpls.NotStored || !errors.Is(answer[0].Err, walimpls.ErrTimeout) {
			t.Fatalf("after %v: %+v", took, answer)
		}
		if !strings.Contains(answer[0].Err.Error(), "slow") {
			t.Errorf("the error does not name the step: %v", answer[0].Err)
		}
		done := make(chan struct{})
		go func() { defer close(done); c.Append(op(context.Background(), &answer)) }()
		synctest.Wait()
		close(ready)
		<-done
		if answer[0].State != walimpls.Stored {
			t.Errorf("%+v", answer)
		}
	})
}

func TestCloseWaitsForWhatIsUnderWayAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held *Operation
		var trail []string
		c := NewChain(func(op *Operation) { held = op }, step{name: "a", trail: &trail})
		var first, second []Result
		c.Append(op(context.Background(), &first))
		c.Refuse()
		c.Append(op(context.Background(), &second))
		if len(second) != 1 || second[0].State != walimpls.NotStored || !errors.Is(second[0].Err, walimpls.ErrClosed) {
			t.Errorf("behind Refuse: %+v", second)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if c.Close(ctx) {
			t.Error("it reports that all was answered")
		}
		store(held)
		if len(first) != 1 {
			t.Error("what was under way is not answered")
		}
		if !c.Close(context.Background()) {
			t.Error("a second Close finds something under way")
		}
	})
}

func TestTermStepRefusesWhenTheTermHasEnded(t *testing.T) {
	over := walimpls.Errorf(walimpls.CodeTermExpired, "p", "over")
	var err error
	c := NewChain(store, Term(func() error { return err }))
	var answer []Result
	c.Append(op(context.Background(), &answer))
	if answer[0].State != walimpls.Stored {
		t.Errorf("%+v", answer)
	}
	err = over
	c.Append(op(context.Background(), &answer))
	if answer[0].State != walimpls.NotStored || !errors.Is(answer[0].Err, walimpls.ErrTermExpired) {
		t.Errorf("%+v", answer)
	}
}

// counter is a Bodies that counts.
type counter struct{ n, bytes, failed int }

func (c *counter) Add(id uint64, n, bytes int) error {
	if id == 9 {
		return errors.New("ended")
	}
	c.n, c.bytes = c.n+n, c.bytes+bytes
	return nil
}
func (c *counter) Fail(_ uint64, n, _ int) { c.failed += n }

func TestBodiesAreCountedInAndBackWhenTheyNeverGotATick(t *testing.T) {
	bodyOf := func(id uint64) message.Message {
		return message.Message{Type: message.TypeData, TxnID: id, Payload: []byte("xyz")}
	}
	var answer []Result
	n := &counter{}
	refuse := errors.New("no")
	c := NewChain(func(op *Operation) { op.Refuse(refuse) }, Txn(n))
	c.Append(op(context.Background(), &answer, bodyOf(5), bodyOf(5)))
	if n.n != 2 || n.bytes != 6 || n.failed != 2 || !errors.Is(answer[1].Err, refuse) {
		t.Errorf("%+v, %+v", n, answer)
	}
	// One that got its tick is counted out by the owner.
	c = NewChain(func(op *Operation) { op.Batch[0].TimeTick = 7; op.Refuse(refuse) }, Txn(n))
	c.Append(op(context.Background(), &answer, bodyOf(5)))
	if n.n != 3 || n.failed != 2 {
		t.Errorf("%+v", n)
	}
	c.Append(op(context.Background(), &answer, bodyOf(9)))
	if answer[0].State != walimpls.NotStored || n.n != 3 {
		t.Errorf("a body of an ended transaction: %+v", answer)
	}
	c.Append(op(context.Background(), &answer, bodyOf(5), bodyOf(6)))
	if !errors.Is(answer[0].Err, walimpls.ErrInvalidArgument) {
		t.Errorf("a batch of two transactions: %+v", answer)
	}
}

// seen is an Observer that remembers.
type seen struct{ text string }

func (s *seen) Appended(channel string, stored, notStored, unknown, bytes int, took time.Duration) {
	s.text = fmt.Sprintf("%s %d %d %d %d %v", channel, stored, notStored, unknown, bytes, took)
}

func TestMetricsCountOutcomesBytesAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &seen{}
		c := NewChain(func(op *Operation) {
			time.Sleep(time.Second)
			r := make([]Result, 3)
			r[0].State, r[1].State, r[2].State = walimpls.Stored, walimpls.NotStored, walimpls.Unknown
			op.Done(r)
		}, Metrics(s))
		var answer []Result
		m := message.Message{Type: message.TypeData, Payload: []byte("12")}
		c.Append(op(context.Background(), &answer, m, m, m))
		if s.text != "p 1 1 1 6 1s" {
			t.Error(s.text)
		}
	})
}

func TestManyOperationsAreEachAnsweredOnce(t *testing.T) {
	c := NewChain(func(op *Operation) { go store(op) }, Metrics(nil), Term(func() error { return nil }), Lock(), Txn(&counter{}))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				answered := make(chan int, 2)
				c.Append(&Operation{
					Ctx: context.Background(), Channel: "p", Batch: []message.Message{{Type: message.TypeData}},
					Done: func(r []Result) { answered <- len(r) },
				})
				if n := <-answered; n != 1 {
					t.Errorf("%d results", n)
				}
			}
		})
	}
	wg.Wait()
	if !c.Close(context.Background()) {
		t.Error("something is under way for ever")
	}
}
