package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func fenced(term int64) error {
	e := walimpls.NewFencedError("orders", walimpls.Pair{}, walimpls.Pair{Term: term, Incarnation: 1})
	return fmt.Errorf("open: %w", e)
}

// TestTermsAreAlwaysAboveWhatWasSeen for any history.
func TestTermsAreAlwaysAboveWhatWasSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var terms Terms
		var highest int64
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			seen := rapid.Int64Range(0, 1000).Draw(t, "seen")
			highest = max(highest, seen)
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				terms.Raise(seen)
			case 1:
				if !terms.Learn(fenced(seen)) {
					t.Fatal("a fence does not ask for a higher term")
				}
			case 2:
				next := terms.Next(seen, rapid.Int64Range(0, seen).Draw(t, "known"))
				if next <= highest {
					t.Fatalf("term %d, %d was seen", next, highest)
				}
				highest = next
			}
		}
	})
}

func TestTermsLearnFromTermErrorsOnly(t *testing.T) {
	var terms Terms
	if !terms.Learn(walimpls.Errorf(walimpls.CodeTermExpired, "", "x")) {
		t.Error("an expired term does not ask for a higher one")
	}
	for _, err := range []error{walimpls.ErrUnavailable, walimpls.ErrForeignStore, context.Canceled, errors.New("x")} {
		if terms.Learn(err) {
			t.Errorf("%v asks for a higher term", err)
		}
	}
	if got := terms.Next(3, 0); got != 4 {
		t.Errorf("one above the row's 3 is %d", got)
	}
}

func TestWhatPassesByItself(t *testing.T) {
	wrap := func(code walimpls.Code, cause error) error {
		e := walimpls.Errorf(code, "orders", "open: term 3 failed: %w", cause)
		e.Retryable = false
		return e
	}
	table := []struct {
		err  error
		want bool
	}{
		{walimpls.Errorf(walimpls.CodeUnavailable, "", "x"), true},
		{walimpls.Errorf(walimpls.CodePluginStart, "", "x"), true},
		{walimpls.Errorf(walimpls.CodeNoSpace, "", "x"), true},
		{wrap(walimpls.CodeUnavailable, walimpls.Errorf(walimpls.CodeUnavailable, "", "x")), true},
		{wrap(walimpls.CodeUnavailable, context.DeadlineExceeded), true},
		{context.DeadlineExceeded, true},
		{wrap(walimpls.CodeForeignStore, walimpls.Errorf(walimpls.CodeForeignStore, "", "x")), false},
		{walimpls.Errorf(walimpls.CodeCorrupt, "", "x"), false},
		{walimpls.Errorf(walimpls.CodeConfig, "", "x"), false},
		{fenced(3), false},
		{walimpls.Errorf(walimpls.CodeTermExpired, "", "%w", fenced(3)), false},
		{errors.New("x"), false},
		{nil, false},
	}
	for _, row := range table {
		if got := passes(row.err); got != row.want {
			t.Errorf("%v: %v, want %v", row.err, got, row.want)
		}
	}
}

func TestIDsHaveTheirText(t *testing.T) {
	table := []struct {
		layout message.Layout
		id     message.ID
		want   string
	}{
		{"u64", message.Uint64ID(42), "42"},
		{"u64", "", ""},
		{"u64", "ab", "?6162"},
		{"u32.u8", message.ID([]byte{0, 0, 1, 0, 7}), "256:7"},
	}
	for _, row := range table {
		if got := newIDFormat(row.layout).text(row.id); got != row.want {
			t.Errorf("%s %x: %q, want %q", row.layout, string(row.id), got, row.want)
		}
	}
}

// TestAnyTextIsAStartOrATypedError never panics and never means the latest by
// accident (M-22's last step: foreign and damaged positions).
func TestAnyTextIsAStartOrATypedError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &channel{name: "orders"}
		layout := rapid.SampledFrom([]message.Layout{"u64", "u64.u64.u32"}).Draw(t, "layout")
		from := rapid.OneOf(
			rapid.String(), rapid.StringMatching(`(after:)?[0-9]{0,25}(:[0-9]{1,12}){0,3}`), rapid.StringN(0, 300, 1<<20),
			rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) }),
		).Draw(t, "from")
		start, err := parseFrom(c, walimpls.Description{IDLayout: layout}, from)
		switch {
		case err != nil:
			if !errors.Is(err, walimpls.ErrInvalidArgument) || hint(err) == "" {
				t.Fatalf("%q: %v", from, err)
			}
		case start.Start == scanner.Latest:
			if from != "latest" {
				t.Fatalf("%q means latest", from)
			}
		case start.Start == scanner.All:
			if from != "all" {
				t.Fatalf("%q means all", from)
			}
		case start.Start == scanner.Checkpoint:
			if from != "cp:"+start.Checkpoint.String() {
				t.Fatalf("%q became %s", from, start.Checkpoint)
			}
		default:
			if text := newIDFormat(layout).text(start.ID); text != strings.TrimPrefix(from, "after:") {
				t.Fatalf("%q became %s", from, text)
			}
		}
	})
}

func TestWALThatBreaksTheContractLeavesOutcomesUnknown(t *testing.T) {
	out := complete("orders", 3, []wal.Result{{Outcome: walimpls.Outcome{State: walimpls.Stored}}})
	if len(out) != 3 || out[0].State != walimpls.Unknown || !errors.Is(out[0].Err, walimpls.ErrUnknownOutcome) {
		t.Errorf("outcomes %v", out)
	}
}

func TestKeyLockGivesATurnToOneAtATime(t *testing.T) {
	var k keyLock
	ctx := context.Background()
	unlock, err := k.lock(ctx, "a")
	must(t, err)
	other, err := k.lock(ctx, "b")
	must(t, err)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := k.lock(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	got := make(chan func())
	go func() { u, _ := k.lock(ctx, "a"); got <- u }()
	unlock()
	(<-got)()
	other()
	if len(k.held) != 0 {
		t.Errorf("%d keys are left behind", len(k.held))
	}
}
