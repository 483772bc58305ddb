package wire

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Texts longer than these are cut, so that an error always fits into a status.
const (
	maxMessageBytes = 8 << 10
	maxHintBytes    = 2 << 10
)

// maxErrorDepth bounds how deep outcomes may hold errors that hold outcomes.
const maxErrorDepth = 2

// ErrorToProto returns err for the wire: never nil for a non-nil error, nil for nil.
func ErrorToProto(err error) *typesv1.Error { return errorToProto(err, maxErrorDepth) }

func errorToProto(err error, depth int) *typesv1.Error {
	if err == nil {
		return nil
	}
	var batch *walimpls.BatchError
	if errors.As(err, &batch) {
		return batchToProto(err, batch, depth)
	}
	e := walimpls.AsError(err)
	p := &typesv1.Error{
		Code:      string(e.Code),
		Channel:   clean(e.Channel, maxHintBytes),
		Message:   clean(outerText(err, e), maxMessageBytes),
		Hint:      clean(e.Hint, maxHintBytes),
		Retryable: e.Retryable,
	}
	var fenced *walimpls.FencedError
	if errors.As(err, &fenced) {
		p.Highest = &typesv1.Pair{Term: fenced.Highest.Term, Incarnation: fenced.Highest.Incarnation}
	}
	var lost *walimpls.PositionLostError
	if errors.As(err, &lost) {
		p.PositionLost = &typesv1.PositionLost{Earliest: idToProto(lost.Earliest), Latest: idToProto(lost.Latest)}
	}
	return p
}

func batchToProto(err error, batch *walimpls.BatchError, depth int) *typesv1.Error {
	p := &typesv1.Error{
		Code:    string(batchCode(batch)),
		Channel: clean(batch.Channel, maxHintBytes),
		Message: clean(err.Error(), maxMessageBytes),
	}
	if depth <= 0 {
		return p
	}
	p.Outcomes = make([]*typesv1.Outcome, len(batch.Outcomes))
	var shared *walimpls.Error
	var last *typesv1.Error
	for i, o := range batch.Outcomes {
		// Most failures give all records the same error: convert it once.
		//nolint:errorlint // one error object is looked for, not a kind of error
		own, _ := o.Err.(*walimpls.Error)
		if own == nil || own != shared {
			shared, last = own, errorToProto(o.Err, depth-1)
		}
		p.Outcomes[i] = &typesv1.Outcome{State: StateToProto(o.State), Id: idToProto(o.ID), Error: last}
	}
	return p
}

// batchCode is the code of a whole batch: unknown if any record's outcome is,
// else that of the first error.
func batchCode(batch *walimpls.BatchError) walimpls.Code {
	code := walimpls.CodeInternal
	for i := len(batch.Outcomes) - 1; i >= 0; i-- {
		switch o := batch.Outcomes[i]; {
		case o.State == walimpls.Unknown:
			return walimpls.CodeUnknownOutcome
		case o.Err != nil:
			code = walimpls.AsError(o.Err).Code
		}
	}
	return code
}

// outerText returns e's message with the text that err has wrapped around e, so
// that "open: <e>" does not lose "open:".
func outerText(err error, e *walimpls.Error) string {
	whole, inner := err.Error(), e.Error()
	if whole == inner {
		return e.Message
	}
	message := e.Message
	if message == "" {
		message = e.Code.Info().Doc
	}
	if !strings.Contains(whole, inner) {
		return message
	}
	return strings.Replace(whole, inner, message, 1)
}

// clean makes s valid UTF-8 of at most limit bytes.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit-len("…")] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}

// ErrorFromProto returns the typed error again, nil for nil.
func ErrorFromProto(p *typesv1.Error) error { return errorFromProto(p, maxErrorDepth) }

func errorFromProto(p *typesv1.Error, depth int) error {
	if p == nil {
		return nil
	}
	if len(p.Outcomes) > 0 && depth > 0 {
		return &walimpls.BatchError{Channel: p.Channel, Outcomes: outcomesFromProto(p.Channel, p.Outcomes, depth-1)}
	}
	e := &walimpls.Error{
		Code:      walimpls.Code(p.Code),
		Channel:   p.Channel,
		Message:   p.Message,
		Hint:      p.Hint,
		Retryable: p.Retryable,
	}
	switch e.Code {
	case "":
		e.Code = walimpls.CodeInternal
	case walimpls.CodeTimeout:
		e.Err = context.DeadlineExceeded
	case walimpls.CodeCanceled:
		e.Err = context.Canceled
	}
	switch {
	case p.PositionLost != nil:
		return &walimpls.PositionLostError{
			Err:      e,
			Earliest: message.ID(p.PositionLost.Earliest),
			Latest:   message.ID(p.PositionLost.Latest),
		}
	case p.Highest != nil:
		return &walimpls.FencedError{
			Err:     e,
			Highest: walimpls.Pair{Term: p.Highest.Term, Incarnation: p.Highest.Incarnation},
		}
	}
	return e
}

// OutcomeToProto returns o for the wire.
func OutcomeToProto(o walimpls.Outcome) *typesv1.Outcome {
	return &typesv1.Outcome{State: StateToProto(o.State), Id: idToProto(o.ID), Error: ErrorToProto(o.Err)}
}

// OutcomeFromProto is the inverse of OutcomeToProto. An outcome that is not
// stored and came without an error gets one, so that no failure is nameless.
func OutcomeFromProto(p *typesv1.Outcome) walimpls.Outcome {
	return outcomesFromProto("", []*typesv1.Outcome{p}, maxErrorDepth)[0]
}

func outcomesFromProto(channel string, ps []*typesv1.Outcome, depth int) []walimpls.Outcome {
	out := make([]walimpls.Outcome, len(ps))
	var lastProto *typesv1.Error
	var lastErr error
	for i, p := range ps {
		o := walimpls.Outcome{State: StateFromProto(p.GetState())}
		if o.State == walimpls.Stored {
			o.ID = message.ID(p.GetId())
			out[i] = o
			continue
		}
		// Equal neighbours share one error again, as they did where they came from.
		if e := p.GetError(); lastErr == nil || !proto.Equal(e, lastProto) {
			lastProto, lastErr = e, errorFromProto(e, depth)
		}
		o.Err = lastErr
		if o.Err == nil {
			code := walimpls.CodeInternal
			if o.State == walimpls.Unknown {
				code = walimpls.CodeUnknownOutcome
			}
			o.Err = walimpls.Errorf(code, channel, "the record's outcome is %s, and no reason was given", o.State)
		}
		out[i] = o
	}
	return out
}

// StateToProto returns an outcome's state for the wire.
func StateToProto(s walimpls.State) typesv1.Outcome_State {
	switch s {
	case walimpls.Stored:
		return typesv1.Outcome_STATE_STORED
	case walimpls.NotStored:
		return typesv1.Outcome_STATE_NOT_STORED
	}
	return typesv1.Outcome_STATE_UNKNOWN
}

// StateFromProto is the inverse of StateToProto; what it does not know is Unknown.
func StateFromProto(s typesv1.Outcome_State) walimpls.State {
	switch s {
	case typesv1.Outcome_STATE_STORED:
		return walimpls.Stored
	case typesv1.Outcome_STATE_NOT_STORED:
		return walimpls.NotStored
	}
	return walimpls.Unknown
}
