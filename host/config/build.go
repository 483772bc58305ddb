package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// impliedPlugin is the plugin that a host without any runs: rmq, in data_dir.
const impliedPlugin = "local"

// build checks the merged tree and returns the Config. It goes on after a
// problem, so that all are found; the Config is useless then.
func (l *loader) build(root *node) *Config {
	l.unknown(root, nil)
	cfg := &Config{}
	text := func(name string) string { return l.scalar(cfg, root, strings.Split(name, ".")) }
	cfg.DataDir = l.absolute(root, text("data_dir"))
	cfg.Listen = text("listen")
	cfg.MetricsListen = text("metrics_listen")
	cfg.Insecure = text("insecure") == "true"
	cfg.Mode = text("mode")
	cfg.PluginDir = text("plugin_dir")
	cfg.DefaultPlugin = text("default_plugin")
	l.checkListen(cfg, root, "listen", cfg.Listen)
	l.checkListen(cfg, root, "metrics_listen", cfg.MetricsListen)
	l.plugins(cfg, root)
	parallel, _ := strconv.Atoi(text("flusher.parallel"))
	cfg.Flusher = Flusher{
		Bucket: text("flusher.bucket"), MaxAge: duration(text("flusher.max_age")),
		MaxBytes: size(text("flusher.max_bytes")), MaxMemory: size(text("flusher.max_memory")), Parallel: parallel,
		CheckpointEvery: duration(text("flusher.checkpoint_every")), Timeout: duration(text("flusher.timeout")),
		MinAge: duration(text("flusher.retain.min_age")), MaxPinAge: duration(text("flusher.retain.max_pin_age")),
	}
	cfg.Log = Log{Level: text("log.level"), Format: text("log.format")}
	l.selectDefault(cfg, root)
	return cfg
}

// unknown reports every path that is not in the table, with the nearest name,
// and every map or value that stands where the other belongs.
func (l *loader) unknown(n *node, path []string) {
	_, leaf, inner := lookup(path)
	switch {
	case leaf:
		return
	case inner && n.kind == kindMap:
		for _, name := range n.names() {
			l.unknown(n.fields[name], append(path[:len(path):len(path)], name))
		}
		return
	case inner && n.kind == kindNull:
		return
	case inner:
		l.problem(n.source, strings.Join(path, "."), "must be a map, not %s", n.kind)
		return
	}
	l.problem(n.source, strings.Join(path, "."), "unknown key%s", nearest(path))
}

// nearest suggests a sibling, or a key elsewhere that ends with the same name.
func nearest(path []string) string {
	last := path[len(path)-1]
	if s := walimpls.Suggest(last, children(path[:len(path)-1])); s != "" {
		return s
	}
	for _, k := range keyTable {
		if strings.HasSuffix(k.Name, "."+last) {
			return ` (did you mean "` + k.Name + `"?)`
		}
	}
	return ""
}

// scalar checks the value of a key of the table, adds its entry and returns
// its text (the default if it is not given or wrong).
func (l *loader) scalar(cfg *Config, root *node, path []string) string {
	key, _, _ := lookup(path)
	entry := Entry{
		Key: strings.Join(path, "."), Type: key.Type, Value: key.Default, Default: key.Default,
		Source: Source{Kind: SourceDefault, Text: "default"}, Secret: key.Secret, Doc: key.Doc,
	}
	if entry.Default == "" {
		entry.Default = key.DefaultDoc
	}
	if n := root.at(path...); n != nil {
		value, shown := l.resolve(n, entry.Key, key.Secret)
		if canonical, ok := l.check(key, n, entry.Key, value); ok {
			entry.Value, entry.Source = canonical, n.source
		}
		if shown != "" {
			cfg.entries = append(cfg.entries, withValue(entry, shown))
			return entry.Value
		}
	}
	cfg.entries = append(cfg.entries, entry)
	return entry.Value
}

// withValue returns an entry that shows a secret's stand-in.
func withValue(e Entry, shown string) Entry { e.Value, e.Secret = shown, true; return e }

func (l *loader) absolute(root *node, dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		l.problem(sourceOf(root, "data_dir"), "data_dir", "%v", err)
	}
	return abs
}

// checkListen takes no address that others can reach, unless that is accepted;
// what is no address at all was reported with its type.
func (l *loader) checkListen(cfg *Config, root *node, key, addr string) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || cfg.Insecure || isLoopback(host) {
		return
	}
	l.problem(sourceOf(root, key), key,
		"%q is not a loopback address, and there is neither TLS nor authentication: listen on 127.0.0.1, or accept it with --insecure", addr)
}

// isLoopback is strict: a name other than localhost may resolve to anything.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func sourceOf(root *node, path ...string) Source {
	if n := root.at(path...); n != nil {
		return n.source
	}
	return Source{Kind: SourceDefault, Text: "default"}
}

var pluginName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

func (l *loader) plugins(cfg *Config, root *node) {
	list := root.at("plugins")
	var names []string
	if list != nil && list.kind == kindMap {
		names = list.names()
	}
	if len(names) == 0 {
		source := Source{Kind: SourceDefault, Text: "default"}
		overlay(root, wrap([]string{"plugins", impliedPlugin, "backend"}, newScalar(source, backendRMQ)), nil)
		names = []string{impliedPlugin}
	}
	for _, name := range names {
		if !pluginName.MatchString(name) {
			l.problem(root.at("plugins").fields[name].source, "plugins",
				"plugin name %q is not valid: use 1 to 63 letters, digits, '_' or '-', starting with a letter or digit", name)
			continue
		}
		cfg.Plugins = append(cfg.Plugins, l.plugin(cfg, root, name))
	}
}

func (l *loader) plugin(cfg *Config, root *node, name string) Plugin {
	path := func(parts ...string) []string { return append([]string{"plugins", name}, parts...) }
	p := Plugin{
		Name:    name,
		Backend: l.scalar(cfg, root, path("backend")),
		Path:    l.scalar(cfg, root, path("path")),
		SHA256:  l.scalar(cfg, root, path("sha256")),
	}
	p.StartTimeout = duration(l.scalar(cfg, root, path("start_timeout")))
	if p.Backend == "" && root.at(path("backend")...) == nil {
		l.problem(root.at("plugins").fields[name].source, "plugins."+name+".backend", "is required, such as rmq")
	}
	p.Env = l.pluginEnv(cfg, root.at(path("env")...), path("env"))
	p.Config = l.pluginConfig(cfg, root.at(path("config")...), path("config"))
	l.rmqDir(cfg, &p)
	return p
}

// rmqDir gives the embedded backend a folder of its own under data_dir. The
// plugin `local` has the same one whether it is written down or implied.
func (l *loader) rmqDir(cfg *Config, p *Plugin) {
	if _, given := p.Config["dir"]; given || p.Backend != backendRMQ {
		return
	}
	dir := filepath.Join(cfg.DataDir, backendRMQ)
	if p.Name != impliedPlugin {
		dir += "-" + p.Name
	}
	p.Config["dir"] = dir
	key, _, _ := lookup([]string{"plugins", p.Name, "config", "dir"})
	cfg.entries = append(cfg.entries, Entry{
		Key: "plugins." + p.Name + ".config.dir", Type: key.Type, Value: dir, Default: key.DefaultDoc,
		Source: Source{Kind: SourceDefault, Text: "default"}, Doc: key.Doc,
	})
}
