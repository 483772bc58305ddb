package remote

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

type readStream = grpc.BidiStreamingClient[pluginv1.ReadRequest, pluginv1.ReadResponse]

// Scanner is a walimpls.Scanner in a plugin process. A goroutine receives what the
// credit allows; Next hands it out and gives the credit back.
type Scanner struct {
	wal      *WAL
	stream   readStream
	cancel   context.CancelFunc
	resolved walimpls.Start
	window   credit // what may be under way or buffered

	consumed credit // not given back yet; the goroutine's that calls Next

	mu       sync.Mutex
	buffered []batch
	left     credit // what the plugin may still send
	err      error  // final, behind what is buffered
	closed   bool

	ready    chan struct{} // holds a token while Next has something to see
	received chan struct{} // closed when the receiver has returned
}

// credit is an amount of records and of their bytes (message.Message.Size).
type credit struct {
	records int
	bytes   int
}

type batch struct {
	records []message.Message
	size    credit
}

var _ walimpls.Scanner = (*Scanner)(nil)

// Read implements walimpls.WAL. The scanner is a *Scanner.
func (w *WAL) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	if err := w.usable("read"); err != nil {
		return nil, err
	}
	opt, err := opt.Normalize(w.channel.Name)
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel) // ctx bounds the start, not the scanner
	s := &Scanner{
		wal: w, cancel: cancel,
		window:   credit{opt.BufferRecords, opt.BufferBytes},
		ready:    make(chan struct{}, 1),
		received: make(chan struct{}),
	}
	s.left = s.window
	err = s.begin(own, opt)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, callError(ctx, w.channel.Name, err)
	}
	w.mu.Lock()
	w.scanners[s] = struct{}{}
	w.mu.Unlock()
	go s.receive()
	// Close ends the scanners that it finds; this one may have come too late for it.
	if err := w.usable("read"); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// begin opens the stream and waits until the plugin has resolved the start.
func (s *Scanner) begin(ctx context.Context, opt walimpls.ReadOptions) error {
	stream, err := s.wal.client.rpc.Read(ctx, streamOptions()...)
	if err != nil {
		return err
	}
	s.stream = stream
	// An error of Send says only that the stream has ended; Recv says why.
	_ = stream.Send(&pluginv1.ReadRequest{
		Start:   &pluginv1.ReadStart{Handle: s.wal.handle, Name: opt.Name, Start: wire.StartToProto(opt.Start)},
		Records: int64(s.window.records), Bytes: int64(s.window.bytes),
	})
	var first wire.ReadBatch
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	if first.Err != nil {
		return wire.StatusError(protocolError(s.wal.channel.Name, "%w", first.Err))
	}
	s.resolved = wire.StartFromProto(first.Resolved)
	switch s.resolved.Policy {
	case walimpls.PolicyAll, walimpls.PolicyFrom, walimpls.PolicyAfter:
	default:
		return wire.StatusError(protocolError(s.wal.channel.Name, "its first answer to a read has no position"))
	}
	if len(first.Records) > 0 {
		return wire.StatusError(protocolError(s.wal.channel.Name, "its first answer to a read has records"))
	}
	return nil
}

// Resolved returns the start as a position that can be used again: All, From or
// After, never Latest.
func (s *Scanner) Resolved() walimpls.Start { return s.resolved }

// receive runs until the stream ends.
func (s *Scanner) receive() {
	defer close(s.received)
	defer s.cancel()
	for {
		b, err := s.next()
		s.mu.Lock()
		if err == nil {
			err = s.spend(b)
		}
		if err == nil && len(b.records) > 0 {
			s.buffered = append(s.buffered, b)
		}
		s.err = err
		s.mu.Unlock()
		s.signal()
		if err != nil {
			return
		}
	}
}

// next receives one batch.
func (s *Scanner) next() (batch, error) {
	name := s.wal.channel.Name
	var got wire.ReadBatch
	err := s.stream.RecvMsg(&got)
	if errors.Is(err, io.EOF) {
		return batch{}, walimpls.Errorf(walimpls.CodeUnavailable, name, "read: the plugin ended the stream")
	}
	if err != nil {
		return batch{}, callError(context.Background(), name, err)
	}
	if got.Err != nil {
		return batch{}, protocolError(name, "%w", got.Err)
	}
	b := batch{records: got.Records, size: credit{records: len(got.Records)}}
	for i := range b.records {
		b.size.bytes += b.records[i].Size()
	}
	return b, nil
}

// spend takes b from the credit; mu is held. A plugin may overdraw the bytes by
// the last record of a batch and nothing else.
func (s *Scanner) spend(b batch) error {
	n := len(b.records)
	if n == 0 {
		return nil
	}
	if butLast := b.size.bytes - b.records[n-1].Size(); n > s.left.records || s.left.bytes <= 0 || butLast >= s.left.bytes {
		return protocolError(s.wal.channel.Name, "it sends %d records of %d bytes with a credit of %d and %d", n, b.size.bytes, s.left.records, s.left.bytes)
	}
	s.left.records -= n
	s.left.bytes -= b.size.bytes
	return nil
}

func (s *Scanner) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next implements walimpls.Scanner.
func (s *Scanner) Next(ctx context.Context) ([]message.Message, error) {
	for {
		b, err := s.pop()
		if err != nil {
			return nil, err
		}
		if b.records != nil {
			s.giveBack(b.size)
			return b.records, nil
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil, ctxError(ctx, s.wal.channel.Name)
		}
	}
}

// pop returns what is buffered first, an empty batch if there is nothing yet.
func (s *Scanner) pop() (batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return batch{}, walimpls.Errorf(walimpls.CodeClosed, s.wal.channel.Name, "read: the scanner was closed")
	}
	if len(s.buffered) > 0 {
		b := s.buffered[0]
		s.buffered[0] = batch{}
		s.buffered = s.buffered[1:]
		return b, nil
	}
	return batch{}, s.err
}

// giveBack returns credit in halves of the window: a message for each batch would
// cost more than it gains. It cannot run dry: what is not given back is less than
// half, so a plugin without credit has sent what Next has not consumed yet. At most
// two such messages are under way, so Send does not block.
func (s *Scanner) giveBack(c credit) {
	s.consumed.records += c.records
	s.consumed.bytes += c.bytes
	if 2*s.consumed.records < s.window.records && 2*s.consumed.bytes < s.window.bytes {
		return
	}
	back := s.consumed
	s.consumed = credit{}
	s.mu.Lock()
	s.left.records += back.records
	s.left.bytes += back.bytes
	s.mu.Unlock()
	// An error means that the stream has ended; the receiver learns why.
	_ = s.stream.Send(&pluginv1.ReadRequest{Records: int64(back.records), Bytes: int64(back.bytes)})
}

// Close implements walimpls.Scanner.
func (s *Scanner) Close() error {
	s.mu.Lock()
	s.closed = true
	s.buffered = nil
	s.mu.Unlock()
	s.cancel()
	s.signal()
	<-s.received
	s.wal.mu.Lock()
	delete(s.wal.scanners, s)
	s.wal.mu.Unlock()
	return nil
}
