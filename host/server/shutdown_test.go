package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

func (h *host) health() healthv1.HealthClient {
	h.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+h.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	return healthv1.NewHealthClient(conn)
}

// TestHealthServesOnlyWhileTheHostIsReady holds back one plugin's first start,
// then one channel's first word.
func TestHealthServesOnlyWhileTheHostIsReady(t *testing.T) {
	h := newHost(t, Options{ReportAfter: time.Minute})
	ctx := testContext(t)
	h.create("orders")
	h.stop()
	p := h.plugin()
	p.mu.Lock()
	p.started = make(chan struct{})
	p.mu.Unlock()
	p.rules(t, "open block until released")
	h.start(h.addr)
	health := h.health()
	services := []string{"", walv1.WALService_ServiceDesc.ServiceName, walv1.AdminService_ServiceDesc.ServiceName}
	is := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range services {
			resp, err := health.Check(ctx, &healthv1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
			must(t, err)
			if resp.GetStatus() != want {
				t.Errorf("service %q is %s, want %s", service, resp.GetStatus(), want)
			}
		}
	}
	is(healthv1.HealthCheckResponse_NOT_SERVING)
	close(p.started)
	must(t, p.ctl.WaitFor(ctx, func(s faultbackend.Stats) bool { return s.Waiting["open"] > 0 }))
	is(healthv1.HealthCheckResponse_NOT_SERVING)
	st, err := h.client().Status(ctx)
	must(t, err)
	if st.GetReady() {
		t.Error("the status says ready")
	}
	p.rules(t, "")
	h.awaitReady()
	is(healthv1.HealthCheckResponse_SERVING)

	watch, err := health.Watch(ctx, &healthv1.HealthCheckRequest{})
	must(t, err)
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING} {
		resp, err := watch.Recv()
		must(t, err)
		if resp.GetStatus() != want {
			t.Errorf("watch: %s, want %s", resp.GetStatus(), want)
		}
		if want == healthv1.HealthCheckResponse_SERVING {
			go h.srv.Shutdown(context.Background())
		}
	}
}

func TestWaitReadyWaitsForAHostThatIsNotThereYet(t *testing.T) {
	h := newHost(t, Options{})
	h.stop()
	c := dial(t, h.addr, client.WithLazyConnect())
	short, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	_, err := c.WaitReady(short)
	mustBe(t, err, walimpls.ErrUnreachable)
	done := make(chan error, 1)
	go func() {
		st, err := c.WaitReady(testContext(t))
		if err == nil && !st.GetReady() {
			err = errors.New("not ready")
		}
		done <- err
	}()
	h.start(h.addr)
	must(t, <-done)
}

// TestShutdownLetsAppendsEnd: what is under way gets its outcome, what comes
// after that is not stored, and both are true.
func TestShutdownLetsAppendsEnd(t *testing.T) {
	h := newHost(t, Options{DrainTimeout: 10 * time.Second})
	c, ctx := h.create("orders"), testContext(t)
	h.plugin().rules(t, "append delay-ack 100ms")
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{RequestRecords: 10, InFlight: 8})
	must(t, err)
	var futures []*client.Future
	for i := range 500 {
		futures = append(futures, a.Append(client.Record{Payload: fmt.Append(nil, i)}))
	}
	must(t, h.plugin().ctl.WaitFor(ctx, func(s faultbackend.Stats) bool { return s.Waiting["append"] > 0 }))
	unary := make(chan error, 1)
	go func() { _, err := c.Append(ctx, "orders", texts("unary")...); unary <- err }()
	h.stop()
	closeErr := a.Close(ctx)
	var stored []string
	for i, f := range futures {
		switch r := f.Result(); r.State {
		case walimpls.Stored:
			stored = append(stored, fmt.Sprint(i))
		case walimpls.NotStored:
		default:
			t.Errorf("record %d is %s: %v", i, r.State, r.Err)
		}
	}
	if len(stored) == 0 || len(stored) < 500 && !errors.Is(closeErr, walimpls.ErrShutdown) {
		t.Errorf("%d records were stored, then %v", len(stored), closeErr)
	}
	if err := <-unary; err == nil {
		stored = append(stored, "unary")
	} else if !errors.Is(err, walimpls.ErrShutdown) && !errors.Is(err, walimpls.ErrUnreachable) {
		t.Errorf("unary: %v", err)
	}
	h.plugin().rules(t, "")
	h.start(h.addr)
	got := readAll(t, h.client(), "orders", client.ReadOptions{})
	slices.Sort(got)
	slices.Sort(stored)
	if !slices.Equal(got, stored) {
		t.Errorf("the log holds %d records, reported were %d", len(got), len(stored))
	}
}

