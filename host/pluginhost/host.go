package pluginhost

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Defaults of Config and Options.
const (
	DefaultStartTimeout   = 20 * time.Second
	DefaultHealthInterval = 5 * time.Second
	DefaultHealthMisses   = 6
	DefaultMinBackoff     = 100 * time.Millisecond
	DefaultMaxBackoff     = 5 * time.Second
	DefaultHealthyAfter   = 10 * time.Second
)

// Config is one configured plugin.
type Config struct {
	// Name is the configured name, such as "local"; unique in a Host.
	Name string
	// Backend is the backend that the plugin must serve, such as "rmq".
	Backend string
	// Path is the plugin's binary. Empty: walrig-plugin-<backend> beside the
	// host's binary, else in Options.PluginDir.
	Path string
	// SHA256 pins the binary, in hexadecimal. Empty: any binary is started.
	SHA256 string
	// Config is handed to the backend.
	Config walimpls.Config
	// Env is set in the plugin's environment, over what it gets from the host (see doc.go).
	Env map[string]string
	// StartTimeout bounds a whole start, from the launch to the answer to
	// Configure. 0 means DefaultStartTimeout.
	StartTimeout time.Duration
	// HealthInterval is the time between two health checks, and the time that
	// one may take. A plugin that misses HealthMisses of them in a row is
	// killed and restarted. 0 means DefaultHealthInterval and DefaultHealthMisses.
	HealthInterval time.Duration
	HealthMisses   int
}

// Options are the parameters of New.
type Options struct {
	// Plugins are the configured plugins.
	Plugins []Config
	// PluginDir is searched after the folder of the host's binary; "" for none.
	PluginDir string
	// HostBinary is the host's binary, for the search beside it; "" means the
	// running one.
	HostBinary string
	// RuntimeDir is where the private folder for sockets is made, if its path
	// is short enough; "" means the temporary folder, else a system folder.
	RuntimeDir string
	// Log gets the host's and the plugins' lines; nil drops them.
	Log *zap.Logger
	// A plugin that ends is started again after MinBackoff, then after twice as
	// long, up to MaxBackoff; the delay starts over once it ran for
	// HealthyAfter. 0 means the defaults.
	MinBackoff   time.Duration
	MaxBackoff   time.Duration
	HealthyAfter time.Duration
}

// Status is what is known about a plugin now.
type Status struct {
	Name    string
	Backend string
	// Version is the backend's version, of the last process that was described.
	Version string
	// PID is 0 while no process runs.
	PID int
	// State is "starting", "running", "backoff" or "stopped".
	State string
	// Restarts counts the processes that came up after the first one.
	Restarts int64
	// LastExit says how the last process or start ended, such as "exit status 3",
	// "signal: killed" or "start failed: …"; "" if none did.
	LastExit string
	// SHA256 is the checksum of the binary, of the last one that was opened.
	SHA256 string
	// Protocol is the negotiated version of the plugin protocol.
	Protocol int
	// Path is the binary.
	Path string
	// Fencing is "strict" or "none", as described.
	Fencing string
}

// Host supervises the configured plugins.
type Host struct{}

// Plugin is one configured plugin.
type Plugin struct{}

// New starts supervising every configured plugin.
func New(opt Options) (*Host, error) { return &Host{}, nil }

// Plugin returns a configured plugin.
func (h *Host) Plugin(name string) (*Plugin, error) {
	return nil, walimpls.Errorf(walimpls.CodeNotFound, "", "no plugin %q", name)
}

// Plugins returns the configured plugins in the order of Options.Plugins.
func (h *Host) Plugins() []*Plugin { return nil }

// Close ends every plugin.
func (h *Host) Close(ctx context.Context) error { return nil }

// Name returns the configured name.
func (p *Plugin) Name() string { return "" }

// Backend returns the configured backend.
func (p *Plugin) Backend() string { return "" }

// Open opens a channel.
func (p *Plugin) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	return nil, walimpls.Errorf(walimpls.CodeUnavailable, opt.Channel, "not built yet")
}

// Drop deletes a channel's log.
func (p *Plugin) Drop(ctx context.Context, channel string, term int64) error {
	return walimpls.Errorf(walimpls.CodeUnavailable, channel, "not built yet")
}

// Description returns the running plugin's description.
func (p *Plugin) Description(ctx context.Context) (walimpls.Description, error) {
	return walimpls.Description{}, walimpls.Errorf(walimpls.CodeUnavailable, "", "not built yet")
}

// Status returns what is known about the plugin now.
func (p *Plugin) Status() Status { return Status{} }

// WaitFirstStart waits for the end of the first start and returns its error.
func (p *Plugin) WaitFirstStart(ctx context.Context) error { return nil }

// Verify starts a plugin, describes and configures it, and stops it.
func Verify(ctx context.Context, cfg Config, opt Options) (Status, walimpls.Description, error) {
	return Status{}, walimpls.Description{}, walimpls.Errorf(walimpls.CodeUnavailable, "", "not built yet")
}
