package remote_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

// held is a backend whose appends wait until release is closed.
func held() (b *membackend.Backend, entered chan struct{}, release func()) {
	entered = make(chan struct{}, 1000)
	gate := make(chan struct{})
	b = &membackend.Backend{BeforeAppend: func(context.Context, []message.Message) error {
		entered <- struct{}{}
		<-gate
		return nil
	}}
	return b, entered, sync.OnceFunc(func() { close(gate) })
}

func TestCallerWhoseContextEndsGetsUnknownForWhatWasSentAndTheHandleEnds(t *testing.T) {
	b, entered, release := held()
	defer release()
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	other := make(chan []walimpls.Outcome, 1)
	w.AppendAsync([]message.Message{data("other")}, func(o []walimpls.Outcome) { other <- o })
	<-entered

	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := w.Append(ctx, []message.Message{data("mine")})
		result <- err
	}()
	waitSent(t, w, 2)
	cancel()
	err := <-result
	var each *walimpls.BatchError
	if !errors.As(err, &each) || each.Outcomes[0].State != walimpls.Unknown || !errors.Is(err, walimpls.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-w.Broken()
	if _, err := w.Append(t.Context(), []message.Message{data("later")}); !errors.Is(err, walimpls.ErrUnavailable) {
		t.Errorf("on the ended handle: %v", err)
	}
	// The batch goes on, and so do the others that were on their way.
	release()
	if o := <-other; o[0].State != walimpls.Stored {
		t.Errorf("the other caller: %+v", o)
	}
	if b, err := w.Bounds(soon(t)); err != nil || b.Empty {
		t.Errorf("reads go on: %+v %v", b, err)
	}
	if got := readAll(t, w, walimpls.FromAll()); len(got) == 0 || string(got[0].Payload) != "other" {
		t.Errorf("%v", got)
	}
}

// waitSent returns when n requests are in flight.
func waitSent(t testing.TB, w *remote.WAL, n int) {
	t.Helper()
	ctx := soon(t)
	for remote.InFlight(w) < n {
		select {
		case <-ctx.Done():
			t.Fatalf("%d requests in flight, want %d", remote.InFlight(w), n)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestCallerWhoseContextEndsBeforeItsRecordsAreSentHasThemNotStored(t *testing.T) {
	b, entered, release := held()
	defer release()
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	var stored atomic.Int64
	for range remote.MaxInFlight {
		w.AppendAsync([]message.Message{data("first")}, func(o []walimpls.Outcome) {
			if o[0].State == walimpls.Stored {
				stored.Add(1)
			}
		})
		waitSent(t, w, remote.InFlight(w))
	}
	<-entered
	waitSent(t, w, 1)
	for remote.InFlight(w) < remote.MaxInFlight {
		w.AppendAsync([]message.Message{data("more")}, func([]walimpls.Outcome) {})
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := w.Append(ctx, []message.Message{data("late"), data("late")})
	var each *walimpls.BatchError
	if !errors.As(err, &each) || each.Outcomes[1].State != walimpls.NotStored || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, walimpls.ErrTimeout) {
		t.Errorf("%v", err)
	}
	select {
	case <-w.Broken():
		t.Error("the handle has ended although nothing is unknown")
	default:
	}
	release()
	if _, err := w.Append(soon(t), []message.Message{data("next")}); err != nil {
		t.Errorf("behind it: %v", err)
	}
	for _, m := range readAll(t, w, walimpls.FromAll()) {
		if string(m.Payload) == "late" {
			t.Error("a record that is not stored was read")
		}
	}
	cancelled, cancel2 := context.WithCancel(t.Context())
	cancel2()
	if _, err := w.Append(cancelled, []message.Message{data("late")}); !errors.Is(err, context.Canceled) || errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Errorf("a context that has ended before: %v", err)
	}
}

func TestAppendWaitsWhenTooMuchIsQueuedAndAsyncDoesNot(t *testing.T) {
	b, entered, release := held()
	defer release()
	b.Limits = walimpls.Limits{MaxMessageBytes: 8 << 20, MaxBatchRecords: 100, MaxBatchBytes: 8 << 20}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	var wg sync.WaitGroup
	big := make([]byte, 8<<20)
	for range 5 {
		wg.Add(1)
		w.AppendAsync([]message.Message{{Type: message.TypeData, Payload: big}}, func([]walimpls.Outcome) { wg.Done() })
	}
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Append(ctx, []message.Message{data("x")}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Append(soon(t), []message.Message{data("y")})
		done <- err
	}()
	release()
	wg.Wait()
	if err := <-done; err != nil {
		t.Errorf("once there is room: %v", err)
	}
}

func TestPluginThatDiesMakesWhatIsInFlightUnknownAndTheRestNotStored(t *testing.T) {
	b, entered, release := held()
	defer release()
	h := configured(t, b)
	w := open(t, h.Client, "orders", 1, 1)
	outcomes := make(chan walimpls.Outcome, 100)
	for i := range 100 {
		w.AppendAsync([]message.Message{data(fmt.Sprint(i))}, func(o []walimpls.Outcome) { outcomes <- o[0] })
	}
	<-entered
	h.Kill()
	<-w.Broken()
	unknown, notStored := 0, 0
	for range 100 {
		switch o := <-outcomes; {
		case o.State == walimpls.Unknown && errors.Is(o.Err, walimpls.ErrUnknownOutcome):
			unknown++
		case o.State == walimpls.NotStored && errors.Is(o.Err, walimpls.ErrUnavailable):
			notStored++
		default:
			t.Errorf("%+v", o)
		}
	}
	if unknown == 0 {
		t.Errorf("%d unknown, %d not stored", unknown, notStored)
	}
	if _, err := w.Append(soon(t), []message.Message{data("x")}); !errors.Is(err, walimpls.ErrUnavailable) || !walimpls.AsError(err).Retryable {
		t.Errorf("later: %v", err)
	}
	if _, err := w.Bounds(soon(t)); !errors.Is(err, walimpls.ErrUnavailable) {
		t.Errorf("Bounds: %v", err)
	}
	begin := time.Now()
	release()
	if err := w.Close(soon(t)); err != nil || time.Since(begin) > time.Second {
		t.Errorf("Close took %s: %v", time.Since(begin), err)
	}
}

func TestHandleIsClosedInThePluginWhenItsHostVanishes(t *testing.T) {
	b := &membackend.Backend{}
	h := configured(t, b)
	w := open(t, h.Client, "orders", 1, 1)
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromAll()})
	if err != nil {
		t.Fatal(err)
	}
	_ = h.Disconnect()
	eventually(t, func() bool { return b.Handles.Load() == 0 && b.Scanners.Load() == 0 }, "handles and scanners are closed")
	for err == nil {
		_, err = s.Next(soon(t))
	}
	if !errors.Is(err, walimpls.ErrUnavailable) {
		t.Errorf("the scanner: %v", err)
	}
}

