package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// crossings are the two ways in which an error crosses.
var crossings = map[string]func(testing.TB, error) error{
	"in a stream": func(t testing.TB, err error) error {
		b, mErr := proto.Marshal(ErrorToProto(err))
		if mErr != nil {
			t.Fatalf("%v cannot be sent: %v", err, mErr)
		}
		var p typesv1.Error
		if err := proto.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
		return ErrorFromProto(&p)
	},
	"as a status": func(t testing.TB, err error) error {
		s, ok := status.FromError(StatusError(err))
		if !ok {
			t.Fatalf("%v is no status", err)
		}
		b, mErr := proto.Marshal(s.Proto())
		if mErr != nil {
			t.Fatalf("%v cannot be sent: %v", err, mErr)
		}
		over := s.Proto()
		proto.Reset(over)
		if err := proto.Unmarshal(b, over); err != nil {
			t.Fatal(err)
		}
		return FromStatus(status.FromProto(over).Err())
	},
}

func cross(t *testing.T, f func(t *testing.T, over func(error) error)) {
	for name, c := range crossings {
		t.Run(name, func(t *testing.T) { f(t, func(err error) error { return c(t, err) }) })
	}
}

func TestEveryCodeCrossesWithAllItsFields(t *testing.T) {
	cross(t, func(t *testing.T, over func(error) error) {
		for _, row := range walimpls.Codes() {
			for _, retryable := range []bool{true, false} {
				err := &walimpls.Error{Code: row.Code, Channel: "orders", Message: "what happened", Hint: "what to do", Retryable: retryable}
				got := over(err)
				var e *walimpls.Error
				if !errors.As(got, &e) {
					t.Fatalf("%s came over as %T", row.Code, got)
				}
				e.Err = nil // the context errors are put back
				if *e != *err || got.Error() != err.Error() {
					t.Errorf("%+v came over as %+v", err, e)
				}
				if !errors.Is(got, &walimpls.Error{Code: row.Code}) {
					t.Errorf("%s: errors.Is does not match the sentinel", row.Code)
				}
			}
		}
	})
}

func TestTypedErrorsCrossWithWhatTheyCarry(t *testing.T) {
	cross(t, func(t *testing.T, over func(error) error) {
		var fenced *walimpls.FencedError
		err := over(fmt.Errorf("open the log: %w", error(walimpls.NewFencedError("orders", walimpls.Pair{Term: 1, Incarnation: 2}, walimpls.Pair{Term: 3, Incarnation: 4}))))
		if !errors.As(err, &fenced) || !errors.Is(err, walimpls.ErrFenced) || fenced.Highest != (walimpls.Pair{Term: 3, Incarnation: 4}) || fenced.Err.Channel != "orders" {
			t.Errorf("FencedError came over as %#v", err)
		}
		if !strings.Contains(err.Error(), "open the log: pair 1.2") || strings.Count(err.Error(), "orders") != 1 {
			t.Errorf("the text around it is lost or doubled: %v", err)
		}
		var lost *walimpls.PositionLostError
		err = over(walimpls.NewPositionLostError("orders", walimpls.Bounds{Earliest: "\x00\xff", Latest: "b"}, "gone"))
		if !errors.As(err, &lost) || lost.Earliest != "\x00\xff" || lost.Latest != "b" || lost.Err.Hint == "" || walimpls.AsError(err).Code != walimpls.CodePositionLost {
			t.Errorf("PositionLostError came over as %#v", err)
		}
		lost = nil
		if err = over(walimpls.NewPositionLostError("orders", walimpls.Bounds{Empty: true}, "gone")); !errors.As(err, &lost) || lost.Earliest != "" {
			t.Errorf("PositionLostError of an empty log came over as %#v", err)
		}
	})
}

