package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

// readAll returns the records but fences from start to what is the end now.
func readAll(t testing.TB, w walimpls.WAL, start walimpls.Start) []message.Message {
	t.Helper()
	b, err := w.Bounds(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: start})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's
	var out []message.Message
	for b.LatestRecord != "" && (len(out) == 0 || out[len(out)-1].ID.Less(b.LatestRecord)) {
		got, err := s.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got {
			if m.Type != message.TypeFence {
				out = append(out, m)
			}
		}
	}
	return out
}

// M-07.
func TestNoCallerGetsAnotherCallersResult(t *testing.T) {
	const callers, each = 64, 200
	b := &membackend.Backend{}
	b.BeforeAppend = func(_ context.Context, batch []message.Message) error {
		// The injected failures, one outcome a record as the contract has it.
		bad := false
		for i := range batch {
			bad = bad || batch[i].Properties["fail"] != ""
		}
		if !bad {
			return nil
		}
		out := make([]walimpls.Outcome, len(batch))
		for i := range batch {
			out[i] = walimpls.Outcome{State: walimpls.NotStored, Err: walimpls.Errorf(walimpls.CodeUnavailable, "orders", "not tried")}
			if who := batch[i].Properties["fail"]; who != "" {
				out[i].Err = walimpls.Errorf(walimpls.CodeNoSpace, "orders", "injected for %s.", who)
			}
		}
		return &walimpls.BatchError{Channel: "orders", Outcomes: out}
	}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	var mu sync.Mutex
	byID := map[message.ID]string{}
	injected := 0
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			for i := 0; i < each; {
				payload := fmt.Sprintf("%d-%d", g, i)
				m := data(payload)
				fails := i%50 == 7
				if fails {
					m.Properties = map[string]string{"fail": payload}
				}
				ids, err := w.Append(soon(t), []message.Message{m})
				switch {
				case fails && errors.Is(err, walimpls.ErrNoSpace) && strings.Contains(err.Error(), "injected for "+payload+"."):
					mu.Lock()
					injected++
					mu.Unlock()
				case !fails && errors.Is(err, walimpls.ErrUnavailable):
					continue // it shared a batch with an injected failure: not stored, so again
				case fails || err != nil:
					t.Errorf("%s: %v %v", payload, ids, err)
					return
				default:
					mu.Lock()
					byID[ids[0]] = payload
					mu.Unlock()
				}
				i++
			}
		})
	}
	wg.Wait()
	if injected != callers*each/50 || len(byID) != callers*each-injected {
		t.Errorf("%d injected failures, %d distinct ids", injected, len(byID))
	}
	stored := readAll(t, w, walimpls.FromAll())
	if len(stored) != len(byID) {
		t.Errorf("%d records are stored, %d were acknowledged", len(stored), len(byID))
	}
	for _, m := range stored {
		if byID[m.ID] != string(m.Payload) {
			t.Errorf("id %s was acknowledged for %q and holds %q", m.ID, byID[m.ID], m.Payload)
		}
	}
}

func TestAsyncAppendsReachTheLogInCallOrder(t *testing.T) {
	w := open(t, configured(t, &membackend.Backend{}).Client, "orders", 1, 1)
	const n = 5000
	ids := make([]message.ID, 2*n)
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		w.AppendAsync([]message.Message{data(fmt.Sprint(2 * i)), data(fmt.Sprint(2*i + 1))}, func(o []walimpls.Outcome) {
			defer wg.Done()
			ids[2*i], ids[2*i+1] = o[0].ID, o[1].ID
		})
	}
	wg.Wait()
	if !slices.IsSortedFunc(ids, message.ID.Compare) {
		t.Error("the ids do not ascend in call order")
	}
	for i, m := range readAll(t, w, walimpls.FromAll()) {
		if string(m.Payload) != fmt.Sprint(i) {
			t.Fatalf("record %d is %s", i, m.Payload)
		}
	}
	empty := make(chan int, 1)
	w.AppendAsync(nil, func(o []walimpls.Outcome) { empty <- len(o) })
	if <-empty != 0 {
		t.Error("an empty batch has outcomes")
	}
}