func eventually(t testing.TB, ok func() bool, what string) {
	t.Helper()
	ctx := soon(t)
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("it never came true that %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestFencedHandleIsToldSo(t *testing.T) {
	h := configured(t, &membackend.Backend{})
	old := open(t, h.Client, "orders", 3, 1)
	if _, err := old.Append(soon(t), []message.Message{data("a")}); err != nil {
		t.Fatal(err)
	}
	var fenced *walimpls.FencedError
	_, err := h.Client.Open(soon(t), walimpls.OpenOptions{Channel: "orders", Term: 3, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if !errors.As(err, &fenced) || fenced.Highest != (walimpls.Pair{Term: 3, Incarnation: 1}) || fenced.Err.Channel != "orders" {
		t.Errorf("the same pair again: %v", err)
	}
	next := open(t, h.Client, "orders", 3, 2)
	if _, err := old.Append(soon(t), []message.Message{data("b")}); !errors.Is(err, walimpls.ErrFenced) {
		t.Errorf("the old handle: %v", err)
	}
	if next.Channel().Pair != (walimpls.Pair{Term: 3, Incarnation: 2}) || next.Channel().StoreID == "" {
		t.Errorf("%+v", next.Channel())
	}
	if err := h.Client.Drop(soon(t), "orders", 2); !errors.As(err, &fenced) {
		t.Errorf("Drop with a lower term: %v", err)
	}
	if err := h.Client.Drop(soon(t), "orders", 3); err != nil {
		t.Errorf("Drop: %v", err)
	}
}

func TestReadOnlyHandleReadsAndRefusesTheRest(t *testing.T) {
	h := configured(t, &membackend.Backend{})
	ro := walimpls.OpenOptions{Channel: "orders", Access: walimpls.AccessReadOnly}
	if _, err := h.Client.Open(soon(t), ro); !errors.Is(err, walimpls.ErrNotFound) {
		t.Errorf("a log that is not there: %v", err)
	}
	w := open(t, h.Client, "orders", 7, 1)
	if _, err := w.Append(soon(t), []message.Message{data("a")}); err != nil {
		t.Fatal(err)
	}
	r, err := h.Client.Open(soon(t), ro)
	if err != nil || r.Channel().Pair != (walimpls.Pair{Term: 7, Incarnation: 1}) || r.Channel().Access != walimpls.AccessReadOnly {
		t.Fatalf("%+v %v", r, err)
	}
	if got := readAll(t, r, walimpls.FromAll()); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if _, err := r.Append(soon(t), []message.Message{data("b")}); !errors.Is(err, walimpls.ErrReadOnly) {
		t.Errorf("Append: %v", err)
	}
	if err := r.Truncate(soon(t), message.Uint64ID(1)); !errors.Is(err, walimpls.ErrReadOnly) {
		t.Errorf("Truncate: %v", err)
	}
	outcome := make(chan walimpls.Outcome, 1)
	r.(*remote.WAL).AppendAsync([]message.Message{data("c")}, func(o []walimpls.Outcome) { outcome <- o[0] })
	if o := <-outcome; o.State != walimpls.NotStored || !errors.Is(o.Err, walimpls.ErrReadOnly) {
		t.Errorf("AppendAsync: %+v", o)
	}
}
