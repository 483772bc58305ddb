package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	hintReopen  = "open the channel again with the next incarnation; that settles what is unknown"
	hintBrokers = `check that the brokers run and that the key "brokers" names them`
	hintACL     = "give the user the ACLs that docs/kafka.md lists"
)

func unknownOutcome(channel, why string) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "append: %s; the records may or may not be stored", why)
	e.Hint = hintReopen
	return e
}

// endedByUnknown is what a handle answers after an unknown outcome.
func endedByUnknown(channel string) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeUnavailable, channel, "append: an earlier append of this handle has an unknown outcome, which ended it; nothing was stored")
	e.Hint, e.Retryable = hintReopen, false
	return e
}

func closedError(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeClosed, channel, "%s: the handle is closed", what)
}

func fencedError(channel string, why error) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeFenced, channel, "the handle is fenced by a later open: %w", why)
}

// droppedHandle is what the handles of a deleted topic get where ErrFenced is due.
func droppedHandle(channel string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeFenced, channel, "the log of this handle was dropped")
}

// droppedLog is what readers of a deleted topic get.
func droppedLog(channel, what string) *walimpls.Error {
	return walimpls.Errorf(walimpls.CodeNotFound, channel, "%s: the log was dropped", what)
}

// typed types an error of this package, of a connection or of a broker.
func typed(channel, what string, err error) *walimpls.Error {
	var already *walimpls.Error
	if errors.As(err, &already) {
		return already
	}
	e := walimpls.Errorf(walimpls.CodeUnavailable, channel, "%s: %w", what, err)
	var code *answerError
	var refused *refusedError
	var bad *badBatchError
	switch {
	case errors.Is(err, errForeign):
		e.Code, e.Retryable = walimpls.CodeCorrupt, false
		e.Hint = "only walrig may write to the topic of a channel: use a topic_prefix of its own, and an ACL"
	case errors.As(err, &bad):
		e.Code, e.Retryable = walimpls.CodeCorrupt, false
		e.Hint = "read the broker's log for the offset; another replica may be sound"
	case errors.As(err, &refused):
		e.Code, e.Retryable, e.Hint = walimpls.CodeInvalidArgument, false, refused.hint
	case errors.Is(err, errTopicGone):
		e.Code, e.Retryable = walimpls.CodeNotFound, false
	case errors.As(err, &code):
		code.refine(e)
	case errors.Is(err, errConnClosed):
		e.Code, e.Retryable = walimpls.CodeClosed, false
	case transient(err), errors.Is(err, errBudget):
		e.Hint = hintBrokers
	case errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Retryable = walimpls.CodeTimeout, true
	case errors.Is(err, context.Canceled):
		e.Code, e.Retryable = walimpls.CodeCanceled, false
	}
	return e
}

// refine gives out what the broker's code says.
func (e *answerError) refine(out *walimpls.Error) {
	switch e.code {
	case codeTopicAuthorization, codeClusterAuth, codeTxnIDAuthorization, codeSASLFailed:
		out.Code, out.Retryable, out.Hint = walimpls.CodePermissionDenied, false, hintACL
	case codeMessageTooLarge, codeRecordListTooLarge:
		out.Code, out.Retryable = walimpls.CodeTooLarge, false
		out.Hint = fmt.Sprintf("set the topic's max.message.bytes to %d or more", maxTopicMessage)
	case codeInvalidReplication, codeInvalidConfig, codePolicyViolation, codeInvalidRequest, codeUnsupportedVersion, codeTopicDeletionOff:
		out.Code, out.Retryable = walimpls.CodeInvalidArgument, false
		out.Hint = "check replication_factor, min_insync_replicas and the broker's policies"
	case codeUnknownTopic, codeUnknownTopicID:
		out.Hint = "the brokers do not know the topic (yet)"
	case codeNotEnoughReplicas, codeNotEnoughAfter:
		out.Hint = "fewer replicas are in sync than min.insync.replicas wants: start the missing brokers"
	case codeInvalidTimestamp:
		out.Retryable = false
		out.Hint = "set the topic's message.timestamp.type to LogAppendTime, or mend this machine's clock"
	case codeInvalidTxnState, codeInvalidRecord, codeOutOfOrder:
		out.Retryable = false
		out.Hint = hintReopen
	default:
		if e.code.retriable() {
			out.Hint = hintBrokers
		}
	}
}

// ended types the end of a call whose context is ctx: the caller's own end, or the
// time that this backend gives it, with the last failure.
func ended(ctx context.Context, channel, what string, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errBudget) {
		return walimpls.ContextError(ctx, channel, what)
	}
	return contractError(channel, what, err)
}

// contractError returns err itself if it is one of the contract's, else types it.
func contractError(channel, what string, err error) error {
	var already *walimpls.Error
	if errors.As(err, &already) {
		return err
	}
	return typed(channel, what, err)
}
