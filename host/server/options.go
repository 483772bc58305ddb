package server

import (
	"context"
	"crypto/tls"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/flush"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Mode says who gives the terms.
type Mode string

// In standalone mode the host opens all channels with terms of its own; in
// cluster mode callers open and close them.
const (
	Standalone Mode = "standalone"
	Cluster    Mode = "cluster"
)

// Manager opens and closes WALs; *walmanager.Manager is one.
type Manager interface {
	Open(ctx context.Context, channel string, term int64) error
	Remove(ctx context.Context, channel string, term int64) error
	Forget(ctx context.Context, channel string) error
	Get(channel string, term int64) (wal.WAL, error)
	Status() []walmanager.ChannelState
}

// Plugin is a configured plugin; *pluginhost.Plugin is one.
type Plugin interface {
	Name() string
	Backend() string
	Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error)
	Drop(ctx context.Context, channel string, term int64) error
	Description(ctx context.Context) (walimpls.Description, error)
	Status() pluginhost.Status
	WaitFirstStart(ctx context.Context) error
}

// Plugins are the configured plugins; FromHost makes one of a *pluginhost.Host.
type Plugins interface {
	// Plugin returns the plugin of that name; ErrNotFound names those there are.
	Plugin(name string) (Plugin, error)
	Plugins() []Plugin
}

// FromHost returns h's plugins.
func FromHost(h *pluginhost.Host) Plugins { return hostPlugins{h} }

type hostPlugins struct{ host *pluginhost.Host }

func (p hostPlugins) Plugin(name string) (Plugin, error) {
	plugin, err := p.host.Plugin(name)
	if err != nil {
		return nil, err
	}
	return plugin, nil
}

func (p hostPlugins) Plugins() []Plugin {
	all := p.host.Plugins()
	out := make([]Plugin, len(all))
	for i, plugin := range all {
		out[i] = plugin
	}
	return out
}

// Options are the parameters of New. Catalog, Manager and Plugins are required.
type Options struct {
	Catalog catalog.Catalog
	Manager Manager
	Plugins Plugins
	// Flush has the flushers of the channels; nil flushes nothing.
	Flush *flush.Service
	// Mode is Standalone if empty.
	Mode Mode
	// DefaultPlugin is the plugin of channels that are created without a name
	// of one; "" means that one must be named.
	DefaultPlugin string
	// Verify starts a second process of a configured plugin, looks at it and
	// stops it; nil makes VerifyPlugin unsupported.
	Verify func(ctx context.Context, plugin string) (pluginhost.Status, walimpls.Description, error)
	// Version and DataDir are shown in the status.
	Version string
	DataDir string
	// TLS secures the listener; nil serves in the clear.
	TLS *tls.Config
	// Auth admits a call, or refuses it with an error of code unauthenticated or
	// permission_denied; nil admits all. It may put the caller into the context.
	Auth func(ctx context.Context, method string) (context.Context, error)
	// Insecure allows a listener that others can reach without TLS and Auth.
	Insecure bool
	Log      *zap.Logger
	// CallTimeout bounds a unary call that has no deadline; 0 is 60 s.
	CallTimeout time.Duration
	// DrainTimeout is how long Shutdown lets appends end; 0 is 3 s.
	DrainTimeout time.Duration
	// ReportAfter is when a channel whose first open still runs counts as
	// reported; 0 is 10 s.
	ReportAfter time.Duration
	// RetryMin and RetryMax bound the pause before an open is tried again; 0 is
	// 200 ms and 10 s.
	RetryMin time.Duration
	RetryMax time.Duration
	// MaxStreamBytes bounds what one append stream has handed over and not
	// answered; 0 is 16 MiB. A larger request is taken when it is alone.
	MaxStreamBytes int
	// ParallelOpens bounds how many channels of one plugin are opened at once; 0 is 16.
	ParallelOpens int
}

func (o Options) withDefaults() Options {
	defaultTo(&o.Mode, Standalone)
	defaultTo(&o.CallTimeout, 60*time.Second)
	defaultTo(&o.DrainTimeout, 3*time.Second)
	defaultTo(&o.ReportAfter, 10*time.Second)
	defaultTo(&o.RetryMin, 200*time.Millisecond)
	defaultTo(&o.RetryMax, 10*time.Second)
	defaultTo(&o.MaxStreamBytes, 16<<20)
	defaultTo(&o.ParallelOpens, 16)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

func defaultTo[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// validate returns ErrConfig with everything that is wrong, or nil.
func (o Options) validate() error {
	var errs []error
	if o.Catalog == nil || o.Manager == nil || o.Plugins == nil {
		errs = append(errs, errors.New("catalog, manager and plugins are required"))
	}
	if o.Mode != Standalone && o.Mode != Cluster {
		errs = append(errs, errors.New("mode must be standalone or cluster, not "+string(o.Mode)))
	}
	if err := errors.Join(errs...); err != nil {
		return walimpls.Errorf(walimpls.CodeConfig, "", "server: %w", err)
	}
	return nil
}
