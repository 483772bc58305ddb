package server

import (
	"context"
	"strings"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Bounds of one message to a reader. A single record may exceed the bytes, and
// what the scanner hands out at once stays below a few messages.
const (
	readRecords = 512
	readBytes   = 1 << 20
	readAhead   = 2 << 20
)

const fromAll, fromLatest, fromAfter, fromCheckpoint = "all", "latest", "after:", "cp:"

const startHint = "start from all, latest, ID, after:ID or cp:TOKEN, with an ID or checkpoint that append or read printed"

// Read implements WALServiceServer.
func (s *Server) Read(req *walv1.ReadRequest, stream walv1.WALService_ReadServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s.helpers.Add(1)
	go func() {
		defer s.helpers.Done()
		select {
		case <-s.draining:
			cancel(shutdownError(req.GetChannel()))
		case <-ctx.Done():
		}
	}()
	r := &readStream{req: req, stream: stream}
	err := r.run(ctx, s)
	if err != nil && ctx.Err() != nil {
		return walimpls.ContextError(ctx, req.GetChannel(), "read")
	}
	return withBounds(err, r.desc)
}

// readStream is one Read.
type readStream struct {
	req    *walv1.ReadRequest
	stream walv1.WALService_ReadServer
	desc   walimpls.Description
	ids    idFormat
	// at is where another Read would go on.
	at       message.Checkpoint
	caughtUp bool
	// page waits to be sent.
	page wire.PageWriter
	// news is that the page says caught up.
	news bool
	// id and token are scratch.
	id, token []byte
}

func (r *readStream) run(ctx context.Context, s *Server) error {
	c, err := s.channels.find(r.req.GetChannel())
	if err != nil {
		return err
	}
	if v := r.req.GetVchannel(); v != "" {
		if err := walimpls.ValidateName("vchannel", v); err != nil {
			return err
		}
	}
	w, desc, err := c.openWAL(ctx)
	if err != nil {
		return err
	}
	r.desc = desc
	r.ids = newIDFormat(r.desc.IDLayout)
	opt, err := parseFrom(c, r.desc, r.req.GetFrom())
	if err != nil {
		return err
	}
	opt.Name, opt.VChannel, opt.System, opt.MaxBytes = "client", r.req.GetVchannel(), r.req.GetSystem(), readAhead
	if until := r.req.GetUntil(); until != "" {
		end, err := message.ParseCheckpoint(until)
		if err != nil {
			return walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "read until: %w", err)
		}
		opt.Until = &end
	}
	sc, err := w.Read(ctx, opt)
	if err != nil {
		return err
	}
	defer func() { _ = sc.Close() }()
	r.at = sc.Position()
	if err := r.send(sc.End().String()); err != nil {
		return err
	}
	return r.pump(ctx, sc)
}

// parseFrom turns the text of a start into the options of a scanner.
func parseFrom(c *channel, desc walimpls.Description, from string) (scanner.Options, error) {
	refuse := func(err *walimpls.Error) (scanner.Options, error) {
		err.Hint = startHint
		return scanner.Options{}, err
	}
	switch from {
	case fromAll:
		return scanner.Options{Start: scanner.All}, nil
	case fromLatest:
		return scanner.Options{Start: scanner.Latest}, nil
	case "":
		return refuse(walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "read: the start is missing"))
	}
	if token, ok := strings.CutPrefix(from, fromCheckpoint); ok {
		at, err := message.ParseCheckpoint(token)
		if err != nil {
			return refuse(walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "read: %w", err))
		}
		return scanner.Options{Start: scanner.Checkpoint, Checkpoint: at}, nil
	}
	text, after := strings.CutPrefix(from, fromAfter)
	id, err := c.parseID(desc, text)
	if err != nil {
		return refuse(walimpls.AsError(err))
	}
	if after {
		return scanner.Options{Start: scanner.AfterID, ID: id}, nil
	}
	return scanner.Options{Start: scanner.FromID, ID: id}, nil
}

// pump sends what the scanner gives. Nothing is read ahead while the client
// does not take what was sent.
func (r *readStream) pump(ctx context.Context, sc *scanner.Scanner) error {
	for r.req.GetFollow() || !r.caughtUp {
		units, err := sc.Next(ctx)
		if err != nil {
			return err
		}
		for i := range units {
			if err := r.add(&units[i]); err != nil {
				return err
			}
		}
		if err := r.flush(); err != nil {
			return err
		}
	}
	return nil
}

// add puts a unit into the page, and sends a full page first.
func (r *readStream) add(u *scanner.Unit) error {
	for i := range u.Messages {
		m := &u.Messages[i]
		if r.page.Len() > 0 && (r.page.Len() >= readRecords || r.page.Size()+m.Size() > readBytes) {
			if err := r.flush(); err != nil {
				return err
			}
		}
		last, tick := i == len(u.Messages)-1, m.TimeTick
		if u.TxnID != 0 {
			// A transaction happens at its commit's tick, all of it.
			tick = u.Tick
		}
		if last {
			r.token = u.Checkpoint.AppendToken(r.token[:0])
		} else if i == 0 {
			r.token = u.Before.AppendToken(r.token[:0])
		}
		r.id = r.ids.append(r.id[:0], m.ID)
		r.page.Add(m, tick, r.id, r.token, last)
	}
	r.at = u.Checkpoint
	if u.CaughtUp {
		r.caughtUp, r.news = true, true
	}
	return nil
}

// flush sends the page with the place behind it.
func (r *readStream) flush() error { return r.send("") }

// send is flush; end is for the first message.
func (r *readStream) send(end string) error {
	// A page that ends inside a transaction goes on before it.
	token := r.at.String()
	page := r.page.Finish(r.news, fromCheckpoint+token, end, token)
	r.news = false
	return r.stream.SendMsg(page)
}
