package server

import (
	"context"
	"time"

	"github.com/walrig/walrig/host/wal"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// BeginTxn implements WALServiceServer.
func (s *Server) BeginTxn(ctx context.Context, req *walv1.BeginTxnRequest) (*walv1.BeginTxnResponse, error) {
	c, err := s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	if v := req.GetVchannel(); v != "" {
		if err := walimpls.ValidateName("vchannel", v); err != nil {
			return nil, err
		}
	}
	keepalive := time.Duration(req.GetKeepaliveMs()) * time.Millisecond
	if keepalive < 0 || keepalive/time.Millisecond != time.Duration(req.GetKeepaliveMs()) {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "begin: a keepalive of %d ms is not possible", req.GetKeepaliveMs())
	}
	w, err := c.wal(ctx)
	if err != nil {
		return nil, err
	}
	txn, err := w.Begin(ctx, req.GetVchannel(), keepalive)
	if err != nil {
		return nil, err
	}
	return &walv1.BeginTxnResponse{TxnId: txn.ID, KeepaliveMs: txn.Keepalive.Milliseconds(), ExpiresUnixMs: txn.Expires.UnixMilli()}, nil
}

// EndTxn implements WALServiceServer.
func (s *Server) EndTxn(ctx context.Context, req *walv1.EndTxnRequest) (*walv1.EndTxnResponse, error) {
	c, err := s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	w, desc, err := c.openWAL(ctx)
	if err != nil {
		return nil, err
	}
	end := w.Rollback
	if req.GetCommit() {
		end = w.Commit
	}
	r := end(ctx, req.GetTxnId())
	return &walv1.EndTxnResponse{Result: toResults([]wal.Result{r}, newIDFormat(desc.IDLayout))[0]}, nil
}
