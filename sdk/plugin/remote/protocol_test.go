package remote_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/remote"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// wrongPlugin speaks the protocol as badly as a test wants.
type wrongPlugin struct {
	pluginv1.UnimplementedBackendServiceServer
	describe func(*pluginv1.DescribeResponse)
	// answer is called for each request behind the first.
	answer func(*pluginv1.AppendRequest, grpc.BidiStreamingServer[pluginv1.AppendRequest, pluginv1.AppendResponse]) error
	read   func(*pluginv1.ReadRequest, grpc.BidiStreamingServer[pluginv1.ReadRequest, pluginv1.ReadResponse]) error
}

func (p *wrongPlugin) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	d, err := wire.DescriptionToProto((&membackend.Backend{}).Describe())
	if p.describe != nil {
		p.describe(d)
	}
	return d, err
}

func (p *wrongPlugin) Open(context.Context, *pluginv1.OpenRequest) (*pluginv1.OpenResponse, error) {
	return &pluginv1.OpenResponse{Handle: 1, Pair: &typesv1.Pair{Term: 1, Incarnation: 1}}, nil
}

func (p *wrongPlugin) CloseWAL(context.Context, *pluginv1.CloseWALRequest) (*pluginv1.CloseWALResponse, error) {
	return &pluginv1.CloseWALResponse{}, nil
}

func (p *wrongPlugin) Append(stream grpc.BidiStreamingServer[pluginv1.AppendRequest, pluginv1.AppendResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&pluginv1.AppendResponse{}); err != nil {
		return err
	}
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if err := p.answer(req, stream); err != nil {
			return err
		}
	}
}

