package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestAppendedRecordsAreReadBackUnchanged(t *testing.T) {
	h := newHost(t, Options{})
	c := h.create("orders")
	ctx := testContext(t)
	declare(t, c, "orders", "v1")
	records := []client.Record{
		{Payload: []byte("one")},
		{},
		{VChannel: "v1", Properties: map[string]string{"source": "billing", "empty": ""}, Payload: []byte{0, 0xff, '\n'}},
	}
	results, err := c.Append(ctx, "orders", records...)
	must(t, err)
	msgs, err := tryRead(t, c, "orders", client.ReadOptions{})
	must(t, err)
	if len(msgs) != len(records) {
		t.Fatalf("read %d records of %d", len(msgs), len(records))
	}
	for i, m := range msgs {
		r := results[i]
		if r.State != walimpls.Stored || r.ID != m.ID || r.Term != 1 || m.Term != 1 || r.Err != nil {
			t.Errorf("record %d: result %+v, read %+v", i, r, m)
		}
		if string(m.Payload) != string(records[i].Payload) || m.VChannel != records[i].VChannel || fmt.Sprint(m.Properties) != fmt.Sprint(records[i].Properties) {
			t.Errorf("record %d came back as %+v", i, m)
		}
	}
}

func TestUnknownChannelSaysHowToCreateIt(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.client(), testContext(t)
	calls := map[string]func() error{
		"append":   func() error { _, err := c.Append(ctx, "nowhere", texts("x")...); return err },
		"appender": func() error { _, err := c.NewAppender(ctx, "nowhere", client.AppenderOptions{}); return err },
		"read":     func() error { _, err := c.NewReader(ctx, "nowhere", client.ReadOptions{}); return err },
		"describe": func() error { _, err := c.DescribeChannel(ctx, "nowhere"); return err },
		"truncate": func() error { _, err := c.TruncateChannel(ctx, "nowhere", "1"); return err },
		"open":     func() error { _, err := c.OpenChannel(ctx, "nowhere", 0, false); return err },
		"remove":   func() error { return c.RemoveChannel(ctx, "nowhere", false) },
	}
	for name, call := range calls {
		err := call()
		if !errors.Is(err, walimpls.ErrNotFound) || !strings.Contains(hint(err), "walrig channel create nowhere") {
			t.Errorf("%s: %v (hint %q)", name, err, hint(err))
		}
	}
}

func TestBadRecordsAreRefusedBeforeAnythingIsStored(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	bad := map[string]client.Record{
		"reserved key":        {Properties: map[string]string{"_producer": "x"}},
		"empty key":           {Properties: map[string]string{"": "x"}},
		"key is no text":      {Properties: map[string]string{"\xff": "x"}},
		"value is no text":    {Properties: map[string]string{"k": "\xff"}},
		"vchannel name":       {VChannel: "no spaces"},
		"vchannel is no text": {VChannel: "\xff"},
	}
	for name, record := range bad {
		results, err := c.Append(ctx, "orders", client.Record{Payload: []byte("good")}, record)
		mustBe(t, err, walimpls.ErrInvalidArgument)
		for _, r := range results {
			if r.State != walimpls.NotStored {
				t.Errorf("%s: %s", name, r.State)
			}
		}
		a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
		must(t, err)
		_, err = a.Append(record).Wait(ctx)
		mustBe(t, err, walimpls.ErrInvalidArgument)
		mustBe(t, a.Close(ctx), walimpls.ErrInvalidArgument)
	}
	if _, err := c.Append(ctx, "bad name", texts("x")...); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("bad channel name: %v", err)
	}
	if got := readAll(t, c, "orders", client.ReadOptions{}); len(got) > 0 {
		t.Errorf("stored %q", got)
	}
}

func smallLimits() faultbackend.Option {
	return faultbackend.WithLimits(walimpls.Limits{MaxMessageBytes: 100, MaxBatchRecords: 1000, MaxBatchBytes: 100_000})
}

func TestTooLargeRecordLeavesTheOthersOfItsCallAlone(t *testing.T) {
	h := newHost(t, Options{}, newPlugin(t, "local", smallLimits()))
	c, ctx := h.create("orders"), testContext(t)
	results, err := c.Append(ctx, "orders", texts("a", strings.Repeat("x", 101), "b", strings.Repeat("y", 100))...)
	mustBe(t, err, walimpls.ErrTooLarge)
	want := []walimpls.State{walimpls.Stored, walimpls.NotStored, walimpls.Stored, walimpls.Stored}
	for i, r := range results {
		if r.State != want[i] {
			t.Errorf("record %d is %s (%v), want %s", i, r.State, r.Err, want[i])
		}
	}
	mustBe(t, results[1].Err, walimpls.ErrTooLarge)
	if got := readAll(t, c, "orders", client.ReadOptions{}); len(got) != 3 || got[0] != "a" || got[1] != "b" {
		t.Errorf("read %q", got)
	}
}

