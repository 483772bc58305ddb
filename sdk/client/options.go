package client

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 30 * time.Second

// Option changes what Dial makes.
type Option func(*options)

type options struct {
	timeout  time.Duration
	tls      *tls.Config
	token    string
	insecure bool
	lazy     bool
	dialer   func(ctx context.Context, addr string) (net.Conn, error)
}

// WithTimeout bounds each call whose context has no deadline; 0 means no bound,
// the default is DefaultTimeout. It bounds how Appenders and Readers begin, not
// how long they live.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithTLS connects with TLS. Put the client's certificate into cfg for mTLS.
func WithTLS(cfg *tls.Config) Option { return func(o *options) { o.tls = cfg } }

// WithToken sends a bearer token with each call. Dial refuses to send one over
// a connection without TLS to another machine, unless WithInsecure is given.
func WithToken(token string) Option { return func(o *options) { o.token = token } }

// WithInsecure allows a token to travel in the clear.
func WithInsecure() Option { return func(o *options) { o.insecure = true } }

// WithLazyConnect makes Dial return before there is a connection. The first
// call connects, and is the one that fails with ErrUnreachable.
func WithLazyConnect() Option { return func(o *options) { o.lazy = true } }

// WithDialer replaces the way to connect; the default is TCP, without any proxy
// of the environment.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dialer = dial }
}
