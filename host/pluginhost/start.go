package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/plugin"
	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

// starter makes instances. All plugins of a host share it.
type starter struct {
	opt      Options
	dirs     *runDir
	versions map[int]goplugin.PluginSet // the protocol versions that this host speaks
}

// instance is one running plugin process with its connection, described and
// configured.
type instance struct {
	attempt
	client   *remote.Client
	desc     walimpls.Description
	protocol int
}

// attempt is what a start has made so far. Whatever of it exists is undone by
// end, so a start that fails leaves nothing behind.
type attempt struct {
	path      string
	sum       string
	image     *image
	out       *output
	proc      *process
	socketDir string
	link      *link
}

// start starts a process and returns it when it is ready to open channels. If
// it fails, no process, file or goroutine of it is left. The instance's path
// and checksum are set in either case, as far as they are known.
func (s *starter) start(ctx context.Context, l *launcher, cfg Config) (*instance, *StartError) {
	timeout := cfg.StartTimeout
	if timeout == 0 {
		timeout = DefaultStartTimeout
	}
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	i := &instance{}
	fail := s.run(within, l, cfg, i)
	i.image.close()
	if fail == nil {
		return i, nil
	}
	if fail.lost() && i.proc != nil && i.proc.started() {
		// How the process ended is the best part of the error, and a lost
		// connection is known before that.
		wait, cancel := context.WithTimeout(within, pipeWait)
		_ = i.proc.Wait(wait)
		cancel()
	}
	i.end()
	t := traces{path: i.path}
	if i.proc != nil {
		var byItself bool
		if t.exit, byItself = i.proc.exit(); !byItself {
			t.exit = ""
		}
		t.stderr, t.noise = i.out.traces()
		if i.proc.seen() != nil {
			t.noise = nil
		}
	}
	return i, i.diagnose(ctx, within, cfg.Name, timeout, fail, t.exit).startError(cfg.Name, t)
}

// diagnose replaces a failure that is only the consequence of another one: of
// the host's stop, of the end of the process, or of the end of the time.
func (i *instance) diagnose(ctx, within context.Context, name string, timeout time.Duration, fail *failure, exit string) *failure {
	switch {
	case fail.reason == ReasonConfig || fail.reason == ReasonMissing || fail.reason == ReasonNotExecutable || fail.reason == ReasonPin:
		return fail
	case ctx.Err() != nil:
		return failf(ReasonStopped, false, ctx.Err(), "", "the start was given up")
	case within.Err() != nil:
		return failf(ReasonTimeout, false, context.DeadlineExceeded, "see what it waits for, or raise plugins."+name+".start_timeout",
			"it was not ready within %s: %s", timeout, fail.what)
	case exit != "" && fail.permanent && i.proc.seen() != nil:
		return fail // it said what is wrong, and ended
	case exit != "":
		hint := "its last lines, if there are any, say why; `walrig plugin verify` tries again"
		if i.proc.seen() == nil {
			hint = "its last lines, if there are any, say why; check that it is a walrig plugin (its main calls plugin.Serve)"
		}
		return failf(ReasonExited, false, fail.cause, hint, "it ended before it was ready: %s", exit)
	}
	return fail
}

// run makes the steps of a start. Each one's failure is final.
func (s *starter) run(ctx context.Context, l *launcher, cfg Config, i *instance) *failure {
	if fail := errorsOf(cfg.check(plugin.Handshake.MagicCookieKey), checkDepth()); fail != nil {
		return fail
	}
	var fail *failure
	if i.path, fail = discover(cfg, s.opt); fail != nil {
		return fail
	}
	dir, err := s.dirs.get()
	if err != nil {
		return failf(ReasonSystem, false, err, "set TMPDIR to a folder with a short path that the host can write to", "%v", err)
	}
	i.image, fail = openImage(ctx, i.path, cfg.SHA256, dir)
	if i.image != nil {
		i.sum = i.image.sum
	}
	if fail != nil {
		return fail
	}
	i.out = newOutput(s.opt.Log.With(zap.String("plugin", cfg.Name)))
	i.proc = newProcess(l, i.image, i.out)
	defer context.AfterFunc(ctx, func() { _ = i.proc.Kill(context.Background()) })()

	partner, fail := s.shakeHands(ctx, cfg, dir, i)
	if fail != nil {
		return fail
	}
	if i.client, fail = partner.dispense(ctx, i); fail != nil {
		return fail
	}
	if fail = i.describe(ctx, cfg); fail != nil {
		return fail
	}
	return i.configure(ctx, cfg)
}

func errorsOf(fails ...*failure) *failure {
	for _, f := range fails {
		if f != nil {
			return f
		}
	}
	return nil
}

// shaken is a plugin that has shaken hands.
type shaken struct {
	addr net.Addr
	cfg  *goplugin.ClientConfig
}

