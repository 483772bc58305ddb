package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/sdk/walimpls"
)

// PluginConfig is a plugin binary under test.
type PluginConfig struct {
	// Path is the binary.
	Path string
	// Backend is the backend that it serves; "" takes it from the binary's name,
	// walrig-plugin-<backend>.
	Backend string
	// Config and Env are handed to the plugin.
	Config walimpls.Config
	Env    map[string]string
	// StartTimeout bounds a start; 0 is the host's default.
	StartTimeout time.Duration
	// Log gets the plugin's log lines; nil drops them.
	Log *zap.Logger
	TargetOptions
}

// Plugin is a backend in a plugin process, started and supervised as a host does
// it. It can be killed.
func Plugin(cfg PluginConfig) (Target, error) {
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "plugin %q: %w", cfg.Path, err)
	}
	cfg.Path = path
	if cfg.Backend == "" {
		backend, ok := strings.CutPrefix(filepath.Base(path), "walrig-plugin-")
		if !ok || backend == "" {
			e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "the backend of %q is not known", cfg.Path)
			e.Hint = "name the binary walrig-plugin-<backend>, or name the backend"
			return nil, e
		}
		cfg.Backend = backend
	}
	sum, err := fileSHA256(path)
	if err != nil {
		e := walimpls.Errorf(walimpls.CodeNotFound, "", "plugin: %w", err)
		e.Hint = "build the plugin first, and check the path"
		return nil, e
	}
	return &pluginTarget{cfg: cfg, sum: sum}, nil
}

type pluginTarget struct {
	cfg PluginConfig
	sum string
}

func (p *pluginTarget) Info() TargetInfo {
	name := p.cfg.Name
	if name == "" {
		name = filepath.Base(p.cfg.Path)
	}
	return TargetInfo{Kind: "plugin", Name: name, Path: p.cfg.Path, SHA256: p.sum, Command: p.cfg.Command}
}

func (p *pluginTarget) config(cfg walimpls.Config) pluginhost.Config {
	return pluginhost.Config{
		Name: "under-test", Backend: p.cfg.Backend, Path: p.cfg.Path, SHA256: p.sum,
		Config: cfg, Env: p.cfg.Env, StartTimeout: p.cfg.StartTimeout,
	}
}

func (p *pluginTarget) Start(ctx context.Context) (Instance, error) {
	// A killed plugin comes back at once: the kill is the suite's doing.
	h, err := pluginhost.New(pluginhost.Options{
		Plugins: []pluginhost.Config{p.config(p.cfg.Config)}, Log: p.cfg.Log,
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	pl, err := h.Plugin("under-test")
	if err == nil {
		err = pl.WaitFirstStart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close(ctx))
	}
	return &process{Plugin: pl, host: h}, nil
}

func (p *pluginTarget) CheckConfig(ctx context.Context, extra walimpls.Config) error {
	_, _, err := pluginhost.Verify(ctx, p.config(merge(p.cfg.Config, extra)), pluginhost.Options{Log: p.cfg.Log})
	var start *pluginhost.StartError
	if errors.As(err, &start) {
		// What the backend said is inside; the host's own code is about the start.
		var said *walimpls.Error
		if errors.As(start.Cause, &said) {
			return said
		}
	}
	return err
}

func (p *pluginTarget) Size(ctx context.Context) (int64, error) { return p.cfg.size(ctx) }

type process struct {
	*pluginhost.Plugin
	host *pluginhost.Host
}

// Close ends the process in order.
func (p *process) Close(ctx context.Context) error { return p.host.Close(ctx) }

// Kill kills the process and returns when the host has noticed.
func (p *process) Kill(ctx context.Context) error {
	st := p.Status()
	if st.PID == 0 {
		return fmt.Errorf("no plugin process runs: %s", st.LastExit)
	}
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 %d: %w", st.PID, err)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for p.Status().PID == st.PID {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the host has not noticed the end of process %d: %w", st.PID, ctx.Err())
		}
	}
	return nil
}