func (p *wrongPlugin) Read(stream grpc.BidiStreamingServer[pluginv1.ReadRequest, pluginv1.ReadResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := p.read(first, stream); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *wrongPlugin) serve(t testing.TB) *remote.Client {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(shortDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginv1.RegisterBackendServiceServer(s, p)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	c := remote.New(conn)
	t.Cleanup(func() {
		_ = c.Close(context.Background())
		_ = conn.Close()
		s.Stop()
		<-served
	})
	return c
}

func TestAnswersThatBreakTheProtocolEndTheHandle(t *testing.T) {
	ids := func(ids ...string) [][]byte {
		var out [][]byte
		for _, id := range ids {
			out = append(out, []byte(id))
		}
		return out
	}
	stored := func(id string) *typesv1.Outcome {
		return &typesv1.Outcome{State: typesv1.Outcome_STATE_STORED, Id: []byte(id)}
	}
	for name, answer := range map[string]*pluginv1.AppendResponse{
		"too few ids":               {Sequence: 1, Ids: ids("a")},
		"too many ids":              {Sequence: 1, Ids: ids("a", "b", "c")},
		"no ids":                    {Sequence: 1},
		"ids that do not ascend":    {Sequence: 1, Ids: ids("b", "a")},
		"one id twice":              {Sequence: 1, Ids: ids("a", "a")},
		"an empty id":               {Sequence: 1, Ids: ids("", "a")},
		"another sequence":          {Sequence: 2, Ids: ids("a", "b")},
		"sequence 0":                {Ids: ids("a", "b")},
		"outcomes of another batch": {Sequence: 1, Error: &typesv1.Error{Outcomes: []*typesv1.Outcome{{State: typesv1.Outcome_STATE_NOT_STORED}}}},
		"stored without an id":      {Sequence: 1, Error: &typesv1.Error{Outcomes: []*typesv1.Outcome{stored(""), {}}}},
		"outcomes that go back":     {Sequence: 1, Error: &typesv1.Error{Outcomes: []*typesv1.Outcome{stored("b"), stored("a")}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &wrongPlugin{answer: func(_ *pluginv1.AppendRequest, s grpc.BidiStreamingServer[pluginv1.AppendRequest, pluginv1.AppendResponse]) error {
				return s.Send(answer)
			}}
			w := open(t, p.serve(t), "orders", 1, 1)
			_, err := w.Append(soon(t), []message.Message{data("x"), data("y")})
			var each *walimpls.BatchError
			if !errors.As(err, &each) {
				t.Fatalf("Append: %v", err)
			}
			for i, o := range each.Outcomes {
				if o.State != walimpls.Unknown || !errors.Is(o.Err, walimpls.ErrUnknownOutcome) || !strings.Contains(o.Err.Error(), "breaks the protocol") {
					t.Errorf("record %d: %+v", i, o)
				}
			}
			<-w.Broken()
			if _, err := w.Append(soon(t), []message.Message{data("z")}); !errors.Is(err, walimpls.ErrUnavailable) || errors.Is(err, walimpls.ErrUnknownOutcome) {
				t.Errorf("Append behind it: %v", err)
			}
		})
	}
}

func TestAnErrorWithoutOutcomesIsForAllRecords(t *testing.T) {
	send := &typesv1.Error{Code: "no_space", Message: "full"}
	p := &wrongPlugin{answer: func(r *pluginv1.AppendRequest, s grpc.BidiStreamingServer[pluginv1.AppendRequest, pluginv1.AppendResponse]) error {
		return s.Send(&pluginv1.AppendResponse{Sequence: r.GetSequence(), Error: send})
	}}
	w := open(t, p.serve(t), "orders", 1, 1)
	_, err := w.Append(soon(t), []message.Message{data("x"), data("y")})
	var each *walimpls.BatchError
	if !errors.As(err, &each) || each.Outcomes[1].State != walimpls.NotStored || !errors.Is(err, walimpls.ErrNoSpace) {
		t.Errorf("%v", err)
	}
	send = &typesv1.Error{Code: "unknown_outcome"}
	if _, err = w.Append(soon(t), []message.Message{data("x")}); !errors.As(err, &each) || each.Outcomes[0].State != walimpls.Unknown {
		t.Errorf("%v", err)
	}
	<-w.Broken()
}

func TestStreamThatEndsInMidFlightIsUnknown(t *testing.T) {
	for name, end := range map[string]error{
		"cleanly":        nil,
		"with an error":  wire.StatusError(walimpls.Errorf(walimpls.CodeInternal, "", "lost my mind")),
		"as not a typed": errors.New("untyped"),
	} {
		t.Run(name, func(t *testing.T) {
			p := &wrongPlugin{answer: func(*pluginv1.AppendRequest, grpc.BidiStreamingServer[pluginv1.AppendRequest, pluginv1.AppendResponse]) error {
				if end == nil {
					return errStop
				}
				return end
			}}
			w := open(t, p.serve(t), "orders", 1, 1)
			if _, err := w.Append(soon(t), []message.Message{data("x")}); !errors.Is(err, walimpls.ErrUnknownOutcome) {
				t.Errorf("%v", err)
			}
			<-w.Broken()
		})
	}
}

var errStop = wire.StatusError(walimpls.Errorf(walimpls.CodeClosed, "", "closed"))

func TestReadsThatBreakTheProtocolEndTheScanner(t *testing.T) {
	resolved := &pluginv1.ReadResponse{Resolved: &pluginv1.Start{Policy: pluginv1.Start_POLICY_ALL}}
	record := func(size int) *typesv1.Record { return &typesv1.Record{Id: []byte("a"), Payload: make([]byte, size)} }
	for name, sends := range map[string][]*pluginv1.ReadResponse{
		"latest is not a position":       {{Resolved: &pluginv1.Start{Policy: pluginv1.Start_POLICY_LATEST}}},
		"no position":                    {{}},
		"records before the position":    {{Resolved: resolved.Resolved, Records: []*typesv1.Record{record(1)}}},
		"more records than credit":       {resolved, {Records: []*typesv1.Record{record(1), record(1), record(1)}}},
		"more bytes than credit":         {resolved, {Records: []*typesv1.Record{record(100), record(1)}}},
		"anything at all without credit": {resolved, {Records: []*typesv1.Record{record(100)}}, {Records: []*typesv1.Record{record(1)}}},
		"a record that cannot be":        {resolved, {Records: []*typesv1.Record{{Term: -1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &wrongPlugin{read: func(_ *pluginv1.ReadRequest, s grpc.BidiStreamingServer[pluginv1.ReadRequest, pluginv1.ReadResponse]) error {
				for _, r := range sends {
					if err := s.Send(r); err != nil {
						return err
					}
				}
				return nil
			}}
			w := open(t, p.serve(t), "orders", 1, 1)
			s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromAll(), BufferRecords: 2, BufferBytes: 100})
			if err == nil {
				<-remote.Ended(s.(*remote.Scanner)) // before any credit is given back
			}
			for err == nil {
				_, err = s.Next(soon(t))
			}
			if !errors.Is(err, walimpls.ErrInternal) || !strings.Contains(err.Error(), "breaks the protocol") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestDescriptionsThatAreNotValidAreRefused(t *testing.T) {
	p := &wrongPlugin{describe: func(d *pluginv1.DescribeResponse) { d.IdLayout = "u7"; d.Limits = nil }}
	c := p.serve(t)
	if _, err := c.Describe(soon(t)); !errors.Is(err, walimpls.ErrInternal) || !strings.Contains(err.Error(), "u7") || !strings.Contains(err.Error(), "limits") {
		t.Errorf("Describe: %v", err)
	}
	if _, err := c.Open(soon(t), walimpls.OpenOptions{Channel: "orders", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite}); !errors.Is(err, walimpls.ErrInternal) {
		t.Errorf("Open: %v", err)
	}
}

func TestServiceThatIsNotThereIsUnsupported(t *testing.T) {
	if err := (&wrongPlugin{}).serve(t).Configure(soon(t), nil); !errors.Is(err, walimpls.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}
