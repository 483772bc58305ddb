package remote_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

func appendAll(t testing.TB, w walimpls.WAL, payloads ...string) []message.ID {
	t.Helper()
	var ids []message.ID
	for _, p := range payloads {
		got, err := w.Append(soon(t), []message.Message{data(p)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, got...)
	}
	return ids
}

// M-09 and U-01: where each start begins, and that Latest is fixed when Read returns.
func TestStartPositions(t *testing.T) {
	w := open(t, configured(t, &membackend.Backend{}).Client, "orders", 1, 1)
	ids := appendAll(t, w, "m1", "m2", "m3", "m4", "m5")
	for _, c := range []struct {
		start    walimpls.Start
		resolved walimpls.Policy
		want     string
	}{
		{walimpls.FromAll(), walimpls.PolicyAll, "m1 m2 m3 m4 m5 m6"},
		{walimpls.FromLatest(), walimpls.PolicyAfter, "m6"},
		{walimpls.StartFrom(ids[0]), walimpls.PolicyFrom, "m1 m2 m3 m4 m5 m6"},
		{walimpls.StartFrom(ids[4]), walimpls.PolicyFrom, "m5 m6"},
		{walimpls.StartAfter(ids[0]), walimpls.PolicyAfter, "m2 m3 m4 m5 m6"},
		{walimpls.StartAfter(ids[4]), walimpls.PolicyAfter, "m6"},
	} {
		s, err := w.Read(soon(t), walimpls.ReadOptions{Start: c.start})
		if err != nil {
			t.Fatal(err)
		}
		if r := s.(*remote.Scanner).Resolved(); r.Policy != c.resolved {
			t.Errorf("%+v resolved to %+v", c.start, r)
		}
		defer func(begun walimpls.Scanner, c struct {
			start    walimpls.Start
			resolved walimpls.Policy
			want     string
		}) {
			if got := payloads(t, begun, len(strings.Fields(c.want))); got != c.want {
				t.Errorf("%+v: %s, want %s", c.start, got, c.want)
			}
		}(s, c)
	}
	appendAll(t, w, "m6")
}

// payloads reads n records that are not fences.
func payloads(t testing.TB, s walimpls.Scanner, n int) string {
	t.Helper()
	var out []string
	for len(out) < n {
		got, err := s.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got {
			if m.Type != message.TypeFence {
				out = append(out, string(m.Payload))
			}
		}
	}
	return strings.Join(out, " ")
}

func TestStartsThatAreNotThereAreTypedErrors(t *testing.T) {
	h := configured(t, &membackend.Backend{})
	w := open(t, h.Client, "orders", 1, 1)
	ids := appendAll(t, w, "a", "b", "c")
	if err := w.Truncate(soon(t), ids[1]); err != nil {
		t.Fatal(err)
	}
	if err := w.Truncate(soon(t), message.Uint64ID(99)); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("Truncate above the end: %v", err)
	}
	for _, start := range []walimpls.Start{walimpls.StartFrom(ids[0]), walimpls.StartAfter(message.Uint64ID(99))} {
		var lost *walimpls.PositionLostError
		_, err := w.Read(soon(t), walimpls.ReadOptions{Start: start})
		if !errors.As(err, &lost) || lost.Earliest != ids[1] || lost.Latest != ids[2] || lost.Err.Channel != "orders" {
			t.Errorf("%+v: %v", start, err)
		}
	}
	for _, start := range []walimpls.Start{{}, walimpls.StartFrom(""), walimpls.StartFrom(message.Uint64ID(0))} {
		if _, err := w.Read(soon(t), walimpls.ReadOptions{Start: start}); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%+v: %v", start, err)
		}
	}
	// A running scanner that falls below the truncation point is told, behind what
	// it was sent already.
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 1})
	if err != nil {
		t.Fatal(err)
	}
	ids = appendAll(t, w, "d", "e", "f", "g", "h", "i")
	if err := w.Truncate(soon(t), ids[5]); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Next(soon(t))
	}
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) || lost.Earliest != ids[5] {
		t.Errorf("the scanner: %v", err)
	}
	if _, again := s.Next(soon(t)); !errors.As(again, &lost) {
		t.Errorf("an error that is final: %v", again)
	}
}

func TestScannerStaysUsableWhenAContextEnds(t *testing.T) {
	w := open(t, configured(t, &membackend.Backend{}).Client, "orders", 1, 1)
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromLatest()})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, walimpls.ErrTimeout) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	appendAll(t, w, "a", "b", "c")
	if got := payloads(t, s, 3); got != "a b c" {
		t.Error(got)
	}
	next := make(chan error, 1)
	go func() { _, err := s.Next(soon(t)); next <- err }()
	_ = s.Close()
	if err := <-next; !errors.Is(err, walimpls.ErrClosed) {
		t.Errorf("a Next that blocks: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

func TestSlowReaderIsHeldBackByItsCreditAndStopsNobody(t *testing.T) {
	b := &membackend.Backend{}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	var stuck []walimpls.Scanner
	for range 10 {
		s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromLatest(), BufferRecords: 7, BufferBytes: 300})
		if err != nil {
			t.Fatal(err)
		}
		stuck = append(stuck, s)
	}
	const n = 1000
	for i := range n {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := w.Append(ctx, []message.Message{data(fmt.Sprintf("%050d", i))}); err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
		cancel()
	}
	for _, s := range stuck {
		if got := remote.Buffered(s.(*remote.Scanner)); got > 7 {
			t.Errorf("%d records are buffered with a credit of 7", got)
		}
		count := 0
		for count < n {
			got, err := s.Next(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) > 7 {
				t.Fatalf("Next returned %d records", len(got))
			}
			for _, m := range got {
				if string(m.Payload) != fmt.Sprintf("%050d", count) {
					t.Fatalf("record %d is %s", count, m.Payload)
				}
				count++
			}
		}
	}
}

func TestRecordLargerThanTheBufferIsReadAllTheSame(t *testing.T) {
	w := open(t, configured(t, &membackend.Backend{}).Client, "orders", 1, 1)
	var want []string
	for i := range 20 {
		want = append(want, strings.Repeat("x", i%3*1000+i))
	}
	appendAll(t, w, want...)
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 2, BufferBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	if got := payloads(t, s, 20); got != strings.Join(want, " ") {
		t.Error("not what was appended")
	}
}

func TestRecordThatCannotBeSentIsCorruptNotABrokenConnection(t *testing.T) {
	b := &membackend.Backend{}
	h := configured(t, b)
	w := open(t, h.Client, "orders", 1, 1)
	b.BeforeAppend = func(_ context.Context, batch []message.Message) error {
		batch[0].Properties = map[string]string{"k": "\xff"} // written by something else
		return nil
	}
	appendAll(t, w, "a")
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromLatest()})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, w, "b")
	if _, err = s.Next(soon(t)); !errors.Is(err, walimpls.ErrCorrupt) || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("%v", err)
	}
	if _, err := w.Bounds(soon(t)); err != nil {
		t.Errorf("the connection: %v", err)
	}
}
