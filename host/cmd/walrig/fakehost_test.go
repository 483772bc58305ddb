package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// fakeHost is a host's API with one channel, `orders`, whose misbehaviour a
// test chooses. It is what outcomes are tested with that a real host gives
// only by luck.
type fakeHost struct {
	walv1.UnimplementedWALServiceServer
	walv1.UnimplementedAdminServiceServer

	// outcome decides over the n-th record, from 1; nil stores all.
	outcome func(n int) *walv1.AppendResult
	// cutAt ends the stream without an answer when this record comes; 0 never.
	cutAt int
	// leaveAfter ends the stream when this many records are answered; 0 never.
	leaveAfter int
	// hangAt stops answering at this record; 0 never.
	hangAt int
	limit  int64

	mu      sync.Mutex // guards all below
	records [][]byte
	more    chan struct{} // closed and replaced when records grow
}

func startFakeHost(t *testing.T, h *fakeHost) (addr string) {
	t.Helper()
	h.more = make(chan struct{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	walv1.RegisterWALServiceServer(s, h)
	walv1.RegisterAdminServiceServer(s, h)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(lis) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return lis.Addr().String()
}

func (h *fakeHost) store(payload []byte) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records = append(h.records, bytes.Clone(payload))
	close(h.more)
	h.more = make(chan struct{})
	return len(h.records)
}

func (h *fakeHost) stored() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.records
}

func notFound(channel string) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeNotFound, channel, "there is no such channel")
	e.Hint = "create it"
	return e
}

func failed(state typesv1.Outcome_State, code walimpls.Code, text string) *walv1.AppendResult {
	return &walv1.AppendResult{State: state, Error: wire.ErrorToProto(walimpls.Errorf(code, "orders", "%s", text))}
}

func (h *fakeHost) AppendStream(stream walv1.WALService_AppendStreamServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetChannel() != "orders" {
		return wire.StatusError(notFound(first.GetChannel()))
	}
	if err := stream.Send(&walv1.AppendStreamResponse{}); err != nil {
		return err
	}
	n := 0
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp := &walv1.AppendStreamResponse{Sequence: req.GetSequence()}
		for _, rec := range req.GetRecords() {
			n++
			switch n {
			case h.cutAt:
				return io.ErrUnexpectedEOF
			case h.hangAt:
				<-stream.Context().Done()
				return stream.Context().Err()
			}
			var result *walv1.AppendResult
			if h.outcome != nil {
				result = h.outcome(n)
			}
			if result == nil {
				result = &walv1.AppendResult{State: typesv1.Outcome_STATE_STORED, Id: strconv.Itoa(h.store(rec.GetPayload())), Term: 3}
			}
			resp.Results = append(resp.Results, result)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		if n == h.leaveAfter {
			return io.ErrUnexpectedEOF
		}
	}
}

func (h *fakeHost) Read(req *walv1.ReadRequest, stream walv1.WALService_ReadServer) error {
	if req.GetFrom() == "after:1" {
		e := walimpls.NewPositionLostError("orders", walimpls.Bounds{Earliest: message.Uint64ID(17), Latest: message.Uint64ID(20)}, "1 was truncated")
		p := wire.ErrorToProto(e)
		p.PositionLost.EarliestText, p.PositionLost.LatestText = "17", "20"
		st, err := status.New(codes.OutOfRange, "lost").WithDetails(p)
		if err != nil {
			return err
		}
		return st.Err()
	}
	for next := 0; ; {
		h.mu.Lock()
		records, more := h.records[next:], h.more
		h.mu.Unlock()
		resp := &walv1.ReadResponse{Resume: "after:" + strconv.Itoa(next+len(records))}
		for i, p := range records {
			resp.Records = append(resp.Records, &walv1.ReadRecord{Id: strconv.Itoa(next + i + 1), Record: &typesv1.Record{Type: 1, Term: 3, Payload: p}})
		}
		next += len(records)
		if err := stream.Send(resp); err != nil {
			return err
		}
		if !req.GetFollow() {
			return nil
		}
		select {
		case <-more:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (h *fakeHost) channel() *walv1.ChannelStatus {
	return &walv1.ChannelStatus{Name: "orders", Plugin: "local", Backend: "rmq", Term: 3, State: "available", EarliestId: "1"}
}

func (h *fakeHost) DescribeChannel(_ context.Context, req *walv1.DescribeChannelRequest) (*walv1.DescribeChannelResponse, error) {
	if req.GetName() != "orders" {
		return nil, wire.StatusError(notFound(req.GetName()))
	}
	return &walv1.DescribeChannelResponse{Channel: h.channel()}, nil
}

func (h *fakeHost) ListChannels(context.Context, *walv1.ListChannelsRequest) (*walv1.ListChannelsResponse, error) {
	return &walv1.ListChannelsResponse{Channels: []*walv1.ChannelStatus{h.channel()}}, nil
}

func (h *fakeHost) DescribePlugin(context.Context, *walv1.DescribePluginRequest) (*walv1.DescribePluginResponse, error) {
	return &walv1.DescribePluginResponse{Status: &walv1.PluginStatus{Name: "local"},
		DescriptionJson: `{"limits":{"max_message_bytes":` + strconv.FormatInt(h.limit, 10) + `}}`}, nil
}

// result is what a run of the program left behind.
type result struct {
	exit           int
	stdout, stderr string
}

// runApp runs a command line in this process against a host at addr.
func runApp(ctx context.Context, addr string, stdin io.Reader, args ...string) result {
	var stdout, stderr bytes.Buffer
	return runWith(ctx, addr, stdin, &stdout, &stderr, args...)
}

func runWith(ctx context.Context, addr string, stdin io.Reader, stdout io.Writer, stderr *bytes.Buffer, args ...string) result {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, env: append(os.Environ(), "WALRIG_ADDR="+addr)}
	r := result{exit: a.run(ctx, args), stderr: stderr.String()}
	if b, ok := stdout.(*bytes.Buffer); ok {
		r.stdout = b.String()
	}
	return r
}
