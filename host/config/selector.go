package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// The backends that the selector knows. Others count only when they are named.
const (
	backendRMQ    = "rmq"
	backendPulsar = "pulsar"
	backendKafka  = "kafka"
)

// selectable returns the backends that may be chosen without being named, the
// best first. rmq is embedded in one host, so that no cluster can share it.
func selectable(standalone bool) []string {
	if standalone {
		return []string{backendRMQ, backendPulsar, backendKafka}
	}
	return []string{backendPulsar, backendKafka}
}

// SelectBackend returns the backend that new channels get. One that is named
// explicitly ("" for none) wins, whatever it is called and whether or not it is
// among the configured ones; else it is the first configured of rmq (standalone
// only), pulsar and kafka. None of these, or rmq outside standalone mode, is an
// error that says what to do.
func SelectBackend(standalone bool, explicit string, configured []string) (string, error) {
	if explicit == backendRMQ && !standalone {
		return "", errors.New("the backend rmq is embedded in one host, it cannot be the default in mode cluster: name a plugin of another backend, or use mode standalone")
	}
	if explicit != "" {
		return explicit, nil
	}
	candidates := selectable(standalone)
	for _, backend := range candidates {
		if slices.Contains(configured, backend) {
			return backend, nil
		}
	}
	mode, list := ModeStandalone, strings.Join(candidates, ", ")
	if !standalone {
		mode = ModeCluster
	}
	what := "no backend is configured"
	if len(configured) > 0 {
		what = "the configured backends are " + strings.Join(configured, ", ")
	}
	return "", fmt.Errorf("is not set, and in mode %s only %s are chosen without being named, while %s: name a plugin, or configure one of these backends", mode, list, what)
}

// selectDefault finds the default plugin: the one that is named, else the first
// by name of the backend that is selected. It checks the named one too.
func (l *loader) selectDefault(cfg *Config, root *node) {
	source := sourceOf(root, "default_plugin")
	explicit := ""
	if cfg.DefaultPlugin != "" {
		named := cfg.plugin(func(p Plugin) bool { return p.Name == cfg.DefaultPlugin })
		if named == nil {
			l.noSuchDefault(cfg, source)
			return
		}
		if named.Backend == "" {
			return // reported where the plugin stands
		}
		explicit = named.Backend
	}
	standalone := cfg.Mode == ModeStandalone
	backend, err := SelectBackend(standalone, explicit, cfg.backends())
	if err != nil {
		l.problem(source, "default_plugin", "%v", err)
		return
	}
	if explicit != "" {
		return
	}
	cfg.DefaultPlugin = cfg.plugin(func(p Plugin) bool { return p.Backend == backend }).Name
	for i := range cfg.entries {
		if e := &cfg.entries[i]; e.Key == "default_plugin" {
			e.Value = cfg.DefaultPlugin
			e.Source.Text = fmt.Sprintf("default (%s: the first configured of %s)", backend, strings.Join(selectable(standalone), ", "))
		}
	}
}

func (l *loader) noSuchDefault(cfg *Config, source Source) {
	names := make([]string, len(cfg.Plugins))
	for i, p := range cfg.Plugins {
		names[i] = p.Name
	}
	l.problem(source, "default_plugin", "no plugin is called %q%s; configured: %s", cfg.DefaultPlugin,
		walimpls.Suggest(cfg.DefaultPlugin, names), strings.Join(names, ", "))
}

// plugin returns the first plugin that matches, nil for none.
func (c *Config) plugin(match func(Plugin) bool) *Plugin {
	if i := slices.IndexFunc(c.Plugins, match); i >= 0 {
		return &c.Plugins[i]
	}
	return nil
}

// backends returns the configured plugins' backends, each once.
func (c *Config) backends() []string {
	var out []string
	for _, p := range c.Plugins {
		if p.Backend != "" && !slices.Contains(out, p.Backend) {
			out = append(out, p.Backend)
		}
	}
	return out
}