func TestBatchErrorCrossesWithEveryOutcome(t *testing.T) {
	cross(t, func(t *testing.T, over func(error) error) {
		shared := walimpls.Errorf(walimpls.CodeNoSpace, "orders", "full")
		want := &walimpls.BatchError{Channel: "orders", Outcomes: []walimpls.Outcome{
			{State: walimpls.Stored, ID: "\x00\x01"},
			{State: walimpls.NotStored, Err: shared},
			{State: walimpls.NotStored, Err: shared},
			{State: walimpls.Unknown, Err: walimpls.Errorf(walimpls.CodeUnknownOutcome, "orders", "lost")},
			{State: walimpls.NotStored, Err: walimpls.NewFencedError("orders", walimpls.Pair{Term: 1}, walimpls.Pair{Term: 9})},
		}}
		var got *walimpls.BatchError
		err := over(fmt.Errorf("append: %w", error(want)))
		if !errors.As(err, &got) || !reflect.DeepEqual(got, want) {
			t.Fatalf("came over as %#v", err)
		}
		//nolint:errorlint // one object is meant
		if got.Outcomes[1].Err != got.Outcomes[2].Err {
			t.Error("neighbours do not share their error any more")
		}
		var fenced *walimpls.FencedError
		if !errors.Is(err, walimpls.ErrUnknownOutcome) || !errors.Is(err, walimpls.ErrNoSpace) || !errors.As(err, &fenced) || fenced.Highest.Term != 9 {
			t.Error("errors.Is and As do not find what the outcomes hold")
		}
		if err.Error() != want.Error() {
			t.Errorf("text %q, want %q", err, want)
		}
	})
	unknown := ErrorToProto(walimpls.BatchFailure("orders", 1, walimpls.Unknown, walimpls.ErrUnknownOutcome))
	if unknown.GetCode() != string(walimpls.CodeUnknownOutcome) {
		t.Errorf("a batch with an unknown outcome has the code %q", unknown.GetCode())
	}
}

func TestContextErrorsAreFoundOnTheOtherSide(t *testing.T) {
	cross(t, func(t *testing.T, over func(error) error) {
		for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
			if err := over(fmt.Errorf("open: %w", want)); !errors.Is(err, want) {
				t.Errorf("%v came over as %#v", want, err)
			}
		}
		if err := over(errors.New("no type at all")); !errors.Is(err, walimpls.ErrInternal) || !strings.Contains(err.Error(), "no type at all") {
			t.Errorf("an untyped error came over as %v", err)
		}
		if errors.Is(over(walimpls.Errorf(walimpls.CodeCorrupt, "", "%w", io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF) {
			t.Error("a cause crossed")
		}
	})
}

// A status that cannot be encoded would lose the whole error.
func TestTextOfAnyKindFitsIntoAStatus(t *testing.T) {
	cross(t, func(t *testing.T, over func(error) error) {
		err := over(&walimpls.Error{Code: walimpls.CodeCorrupt, Channel: "a\xffb", Message: strings.Repeat("ä", 1<<20), Hint: "\xc3"})
		if !errors.Is(err, walimpls.ErrCorrupt) || len(err.Error()) > 2*maxMessageBytes || !utf8.ValidString(err.Error()) {
			t.Errorf("%.100q (%d bytes)", err, len(err.Error()))
		}
	})
}

func TestNilStaysNil(t *testing.T) {
	if ErrorToProto(nil) != nil || ErrorFromProto(nil) != nil || StatusError(nil) != nil || FromStatus(nil) != nil {
		t.Error("nil is not nil any more")
	}
}

func TestStatusCodesCoverTheTableOfCodes(t *testing.T) {
	n := 0
	for _, row := range walimpls.Codes() {
		n++
		if c, ok := statusCodes[row.Code]; !ok || c == codes.OK {
			t.Errorf("%s has no gRPC code", row.Code)
		}
	}
	if n != len(statusCodes) {
		t.Errorf("%d codes, %d rows of statusCodes", n, len(statusCodes))
	}
	if c := status.Code(StatusError(&walimpls.Error{Code: "brand_new"})); c != codes.Unknown {
		t.Errorf("a code of a newer version: %s", c)
	}
}

func TestGRPCErrorsWithoutDetailGetACode(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.Unavailable:       walimpls.ErrUnavailable,
		codes.DeadlineExceeded:  context.DeadlineExceeded,
		codes.Canceled:          context.Canceled,
		codes.Unimplemented:     walimpls.ErrUnsupported,
		codes.ResourceExhausted: walimpls.ErrInternal,
		codes.Unknown:           walimpls.ErrInternal,
	} {
		err := FromStatus(status.Error(code, "said the transport"))
		var e *walimpls.Error
		if !errors.Is(err, want) || !errors.As(err, &e) {
			t.Errorf("%s became %v", code, err)
		}
	}
	for _, err := range []error{io.EOF, error(walimpls.Errorf(walimpls.CodeClosed, "", "x"))} {
		//nolint:errorlint // one object is meant
		if FromStatus(err) != err {
			t.Errorf("%v is no status and was changed", err)
		}
	}
	again := StatusError(fmt.Errorf("again: %w", StatusError(walimpls.ErrNotFound)))
	if !errors.Is(FromStatus(again), walimpls.ErrNotFound) {
		t.Errorf("a status inside an error: %v", again)
	}
}