func TestStreamStoresNothingBehindItsFirstFailure(t *testing.T) {
	h := newHost(t, Options{}, newPlugin(t, "local", smallLimits()))
	c, ctx := h.create("orders"), testContext(t)
	// One record a request, so that later requests are under way when the
	// failure is found.
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{RequestRecords: 1})
	must(t, err)
	var futures []*client.Future
	for i := range 50 {
		payload := fmt.Sprint(i)
		if i == 20 {
			payload = strings.Repeat("x", 101)
		}
		futures = append(futures, a.Append(client.Record{Payload: []byte(payload)}))
	}
	mustBe(t, a.Close(ctx), walimpls.ErrTooLarge)
	for i, f := range futures {
		r := f.Result()
		switch {
		case i < 20 && r.State != walimpls.Stored:
			t.Errorf("record %d: %s, %v", i, r.State, r.Err)
		case i == 20 && (r.State != walimpls.NotStored || !errors.Is(r.Err, walimpls.ErrTooLarge)):
			t.Errorf("the large record: %s, %v", r.State, r.Err)
		case i > 20 && (r.State != walimpls.NotStored || !errors.Is(r.Err, walimpls.ErrClosed)):
			t.Errorf("record %d: %s, %v", i, r.State, r.Err)
		}
	}
	if got := readAll(t, c, "orders", client.ReadOptions{}); len(got) != 20 {
		t.Errorf("the log holds %d records, want the 20 ahead of the failure", len(got))
	}
	// A new stream goes on.
	b, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(t, err)
	b.Append(client.Record{Payload: []byte("ok")})
	must(t, b.Close(ctx))
}

// TestOutcomesOfARefusedStreamAreTrue lets the backend refuse a record while
// others are under way: what is reported must be what is in the log, and
// nothing may be handed over once the failure is known.
func TestOutcomesOfARefusedStreamAreTrue(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	h.plugin().rules(t, "append permanent after=100 count=1")
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{RequestRecords: 7})
	must(t, err)
	var futures []*client.Future
	for i := range 1000 {
		futures = append(futures, a.Append(client.Record{Payload: fmt.Append(nil, i)}))
	}
	if a.Close(ctx) == nil {
		t.Fatal("no failure")
	}
	var want []string
	for i, f := range futures {
		switch r := f.Result(); r.State {
		case walimpls.Stored:
			want = append(want, fmt.Sprint(i))
		case walimpls.Unknown:
			t.Fatalf("record %d is unknown: %v", i, r.Err)
		}
	}
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, want) {
		t.Errorf("read %v, reported %v", got, want)
	}
	if len(want) < 100 || len(want) > 200 {
		t.Errorf("%d records were stored around the failure of the 101st", len(want))
	}
}