// shakeHands starts the process and reads its handshake, by way of go-plugin.
func (s *starter) shakeHands(ctx context.Context, cfg Config, dir string, i *instance) (*shaken, *failure) {
	deadline, _ := ctx.Deadline()
	gcfg := &goplugin.ClientConfig{
		HandshakeConfig:  plugin.Handshake,
		VersionedPlugins: maps.Clone(s.versions),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		Logger:           hclog.NewNullLogger(),
		// The context ends a start; this is only there because 0 means a minute.
		StartTimeout:     time.Until(deadline) + killWait,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: dir},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (runner.Runner, error) {
			i.socketDir, i.proc.dir = socketDir, socketDir
			i.proc.env = pluginEnv(os.Environ(), cfg.Env, cmd.Env, depth(os.LookupEnv))
			return i.proc, nil
		},
	}
	addr, err := goplugin.NewClient(gcfg).Start()
	if launch := i.proc.launchError(); launch != nil && ctx.Err() == nil {
		return nil, i.image.launchFailure(launch)
	}
	h := i.proc.seen()
	switch {
	case h == nil:
		return nil, failf(ReasonHandshake, false, err, "check that it is a walrig plugin (its main calls plugin.Serve)", "it sent no handshake")
	case h.core != goplugin.CoreProtocolVersion:
		return nil, failf(ReasonVersion, true, err, "build the plugin with another version of go-plugin",
			"the plugin's handshake has the version %d, this host's has %d", h.core, goplugin.CoreProtocolVersion)
	case s.versions[h.protocol] == nil:
		return nil, failf(ReasonVersion, true, err, "build the plugin with the SDK of this host's version, or update the host",
			"no protocol version in common: plugin offers %d, this host speaks %s", h.protocol, versionList(s.versions))
	case h.rpc != string(goplugin.ProtocolGRPC):
		return nil, failf(ReasonHandshake, true, err, "build the plugin with walrig's SDK", "the plugin speaks %q, not grpc", h.rpc)
	case err != nil:
		return nil, failf(ReasonHandshake, false, err, "", "its handshake is not understood: %v", err)
	case gcfg.TLSConfig == nil || gcfg.TLSConfig.RootCAs == nil:
		return nil, failf(ReasonHandshake, true, nil, "a plugin must answer the host's certificate with its own (AutoMTLS); walrig's SDK does",
			"its handshake has no certificate")
	}
	i.protocol = h.protocol
	return &shaken{addr: addr, cfg: gcfg}, nil
}

func versionList(versions map[int]goplugin.PluginSet) string {
	var out []string
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		out = append(out, strconv.Itoa(v))
	}
	return strings.Join(out, ", ")
}

// dispense connects to the plugin and returns the client of the negotiated version.
func (s *shaken) dispense(ctx context.Context, i *instance) (*remote.Client, *failure) {
	var err error
	if i.link, err = dial(ctx, s.addr, s.cfg.TLSConfig, i.out); err != nil {
		return nil, failf(ReasonConnect, false, err, "", "it shook hands, and its socket %s does not answer: %v", s.addr, err)
	}
	if p, ok := s.cfg.Plugins[plugin.Name].(goplugin.GRPCPlugin); ok {
		raw, err := p.GRPCClient(ctx, nil, i.link.conn)
		if client, ok := raw.(*remote.Client); ok && err == nil {
			return client, nil
		}
	}
	return nil, failf(ReasonVersion, true, nil, "", "this host has no client for the protocol version %d", i.protocol)
}

// describe asks the plugin what it is.
func (i *instance) describe(ctx context.Context, cfg Config) *failure {
	desc, err := i.client.Describe(ctx)
	switch {
	case errors.Is(err, walimpls.ErrUnsupported):
		return failf(ReasonDescription, true, err, "build it with walrig's SDK", "the plugin has no walrig backend in it: %v", err)
	case err != nil:
		e := walimpls.AsError(err)
		return failf(ReasonDescription, !e.Retryable, err, e.Hint, "the plugin failed to describe its backend: %s", e.Message)
	}
	if err := desc.Validate(); err != nil {
		return failf(ReasonDescription, true, err, "the plugin's author has to correct Describe",
			"its description is not valid: %v", err)
	}
	if desc.Backend != cfg.Backend {
		return failf(ReasonDescription, true, nil, fmt.Sprintf("set backend: %s, or the path of another binary", desc.Backend),
			"it serves the backend %q, but %q is configured", desc.Backend, cfg.Backend)
	}
	i.desc = desc
	return nil
}

// configure hands the configuration over.
func (i *instance) configure(ctx context.Context, cfg Config) *failure {
	err := i.client.Configure(ctx, cfg.Config)
	if err == nil {
		return nil
	}
	e := walimpls.AsError(err)
	hint := e.Hint
	if hint == "" {
		hint = "correct the plugin's config; `walrig plugin describe` lists its keys"
	}
	return failf(ReasonConfigure, !e.Retryable, err, hint, "the plugin refused its configuration: %s", strings.TrimPrefix(e.Message, "configuration: "))
}

// stop ends the process in an orderly way: it closes the channels, asks it to
// go, and after ctx or the grace period kills it.
func (i *instance) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, walimpls.GracePeriod)
	defer cancel()
	_ = i.client.Close(ctx)
	if !i.link.shutdown(ctx) {
		i.proc.cutLifeline()
	}
	_ = i.proc.Wait(ctx)
	i.end()
}

// end kills the process if it still lives, waits for it within bounds, and
// releases everything. It may be called on an attempt that got nowhere.
func (a *attempt) end() {
	if a.proc != nil {
		_ = a.proc.Kill(context.Background())
	}
	if a.link != nil {
		a.link.close()
	}
	if a.out != nil {
		a.out.close()
	}
	if a.socketDir != "" {
		_ = os.RemoveAll(a.socketDir)
	}
}
