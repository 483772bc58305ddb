package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// closedAddr is an address where nobody listens.
func closedAddr(t testing.TB) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, lis.Close())
	return lis.Addr().String()
}

func TestHostThatIsNotThereIsNamed(t *testing.T) {
	addr, ctx := closedAddr(t), testContext(t)
	said := func(err error) {
		t.Helper()
		if !errors.Is(err, walimpls.ErrUnreachable) || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "refused") ||
			!strings.Contains(walimpls.AsError(err).Hint, "walrig serve") {
			t.Errorf("got %v (hint %q)", err, walimpls.AsError(err).Hint)
		}
	}
	_, err := Dial(ctx, addr)
	said(err)
	c, err := Dial(ctx, addr, WithLazyConnect())
	must(t, err)
	defer c.Close()
	if c.Addr() != addr {
		t.Errorf("address %s", c.Addr())
	}
	results, err := c.Append(ctx, "orders", record(1), record(2))
	said(err)
	if len(results) != 2 || results[1].State != walimpls.NotStored {
		t.Errorf("results %+v", results)
	}
	_, err = c.NewAppender(ctx, "orders", AppenderOptions{})
	said(err)
	_, err = c.NewReader(ctx, "orders", ReadOptions{Follow: true})
	said(err)
	said(c.RemoveChannel(ctx, "orders", true))
	_, err = c.Status(ctx)
	said(err)
}

func TestHostThatDoesNotAnswerIsUnreachableInTime(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer lis.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, lis.Addr().String())
	mustBe(t, err, walimpls.ErrUnreachable)
}

func TestDialRefusesWhatCannotWork(t *testing.T) {
	ctx := testContext(t)
	for _, addr := range []string{"", "localhost", "127.0.0.1:", "http://127.0.0.1:7700"} {
		if _, err := Dial(ctx, addr, WithLazyConnect()); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if _, err := Dial(ctx, "192.0.2.1:7700", WithLazyConnect(), WithToken("x")); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("a token in the clear: %v", err)
	}
	for _, opts := range [][]Option{
		{WithToken("x"), WithInsecure()}, {WithToken("x"), WithTLS(&tls.Config{})}, {},
	} {
		c, err := Dial(ctx, "192.0.2.1:7700", append(opts, WithLazyConnect())...)
		must(t, err)
		must(t, c.Close())
		mustBe(t, c.Close(), walimpls.ErrClosed)
	}
}

func TestTokenIsSentWithEachCall(t *testing.T) {
	var mu sync.Mutex
	var tokens []string
	note := func(ctx context.Context) {
		mu.Lock()
		defer mu.Unlock()
		md, _ := metadata.FromIncomingContext(ctx)
		tokens = append(tokens, md.Get("authorization")...)
	}
	f := newFake(t, nil)
	f.unary = func(ctx context.Context, req *walv1.AppendRequest) (*walv1.AppendResponse, error) {
		note(ctx)
		return &walv1.AppendResponse{Results: f.results(1)}, nil
	}
	f.read = func(_ *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
		note(s.Context())
		return s.Send(&walv1.ReadResponse{})
	}
	c, ctx := f.client(t, WithToken("secret")), testContext(t)
	_, err := c.Append(ctx, "orders", record(1))
	must(t, err)
	r, err := c.NewReader(ctx, "orders", ReadOptions{})
	must(t, err)
	must(t, r.Close())
	if strings.Join(tokens, "|") != "Bearer secret|Bearer secret" {
		t.Errorf("tokens %q", tokens)
	}
}

