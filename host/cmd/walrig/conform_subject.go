package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/walrig/walrig/conformance"
	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/sdk/walimpls"
)

// storeKey is the key by which a backend is told the folder of its store.
const storeKey = "dir"

// conformSubject is what the suite works on, and what has to go afterwards.
type conformSubject struct {
	target conformance.Target
	temp   string   // the temporary store's folder, "" for none
	log    *os.File // nil for none
}

func (s *conformSubject) cleanup() error {
	if s.log != nil {
		_ = s.log.Close()
	}
	if s.temp == "" {
		return nil
	}
	if err := os.RemoveAll(s.temp); err != nil {
		return walimpls.Errorf(walimpls.CodeInternal, "", "the temporary store stays behind: %w", err)
	}
	return nil
}

// conformSubject finds the plugin, looks at its description, and gives it a store.
func (a *app) conformSubject(ctx context.Context, cmd *cobra.Command, name string, o conformOptions) (s *conformSubject, err error) {
	plugin, dir, err := a.conformPlugin(cmd, name, o)
	if err != nil {
		return nil, err
	}
	// A binary that was described but wants a folder is good enough here.
	st, desc, err := pluginhost.Verify(ctx, plugin, pluginhost.Options{PluginDir: dir, Log: zap.NewNop()})
	if err != nil && (desc.Backend == "" || !wantsStore(desc, plugin.Config)) {
		return nil, err
	}
	s = &conformSubject{}
	defer func() {
		if err != nil {
			_ = s.cleanup()
		}
	}()
	cfg := conformance.PluginConfig{
		Path: st.Path, Backend: plugin.Backend, Config: plugin.Config, Env: plugin.Env, StartTimeout: plugin.StartTimeout,
		TargetOptions: conformance.TargetOptions{Name: name, Command: conformCommand(name, o, desc)},
	}
	if wantsStore(desc, cfg.Config) {
		if s.temp, err = os.MkdirTemp("", "walrig-conform-"); err != nil {
			return nil, usageError("say where with --set "+storeKey+"=…, or with TMPDIR", "no temporary store: %v", err)
		}
		// Not the folder itself: a backend makes its store as it likes it.
		cfg.Config[storeKey] = filepath.Join(s.temp, "store")
	}
	cfg.StorePath, _ = cfg.Config[storeKey].(string)
	if o.log != "" {
		if s.log, err = os.Create(o.log); err != nil {
			return nil, usageError("", "--plugin-log: %v", err)
		}
		if cfg.Log, err = newLogger(s.log, config.Log{Level: "debug", Format: "auto"}); err != nil {
			return nil, err
		}
	}
	s.target, err = conformance.Plugin(cfg)
	return s, err
}

func wantsStore(desc walimpls.Description, cfg walimpls.Config) bool {
	_, given := cfg[storeKey]
	return !given && slices.ContainsFunc(desc.Config, func(f walimpls.ConfigField) bool {
		return f.Name == storeKey && f.Type == walimpls.ConfigString
	})
}

// conformPlugin is the plugin that a name or path on the command line means, and
// the folder to search besides this program's own.
func (a *app) conformPlugin(cmd *cobra.Command, name string, o conformOptions) (pluginhost.Config, string, error) {
	values, err := config.ParseValues(o.sets, a.env)
	if err != nil {
		return pluginhost.Config{}, "", err
	}
	if isPath(name) {
		backend, err := backendOf(name)
		return pluginhost.Config{Name: backend, Backend: backend, Path: name, Config: values}, "", err
	}
	cfg, err := a.loadConfig(cmd, o.in)
	if err != nil {
		return pluginhost.Config{}, "", err
	}
	i := slices.IndexFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Name == name })
	if i < 0 {
		if err := walimpls.ValidateName("plugin", name); err != nil {
			return pluginhost.Config{}, "", err
		}
		if cmd.Flags().Changed("config") {
			names := convert(cfg.Plugins, func(p config.Plugin) string { return p.Name })
			return pluginhost.Config{}, "", usageError("configured: "+strings.Join(names, ", "), "no plugin is called %q%s", name, walimpls.Suggest(name, names))
		}
		return pluginhost.Config{Name: name, Backend: name, Config: values}, cfg.PluginDir, nil
	}
	p := pluginOptions(cfg, zap.NewNop()).Plugins[i]
	// The folder that the host would choose by itself is the one it works in.
	for _, e := range cfg.Explain() {
		if e.Key == "plugins."+name+".config."+storeKey && e.Source.Kind == config.SourceDefault {
			delete(p.Config, storeKey)
		}
	}
	for k, v := range values {
		p.Config[k] = v
	}
	return p, cfg.PluginDir, nil
}

// backendOf is the backend that the name of a binary says it serves.
func backendOf(path string) (string, error) {
	backend, ok := strings.CutPrefix(filepath.Base(path), pluginPrefix)
	if !ok || backend == "" {
		return "", usageError("name the binary "+pluginPrefix+"<backend>, as the host needs it", "%s does not say which backend it serves", path)
	}
	return backend, nil
}

// conformCommand is the command line without the flags that select checks. It
// ends up in reports, so it holds no secrets.
func conformCommand(name string, o conformOptions, desc walimpls.Description) string {
	words := []string{os.Args[0], "conform", name}
	if o.in.File != "" {
		words = append(words, "--config", o.in.File)
	}
	for _, set := range o.sets {
		key, _, _ := strings.Cut(set, "=")
		if slices.ContainsFunc(desc.Config, func(f walimpls.ConfigField) bool { return f.Name == key && f.Secret }) {
			set = key + "=" + config.Hidden
		}
		words = append(words, "--set", set)
	}
	return strings.Join(convert(words, shellQuote), " ")
}

// hostInfo identifies this program.
func hostInfo() (conformance.HostInfo, error) {
	path, err := os.Executable()
	if err != nil {
		return conformance.HostInfo{}, walimpls.Errorf(walimpls.CodeInternal, "", "this program does not find itself: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return conformance.HostInfo{}, walimpls.Errorf(walimpls.CodeInternal, "", "this program cannot read itself: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return conformance.HostInfo{}, walimpls.Errorf(walimpls.CodeInternal, "", "this program cannot read itself: %w", err)
	}
	return conformance.HostInfo{Version: version + " (" + commit + ")", SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}
