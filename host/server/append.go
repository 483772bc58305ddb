package server

import (
	"context"
	"unicode/utf8"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Append implements WALServiceServer.
func (s *Server) Append(ctx context.Context, req *walv1.AppendRequest) (*walv1.AppendResponse, error) {
	c, err := s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	batch, wrong := toBatch(c.name, req.GetTxnId(), req.GetRecords())
	w, err := c.wal(ctx)
	if wrong != nil {
		if err == nil {
			w.FailTxn(req.GetTxnId())
		}
		return nil, wrong
	}
	if err != nil {
		return nil, err
	}
	desc, err := c.description(ctx)
	if err != nil {
		return nil, err
	}
	results := complete(c.name, len(batch), w.AppendAfter(ctx, message.Tick(req.GetBarrierTick()), batch))
	return &walv1.AppendResponse{Results: toResults(results, newIDFormat(desc.IDLayout))}, nil
}

// toBatch checks the records and turns them into messages that share their
// payloads and properties. The error names the first record that is wrong.
func toBatch(channel string, txn uint64, records []*walv1.AppendRecord) ([]message.Message, error) {
	batch := make([]message.Message, len(records))
	for i, r := range records {
		m := message.Message{Type: message.TypeData, TxnID: txn, VChannel: r.GetVchannel(), Payload: r.GetPayload()}
		if len(r.GetProperties()) > 0 {
			m.Properties = r.GetProperties()
		}
		if err := checkRecord(channel, &m); err != nil {
			if len(records) > 1 {
				err.Message = "record " + ordinal(i) + ": " + err.Message
			}
			return batch[:i], err
		}
		batch[i] = m
	}
	return batch, nil
}

// checkRecord says what is wrong with a record whatever the backend.
func checkRecord(channel string, m *message.Message) *walimpls.Error {
	bad := func(format string, args ...any) *walimpls.Error {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, channel, format, args...)
		e.Hint = "property keys are text, not empty, and do not start with \"" + message.ReservedPrefix + "\""
		return e
	}
	if m.VChannel != "" {
		if err := walimpls.ValidateName("vchannel", m.VChannel); err != nil {
			e := *walimpls.AsError(err)
			e.Channel = channel
			return &e
		}
	}
	if len(m.Properties) == 0 {
		return nil
	}
	if key := m.ReservedKey(); key != "" {
		return bad("property key %q is reserved", key)
	}
	for k, v := range m.Properties {
		switch {
		case k == "":
			return bad("a property has an empty key")
		case !utf8.ValidString(k), !utf8.ValidString(v):
			return bad("property %q is not valid UTF-8", k)
		}
	}
	return nil
}

// fits returns ErrTooLarge for a record above the backend's limit.
func fits(channel string, m *message.Message, limits walimpls.Limits) error {
	size := m.Size()
	if size <= limits.MaxMessageBytes {
		return nil
	}
	return wire.TooLarge(channel, size, limits.MaxMessageBytes)
}

// complete makes sure that there is one result a record: a WAL that breaks the
// contract must not make a record look stored.
func complete(channel string, n int, results []wal.Result) []wal.Result {
	if len(results) == n {
		return results
	}
	return all(n, walimpls.Unknown, walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "append: %d results for %d records", len(results), n))
}

// all gives n records one outcome.
func all(n int, state walimpls.State, err error) []wal.Result {
	results := make([]wal.Result, n)
	for i := range results {
		results[i].Outcome = walimpls.Outcome{State: state, Err: err}
	}
	return results
}

// toResults converts the results of an append.
func toResults(results []wal.Result, ids idFormat) []*walv1.AppendResult {
	slab := make([]walv1.AppendResult, len(results))
	out := make([]*walv1.AppendResult, len(results))
	// Most failures give all records one error: convert it once.
	var lastErr error
	var last *typesv1.Error
	for i := range results {
		o, r := &results[i], &slab[i]
		out[i] = r
		r.State = wire.StateToProto(o.State)
		if o.State == walimpls.Stored {
			r.Id, r.Term, r.TimeTick, r.Checkpoint = ids.text(o.ID), o.Term, uint64(o.Tick), o.Checkpoint.String()
			continue
		}
		if last == nil || !sameError(o.Err, lastErr) {
			lastErr, last = o.Err, wire.ErrorToProto(o.Err)
		}
		r.Error = last
	}
	return out
}

// sameError compares pointers only: not every error type can be compared.
func sameError(a, b error) bool {
	//nolint:errorlint // one object given to many records is what is looked for, not what it wraps
	x, ok := a.(*walimpls.Error)
	//nolint:errorlint // the same
	y, ok2 := b.(*walimpls.Error)
	return ok && ok2 && x == y
}
