package walimpls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/walrig/walrig/sdk/message"
)

var sentinels = []error{
	ErrFenced, ErrClosed, ErrReadOnly, ErrTooLarge, ErrNotFound, ErrInvalidArgument, ErrUnavailable,
	ErrUnknownOutcome, ErrCorrupt, ErrNoSpace, ErrUnsupported, ErrInternal, ErrAlreadyExists,
	ErrForeignStore, ErrTermExpired, ErrUnmatchedTerm, ErrShutdown, ErrTimeout, ErrUnreachable,
	ErrConfig, ErrPluginStart,
}

func TestEachCodeMatchesItsSentinelAndNoOther(t *testing.T) {
	for _, s := range sentinels {
		code := AsError(s).Code
		err := fmt.Errorf("around: %w", Errorf(code, "orders", "why"))
		for _, other := range sentinels {
			if got, want := errors.Is(err, other), AsError(other).Code == code; got != want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", err, other, got, want)
			}
		}
	}
	if errors.Is(ErrClosed, Errorf(CodeClosed, "orders", "why")) {
		t.Error("a sentinel matches an error that says more than its code")
	}
}

func TestTheTableOfCodesIsComplete(t *testing.T) {
	seen := map[Code]bool{}
	for _, row := range Codes() {
		if seen[row.Code] || row.Doc == "" || row.Exit == ExitOK {
			t.Errorf("row %+v: twice, without a doc or with exit code 0", row)
		}
		seen[row.Code] = true
		if e := Errorf(row.Code, "", "x"); e.Retryable != row.Retryable {
			t.Errorf("%s: Retryable %v, want the table's %v", row.Code, e.Retryable, row.Retryable)
		}
	}
	for _, s := range sentinels {
		if !seen[AsError(s).Code] {
			t.Errorf("%v has no row", s)
		}
	}
	if info := Code("brand_new").Info(); info.Exit != ExitFailure || info.Retryable || info.Code != "brand_new" {
		t.Errorf("a code of a newer version: %+v", info)
	}
	if CodeUnknownOutcome.Info().Retryable {
		t.Error("an unknown outcome must not say that a retry can help")
	}
}

func TestErrorsNameTheirChannelAndKeepTheirCause(t *testing.T) {
	cause := errors.New("disk on fire")
	err := Errorf(CodeCorrupt, "orders", "segment 7: %w", cause)
	if got := err.Error(); got != `pchannel "orders": segment 7: disk on fire (corrupt)` {
		t.Errorf("text %q", got)
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
	if got := ErrNoSpace.Error(); !strings.Contains(got, "the store is full") {
		t.Errorf("a sentinel reads %q", got)
	}
}

func TestTypedErrorsAreTheirCodes(t *testing.T) {
	var fenced *FencedError
	err := fmt.Errorf("open: %w", error(NewFencedError("orders", Pair{3, 1}, Pair{4, 2})))
	if !errors.Is(err, ErrFenced) || !errors.As(err, &fenced) || fenced.Highest != (Pair{4, 2}) {
		t.Errorf("%v: ErrFenced %v, Highest %v", err, errors.Is(err, ErrFenced), fenced)
	}
	if !strings.Contains(err.Error(), "3.1") || !strings.Contains(err.Error(), "4.2") {
		t.Errorf("%v does not name both pairs", err)
	}
	var lost *PositionLostError
	err = NewPositionLostError("orders", Bounds{Earliest: "a", Latest: "b"}, "id %s is gone", "x")
	if !errors.As(err, &lost) || lost.Earliest != "a" || lost.Latest != "b" || AsError(err).Code != CodePositionLost || AsError(err).Hint == "" {
		t.Errorf("%v: %+v", err, lost)
	}
}

func TestBatchErrorCountsAndExposesItsErrors(t *testing.T) {
	tooLarge := Errorf(CodeTooLarge, "orders", "big")
	err := &BatchError{Channel: "orders", Outcomes: []Outcome{
		{State: Stored, ID: "1"}, {State: NotStored, Err: tooLarge}, {State: NotStored, Err: tooLarge},
		{Err: Errorf(CodeUnknownOutcome, "orders", "lost")}, {State: State(77)},
	}}
	if got := err.Error(); !strings.HasPrefix(got, "append: 1 stored, 2 not stored, 2 unknown of 5 records: ") {
		t.Errorf("text %q", got)
	}
	if !errors.Is(err, ErrTooLarge) || !errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrFenced) {
		t.Error("errors.Is does not look into the outcomes")
	}
	if n := len(err.Unwrap()); n != 2 {
		t.Errorf("%d distinct errors, want 2", n)
	}
}

func TestOutcomesOfAnAppend(t *testing.T) {
	plain := Errorf(CodeUnavailable, "orders", "down")
	each := &BatchError{Outcomes: []Outcome{{State: Stored, ID: "1"}, {State: NotStored, Err: plain}}}
	cases := []struct {
		name string
		ids  []message.ID
		err  error
		want []State
	}{
		{"all stored", []message.ID{"1", "2"}, nil, []State{Stored, Stored}},
		{"each its own", nil, fmt.Errorf("append: %w", each), []State{Stored, NotStored}},
		{"nothing handed over", nil, plain, []State{NotStored, NotStored}},
		{"unknown", nil, Errorf(CodeUnknownOutcome, "orders", "lost"), []State{Unknown, Unknown}},
		{"too few ids", []message.ID{"1"}, nil, []State{Unknown, Unknown}},
		{"no ids", nil, nil, []State{Unknown, Unknown}},
		{"outcomes of another batch", nil, &BatchError{Outcomes: make([]Outcome, 3)}, []State{Unknown, Unknown}},
		{"untyped", nil, errors.New("?"), []State{NotStored, NotStored}},
	}
	for _, c := range cases {
		got := Outcomes("orders", 2, c.ids, c.err)
		for i, o := range got {
			if o.State != c.want[i] || (o.State == Stored) != (o.Err == nil) || (o.State == Stored) != (o.ID != "") {
				t.Errorf("%s: record %d: %+v, want %s", c.name, i, o, c.want[i])
			}
		}
		if len(got) != 2 {
			t.Errorf("%s: %d outcomes", c.name, len(got))
		}
	}
}

func TestAsErrorGivesEveryErrorACode(t *testing.T) {
	cases := []struct {
		err  error
		want Code
	}{
		{context.DeadlineExceeded, CodeTimeout},
		{fmt.Errorf("x: %w", context.Canceled), CodeCanceled},
		{errors.New("?"), CodeInternal},
		{fmt.Errorf("x: %w", ErrNoSpace), CodeNoSpace},
		{BatchFailure("orders", 2, NotStored, ErrReadOnly), CodeReadOnly},
	}
	for _, c := range cases {
		e := AsError(c.err)
		if e.Code != c.want {
			t.Errorf("AsError(%v).Code = %s, want %s", c.err, e.Code, c.want)
		}
		if !errors.Is(e, c.err) && e.Code != CodeNoSpace && e.Code != CodeReadOnly {
			t.Errorf("AsError(%v) lost its cause", c.err)
		}
	}
	if AsError(nil) != nil {
		t.Error("AsError(nil) is not nil")
	}
}

func TestStateNames(t *testing.T) {
	for s, want := range map[State]string{Unknown: "unknown", Stored: "stored", NotStored: "not_stored", 9: "unknown"} {
		if s.String() != want {
			t.Errorf("State(%d) = %q, want %q", s, s, want)
		}
	}
}
