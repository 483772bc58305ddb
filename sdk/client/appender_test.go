package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

func record(i int) Record { return Record{Payload: fmt.Append(nil, i)} }

func TestAppenderKeepsTheOrderOfItsCalls(t *testing.T) {
	f := newFake(t, nil)
	c, ctx := f.client(t), testContext(t)
	a, err := c.NewAppender(ctx, "orders", AppenderOptions{RequestRecords: 50})
	must(t, err)
	const n = 5000
	var futures []*Future
	for i := range n {
		futures = append(futures, a.Append(record(i)))
	}
	must(t, a.Flush(ctx))
	for i, future := range futures {
		select {
		case <-future.Done():
		default:
			t.Fatalf("record %d is not done after Flush", i)
		}
		r, err := future.Wait(ctx)
		must(t, err)
		if r.ID != strconv.Itoa(i+1) {
			t.Fatalf("record %d has id %s", i, r.ID)
		}
	}
	must(t, a.Close(ctx))
	must(t, a.Close(ctx))
	i := 0
	for k, req := range f.requests() {
		if req.GetSequence() != uint64(k) || (req.GetChannel() != "") != (k == 0) || len(req.GetRecords()) > 50 {
			t.Fatalf("request %d is %d of channel %q with %d records", k, req.GetSequence(), req.GetChannel(), len(req.GetRecords()))
		}
		for _, rec := range req.GetRecords() {
			if string(rec.GetPayload()) != strconv.Itoa(i) {
				t.Fatalf("record %q came where %d was due", rec.GetPayload(), i)
			}
			i++
		}
	}
	if i != n {
		t.Errorf("%d records came", i)
	}
	r := a.Append(record(0)).Result()
	if r.State != walimpls.NotStored || codeOf(r.Err) != walimpls.CodeClosed {
		t.Errorf("a closed appender: %+v", r)
	}
}

// TestAppenderCollectsWhileRequestsAreUnderWay answers nothing until told.
func TestAppenderCollectsWhileRequestsAreUnderWay(t *testing.T) {
	release := make(chan struct{})
	f := newFake(t, nil)
	f.stream = func(s walv1.WALService_AppendStreamServer) error {
		must(t, f.greet(s))
		first, err := f.next(s)
		if err != nil {
			return err
		}
		<-release
		must(t, f.answer(s, first))
		for {
			req, err := f.next(s)
			if err != nil {
				return nil
			}
			must(t, f.answer(s, req))
		}
	}
	a, err := f.client(t).NewAppender(testContext(t), "orders", AppenderOptions{InFlight: 1})
	must(t, err)
	a.Append(record(0))
	for len(f.requests()) < 2 {
		time.Sleep(time.Millisecond)
	}
	for i := range 1000 {
		a.Append(record(i + 1))
	}
	close(release)
	must(t, a.Close(testContext(t)))
	// One greeting, one record alone, and the rest in as few as fit.
	if n := len(f.requests()); n != 4 {
		t.Errorf("%d requests", n)
	}
}

