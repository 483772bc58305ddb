package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/plugin"
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

// pokeGap is how long a start that failed for good answers for those who ask;
// after that, one who asks causes another attempt and gets its result.
const pokeGap = time.Second

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

	// versions are the protocol versions that the host speaks; nil means the
	// SDK's. Tests set them.
	versions map[int]goplugin.PluginSet
}

func (o Options) policy(cfg Config) policy {
	p := policy{
		minBackoff: o.MinBackoff, maxBackoff: o.MaxBackoff, healthyAfter: o.HealthyAfter,
		maxMisses: cfg.HealthMisses, pokeGap: pokeGap,
	}
	if p.minBackoff <= 0 {
		p.minBackoff = DefaultMinBackoff
	}
	if p.maxBackoff <= 0 {
		p.maxBackoff = DefaultMaxBackoff
	}
	p.maxBackoff = max(p.maxBackoff, p.minBackoff)
	if p.healthyAfter <= 0 {
		p.healthyAfter = DefaultHealthyAfter
	}
	if p.maxMisses <= 0 {
		p.maxMisses = DefaultHealthMisses
	}
	return p
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
type Host struct {
	plugins []*Plugin
	dirs    *runDir
}

// New starts supervising every configured plugin. It does not wait for their
// starts and does not fail because of them. Names that are wrong or given twice
// are one ErrConfig.
func New(opt Options) (*Host, error) {
	if err := checkNames(opt.Plugins); err != nil {
		return nil, err
	}
	s := newStarter(opt)
	h := &Host{dirs: s.dirs}
	for _, cfg := range opt.Plugins {
		h.plugins = append(h.plugins, newPlugin(s, cfg))
	}
	return h, nil
}

func newStarter(opt Options) *starter {
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	if opt.versions == nil {
		opt.versions = plugin.Plugins()
	}
	s := &starter{opt: opt, dirs: newRunDir(runPlaces(opt.RuntimeDir), opt.Log), versions: opt.versions}
	s.dirs.sweep()
	return s
}

func checkNames(plugins []Config) error {
	var problems []string
	seen := map[string]bool{}
	for _, cfg := range plugins {
		if err := walimpls.ValidateName("plugin", cfg.Name); err != nil {
			problems = append(problems, walimpls.AsError(err).Message)
		} else if seen[cfg.Name] {
			problems = append(problems, fmt.Sprintf("plugin %q is configured twice", cfg.Name))
		}
		seen[cfg.Name] = true
	}
	if len(problems) > 0 {
		return walimpls.Errorf(walimpls.CodeConfig, "", "plugins: %s", strings.Join(problems, "; "))
	}
	return nil
}

// Plugin returns a configured plugin; ErrNotFound names the configured ones.
func (h *Host) Plugin(name string) (*Plugin, error) {
	names := make([]string, len(h.plugins))
	for i, p := range h.plugins {
		if p.cfg.Name == name {
			return p, nil
		}
		names[i] = p.cfg.Name
	}
	err := walimpls.Errorf(walimpls.CodeNotFound, "", "no plugin %q is configured%s", name, walimpls.Suggest(name, names))
	err.Hint = "configured plugins: " + strings.Join(names, ", ")
	if len(names) == 0 {
		err.Hint = "no plugin is configured"
	}
	return nil, err
}

// Plugins returns the configured plugins in the order of Options.Plugins.
func (h *Host) Plugins() []*Plugin { return slices.Clone(h.plugins) }

// Close ends every plugin: its channels are closed, it is asked to end, and
// after walimpls.GracePeriod, or when ctx ends, its process group is killed. Close
// returns when every process is reaped; the error names those that the kernel
// does not let go. It may be called more than once.
func (h *Host) Close(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(h.plugins))
	for i, p := range h.plugins {
		wg.Go(func() { errs[i] = p.close(ctx) })
	}
	wg.Wait()
	h.dirs.remove()
	return errors.Join(errs...)
}
