package remote

import (
	"context"
	"errors"
	"math"
	"sync"

	"google.golang.org/grpc"

	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Client is the host's side of one plugin: a walimpls.Opener over a connection. It
// is safe for concurrent use.
type Client struct {
	rpc pluginv1.BackendServiceClient

	mu          sync.Mutex // guards what follows
	description *walimpls.Description
	wals        map[*WAL]struct{}
	closed      bool

	// cleanups counts background calls that tell the plugin of a handle nobody has.
	// It grows under mu and only before closed is set.
	cleanups sync.WaitGroup
}

var _ walimpls.Opener = (*Client)(nil)

// New returns a client over conn, which stays the caller's: it is to be closed
// after the client. The plugin must be configured before the first Open.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: pluginv1.NewBackendServiceClient(conn), wals: map[*WAL]struct{}{}}
}

// callOptions lift gRPC's limits: the backend's own are the ones that count.
func callOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)}
}

// streamOptions are those of the calls that carry records.
func streamOptions() []grpc.CallOption {
	return append(callOptions(), grpc.ForceCodecV2(wire.Codec()))
}

// Describe returns what the backend is and can do. It asks the plugin once. A
// description that is not valid is ErrInternal. It may be called before Configure.
func (c *Client) Describe(ctx context.Context) (walimpls.Description, error) {
	c.mu.Lock()
	known := c.description
	c.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	resp, err := c.rpc.Describe(ctx, &pluginv1.DescribeRequest{}, callOptions()...)
	if err != nil {
		return walimpls.Description{}, callError(ctx, "", err)
	}
	d, err := wire.DescriptionFromProto(resp)
	if err == nil {
		err = d.Validate()
	}
	if err != nil {
		return walimpls.Description{}, protocolError("", "its description is not valid: %w", err)
	}
	c.mu.Lock()
	c.description = &d
	c.mu.Unlock()
	return d, nil
}

// Configure checks cfg and builds the backend; it does not touch the store. It
// succeeds once in the life of a plugin process. A configuration that is wrong is
// ErrInvalidArgument with all its problems.
func (c *Client) Configure(ctx context.Context, cfg walimpls.Config) error {
	b, err := wire.ConfigToJSON(cfg)
	if err != nil {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, "", "configuration: %w", err)
	}
	_, err = c.rpc.Configure(ctx, &pluginv1.ConfigureRequest{ConfigJson: b}, callOptions()...)
	return callError(ctx, "", err)
}

// Open implements walimpls.Opener. The WAL is a *WAL.
func (c *Client) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if err := c.usable(opt.Channel); err != nil {
		return nil, err
	}
	d, err := c.Describe(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.rpc.Open(ctx, &pluginv1.OpenRequest{
		Channel: opt.Channel, Term: opt.Term, Incarnation: opt.Incarnation,
		ReadOnly: opt.Access == walimpls.AccessReadOnly,
	}, callOptions()...)
	if err != nil {
		return nil, callError(ctx, opt.Channel, err)
	}
	w := &WAL{
		client: c,
		handle: resp.GetHandle(),
		limits: d.Limits,
		channel: walimpls.Channel{
			Name: opt.Channel, StoreID: resp.GetStoreId(), Access: opt.Access,
			Pair: walimpls.Pair{Term: resp.GetPair().GetTerm(), Incarnation: resp.GetPair().GetIncarnation()},
		},
		scanners: map[*Scanner]struct{}{},
		closing:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	if err := w.attach(ctx); err != nil {
		c.release(w.handle)
		return nil, err
	}
	if err := c.adopt(w); err != nil {
		_ = w.Close(ctx)
		return nil, err
	}
	return w, nil
}

// release tells the plugin, in the background, to close a handle that is not used.
// The plugin closes it by itself if that fails (sdk/plugin, attachTimeout).
func (c *Client) release(handle uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.cleanups.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
		defer cancel()
		_, _ = c.rpc.CloseWAL(ctx, &pluginv1.CloseWALRequest{Handle: handle}, callOptions()...)
	})
}

func (c *Client) usable(channel string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return closedClient(channel)
	}
	return nil
}

func closedClient(channel string) error {
	return walimpls.Errorf(walimpls.CodeClosed, channel, "the connection to the plugin was closed")
}

func (c *Client) adopt(w *WAL) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return closedClient(w.channel.Name)
	}
	c.wals[w] = struct{}{}
	return nil
}

func (c *Client) forget(w *WAL) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.wals, w)
}

// Drop implements walimpls.Opener.
func (c *Client) Drop(ctx context.Context, channel string, term int64) error {
	if err := walimpls.ValidateName("channel", channel); err != nil {
		return err
	}
	if err := c.usable(channel); err != nil {
		return err
	}
	_, err := c.rpc.Drop(ctx, &pluginv1.DropRequest{Channel: channel, Term: term}, callOptions()...)
	return callError(ctx, channel, err)
}

// Close implements walimpls.Opener: it closes every WAL that it opened, all at
// once. The store itself is released when the plugin process stops, which is its
// owner's work.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, walimpls.GracePeriod)
	defer cancel()
	c.mu.Lock()
	c.closed = true
	var wals []*WAL
	for w := range c.wals {
		wals = append(wals, w)
	}
	c.mu.Unlock()

	errs := make([]error, len(wals))
	var wg sync.WaitGroup
	for i, w := range wals {
		wg.Go(func() { errs[i] = w.Close(ctx) })
	}
	wg.Wait()
	idle := make(chan struct{})
	go func() { c.cleanups.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	return errors.Join(errs...)
}