// TestLostConnectionIsUnknownForWhatItWasHanded and for nothing else; nothing
// is sent again.
func TestLostConnectionIsUnknownForWhatItWasHanded(t *testing.T) {
	f := newFake(t, nil)
	var once sync.Once
	f.stream = func(s walv1.WALService_AppendStreamServer) error {
		must(t, f.greet(s))
		for {
			req, err := f.next(s)
			if err != nil {
				return err
			}
			if req.GetSequence() <= 3 {
				must(t, f.answer(s, req))
			}
			if req.GetSequence() == 5 {
				once.Do(f.cut)
			}
		}
	}
	ctx := testContext(t)
	a, err := f.client(t).NewAppender(ctx, "orders", AppenderOptions{RequestRecords: 10, InFlight: 2})
	must(t, err)
	var futures []*Future
	for i := range 100 {
		futures = append(futures, a.Append(record(i)))
	}
	closeErr := a.Close(ctx)
	mustBe(t, closeErr, walimpls.ErrUnknownOutcome)
	count := map[walimpls.State]int{}
	last := walimpls.Stored
	order := map[walimpls.State]int{walimpls.Stored: 0, walimpls.Unknown: 1, walimpls.NotStored: 2}
	for i, future := range futures {
		r := future.Result()
		count[r.State]++
		if order[r.State] < order[last] {
			t.Errorf("record %d is %s behind one that is %s", i, r.State, last)
		}
		last = r.State
		if r.State == walimpls.NotStored && (errors.Is(r.Err, walimpls.ErrUnknownOutcome) || codeOf(r.Err) != walimpls.CodeClosed) {
			t.Errorf("record %d: %v", i, r.Err)
		}
	}
	sent := 0
	for _, req := range f.requests() {
		sent += len(req.GetRecords())
	}
	if count[walimpls.Unknown] == 0 || count[walimpls.Stored]+count[walimpls.Unknown] != sent {
		t.Errorf("%v; the host saw %d", count, sent)
	}
	mustBe(t, a.Err(), walimpls.ErrUnknownOutcome)
}

// TestHostThatEndsAStreamSettlesWhatItDidNotAnswer as not stored.
func TestHostThatEndsAStreamSettlesWhatItDidNotAnswer(t *testing.T) {
	f := newFake(t, nil)
	stop := walimpls.Errorf(walimpls.CodeShutdown, "orders", "the host is stopping")
	f.stream = func(s walv1.WALService_AppendStreamServer) error {
		must(t, f.greet(s))
		req, err := f.next(s)
		must(t, err)
		must(t, f.answer(s, req))
		_, err = f.next(s)
		must(t, err)
		must(t, s.Send(&walv1.AppendStreamResponse{End: wire.ErrorToProto(stop)}))
		return wire.StatusError(stop)
	}
	ctx := testContext(t)
	a, err := f.client(t).NewAppender(ctx, "orders", AppenderOptions{RequestRecords: 1})
	must(t, err)
	var futures []*Future
	for i := range 10 {
		futures = append(futures, a.Append(record(i)))
	}
	mustBe(t, a.Close(ctx), walimpls.ErrShutdown)
	for i, future := range futures {
		if r := future.Result(); (r.State == walimpls.Stored) != (i == 0) || r.State == walimpls.Unknown {
			t.Errorf("record %d: %s, %v", i, r.State, r.Err)
		}
	}
}

// TestStatusWithoutAnEndPromisesNothing: a host that dies of a defect may have
// stored what it did not answer.
func TestStatusWithoutAnEndPromisesNothing(t *testing.T) {
	for name, breach := range map[string]func(f *fakeHost, s walv1.WALService_AppendStreamServer) error{
		"defect": func(*fakeHost, walv1.WALService_AppendStreamServer) error {
			return wire.StatusError(walimpls.Errorf(walimpls.CodeInternal, "", "a defect"))
		},
		"no word": func(*fakeHost, walv1.WALService_AppendStreamServer) error { return nil },
		"wrong sequence": func(f *fakeHost, s walv1.WALService_AppendStreamServer) error {
			_ = s.Send(&walv1.AppendStreamResponse{Sequence: 7})
			<-s.Context().Done()
			return nil
		},
		"too few results": func(f *fakeHost, s walv1.WALService_AppendStreamServer) error {
			_ = s.Send(&walv1.AppendStreamResponse{Sequence: 1})
			<-s.Context().Done()
			return nil
		},
	} {
		f := newFake(t, nil)
		f.stream = func(s walv1.WALService_AppendStreamServer) error {
			must(t, f.greet(s))
			if _, err := f.next(s); err != nil {
				return err
			}
			return breach(f, s)
		}
		ctx := testContext(t)
		a, err := f.client(t).NewAppender(ctx, "orders", AppenderOptions{})
		must(t, err)
		r := a.Append(record(1)).Result()
		if r.State != walimpls.Unknown || !errors.Is(r.Err, walimpls.ErrUnknownOutcome) {
			t.Errorf("%s: %+v", name, r)
		}
		mustBe(t, a.Close(ctx), walimpls.ErrUnknownOutcome)
	}
}

