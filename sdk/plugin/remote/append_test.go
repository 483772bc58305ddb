package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
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
	defer s.Close()
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
	for _, size := range []int{39 << 20 / 10, 41 << 20 / 10, limit, limit + 1, 2 * limit} {
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
