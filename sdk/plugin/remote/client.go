package remote

import (
	"context"

	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Client is the host's side of one plugin: a walimpls.Opener over a connection.
type Client struct{}

var _ walimpls.Opener = (*Client)(nil)

// New returns a client over conn, which stays the caller's.
func New(conn grpc.ClientConnInterface) *Client { return &Client{} }

// Describe returns what the backend is and can do.
func (c *Client) Describe(ctx context.Context) (walimpls.Description, error) {
	return walimpls.Description{}, walimpls.ErrUnsupported
}

// Configure checks cfg and builds the backend.
func (c *Client) Configure(ctx context.Context, cfg walimpls.Config) error {
	return walimpls.ErrUnsupported
}

// Open implements walimpls.Opener; the WAL is a *WAL.
func (c *Client) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	return nil, walimpls.ErrUnsupported
}

// Drop implements walimpls.Opener.
func (c *Client) Drop(ctx context.Context, channel string, term int64) error {
	return walimpls.ErrUnsupported
}

// Close implements walimpls.Opener: it closes every WAL; the connection stays the caller's.
func (c *Client) Close(ctx context.Context) error { return nil }

// WAL is a walimpls.WAL in a plugin process.
type WAL struct{ walimpls.WAL }

// AppendAsync hands the batch over in call order and never blocks on I/O. done is
// called exactly once, from another goroutine.
func (w *WAL) AppendAsync(batch []message.Message, done func([]walimpls.Outcome)) {}

// Broken is closed when the handle can never append again although nobody closed it.
func (w *WAL) Broken() <-chan struct{} { return nil }

// Scanner is a walimpls.Scanner in a plugin process.
type Scanner struct{ walimpls.Scanner }

// Resolved returns the start that the plugin resolved; never PolicyLatest.
func (s *Scanner) Resolved() walimpls.Start { return walimpls.Start{} }
