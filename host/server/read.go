package server

import (
	"context"
	"strings"

	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Bounds of one message to a reader. A single record may exceed the bytes.
const (
	readRecords = 512
	readBytes   = 1 << 20
	// skippedRecords is how many records a reader may leave out before it tells
	// the client that it has moved on.
	skippedRecords = 10_000
)

const fromAll, fromLatest, fromAfter = "all", "latest", "after:"

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
		return contextError(ctx, req.GetChannel(), "read")
	}
	return withBounds(err, r.desc)
}

// readStream is one Read.
type readStream struct {
	req    *walv1.ReadRequest
	stream walv1.WALService_ReadServer
	desc   walimpls.Description
	ids    idFormat
	// end is the last record of the log as it was at the start, or the request's
	// until; empty if there is none.
	end message.ID
	// resume is where another Read would go on until the first record; last is
	// the last record, sent or left out.
	resume   string
	last     message.ID
	caughtUp bool // and the client was told
	// batch waits to be sent; skipped counts records left out since the last
	// message. slab saves an allocation for each record.
	batch   *walv1.ReadResponse
	slab    []readSlot
	bytes   int
	skipped int
}

type readSlot struct {
	read   walv1.ReadRecord
	record typesv1.Record
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
	w, err := c.wal(ctx)
	if err != nil {
		return err
	}
	if r.desc, err = c.description(ctx); err != nil {
		return err
	}
	r.ids = newIDFormat(r.desc.IDLayout)
	start, err := parseFrom(c, r.desc, r.req.GetFrom())
	if err != nil {
		return err
	}
	bounds, err := w.Bounds(ctx)
	if err != nil {
		return err
	}
	r.resume, r.end = r.req.GetFrom(), bounds.LatestRecord
	if start.Policy == walimpls.PolicyLatest {
		start = r.latest(bounds)
	}
	if r.req.GetUntil() != "" {
		if r.end, err = c.parseID(r.desc, r.req.GetUntil()); err != nil {
			return err
		}
	}
	scanner, err := w.Read(ctx, walimpls.ReadOptions{Name: "client", Start: start})
	if err != nil {
		return err
	}
	defer func() { _ = scanner.Close() }()
	return r.pump(ctx, scanner, start)
}

// latest is the position behind what is there now: resolved here, once.
func (r *readStream) latest(b walimpls.Bounds) walimpls.Start {
	if b.Latest.IsZero() {
		r.resume = fromAll
		return walimpls.FromAll()
	}
	r.resume = fromAfter + r.ids.text(b.Latest)
	return walimpls.StartAfter(b.Latest)
}

// parseFrom turns the text of a start into one.
func parseFrom(c *channel, desc walimpls.Description, from string) (walimpls.Start, error) {
	switch from {
	case fromAll:
		return walimpls.FromAll(), nil
	case fromLatest:
		return walimpls.Start{Policy: walimpls.PolicyLatest}, nil
	case "":
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "read: the start is missing")
		e.Hint = "start from all, latest, ID or after:ID"
		return walimpls.Start{}, e
	}
	text, after := strings.CutPrefix(from, fromAfter)
	id, err := c.parseID(desc, text)
	if err != nil {
		walimpls.AsError(err).Hint = "start from all, latest, ID or after:ID, where an ID is what `walrig append -o json` prints"
		return walimpls.Start{}, err
	}
	if after {
		return walimpls.StartAfter(id), nil
	}
	return walimpls.StartFrom(id), nil
}

// pump sends what the scanner gives. Nothing is read ahead while the client
// does not take what was sent.
func (r *readStream) pump(ctx context.Context, scanner walimpls.Scanner, start walimpls.Start) error {
	r.batch = &walv1.ReadResponse{End: r.ids.text(r.end)}
	if r.atEnd(start) {
		r.reachEnd()
	}
	if err := r.flush(); err != nil {
		return err
	}
	for r.req.GetFollow() || !r.caughtUp {
		msgs, err := scanner.Next(ctx)
		if err != nil {
			return err
		}
		for i := range msgs {
			if err := r.add(&msgs[i]); err != nil {
				return err
			}
			if r.caughtUp && !r.req.GetFollow() {
				break
			}
		}
		if len(r.batch.GetRecords()) > 0 || r.batch.GetCaughtUp() || r.skipped >= skippedRecords {
			if err := r.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// atEnd reports whether there was nothing to send when the stream began.
func (r *readStream) atEnd(start walimpls.Start) bool {
	switch start.Policy {
	case walimpls.PolicyFrom:
		return r.end.Less(start.ID)
	case walimpls.PolicyAfter:
		return !start.ID.Less(r.end)
	}
	return r.end == ""
}

func (r *readStream) reachEnd() {
	if !r.caughtUp {
		r.caughtUp, r.batch.CaughtUp = true, true
	}
}

// add puts a record into the batch, or leaves it out, and sends a full batch first.
func (r *readStream) add(m *message.Message) error {
	if !r.req.GetFollow() && r.end.Less(m.ID) {
		// The record at the end is gone, or is a hole: this one is behind it.
		r.reachEnd()
		return nil
	}
	if r.passes(m) {
		if size := m.Size(); len(r.batch.GetRecords()) > 0 &&
			(len(r.batch.GetRecords()) >= readRecords || r.bytes+size > readBytes) {
			if err := r.flush(); err != nil {
				return err
			}
		}
		r.bytes += m.Size()
		slot := r.slot()
		wire.SetRecord(&slot.record, m)
		slot.read.Id, slot.read.Record = r.ids.text(m.ID), &slot.record
		r.batch.Records = append(r.batch.Records, &slot.read)
	} else {
		r.skipped++
	}
	r.last = m.ID
	if !m.ID.Less(r.end) {
		r.reachEnd()
	}
	return nil
}

// slot returns an empty one. Slabs grow with the batch, so that a follower that
// gets single records does not pay for many.
func (r *readStream) slot() *readSlot {
	if len(r.slab) == 0 {
		r.slab = make([]readSlot, min(max(len(r.batch.GetRecords()), 1), readRecords))
	}
	slot := &r.slab[0]
	r.slab = r.slab[1:]
	return slot
}

// passes reports whether the client wants the record.
func (r *readStream) passes(m *message.Message) bool {
	if m.Type == message.TypeFence || m.Type.IsSystem() && !r.req.GetSystem() {
		return false
	}
	v := r.req.GetVchannel()
	return v == "" || m.VChannel == "" || m.VChannel == v
}

// flush sends the batch with the place behind it.
func (r *readStream) flush() error {
	batch := r.batch
	batch.Resume = r.resume
	if r.last != "" {
		batch.Resume = fromAfter + r.ids.text(r.last)
	}
	r.batch, r.slab, r.bytes, r.skipped = &walv1.ReadResponse{}, nil, 0, 0
	return r.stream.Send(batch)
}
