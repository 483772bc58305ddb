package plugin

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"

	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Bounds of one ReadResponse, so that many streams share one connection fairly.
const (
	maxReadRecords = 512
	maxReadBytes   = 1 << 20
)

// maxLatestTries bounds how often a start is resolved again because a truncation
// passed it in between.
const maxLatestTries = 16

type readStream = grpc.BidiStreamingServer[pluginv1.ReadRequest, pluginv1.ReadResponse]

// Read implements the service: this goroutine reads and sends, another one
// receives credit.
func (s *Server) Read(stream readStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h, err := s.handle(first.GetStart().GetHandle())
	if err != nil {
		return wire.StatusError(err)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.reading, cancel)()

	c := &credit{change: make(chan struct{}, 1)}
	err = c.add(first.GetRecords(), first.GetBytes())
	if err == nil {
		s.running.start(func() { c.receive(stream, cancel) })
		err = h.read(ctx, stream, first, c)
	}
	switch {
	case h.reading.Err() != nil:
		err = walimpls.Errorf(walimpls.CodeClosed, h.name, "read: the handle was closed")
	case stream.Context().Err() != nil:
		err = stream.Context().Err()
	case errors.Is(c.failure(), io.EOF):
		return nil // the host wants no more
	case c.failure() != nil:
		err = c.failure()
	}
	return wire.StatusError(err)
}

// read starts the scanner and sends until ctx ends or the scanner fails.
func (h *handle) read(ctx context.Context, stream readStream, first *pluginv1.ReadRequest, c *credit) error {
	scanner, resolved, err := h.start(ctx, walimpls.ReadOptions{
		Name:          first.GetStart().GetName(),
		Start:         wire.StartFromProto(first.GetStart().GetStart()),
		BufferRecords: int(min(first.GetRecords(), math.MaxInt32)),
		BufferBytes:   int(min(first.GetBytes(), math.MaxInt32)),
	})
	if err != nil {
		return err
	}
	defer scanner.Close()
	// A backend whose Next does not look at its context is woken by Close.
	defer context.AfterFunc(ctx, func() { _ = scanner.Close() })()

	if err := stream.Send(&pluginv1.ReadResponse{Resolved: wire.StartToProto(resolved)}); err != nil {
		return err
	}
	var buffers wire.Buffers
	for {
		// Without credit nothing is read ahead either: the reader's memory is the bound.
		if err := c.wait(ctx); err != nil {
			return err
		}
		records, err := scanner.Next(ctx)
		if err != nil {
			return err
		}
		for len(records) > 0 {
			n, err := c.take(ctx, records)
			if err != nil {
				return err
			}
			for i := range records[:n] {
				if err := wire.CheckRecord(h.name, &records[i]); err != nil {
					return walimpls.Errorf(walimpls.CodeCorrupt, h.name, "read: record %s cannot be sent: %w", records[i].ID, err)
				}
			}
			if err := stream.SendMsg(wire.EncodeRead(&buffers, records[:n])); err != nil {
				return err
			}
			records = records[n:]
		}
	}
}

// start opens the backend's scanner. Latest is made a position first, so that the
// host can take up the read again without resolving it anew.
func (h *handle) start(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, walimpls.Start, error) {
	opt, err := opt.Normalize(h.name)
	if err != nil {
		return nil, opt.Start, err
	}
	if opt.Start.Policy != walimpls.PolicyLatest {
		scanner, err := h.wal.Read(ctx, opt)
		return scanner, opt.Start, err
	}
	for try := 1; ; try++ {
		bounds, err := h.wal.Bounds(ctx)
		if err != nil {
			return nil, opt.Start, err
		}
		opt.Start = walimpls.StartAfter(bounds.Latest)
		if bounds.Empty || bounds.Latest.IsZero() {
			// Nothing but, at most, the first fence record is there.
			opt.Start = walimpls.FromAll()
		}
		scanner, err := h.wal.Read(ctx, opt)
		var lost *walimpls.PositionLostError
		if err != nil && errors.As(err, &lost) && try < maxLatestTries {
			continue // truncated between the two calls
		}
		return scanner, opt.Start, err
	}
}

// credit is what the host lets a Read stream send.
type credit struct {
	change chan struct{} // holds a token while there is something new to see

	mu      sync.Mutex
	records int64
	bytes   int64
	err     error
}

// receive adds what the host sends until the stream ends, and stops the read then.
func (c *credit) receive(stream readStream, stop context.CancelFunc) {
	for {
		req, err := stream.Recv()
		switch {
		case err != nil:
		case req.GetStart() != nil:
			err = walimpls.Errorf(walimpls.CodeInvalidArgument, "", "read: a start is for the first message only")
		default:
			err = c.add(req.GetRecords(), req.GetBytes())
		}
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			stop()
			return
		}
	}
}

func (c *credit) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *credit) add(records, bytes int64) error {
	const most = math.MaxInt64 / 4
	if records < 0 || bytes < 0 || records > most || bytes > most {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, "", "read: credit of %d records and %d bytes is out of range", records, bytes)
	}
	c.mu.Lock()
	c.records = min(c.records+records, most)
	c.bytes = min(c.bytes+bytes, most)
	c.mu.Unlock()
	select {
	case c.change <- struct{}{}:
	default:
	}
	return nil
}

// wait returns when both credits are above zero, or with ctx's error.
func (c *credit) wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		ok := c.records > 0 && c.bytes > 0
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take waits for credit, spends it on the first n records, and returns n: at least
// one, and only the last may overdraw the bytes.
func (c *credit) take(ctx context.Context, records []message.Message) (int, error) {
	if err := c.wait(ctx); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	mostBytes := min(c.bytes, maxReadBytes)
	n, bytes := 0, int64(0)
	for n < len(records) && n < maxReadRecords && int64(n) < c.records && bytes < mostBytes {
		bytes += int64(records[n].Size())
		n++
	}
	c.records -= int64(n)
	c.bytes -= bytes
	return n, nil
}