// TestShutdownIsBounded hangs everything that can hang.
func TestShutdownIsBounded(t *testing.T) {
	h := newHost(t, Options{DrainTimeout: 300 * time.Millisecond})
	c, ctx := h.create("orders"), testContext(t)
	appendAll(t, c, "orders", "first")
	follower, err := c.NewReader(ctx, "orders", client.ReadOptions{Follow: true, RetryFor: -1})
	must(t, err)
	defer follower.Close()
	take(t, follower, 1)
	watch, err := h.health().Watch(ctx, &healthv1.HealthCheckRequest{})
	must(t, err)
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	h.plugin().rules(t, "append block until released; open block until released; bounds block until released")
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(t, err)
	hung := a.Append(client.Record{Payload: []byte("hung")})
	unary := make(chan []client.Result, 1)
	go func() { r, _ := c.Append(ctx, "orders", texts("unary")...); unary <- r }()
	opening := make(chan error, 1)
	go func() { _, _, err := c.CreateChannel(ctx, "new", client.CreateOptions{}); opening <- err }()
	must(t, h.plugin().ctl.WaitFor(ctx, func(s faultbackend.Stats) bool { return s.Waiting["append"] > 0 && s.Waiting["open"] > 0 }))

	begin := time.Now()
	h.srv.Shutdown(ctx)
	if took := time.Since(begin); took > 300*time.Millisecond+2*time.Second+time.Second {
		t.Errorf("took %s", took)
	}
	if _, err := follower.Next(ctx); !errors.Is(err, walimpls.ErrShutdown) {
		t.Errorf("follower: %v", err)
	}
	if r := hung.Result(); r.State == walimpls.Stored {
		t.Errorf("the hung record is %s", r.State)
	}
	if r := <-unary; r[0].State == walimpls.Stored {
		t.Errorf("the hung unary record is %s", r[0].State)
	}
	if err := <-opening; err == nil {
		t.Error("the channel was opened")
	}
	_ = a.Close(ctx)
	h.plugin().rules(t, "")
}

// proxy is a TCP proxy that can cut all its connections.
type proxy struct {
	lis    net.Listener
	target string
	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{lis: lis, target: target}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		in, err := p.lis.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		p.mu.Lock()
		if err != nil || p.closed {
			_ = in.Close()
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			p.wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
				_ = pair[1].Close()
			})
		}
	}
}

// cut resets every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	p.conns = nil
}

