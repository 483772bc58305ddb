package plugin_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/plugintest"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// raw speaks the protocol by hand, as a host in another language would.
func raw(t *testing.T, b *membackend.Backend) (pluginv1.BackendServiceClient, *pluginv1.OpenResponse) {
	t.Helper()
	h := plugintest.Start(t, b)
	conn, err := grpc.NewClient("unix:"+h.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	rpc := pluginv1.NewBackendServiceClient(conn)
	if _, err := rpc.Configure(soon(t), &pluginv1.ConfigureRequest{}); err != nil {
		t.Fatal(err)
	}
	resp, err := rpc.Open(soon(t), &pluginv1.OpenRequest{Channel: "orders", Term: 1, Incarnation: 1})
	if err != nil {
		t.Fatal(err)
	}
	return rpc, resp
}

func attach(t *testing.T, rpc pluginv1.BackendServiceClient, first *pluginv1.AppendRequest) (grpc.BidiStreamingClient[pluginv1.AppendRequest, pluginv1.AppendResponse], error) {
	t.Helper()
	s, err := rpc.Append(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(first); err != nil {
		t.Fatal(err)
	}
	resp, err := s.Recv()
	if err == nil && resp.GetSequence() != 0 {
		t.Errorf("the first answer has sequence %d", resp.GetSequence())
	}
	return s, wire.FromStatus(err)
}

func record(payload string) []*typesv1.Record {
	return []*typesv1.Record{{Type: 1, Payload: []byte(payload)}}
}

func TestAppendStreamThatBeginsWrongIsRefused(t *testing.T) {
	rpc, opened := raw(t, &membackend.Backend{})
	if _, err := attach(t, rpc, &pluginv1.AppendRequest{Handle: 99}); !errors.Is(err, walimpls.ErrClosed) {
		t.Errorf("a handle that is not open: %v", err)
	}
	for _, first := range []*pluginv1.AppendRequest{
		{Handle: opened.GetHandle(), Records: record("x")}, {Handle: opened.GetHandle(), Sequence: 1},
	} {
		if _, err := attach(t, rpc, first); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%v: %v", first, err)
		}
	}
	if _, err := attach(t, rpc, &pluginv1.AppendRequest{Handle: opened.GetHandle()}); err != nil {
		t.Fatal(err)
	}
	if _, err := attach(t, rpc, &pluginv1.AppendRequest{Handle: opened.GetHandle()}); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("a second stream: %v", err)
	}
}

func TestRequestsThatBreakTheProtocolEndTheStreamAndStoreNothing(t *testing.T) {
	for name, req := range map[string]*pluginv1.AppendRequest{
		"sequence":    {Sequence: 7, Records: record("x")},
		"no sequence": {Records: record("x")},
		"bad record":  {Sequence: 1, Records: []*typesv1.Record{{Term: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &membackend.Backend{}
			rpc, opened := raw(t, b)
			s, err := attach(t, rpc, &pluginv1.AppendRequest{Handle: opened.GetHandle()})
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Send(req)
			if _, err := s.Recv(); !errors.Is(wire.FromStatus(err), walimpls.ErrInvalidArgument) {
				t.Errorf("%v", err)
			}
			if b.Appends.Load() != 0 {
				t.Error("it was handed to the backend")
			}
		})
	}
}

func TestHalfCloseIsAnsweredInFullAndClosesTheHandle(t *testing.T) {
	rpc, opened := raw(t, &membackend.Backend{})
	s, err := attach(t, rpc, &pluginv1.AppendRequest{Handle: opened.GetHandle()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := s.Send(&pluginv1.AppendRequest{Sequence: uint64(i + 1), Records: record("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if resp, err := s.Recv(); err != nil || resp.GetSequence() != uint64(i+1) || len(resp.GetIds()) != 1 {
			t.Fatalf("answer %d: %v, %v", i+1, resp, err)
		}
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	ctx := soon(t)
	for err = nil; !errors.Is(err, walimpls.ErrClosed) && ctx.Err() == nil; {
		_, err = rpc.Bounds(ctx, &pluginv1.BoundsRequest{Handle: opened.GetHandle()})
		err = wire.FromStatus(err)
	}
	if !errors.Is(err, walimpls.ErrClosed) {
		t.Errorf("the handle: %v", err)
	}
}

func TestWrongCreditEndsTheRead(t *testing.T) {
	rpc, opened := raw(t, &membackend.Backend{})
	start := &pluginv1.ReadStart{Handle: opened.GetHandle(), Start: &pluginv1.Start{Policy: pluginv1.Start_POLICY_LATEST}}
	for name, second := range map[string]*pluginv1.ReadRequest{
		"negative":       {Records: -1},
		"a second start": {Start: start},
	} {
		s, err := rpc.Read(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&pluginv1.ReadRequest{Start: start, Records: 10, Bytes: 10}); err != nil {
			t.Fatal(err)
		}
		if resp, err := s.Recv(); err != nil || resp.GetResolved().GetPolicy() != pluginv1.Start_POLICY_AFTER {
			t.Fatalf("%v %v", resp, err)
		}
		_ = s.Send(second)
		if _, err := s.Recv(); !errors.Is(wire.FromStatus(err), walimpls.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, first := range map[string]*pluginv1.ReadRequest{
		"no start":                  {Records: 1, Bytes: 1},
		"a handle that is not open": {Start: &pluginv1.ReadStart{Handle: 99}},
	} {
		s, err := rpc.Read(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(first)
		if _, err := s.Recv(); !errors.Is(wire.FromStatus(err), walimpls.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadThatIsHalfClosedEndsCleanly(t *testing.T) {
	rpc, opened := raw(t, &membackend.Backend{})
	s, err := rpc.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&pluginv1.ReadRequest{
		Start: &pluginv1.ReadStart{Handle: opened.GetHandle(), Start: &pluginv1.Start{Policy: pluginv1.Start_POLICY_LATEST}}, Records: 1, Bytes: 1,
	}); err != nil {
		t.Fatal(err)
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}