func TestUnaryAppendTellsUnknownFromNotStored(t *testing.T) {
	ctx := testContext(t)
	table := []struct {
		name  string
		reply func(ctx context.Context, f *fakeHost) (*walv1.AppendResponse, error)
		state walimpls.State
		code  walimpls.Code
	}{
		{"typed error", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return nil, wire.StatusError(walimpls.Errorf(walimpls.CodeNotFound, "orders", "no such channel"))
		}, walimpls.NotStored, walimpls.CodeNotFound},
		{"typed unknown", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return nil, wire.StatusError(walimpls.Errorf(walimpls.CodeUnknownOutcome, "orders", "a defect"))
		}, walimpls.Unknown, walimpls.CodeUnknownOutcome},
		{"untyped error", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return nil, status.Error(codes.Internal, "proxy")
		}, walimpls.Unknown, walimpls.CodeUnknownOutcome},
		{"refused by a proxy", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return nil, status.Error(codes.PermissionDenied, "no")
		}, walimpls.NotStored, walimpls.CodePermissionDenied},
		{"not a walrig host", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return nil, status.Error(codes.Unimplemented, "what?")
		}, walimpls.NotStored, walimpls.CodeUnsupported},
		{"deadline", func(ctx context.Context, _ *fakeHost) (*walv1.AppendResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, walimpls.Unknown, walimpls.CodeUnknownOutcome},
		{"too few results", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return &walv1.AppendResponse{}, nil
		}, walimpls.Unknown, walimpls.CodeUnknownOutcome},
		{"no reason", func(context.Context, *fakeHost) (*walv1.AppendResponse, error) {
			return &walv1.AppendResponse{Results: []*walv1.AppendResult{{State: typesv1.Outcome_STATE_NOT_STORED}}}, nil
		}, walimpls.NotStored, walimpls.CodeInternal},
		{"cut", func(ctx context.Context, f *fakeHost) (*walv1.AppendResponse, error) {
			f.cut()
			<-ctx.Done()
			return nil, ctx.Err()
		}, walimpls.Unknown, walimpls.CodeUnknownOutcome},
	}
	for _, row := range table {
		var calls atomic.Int64
		f := newFake(t, func(f *fakeHost) {
			f.unary = func(ctx context.Context, _ *walv1.AppendRequest) (*walv1.AppendResponse, error) {
				calls.Add(1)
				return row.reply(ctx, f)
			}
		})
		c := f.client(t)
		callCtx, cancel := ctx, context.CancelFunc(func() {})
		if row.name == "deadline" {
			callCtx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
		}
		results, err := c.Append(callCtx, "orders", record(1))
		cancel()
		if len(results) != 1 || results[0].State != row.state || codeOf(err) != row.code || codeOf(results[0].Err) != row.code {
			t.Errorf("%s: %+v, %v", row.name, results, err)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%s: sent %d times", row.name, n)
		}
		if results, err := c.Append(ctx, "orders"); results != nil || err != nil {
			t.Errorf("no record: %v, %v", results, err)
		}
	}
}

func TestAdminCallsTellUnknownFromTimeout(t *testing.T) {
	f := newFake(t, func(f *fakeHost) {
		f.remove = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		f.status = func() (*walv1.StatusResponse, error) { return nil, status.Error(codes.DeadlineExceeded, "slow") }
	})
	c, ctx := f.client(t, WithTimeout(500*time.Millisecond)), context.Background()
	mustBe(t, c.RemoveChannel(ctx, "orders", true), walimpls.ErrUnknownOutcome)
	_, err := c.Status(ctx)
	mustBe(t, err, walimpls.ErrTimeout)
	mustBe(t, err, context.DeadlineExceeded)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := c.RemoveChannel(canceled, "orders", true); codeOf(err) != walimpls.CodeCanceled {
		t.Errorf("canceled before it was sent: %v", err)
	}
	must(t, c.Close())
	mustBe(t, c.RemoveChannel(ctx, "orders", true), walimpls.ErrClosed)
	mustBe(t, c.Connect(ctx), walimpls.ErrClosed)
}

func TestWaitReadyAsksUntilTheHostIsReady(t *testing.T) {
	var asked, from atomic.Int64
	var refuse atomic.Bool
	f := newFake(t, func(f *fakeHost) {
		f.status = func() (*walv1.StatusResponse, error) {
			if refuse.Load() {
				return nil, wire.StatusError(walimpls.Errorf(walimpls.CodePermissionDenied, "", "no"))
			}
			return &walv1.StatusResponse{Ready: asked.Add(1) >= from.Load()}, nil
		}
	})
	from.Store(3)
	c := f.client(t)
	st, err := c.WaitReady(testContext(t))
	must(t, err)
	if !st.GetReady() || asked.Load() != 3 {
		t.Errorf("asked %d times: %v", asked.Load(), st)
	}
	from.Store(1 << 40)
	short, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	st, err = c.WaitReady(short)
	if codeOf(err) != walimpls.CodeTimeout || st == nil {
		t.Errorf("%v, %v", st, err)
	}
	refuse.Store(true)
	if _, err := c.WaitReady(testContext(t)); codeOf(err) != walimpls.CodePermissionDenied {
		t.Errorf("got %v", err)
	}
}