func TestAppenderRefusesEverythingBehindAFailure(t *testing.T) {
	f := newFake(t, nil)
	f.stream = func(s walv1.WALService_AppendStreamServer) error {
		must(t, f.greet(s))
		req, err := f.next(s)
		must(t, err)
		refusal := wire.ErrorToProto(walimpls.Errorf(walimpls.CodeNoSpace, "orders", "full"))
		must(t, s.Send(&walv1.AppendStreamResponse{Sequence: req.GetSequence(), Results: []*walv1.AppendResult{
			{State: typesv1.Outcome_STATE_NOT_STORED, Error: refusal},
		}}))
		_, err = f.next(s) // nothing more may come
		if err == nil {
			t.Error("a request came behind the failure")
		}
		return nil
	}
	ctx := testContext(t)
	a, err := f.client(t).NewAppender(ctx, "orders", AppenderOptions{})
	must(t, err)
	_, err = a.Append(record(0)).Wait(ctx)
	mustBe(t, err, walimpls.ErrNoSpace)
	r := a.Append(record(1)).Result()
	if r.State != walimpls.NotStored || codeOf(r.Err) != walimpls.CodeClosed || !walimpls.AsError(r.Err).Retryable {
		t.Errorf("%+v", r)
	}
	mustBe(t, a.Close(ctx), walimpls.ErrNoSpace)
}

// TestAppenderTakesABoundedAmount and lets go when its context ends.
func TestAppenderTakesABoundedAmount(t *testing.T) {
	f := newFake(t, nil)
	f.stream = func(s walv1.WALService_AppendStreamServer) error {
		must(t, f.greet(s))
		<-s.Context().Done()
		return s.Context().Err()
	}
	ctx, cancel := context.WithCancel(testContext(t))
	a, err := f.client(t).NewAppender(ctx, "orders", AppenderOptions{MaxBytes: 10_000, RequestBytes: 1000})
	must(t, err)
	taken := make(chan *Future, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			taken <- a.Append(Record{Payload: make([]byte, 1000)})
		}
	}()
	for len(taken) < 9 {
		time.Sleep(time.Millisecond)
	}
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if err := a.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("flush: %v", err)
	}
	if n := len(taken); n > 10 {
		t.Errorf("%d records were taken", n)
	}
	first := <-taken
	if _, err := first.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	cancel()
	<-done
	unknown := first.Result().State == walimpls.Unknown
	close(taken)
	notStored := 0
	for future := range taken {
		if future.Result().State == walimpls.NotStored {
			notStored++
		}
	}
	if !unknown || notStored < 40 {
		t.Errorf("handed over: unknown %v; %d of the rest not stored", unknown, notStored)
	}
	_ = a.Close(testContext(t))
}

func TestCloseThatIsCutShortLeavesUnknown(t *testing.T) {
	f := newFake(t, nil)
	f.stream = func(s walv1.WALService_AppendStreamServer) error {
		must(t, f.greet(s))
		<-s.Context().Done()
		return s.Context().Err()
	}
	a, err := f.client(t).NewAppender(testContext(t), "orders", AppenderOptions{})
	must(t, err)
	future := a.Append(record(0))
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	mustBe(t, a.Close(short), walimpls.ErrUnknownOutcome)
	if r := future.Result(); r.State != walimpls.Unknown {
		t.Errorf("%+v", r)
	}
}

func TestAppenderIsForManyGoroutines(t *testing.T) {
	f := newFake(t, nil)
	ctx := testContext(t)
	a, err := f.client(t).NewAppender(ctx, "orders", AppenderOptions{RequestRecords: 16})
	must(t, err)
	var mu sync.Mutex
	ids := map[string]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 200 {
				r, err := a.Append(record(i)).Wait(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids[r.ID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	must(t, a.Close(ctx))
	if len(ids) != 16*200 {
		t.Errorf("%d ids", len(ids))
	}
}
