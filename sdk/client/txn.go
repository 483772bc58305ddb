package client

import (
	"context"
	"errors"
	"time"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// TxnOptions are the parameters of BeginTxn.
type TxnOptions struct {
	// VChannel is the transaction's; "" means all. An exclusive record on it
	// (the creation or the drop of a vchannel) rolls the transaction back.
	VChannel string
	// Keepalive is how long the transaction lives without a record; 0 is the
	// host's default. An expired one is rolled back.
	Keepalive time.Duration
}

// Txn is an open transaction. It belongs to the channel's present term and lives
// in the host: a Txn made by another client, or in another process, with the
// same id is the same transaction. It is safe for concurrent use.
type Txn struct {
	client  *Client
	channel string
	id      uint64
	expires time.Time
}

// BeginTxn opens a transaction. A call that is not answered is
// ErrUnknownOutcome: it may have opened one, which then expires by itself.
func (c *Client) BeginTxn(ctx context.Context, channel string, opt TxnOptions) (*Txn, error) {
	resp := &walv1.BeginTxnResponse{}
	err := c.call(ctx, walv1.WALService_BeginTxn_FullMethodName, &walv1.BeginTxnRequest{
		Channel: channel, Vchannel: opt.VChannel, KeepaliveMs: opt.Keepalive.Milliseconds(),
	}, resp, mutation)
	if err != nil {
		return nil, err
	}
	return &Txn{client: c, channel: channel, id: resp.GetTxnId(), expires: time.UnixMilli(resp.GetExpiresUnixMs())}, nil
}

// Txn returns the transaction of an id, to go on with it.
func (c *Client) Txn(channel string, id uint64) *Txn {
	return &Txn{client: c, channel: channel, id: id}
}

// ID names the transaction.
func (t *Txn) ID() uint64 { return t.id }

// Expires is when the transaction expires if nothing is appended to it; zero for
// one that was not begun here.
func (t *Txn) Expires() time.Time { return t.expires }

// Append stores records as a part of the transaction; see Client.Append.
// Readers see nothing of them before the commit.
func (t *Txn) Append(ctx context.Context, records ...Record) ([]Result, error) {
	return t.client.append(ctx, &walv1.AppendRequest{Channel: t.channel, TxnId: t.id}, records)
}

// NewAppender opens a stream whose records are a part of the transaction; flush
// or close it before the commit.
func (t *Txn) NewAppender(ctx context.Context, opt AppenderOptions) (*Appender, error) {
	opt.TxnID = t.id
	return t.client.NewAppender(ctx, t.channel, opt)
}

// Commit makes the transaction visible, whole and once. The Result is that of
// its commit record. ErrUnknownOutcome: it is visible or never will be.
func (t *Txn) Commit(ctx context.Context) (Result, error) { return t.end(ctx, true) }

// Rollback ends the transaction without a trace.
func (t *Txn) Rollback(ctx context.Context) (Result, error) { return t.end(ctx, false) }

func (t *Txn) end(ctx context.Context, commit bool) (Result, error) {
	resp := &walv1.EndTxnResponse{}
	err := t.client.call(ctx, walv1.WALService_EndTxn_FullMethodName,
		&walv1.EndTxnRequest{Channel: t.channel, TxnId: t.id, Commit: commit}, resp, mutation)
	if err != nil {
		state := walimpls.NotStored
		if errors.Is(err, walimpls.ErrUnknownOutcome) {
			state = walimpls.Unknown
		}
		return Result{State: state, Err: err}, err
	}
	results, err := toResults(t.channel, 1, []*walv1.AppendResult{resp.GetResult()})
	if err != nil {
		return Result{Err: err}, err
	}
	return results[0], results[0].Err
}