// batch sends records with the ids.
func batch(resume string, ids ...string) *walv1.ReadResponse {
	resp := &walv1.ReadResponse{Resume: resume}
	for _, id := range ids {
		resp.Records = append(resp.Records, &walv1.ReadRecord{Id: id, Record: &typesv1.Record{Type: 1, Payload: []byte(id)}})
	}
	return resp
}

func nextIDs(t testing.TB, r *Reader, n int) string {
	t.Helper()
	var ids []string
	for range n {
		m, err := r.Next(testContext(t))
		must(t, err)
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

func (f *fakeHost) froms() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, req := range f.reads {
		out = append(out, req.GetFrom()+"~"+req.GetUntil())
	}
	return strings.Join(out, " ")
}

// TestReaderGoesOnWhereItWas over every kind of end that may pass.
func TestReaderGoesOnWhereItWas(t *testing.T) {
	var step atomic.Int64
	two := make(chan struct{})
	f := newFake(t, nil)
	f.read = func(req *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
		switch step.Add(1) {
		case 1:
			must(t, s.Send(batch("after:10"))) // latest, resolved
			must(t, s.Send(batch("after:12", "11", "12")))
			<-two
			f.cut()
		case 2:
			must(t, s.Send(batch("after:12")))
			must(t, s.Send(batch("after:13", "13")))
			return wire.StatusError(walimpls.Errorf(walimpls.CodeShutdown, "orders", "stopping"))
		case 3:
			return wire.StatusError(walimpls.Errorf(walimpls.CodePluginStart, "orders", "the plugin is starting"))
		case 4:
			must(t, s.Send(batch("after:20"))) // 14 to 20 are not for this reader
			return wire.StatusError(walimpls.Errorf(walimpls.CodeTermExpired, "orders", "taken over"))
		case 5:
			return wire.StatusError(walimpls.Errorf(walimpls.CodeClosed, "orders", "the wal of term 3 is closed"))
		default:
			must(t, s.Send(batch("after:21", "21")))
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	r, err := f.client(t).NewReader(testContext(t), "orders", ReadOptions{From: "latest", Follow: true})
	must(t, err)
	got := nextIDs(t, r, 2)
	close(two)
	if got += " " + nextIDs(t, r, 2); got != "11 12 13 21" {
		t.Errorf("read %s", got)
	}
	must(t, r.Close())
	if got := f.froms(); got != "latest~ after:12~ after:13~ after:13~ after:20~ after:20~" {
		t.Errorf("asked from %s", got)
	}
	_, err = r.Next(testContext(t))
	mustBe(t, err, walimpls.ErrClosed)
	must(t, r.Close())
}

func TestBoundedReaderKeepsItsEndOverABreak(t *testing.T) {
	var step atomic.Int64
	f := newFake(t, nil)
	f.read = func(req *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
		if step.Add(1) == 1 {
			first := batch("after:1", "1")
			first.End = "2"
			must(t, s.Send(first))
			return status.Error(codes.Unavailable, "gone")
		}
		must(t, s.Send(batch("after:1")))
		last := batch("after:2", "2")
		last.CaughtUp = true
		return s.Send(last)
	}
	r, err := f.client(t).NewReader(testContext(t), "orders", ReadOptions{})
	must(t, err)
	defer r.Close()
	if got := nextIDs(t, r, 2); got != "1 2" {
		t.Errorf("read %s", got)
	}
	if _, err := r.Next(testContext(t)); !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %v", err)
	}
	select {
	case <-r.CaughtUp():
	default:
		t.Error("it has not caught up")
	}
	if got := f.froms(); got != "all~ after:1~2" {
		t.Errorf("asked from %s", got)
	}
}

func TestReaderEndsForGood(t *testing.T) {
	lost := walimpls.NewPositionLostError("orders", walimpls.Bounds{Earliest: "\x05", Latest: "\x09"}, "truncated")
	p := wire.ErrorToProto(lost)
	p.PositionLost.EarliestText, p.PositionLost.LatestText = "5", "9"
	st, err := status.New(codes.OutOfRange, "truncated").WithDetails(p)
	must(t, err)
	var gone atomic.Bool
	f := newFake(t, func(f *fakeHost) {
		f.read = func(_ *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
			must(t, s.Send(batch("after:1", "1")))
			if gone.Load() {
				return status.Error(codes.Unavailable, "gone")
			}
			return st.Err()
		}
	})
	c := f.client(t)
	r, err := c.NewReader(testContext(t), "orders", ReadOptions{Follow: true})
	must(t, err)
	nextIDs(t, r, 1)
	var typed *PositionLostError
	for range 2 {
		if _, err := r.Next(testContext(t)); !errors.As(err, &typed) || typed.EarliestText != "5" || typed.LatestText != "9" || typed.Earliest != "\x05" {
			t.Fatalf("got %v", err)
		}
	}
	must(t, r.Close())

	// No retry was asked for.
	gone.Store(true)
	r, err = c.NewReader(testContext(t), "orders", ReadOptions{Follow: true, RetryFor: -1})
	must(t, err)
	nextIDs(t, r, 1)
	_, err = r.Next(testContext(t))
	mustBe(t, err, walimpls.ErrUnreachable)
	must(t, r.Close())

	// The time for it is over.
	r, err = c.NewReader(testContext(t), "orders", ReadOptions{Follow: true, RetryFor: time.Millisecond})
	must(t, err)
	nextIDs(t, r, 1)
	f.server.Stop()
	for err == nil {
		_, err = r.Next(testContext(t))
	}
	mustBe(t, err, walimpls.ErrUnreachable)
	must(t, r.Close())
}

func TestReaderEndsWithItsClient(t *testing.T) {
	f := newFake(t, func(f *fakeHost) {
		f.read = func(_ *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
			must(t, s.Send(batch("all")))
			<-s.Context().Done()
			return s.Context().Err()
		}
	})
	c := f.client(t)
	r, err := c.NewReader(context.Background(), "orders", ReadOptions{Follow: true})
	must(t, err)
	must(t, c.Close())
	_, err = r.Next(testContext(t))
	mustBe(t, err, walimpls.ErrClosed)
	must(t, r.Close())
}

func TestStreamsOfAHostThatDoesNotAnswerTimeOut(t *testing.T) {
	f := newFake(t, func(f *fakeHost) {
		f.read = func(_ *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
			<-s.Context().Done()
			return s.Context().Err()
		}
		f.stream = func(s walv1.WALService_AppendStreamServer) error {
			<-s.Context().Done()
			return s.Context().Err()
		}
	})
	c := f.client(t, WithTimeout(50*time.Millisecond))
	_, err := c.NewReader(context.Background(), "orders", ReadOptions{Follow: true})
	mustBe(t, err, walimpls.ErrTimeout)
	_, err = c.NewAppender(context.Background(), "orders", AppenderOptions{})
	mustBe(t, err, walimpls.ErrTimeout)
}

func TestReaderEndsWithItsContext(t *testing.T) {
	f := newFake(t, nil)
	f.read = func(_ *walv1.ReadRequest, s walv1.WALService_ReadServer) error {
		must(t, s.Send(batch("all")))
		<-s.Context().Done()
		return s.Context().Err()
	}
	c := f.client(t)
	for _, code := range []walimpls.Code{walimpls.CodeTimeout, walimpls.CodeCanceled} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		r, err := c.NewReader(ctx, "orders", ReadOptions{Follow: true})
		must(t, err)
		if code == walimpls.CodeCanceled {
			cancel()
		}
		if _, err := r.Next(testContext(t)); codeOf(err) != code {
			t.Errorf("got %v, want %s", err, code)
		}
		cancel()
		must(t, r.Close())
	}
}