// TestCutConnectionMakesUnknownOfWhatWasHandedOver and of nothing else; what
// was not handed over is never stored, and nothing is stored twice.
func TestCutConnectionMakesUnknownOfWhatWasHandedOver(t *testing.T) {
	h := newHost(t, Options{})
	p := newProxy(t, h.addr)
	h.create("orders")
	c, ctx := dial(t, p.lis.Addr().String()), testContext(t)
	h.plugin().rules(t, "append block-ack until released")
	const inFlight, records = 3, 50
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{RequestRecords: 1, InFlight: inFlight})
	must(t, err)
	var futures []*client.Future
	for i := range records {
		futures = append(futures, a.Append(client.Record{Payload: fmt.Append(nil, i)}))
	}
	unary := make(chan error, 1)
	go func() { _, err := c.Append(ctx, "orders", texts("unary")...); unary <- err }()
	must(t, h.plugin().ctl.WaitFor(ctx, func(s faultbackend.Stats) bool { return s.Waiting["append"] > 0 }))
	p.cut()
	mustBe(t, <-unary, walimpls.ErrUnknownOutcome)
	mustBe(t, a.Close(ctx), walimpls.ErrUnknownOutcome)
	unknown := map[string]bool{"unary": true}
	for i, f := range futures {
		switch r := f.Result(); {
		case r.State == walimpls.Unknown && i < inFlight:
			unknown[fmt.Sprint(i)] = true
		case r.State == walimpls.NotStored && i > 0 && !errors.Is(r.Err, walimpls.ErrUnknownOutcome):
		default:
			t.Errorf("record %d is %s: %v", i, r.State, r.Err)
		}
	}
	h.plugin().rules(t, "")
	appendAll(t, h.client(), "orders", "marker")
	seen := map[string]bool{}
	for _, payload := range readAll(t, h.client(), "orders", client.ReadOptions{}) {
		if seen[payload] || !unknown[payload] && payload != "marker" {
			t.Errorf("%q is in the log", payload)
		}
		seen[payload] = true
	}
}

// TestReaderSurvivesCutConnections cuts again and again while records come in.
func TestReaderSurvivesCutConnections(t *testing.T) {
	h := newHost(t, Options{})
	p := newProxy(t, h.addr)
	c, ctx := h.create("orders"), testContext(t)
	through := dial(t, p.lis.Addr().String())
	follower, err := through.NewReader(ctx, "orders", client.ReadOptions{From: "latest", Follow: true})
	must(t, err)
	defer follower.Close()
	var want []string
	for round := range 10 {
		var batch []string
		for i := range 100 {
			batch = append(batch, fmt.Sprintf("%d-%d", round, i))
		}
		want = append(want, batch...)
		appendAll(t, c, "orders", batch...)
		if round%2 == 0 {
			take := take(t, follower, 50)
			if !slices.Equal(take, want[:50]) {
				t.Fatalf("read %q, want %q", take, want[:50])
			}
			want = want[50:]
		}
		p.cut()
	}
	if got := take(t, follower, len(want)); !slices.Equal(got, want) {
		t.Errorf("read %d records, not the right ones: %q", len(got), got)
	}
	// A bounded read ends where its first connection saw the end.
	bounded, err := through.NewReader(ctx, "orders", client.ReadOptions{})
	must(t, err)
	defer bounded.Close()
	take(t, bounded, 10)
	appendAll(t, c, "orders", "late")
	p.cut()
	n := 10
	for {
		m, err := bounded.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if n++; string(m.Payload) == "late" {
			t.Fatal("the read went beyond its end")
		}
	}
	if n != 1000 {
		t.Errorf("the bounded read got %d records", n)
	}
}

func TestServeRefusesWhatCannotWork(t *testing.T) {
	listen := func(addr string) net.Listener {
		lis, err := net.Listen("tcp", addr)
		must(t, err)
		return lis
	}
	ctx := testContext(t)
	mustBe(t, New(Options{}).Serve(ctx, listen("127.0.0.1:0")), walimpls.ErrConfig)
	opt := Options{Catalog: catalog.NewMemory(), Manager: (*walmanager.Manager)(nil), Plugins: fakePlugins{}}
	opt.Mode = "both"
	mustBe(t, New(opt).Serve(ctx, listen("127.0.0.1:0")), walimpls.ErrConfig)
	opt.Mode = ""
	broken := opt
	broken.Catalog = catalog.NewMemory()
	must(t, broken.Catalog.Close())
	mustBe(t, New(broken).Serve(ctx, listen("127.0.0.1:0")), walimpls.ErrClosed)

	srv := New(opt)
	done, cancel := context.WithCancel(ctx)
	cancel()
	must(t, srv.Serve(done, listen("127.0.0.1:0")))
	srv.Shutdown(ctx)
	early := New(opt)
	early.Shutdown(ctx)
	must(t, early.Serve(ctx, listen("127.0.0.1:0")))
}