func TestHugeBatchErrorStillFitsIntoAStatus(t *testing.T) {
	err := FromStatus(StatusError(walimpls.BatchFailure("orders", 100_000, walimpls.Unknown, walimpls.ErrUnknownOutcome)))
	if !errors.Is(err, walimpls.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
}

func TestOutcomesThatSayTooLittlePromiseNothing(t *testing.T) {
	for name, p := range map[string]*typesv1.Outcome{"nil": nil, "empty": {}, "state 99": {State: 99, Id: []byte("x")}} {
		if o := OutcomeFromProto(p); o.State != walimpls.Unknown || !errors.Is(o.Err, walimpls.ErrUnknownOutcome) || o.ID != "" {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if o := OutcomeFromProto(&typesv1.Outcome{State: typesv1.Outcome_STATE_NOT_STORED}); !errors.Is(o.Err, walimpls.ErrInternal) {
		t.Errorf("not stored without an error: %+v", o)
	}
	for _, o := range []walimpls.Outcome{
		{State: walimpls.Stored, ID: "x"}, {State: walimpls.NotStored, Err: walimpls.Errorf(walimpls.CodeNoSpace, "", "full")},
	} {
		if got := OutcomeFromProto(OutcomeToProto(o)); !reflect.DeepEqual(got, o) {
			t.Errorf("%+v came over as %+v", o, got)
		}
	}
}

func TestOutcomesDoNotNestForEver(t *testing.T) {
	err := walimpls.ErrNoSpace
	for range 50 {
		err = walimpls.BatchFailure("orders", 1, walimpls.NotStored, err)
	}
	depth := 0
	for p := ErrorToProto(err); len(p.GetOutcomes()) > 0; p = p.Outcomes[0].Error {
		depth++
	}
	if depth > maxErrorDepth {
		t.Errorf("%d levels", depth)
	}
	p := &typesv1.Error{Code: "no_space"}
	for range 50 {
		p = &typesv1.Error{Outcomes: []*typesv1.Outcome{{Error: p}}}
	}
	if got := ErrorFromProto(p); got.Error() == "" {
		t.Error("no text")
	}
}

func TestEveryErrorKeepsItsCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		row := rapid.SampledFrom(walimpls.Codes()).Draw(t, "code")
		var err error = &walimpls.Error{
			Code: row.Code, Channel: rapid.String().Draw(t, "channel"), Message: rapid.String().Draw(t, "message"),
			Hint: rapid.String().Draw(t, "hint"), Retryable: rapid.Bool().Draw(t, "retryable"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "wraps") {
			err = fmt.Errorf("%s: %w", rapid.StringMatching(`[a-z ]{0,10}`).Draw(t, "around"), err)
		}
		got := walimpls.AsError(ErrorFromProto(ErrorToProto(err)))
		want := walimpls.AsError(err)
		if got.Code != want.Code || got.Retryable != want.Retryable || got.Channel != want.Channel || got.Hint != want.Hint || !strings.Contains(got.Message, want.Message) {
			t.Fatalf("%+v came over as %+v", want, got)
		}
	})
}

func FuzzErrorFromProto(f *testing.F) {
	b, _ := proto.Marshal(ErrorToProto(walimpls.BatchFailure("orders", 2, walimpls.NotStored, walimpls.NewFencedError("orders", walimpls.Pair{}, walimpls.Pair{Term: 1}))))
	f.Add(b)
	b, _ = proto.Marshal(ErrorToProto(walimpls.NewPositionLostError("orders", walimpls.Bounds{Earliest: "x"}, "gone")))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p typesv1.Error
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		err := ErrorFromProto(&p)
		if err == nil || err.Error() == "" {
			t.Fatalf("%v became %v", &p, err)
		}
		if walimpls.AsError(err).Code == "" {
			t.Fatalf("%v has no code", err)
		}
		if again := ErrorFromProto(ErrorToProto(err)); walimpls.AsError(again).Code != walimpls.AsError(err).Code {
			t.Fatalf("%v came over as %v", err, again)
		}
		_ = message.ID(err.Error())
	})
}
