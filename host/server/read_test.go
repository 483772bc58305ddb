package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// TestStartsOfAReadMeanWhatTheySay is M-09, over a restart of the host.
func TestStartsOfAReadMeanWhatTheySay(t *testing.T) {
	h := newHost(t, Options{})
	c := h.create("orders")
	ids := appendAll(t, c, "orders", "m1", "m2", "m3")
	table := []struct {
		from string
		want []string
	}{
		{"all", []string{"m1", "m2", "m3"}},
		{"", []string{"m1", "m2", "m3"}},
		{ids[0], []string{"m1", "m2", "m3"}},
		{ids[2], []string{"m3"}},
		{"after:" + ids[0], []string{"m2", "m3"}},
		{"after:" + ids[2], []string{}},
		{"latest", []string{}},
	}
	bad := []string{"0", "after:0", "after:", "oldest", "-1", "007", "1:2", "cp:xyz", "after:latest", " 1", "18446744073709551616"}
	for _, round := range []string{"first", "restarted"} {
		for _, row := range table {
			if got := readAll(t, c, "orders", client.ReadOptions{From: row.from}); !slices.Equal(got, row.want) {
				t.Errorf("%s host, from %q: read %q, want %q", round, row.from, got, row.want)
			}
		}
		for _, from := range bad {
			_, err := tryRead(t, c, "orders", client.ReadOptions{From: from})
			if !errors.Is(err, walimpls.ErrInvalidArgument) || hint(err) == "" && from != "0" && from != "after:0" {
				t.Errorf("%s host, from %q: %v (hint %q)", round, from, err, hint(err))
			}
		}
		h.restart()
		h.awaitReady()
	}
}

func TestLostPositionCarriesTheBoundsAsText(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	ids := appendAll(t, c, "orders", "a", "b", "c")
	st, err := c.TruncateChannel(ctx, "orders", ids[1])
	must(t, err)
	// A time tick may have come behind the last record.
	if latest := st.GetLatestId(); st.GetEarliestId() != ids[1] || latest != ids[2] && latest <= ids[2] {
		t.Errorf("bounds %s to %s, want %s to %s", st.GetEarliestId(), latest, ids[1], ids[2])
	}
	for _, from := range []string{ids[0], "9999", "after:9999"} {
		_, err := tryRead(t, c, "orders", client.ReadOptions{From: from})
		var lost *client.PositionLostError
		if !errors.As(err, &lost) || lost.EarliestText != ids[1] || lost.LatestText == "" {
			t.Errorf("from %s: %#v", from, err)
		}
		var contract *walimpls.PositionLostError
		if !errors.As(err, &contract) || contract.Latest == "" || walimpls.AsError(err).Code != walimpls.CodePositionLost {
			t.Errorf("from %s: not the contract's error: %v", from, err)
		}
	}
	if got := readAll(t, c, "orders", client.ReadOptions{}); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("read %q", got)
	}
	_, err = c.TruncateChannel(ctx, "orders", "9999")
	mustBe(t, err, walimpls.ErrInvalidArgument)
	_, err = c.TruncateChannel(ctx, "orders", "x")
	mustBe(t, err, walimpls.ErrInvalidArgument)
}

func TestReadStopsAtTheEndAsItWasAtTheStart(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	if got := readAll(t, c, "orders", client.ReadOptions{}); len(got) > 0 {
		t.Errorf("an empty log gave %q", got)
	}
	appendAll(t, c, "orders", "a", "b")
	r, err := c.NewReader(ctx, "orders", client.ReadOptions{})
	must(t, err)
	defer r.Close()
	appendAll(t, c, "orders", "late")
	if got := take(t, r, 2); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("read %q", got)
	}
	if m, err := r.Next(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %v, %v", m, err)
	}
}

