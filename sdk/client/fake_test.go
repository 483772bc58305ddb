package client

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBound = 20 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testBound)
	t.Cleanup(cancel)
	return ctx
}

// fakeHost answers as a test says. The zero funcs are those of a host that has
// the channel "orders" and stores everything.
type fakeHost struct {
	walv1.UnimplementedWALServiceServer
	walv1.UnimplementedAdminServiceServer
	addr   string
	server *grpc.Server

	unary  func(context.Context, *walv1.AppendRequest) (*walv1.AppendResponse, error)
	stream func(walv1.WALService_AppendStreamServer) error
	read   func(*walv1.ReadRequest, walv1.WALService_ReadServer) error
	status func() (*walv1.StatusResponse, error)
	remove func(context.Context) error

	mu     sync.Mutex // guards all below
	conns  []net.Conn
	seen   []*walv1.AppendStreamRequest // all requests of all streams
	reads  []*walv1.ReadRequest
	stored uint64
}

func newFake(t testing.TB, change func(*fakeHost)) *fakeHost {
	t.Helper()
	f := &fakeHost{}
	if change != nil {
		change(f)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.addr = lis.Addr().String()
	f.server = grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32))
	walv1.RegisterWALServiceServer(f.server, f)
	walv1.RegisterAdminServiceServer(f.server, f)
	var wg sync.WaitGroup
	wg.Go(func() { _ = f.server.Serve(&trackingListener{Listener: lis, f: f}) })
	t.Cleanup(func() { f.server.Stop(); wg.Wait() })
	return f
}

type trackingListener struct {
	net.Listener
	f *fakeHost
}

func (l *trackingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.f.mu.Lock()
		l.f.conns = append(l.f.conns, conn)
		l.f.mu.Unlock()
	}
	return conn, err
}

// cut closes every connection.
func (f *fakeHost) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

func (f *fakeHost) requests() []*walv1.AppendStreamRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*walv1.AppendStreamRequest(nil), f.seen...)
}

func (f *fakeHost) results(n int) []*walv1.AppendResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*walv1.AppendResult, n)
	for i := range out {
		f.stored++
		out[i] = &walv1.AppendResult{State: typesv1.Outcome_STATE_STORED, Id: itoa(f.stored), Term: 1}
	}
	return out
}

func (f *fakeHost) Append(ctx context.Context, req *walv1.AppendRequest) (*walv1.AppendResponse, error) {
	if f.unary != nil {
		return f.unary(ctx, req)
	}
	return &walv1.AppendResponse{Results: f.results(len(req.GetRecords()))}, nil
}

// greet answers the first message.
func (f *fakeHost) greet(s walv1.WALService_AppendStreamServer) error {
	if _, err := f.next(s); err != nil {
		return err
	}
	return s.Send(&walv1.AppendStreamResponse{})
}

func (f *fakeHost) next(s walv1.WALService_AppendStreamServer) (*walv1.AppendStreamRequest, error) {
	req, err := s.Recv()
	if err == nil {
		f.mu.Lock()
		f.seen = append(f.seen, req)
		f.mu.Unlock()
	}
	return req, err
}

func (f *fakeHost) answer(s walv1.WALService_AppendStreamServer, req *walv1.AppendStreamRequest) error {
	return s.Send(&walv1.AppendStreamResponse{Sequence: req.GetSequence(), Results: f.results(len(req.GetRecords()))})
}

func (f *fakeHost) AppendStream(s walv1.WALService_AppendStreamServer) error {
	if f.stream != nil {
		return f.stream(s)
	}
	if err := f.greet(s); err != nil {
		return err
	}
	for {
		req, err := f.next(s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.answer(s, req); err != nil {
			return err
		}
	}
}

func (f *fakeHost) Read(req *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
	f.mu.Lock()
	f.reads = append(f.reads, req)
	f.mu.Unlock()
	return f.read(req, s)
}

func (f *fakeHost) Status(context.Context, *walv1.StatusRequest) (*walv1.StatusResponse, error) {
	return f.status()
}

func (f *fakeHost) RemoveChannel(ctx context.Context, _ *walv1.RemoveChannelRequest) (*walv1.RemoveChannelResponse, error) {
	return &walv1.RemoveChannelResponse{}, f.remove(ctx)
}

func (f *fakeHost) client(t testing.TB, opts ...Option) *Client {
	t.Helper()
	c, err := Dial(testContext(t), f.addr, opts...)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func codeOf(err error) walimpls.Code {
	if err == nil {
		return ""
	}
	return walimpls.AsError(err).Code
}
