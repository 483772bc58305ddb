package client

import (
	"context"
	"errors"
	"unicode/utf8"

	"github.com/walrig/walrig/sdk/message"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Record is what an application appends.
type Record struct {
	// VChannel is the stream inside the channel; "" means every vchannel.
	VChannel string
	// Properties are key-value pairs of valid UTF-8. Keys are not empty and do
	// not start with "_".
	Properties map[string]string
	// Payload may be empty and may hold any byte.
	Payload []byte
}

// Result is what became of one record.
type Result struct {
	// State is stored, not stored, or unknown (stored at most once).
	State walimpls.State
	// ID is the record's id in text form; set for a stored one.
	ID string
	// TimeTick and Term place a stored record in the channel's order.
	TimeTick message.Tick
	Term     int64
	// Checkpoint is a token: a read from "cp:" + Checkpoint begins behind the
	// record (for a record of a transaction: behind the unit before that).
	Checkpoint string
	// Err is set for a record that is not stored or unknown.
	Err error
}

// maxRecordBytes keeps a request inside what protobuf can carry. Backends have
// lower limits, which the host checks.
const maxRecordBytes = 1 << 30

// Append stores records in one call and returns one Result a record, always.
// The error is nil if all are stored, else the first ErrUnknownOutcome among
// them, else the first other error. Records of one call do not depend on each
// other: one that is too large does not keep the others from being stored. The
// records must not be written to until Append returns. For many records use an
// Appender.
func (c *Client) Append(ctx context.Context, channel string, records ...Record) ([]Result, error) {
	return c.append(ctx, &walv1.AppendRequest{Channel: channel}, records)
}

// AppendAfter is Append with a barrier: the records wait until everything with a
// tick at or below the barrier is settled, and their own ticks are above it.
func (c *Client) AppendAfter(ctx context.Context, channel string, barrier message.Tick, records ...Record) ([]Result, error) {
	return c.append(ctx, &walv1.AppendRequest{Channel: channel, BarrierTick: uint64(barrier)}, records)
}

func (c *Client) append(ctx context.Context, req *walv1.AppendRequest, records []Record) ([]Result, error) {
	if len(records) == 0 {
		return nil, nil
	}
	channel := req.GetChannel()
	req.Records = make([]*walv1.AppendRecord, len(records))
	total := 0
	for i := range records {
		size, err := check(channel, &records[i])
		if total += size; err == nil && total > maxRecordBytes {
			err = walimpls.Errorf(walimpls.CodeTooLarge, channel, "append: the records of one call exceed %d bytes", maxRecordBytes)
		}
		if err != nil {
			return same(len(records), walimpls.NotStored, err), err
		}
		req.Records[i] = &walv1.AppendRecord{}
		records[i].fill(req.Records[i])
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	resp := &walv1.AppendResponse{}
	sent, err := c.roundTrip(ctx, walv1.WALService_Append_FullMethodName, req, resp)
	if err != nil {
		return c.appendFailed(ctx, channel, len(records), sent, err)
	}
	results, err := toResults(channel, len(records), resp.GetResults())
	if err != nil {
		return same(len(records), walimpls.Unknown, err), err
	}
	return results, worst(results)
}

// appendFailed gives all n records the outcome of a call that failed as a
// whole. A host that refuses a call with a typed error has stored nothing of it.
func (c *Client) appendFailed(ctx context.Context, channel string, n int, sent bool, err error) ([]Result, error) {
	state, typed := walimpls.NotStored, c.callError(ctx, err, nothingSent)
	if sent && detail(err) == nil && !refused(err) {
		state, typed = walimpls.Unknown, c.unknownAppend(ctx, channel, err)
	}
	if errors.Is(typed, walimpls.ErrUnknownOutcome) {
		state = walimpls.Unknown
	}
	return same(n, state, typed), typed
}

// worst returns the first ErrUnknownOutcome, else the first error, else nil.
func worst(results []Result) error {
	var first error
	for _, r := range results {
		if r.State == walimpls.Unknown {
			return r.Err
		}
		if first == nil {
			first = r.Err
		}
	}
	return first
}

// recordOverhead is what a record counts beside its bytes, so that empty ones
// are bounded too.
const recordOverhead = 64

// check returns the record's size and what keeps it from being sent at all.
func check(channel string, r *Record) (int, error) {
	size := recordOverhead + len(r.Payload) + len(r.VChannel)
	ok := utf8.ValidString(r.VChannel)
	for k, v := range r.Properties {
		size += len(k) + len(v)
		ok = ok && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if !ok {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, channel, "append: the vchannel or a property is not valid UTF-8")
		e.Hint = "put bytes that are no text into the payload"
		return size, e
	}
	if size > maxRecordBytes {
		return size, walimpls.Errorf(walimpls.CodeTooLarge, channel, "append: a record of %d bytes exceeds %d", size, maxRecordBytes)
	}
	return size, nil
}

// fill sets the empty p to the record, sharing its payload and properties.
func (r *Record) fill(p *walv1.AppendRecord) {
	p.Vchannel, p.Properties, p.Payload = r.VChannel, r.Properties, r.Payload
}

// toResults converts a host's answer to n records.
func toResults(channel string, n int, in []*walv1.AppendResult) ([]Result, error) {
	if len(in) != n {
		e := walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "append: the host answered %d records with %d results", n, len(in))
		e.Hint = hintUnknown
		return nil, e
	}
	out := make([]Result, n)
	for i, r := range in {
		out[i] = Result{
			State: wire.StateFromProto(r.GetState()), ID: r.GetId(), TimeTick: message.Tick(r.GetTimeTick()),
			Term: r.GetTerm(), Checkpoint: r.GetCheckpoint(),
		}
		if p := r.GetError(); p != nil {
			out[i].Err = fromHost(p)
		} else if out[i].State != walimpls.Stored {
			out[i].Err = walimpls.Errorf(walimpls.CodeInternal, channel, "append: %s, and the host does not say why", out[i].State)
		}
	}
	return out, nil
}

func same(n int, state walimpls.State, err error) []Result {
	out := make([]Result, n)
	for i := range out {
		out[i] = Result{State: state, Err: err}
	}
	return out
}