func TestCheckListen(t *testing.T) {
	table := []struct {
		addr                string
		tls, auth, insecure bool
		ok                  bool
	}{
		{addr: "127.0.0.1:7700", ok: true},
		{addr: "127.1.2.3:0", ok: true},
		{addr: "[::1]:7700", ok: true},
		{addr: "localhost:7700", ok: true},
		{addr: ":7700"},
		{addr: "0.0.0.0:7700"},
		{addr: "[::]:7700"},
		{addr: "192.0.2.1:7700"},
		{addr: "example.com:7700"},
		{addr: "0.0.0.0:7700", tls: true},
		{addr: "0.0.0.0:7700", auth: true},
		{addr: "0.0.0.0:7700", tls: true, auth: true, ok: true},
		{addr: "0.0.0.0:7700", insecure: true, ok: true},
		{addr: "127.0.0.1", insecure: true},
		{addr: "", insecure: true},
		{addr: "127.0.0.1:", insecure: true},
	}
	for _, row := range table {
		err := CheckListen(row.addr, row.tls, row.auth, row.insecure)
		if row.ok != (err == nil) || err != nil && (!errors.Is(err, walimpls.ErrConfig) || hint(err) == "") {
			t.Errorf("%+v: %v", row, err)
		}
	}
}

func TestAuthRefusesWithItsOwnError(t *testing.T) {
	var methods sync.Map
	h := newHost(t, Options{Auth: func(ctx context.Context, method string) (context.Context, error) {
		methods.Store(method, true)
		return ctx, walimpls.Errorf(walimpls.CodeUnauthenticated, "", "no token")
	}})
	c, ctx := h.client(), testContext(t)
	results, err := c.Append(ctx, "orders", texts("x")...)
	if walimpls.AsError(err).Code != walimpls.CodeUnauthenticated || results[0].State != walimpls.NotStored {
		t.Errorf("append: %v, %v", results, err)
	}
	if _, err := c.NewReader(ctx, "orders", client.ReadOptions{}); walimpls.AsError(err).Code != walimpls.CodeUnauthenticated {
		t.Errorf("read: %v", err)
	}
	if _, err := c.NewAppender(ctx, "orders", client.AppenderOptions{}); walimpls.AsError(err).Code != walimpls.CodeUnauthenticated {
		t.Errorf("append stream: %v", err)
	}
	for _, method := range []string{walv1.WALService_Append_FullMethodName, walv1.WALService_Read_FullMethodName, walv1.WALService_AppendStream_FullMethodName} {
		if _, asked := methods.Load(method); !asked {
			t.Errorf("%s was not asked for", method)
		}
	}
}

// TestPanicsBecomeErrors and an append's outcome is unknown then.
func TestPanicsBecomeErrors(t *testing.T) {
	h := newHost(t, Options{})
	c, ctx := h.create("orders"), testContext(t)
	h.srv.channels.opt.Manager = nil
	h.srv.opt.Catalog = nil
	_, err := c.Append(ctx, "orders", texts("x")...)
	mustBe(t, err, walimpls.ErrUnknownOutcome)
	_, err = c.NewReader(ctx, "orders", client.ReadOptions{})
	mustBe(t, err, walimpls.ErrInternal)
	_, err = c.DescribeChannel(ctx, "orders")
	mustBe(t, err, walimpls.ErrInternal)
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(t, err)
	if r := a.Append(client.Record{}).Result(); r.State != walimpls.Unknown {
		t.Errorf("the record is %s: %v", r.State, r.Err)
	}
	_ = a.Close(ctx)
}