// TestEveryCallerGetsItsOwnOutcome is M-07: 64 callers, 200 records each.
func TestEveryCallerGetsItsOwnOutcome(t *testing.T) {
	const callers, calls, batch, every = 64, 20, 10, 50
	h := newHost(t, Options{})
	c := h.create("orders")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h.plugin().rules(t, fmt.Sprintf("append permanent 1/%d", every))
	var mu sync.Mutex
	stored, failed := map[string]string{}, map[string]bool{}
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			for i := range calls {
				var records []client.Record
				for b := range batch {
					records = append(records, client.Record{Payload: fmt.Appendf(nil, "%d-%d-%d", g, i, b)})
				}
				results, _ := c.Append(ctx, "orders", records...)
				mu.Lock()
				for b, r := range results {
					switch r.State {
					case walimpls.Stored:
						stored[r.ID] = string(records[b].Payload)
					case walimpls.NotStored:
						failed[string(records[b].Payload)] = true
					default:
						t.Errorf("%s: %s, %v", records[b].Payload, r.State, r.Err)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	const all = callers * calls * batch
	// The rule sees the owner's time ticks too: a few of its failures hit them.
	if len(failed) > all/every+4 || len(failed) < all/every-20 || len(stored) != all-len(failed) {
		t.Errorf("%d stored under an id of their own and %d failed, of %d", len(stored), len(failed), all)
	}
	msgs, err := tryRead(t, c, "orders", client.ReadOptions{})
	must(t, err)
	if len(msgs) != len(stored) {
		t.Errorf("read %d records, %d are stored", len(msgs), len(stored))
	}
	for _, m := range msgs {
		if stored[m.ID] != string(m.Payload) {
			t.Errorf("id %s was reported for %q and holds %q", m.ID, stored[m.ID], m.Payload)
		}
		if failed[string(m.Payload)] {
			t.Errorf("%q was reported as not stored", m.Payload)
		}
	}
}

// TestStreamsDoNotCross does the same with streams.
func TestStreamsDoNotCross(t *testing.T) {
	const streams, each = 16, 500
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	var mu sync.Mutex
	stored := map[string]string{}
	var wg sync.WaitGroup
	for g := range streams {
		wg.Go(func() {
			a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{RequestRecords: 16})
			if err != nil {
				t.Error(err)
				return
			}
			var futures []*client.Future
			for i := range each {
				futures = append(futures, a.Append(client.Record{Payload: fmt.Appendf(nil, "%d-%d", g, i)}))
			}
			if err := a.Close(ctx); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for i, f := range futures {
				stored[f.Result().ID] = fmt.Sprintf("%d-%d", g, i)
			}
		})
	}
	wg.Wait()
	msgs, err := tryRead(t, c, "orders", client.ReadOptions{})
	must(t, err)
	if len(msgs) != streams*each || len(stored) != streams*each {
		t.Fatalf("read %d, ids %d, want %d", len(msgs), len(stored), streams*each)
	}
	next := map[string]int{}
	for _, m := range msgs {
		if stored[m.ID] != string(m.Payload) {
			t.Fatalf("id %s was reported for %q and holds %q", m.ID, stored[m.ID], m.Payload)
		}
		var g, i int
		_, _ = fmt.Sscanf(string(m.Payload), "%d-%d", &g, &i)
		if key := fmt.Sprint(g); next[key] != i {
			t.Fatalf("stream %d: record %d came where %d was due", g, i, next[key])
		} else {
			next[key]++
		}
	}
}

func TestUnknownOutcomeOfTheBackendIsSettled(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	h.plugin().rules(t, "append fail-after-write unknown count=1")
	results, err := c.Append(ctx, "orders", texts("once")...)
	must(t, err)
	if results[0].State != walimpls.Stored {
		t.Errorf("state %s", results[0].State)
	}
	appendAll(t, c, "orders", "next")
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"once", "next"}) {
		t.Errorf("read %q", got)
	}
}

// TestCallersWaitWhileTheBackendIsOpenedAgain loses the backend's handle for a
// while: callers see latency, and a caller whose deadline passes before its
// record was handed over learns that it is not stored.
func TestCallersWaitWhileTheBackendIsOpenedAgain(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	h.plugin().rules(t, "append fail-before-write unknown count=1; open block until released incarnation=2")
	hurried, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := c.Append(hurried, "orders", texts("lost")...); !errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Fatalf("the record that takes the handle with it: %v", err)
	}
	must(t, h.plugin().ctl.WaitFor(ctx, func(s faultbackend.Stats) bool { return s.Waiting["open"] == 1 }))

	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	results, err := c.Append(short, "orders", texts("late")...)
	mustBe(t, err, walimpls.ErrTimeout)
	if results[0].State != walimpls.NotStored {
		t.Errorf("a record that was never handed over is %s: %v", results[0].State, err)
	}

	patient := make(chan error, 1)
	go func() { _, err := c.Append(ctx, "orders", texts("patient")...); patient <- err }()
	h.plugin().rules(t, "")
	must(t, <-patient)
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"patient"}) {
		t.Errorf("read %q", got)
	}
}

// TestStreamHoldsABoundedAmount blocks the backend: the host must stop reading
// the stream, and the client stop taking records.
func TestStreamHoldsABoundedAmount(t *testing.T) {
	h := newHost(t, Options{MaxStreamBytes: 64 << 10})
	c, ctx := h.create("orders"), testContext(t)
	h.plugin().rules(t, "append block until released")
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{RequestBytes: 16 << 10, InFlight: 1000, MaxBytes: 1 << 20})
	must(t, err)
	var taken []*client.Future
	full := make(chan struct{})
	go func() {
		defer close(full)
		for range 400 {
			taken = append(taken, a.Append(client.Record{Payload: make([]byte, 8<<10)}))
		}
	}()
	select {
	case <-full:
		t.Fatal("the appender took more than its bound")
	case <-time.After(200 * time.Millisecond):
	}
	h.plugin().rules(t, "")
	<-full
	must(t, a.Close(ctx))
	for i, f := range taken {
		if r := f.Result(); r.State != walimpls.Stored {
			t.Fatalf("record %d: %s, %v", i, r.State, r.Err)
		}
	}
}
