package client

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Client talks to one host. It is safe for concurrent use. Close it when done.
type Client struct {
	addr    string
	timeout time.Duration
	conn    *grpc.ClientConn
	wal     walv1.WALServiceClient

	mu      sync.Mutex // guards dialErr
	dialErr error      // why the last attempt to connect failed
}

// Dial connects to the host at addr ("host:port") and returns when it answers.
// ctx bounds that. Errors: ErrInvalidArgument for an address or options that
// cannot work, ErrUnreachable when nobody answers.
func Dial(ctx context.Context, addr string, opts ...Option) (*Client, error) {
	opt := options{timeout: DefaultTimeout, dialer: func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}
	for _, o := range opts {
		o(&opt)
	}
	if err := checkTarget(addr, opt); err != nil {
		return nil, err
	}
	c := &Client{addr: addr, timeout: opt.timeout}
	conn, err := grpc.NewClient("passthrough:///"+addr, c.dialOptions(opt)...)
	if err != nil {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "address %q: %w", addr, err)
		e.Hint = hintAddress
		return nil, e
	}
	c.conn = conn
	c.wal = walv1.NewWALServiceClient(conn)
	if opt.lazy {
		return c, nil
	}
	if err := c.Connect(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func checkTarget(addr string, opt options) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "address %q is not HOST:PORT", addr)
		e.Hint = hintAddress
		return e
	}
	ip := net.ParseIP(host)
	local := host == "localhost" || host == "" || ip != nil && ip.IsLoopback()
	if opt.token != "" && opt.tls == nil && !local && !opt.insecure {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "a token would travel to %s in the clear", addr)
		e.Hint = "connect with TLS, or say that this is meant (WithInsecure)"
		return e
	}
	return nil
}

func (c *Client) dialOptions(opt options) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if opt.tls != nil {
		creds = credentials.NewTLS(withHTTP2(opt.tls))
	}
	out := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(c.remember(opt.dialer)),
		// A configured retry would send a record again; this client never does.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 15 * time.Second}),
	}
	if opt.token != "" {
		out = append(out, grpc.WithPerRPCCredentials(bearer{token: opt.token, secure: opt.tls != nil}))
	}
	return out
}

// withHTTP2 copies cfg and leaves no version below 1.2.
func withHTTP2(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	return cfg
}

// remember keeps the plain error of the last failed dial: what gRPC makes of it
// is hard to read.
func (c *Client) remember(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		c.mu.Lock()
		c.dialErr = err
		c.mu.Unlock()
		return conn, err
	}
}

// Addr returns the address that Dial was given.
func (c *Client) Addr() string { return c.addr }

// Connect waits until there is a connection. It returns ErrUnreachable as soon
// as an attempt has failed, or when ctx ends.
func (c *Client) Connect(ctx context.Context) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	for {
		state := c.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure:
			return c.unreachable(nil)
		case connectivity.Shutdown:
			return errClosed()
		case connectivity.Idle:
			c.conn.Connect()
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return c.unreachable(context.Cause(ctx))
		}
	}
}

// Close ends the connection, and with it every Appender and Reader: what they
// had handed over and was not answered is ErrUnknownOutcome.
func (c *Client) Close() error {
	if err := c.conn.Close(); err != nil {
		return errClosed()
	}
	return nil
}

// bounded gives ctx the client's timeout if it has no deadline of its own.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has || c.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.timeout)
}

// handshake cancels a stream that the host does not answer within the client's
// timeout, unless ctx has a deadline of its own. The caller hands the result of
// its wait to late, which ends the bound and returns ErrTimeout if it has passed.
func (c *Client) handshake(ctx context.Context, cancel context.CancelFunc) (late func(error) error) {
	if _, has := ctx.Deadline(); has || c.timeout <= 0 {
		return func(err error) error { return err }
	}
	timer := time.AfterFunc(c.timeout, cancel)
	return func(err error) error {
		if timer.Stop() {
			return err
		}
		return c.tooLate()
	}
}

// bearer sends a token with each call.
type bearer struct {
	token  string
	secure bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.secure }