func TestFollowerGetsWhatComesAndKnowsWhenItHasCaughtUp(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	appendAll(t, c, "orders", "a", "b")
	r, err := c.NewReader(ctx, "orders", client.ReadOptions{Follow: true})
	must(t, err)
	defer r.Close()
	latest, err := c.NewReader(ctx, "orders", client.ReadOptions{Follow: true, From: "latest"})
	must(t, err)
	defer latest.Close()
	if got := take(t, r, 2); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("read %q", got)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if m, err := r.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the end: %v, %v", m, err)
	}
	select {
	case <-r.CaughtUp():
	default:
		t.Error("the reader is at the end and does not say so")
	}
	for i := range 20 {
		want := fmt.Sprint(i)
		appendAll(t, c, "orders", want)
		if got := append(take(t, r, 1), take(t, latest, 1)...); got[0] != want || got[1] != want {
			t.Fatalf("read %q, want %s", got, want)
		}
	}
}

func TestReaderGetsItsVChannelAndWhatIsForAll(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	declare(t, c, "orders", "v1", "v2")
	_, err := c.Append(ctx, "orders",
		client.Record{VChannel: "v1", Payload: []byte("1")}, client.Record{VChannel: "v2", Payload: []byte("2")},
		client.Record{Payload: []byte("all")}, client.Record{VChannel: "v2", Payload: []byte("3")})
	must(t, err)
	if got := readAll(t, c, "orders", client.ReadOptions{VChannel: "v1"}); !slices.Equal(got, []string{"1", "all"}) {
		t.Errorf("v1 got %q", got)
	}
	if got := readAll(t, c, "orders", client.ReadOptions{VChannel: "v3"}); !slices.Equal(got, []string{"all"}) {
		t.Errorf("v3 got %q", got)
	}
	_, err = tryRead(t, c, "orders", client.ReadOptions{VChannel: "no name"})
	mustBe(t, err, walimpls.ErrInvalidArgument)
}

func TestLargeLogIsReadInBoundedMessages(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(t, err)
	var want []string
	for i := range 3000 {
		want = append(want, fmt.Sprint(i))
		a.Append(client.Record{Payload: []byte(want[i])})
	}
	big := make([]byte, 5<<20)
	a.Append(client.Record{Payload: big})
	must(t, a.Close(ctx))
	got := readAll(t, c, "orders", client.ReadOptions{})
	if !slices.Equal(got[:len(want)], want) || got[len(want)] != string(big) {
		t.Error("the records came back changed")
	}
}

// TestSlowReaderHoldsNobodyUp never takes a record; others write and read on.
func TestSlowReaderHoldsNobodyUp(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	slow, err := dial(t, h.addr).NewReader(ctx, "orders", client.ReadOptions{Follow: true})
	must(t, err)
	defer slow.Close()
	payload := make([]byte, 64<<10)
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(t, err)
	for range 120 {
		a.Append(client.Record{Payload: payload})
	}
	must(t, a.Close(ctx))
	if got := readAll(t, c, "orders", client.ReadOptions{}); len(got) != 120 {
		t.Errorf("the other reader got %d records", len(got))
	}
	if slow.Buffered() > readRecords {
		t.Errorf("the slow reader holds %d records", slow.Buffered())
	}
	if got := take(t, slow, 120); len(got) != 120 {
		t.Errorf("the slow reader got %d records", len(got))
	}
}

// TestReaderGoesOnWithoutGapOrRepeat restarts the host under followers, one of
// which has not got anything yet.
func TestReaderGoesOnWithoutGapOrRepeat(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	appendAll(t, c, "orders", "old")
	all, err := c.NewReader(ctx, "orders", client.ReadOptions{Follow: true})
	must(t, err)
	defer all.Close()
	latest, err := c.NewReader(ctx, "orders", client.ReadOptions{Follow: true, From: "latest"})
	must(t, err)
	defer latest.Close()
	var want []string
	for round := range 3 {
		for i := range 3 {
			want = append(want, fmt.Sprintf("%d-%d", round, i))
		}
		appendAll(t, h.client(), "orders", want[len(want)-3:]...)
		h.restart()
		h.awaitReady()
	}
	if got := take(t, latest, len(want)); !slices.Equal(got, want) {
		t.Errorf("from latest: read %q, want %q", got, want)
	}
	if got := take(t, all, len(want)+1); !slices.Equal(got, append([]string{"old"}, want...)) {
		t.Errorf("from all: read %q", got)
	}
}