// P-09, and M-14's sizes around the limit.
func TestMessagesUpToTheLimitCrossAndOthersAreRefusedBeforeTheRPC(t *testing.T) {
	const limit = 16 << 20
	b := &membackend.Backend{Limits: walimpls.Limits{MaxMessageBytes: limit, MaxBatchRecords: 1000, MaxBatchBytes: 64 << 20}}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	zeros := make([]byte, 2*limit)
	for _, size := range []int{39 << 20 / 10, 4 << 20, 41 << 20 / 10, limit, limit + 1, 2 * limit} {
		m := message.Message{Type: message.TypeData, Payload: zeros[:size]}
		before := b.Appends.Load()
		ids, err := w.Append(soon(t), []message.Message{m})
		if size > limit {
			if !errors.Is(err, walimpls.ErrTooLarge) || b.Appends.Load() != before || walimpls.AsError(err).Hint == "" {
				t.Errorf("%d bytes: %v, %d calls of the backend", size, err, b.Appends.Load()-before)
			}
		} else if err != nil {
			t.Errorf("%d bytes: %v", size, err)
		} else if got := readAll(t, w, walimpls.StartFrom(ids[0])); len(got) != 1 || !bytes.Equal(got[0].Payload, m.Payload) {
			t.Errorf("%d bytes did not come back", size)
		}
		if _, err := w.Append(soon(t), []message.Message{data("ok")}); err != nil {
			t.Errorf("behind %d bytes: %v", size, err)
		}
	}
	// Properties count.
	m := data("")
	m.Properties = map[string]string{"k": strings.Repeat("v", limit)}
	if _, err := w.Append(soon(t), []message.Message{m}); !errors.Is(err, walimpls.ErrTooLarge) {
		t.Errorf("a record of properties: %v", err)
	}
}

func TestBatchOfAThousandRecordsOf10KiBCrosses(t *testing.T) {
	b := &membackend.Backend{Limits: walimpls.Limits{MaxMessageBytes: 1 << 20, MaxBatchRecords: 300, MaxBatchBytes: 2 << 20}}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	batch := make([]message.Message, 1000)
	for i := range batch {
		batch[i] = message.Message{Type: message.TypeData, Payload: bytes.Repeat([]byte{byte(i)}, 10<<10), Properties: map[string]string{"n": fmt.Sprint(i)}}
	}
	ids, err := w.Append(soon(t), batch)
	if err != nil || len(ids) != 1000 || !slices.IsSortedFunc(ids, message.ID.Compare) {
		t.Fatalf("%d ids, %v", len(ids), err)
	}
	got := readAll(t, w, walimpls.StartFrom(ids[0]))
	for i := range batch {
		if !bytes.Equal(got[i].Payload, batch[i].Payload) || got[i].Properties["n"] != fmt.Sprint(i) {
			t.Fatalf("record %d did not come back", i)
		}
	}
}

func TestOneBadRecordOfABatchLeavesItsNeighbours(t *testing.T) {
	b := &membackend.Backend{}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	binary := data("binary property")
	binary.Properties = map[string]string{"k": "\xff"}
	_, err := w.Append(soon(t), []message.Message{data("a"), data(strings.Repeat("x", 1<<20+1)), data("b"), binary, data("")})
	var each *walimpls.BatchError
	if !errors.As(err, &each) || len(each.Outcomes) != 5 {
		t.Fatal(err)
	}
	for i, want := range []error{nil, walimpls.ErrTooLarge, nil, walimpls.ErrInvalidArgument, nil} {
		o := each.Outcomes[i]
		if (want == nil) != (o.State == walimpls.Stored) || !errors.Is(o.Err, want) {
			t.Errorf("record %d: %+v, want %v", i, o, want)
		}
	}
	if got := readAll(t, w, walimpls.FromAll()); len(got) != 3 || string(got[1].Payload) != "b" || len(got[2].Payload) != 0 {
		t.Errorf("%d records: %v", len(got), got)
	}
}

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
		waitSent(t, w, int(remote.InFlight(w)))
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
	for range 6 {
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
