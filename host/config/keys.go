package config

import (
	"slices"
	"strings"
)

// Type is the type of a key's value, as the documentation names it.
type Type string

// The types. A path is a string; a value is whatever a plugin's own
// configuration takes (scalar, list of strings, or a secret's reference).
const (
	TypeString   Type = "string"
	TypeBool     Type = "bool"
	TypeDuration Type = "duration"
	TypeBytes    Type = "bytes"
	TypeInt      Type = "number"
	TypePath     Type = "path"
	TypeAddress  Type = "host:port"
	TypeSHA256   Type = "sha256"
	TypeValue    Type = "value"
)

// Key is one row of the table.
type Key struct {
	// Name is the dotted path; <name> stands for a name that the user chooses.
	Name string
	Type Type
	// Default is the value as it would be written, "" for none.
	Default string
	// DefaultDoc replaces Default in the documentation where it is not constant.
	DefaultDoc string
	// OneOf lists the allowed values, empty for any.
	OneOf []string
	// Required: a plugin must have it.
	Required bool
	// Secret: the value is never printed, also when it was written in clear.
	Secret bool
	// Doc says what the key does, in one or two sentences.
	Doc string
}

// The modes of a host.
const (
	ModeStandalone = "standalone"
	ModeCluster    = "cluster"
)

var keyTable = []Key{
	{Name: "data_dir", Type: TypePath, Default: "./walrig-data",
		Doc: "The folder of this host: its catalog, its lock file, and what the embedded backend stores. It is created if it is missing. One host at a time can use it."},
	{Name: "listen", Type: TypeAddress, Default: "127.0.0.1:7700",
		Doc: "Where the API listens. Port 0 takes a free port, which the ready line names. An address that is not loopback needs `insecure`."},
	{Name: "metrics_listen", Type: TypeAddress, DefaultDoc: "off",
		Doc: "Where Prometheus can scrape `/metrics` over HTTP, such as `127.0.0.1:7701`; [metrics.md](metrics.md) lists them. Without it nothing is counted. Port 0 takes a free port, which the log names. An address that is not loopback needs `insecure`."},
	{Name: "insecure", Type: TypeBool, Default: "false",
		Doc: "Allows to listen on an address that is not loopback, for the API and the metrics, without TLS and authentication: everybody who reaches the API can read, write and delete."},
	{Name: "mode", Type: TypeString, Default: ModeStandalone, OneOf: []string{ModeStandalone, ModeCluster},
		Doc: "`standalone`: this host opens all its channels at start, each with a term of its own. `cluster`: channels are opened and closed from outside, by `walrig channel open` and `close` with `--term`."},
	{Name: "plugin_dir", Type: TypePath,
		Doc: "A folder with plugin binaries (`walrig-plugin-<backend>`), searched after the folder of the walrig binary itself."},
	{Name: "default_plugin", Type: TypeString, DefaultDoc: "the first configured plugin of the backends rmq (in standalone mode only), pulsar, kafka",
		Doc: "The plugin of channels that are created without `--plugin`. Other backends count only when their plugin is named here; of several plugins with one backend the first by name is chosen. A plugin of rmq cannot be the default in cluster mode."},
	{Name: "plugins.<name>.backend", Type: TypeString, Required: true,
		Doc: "The backend that the plugin serves, such as `rmq`. Without any plugin the host runs one called `local` with the backend `rmq`."},
	{Name: "plugins.<name>.path", Type: TypePath, DefaultDoc: "`walrig-plugin-<backend>` beside the walrig binary, then in `plugin_dir`",
		Doc: "The plugin's binary."},
	{Name: "plugins.<name>.sha256", Type: TypeSHA256,
		Doc: "Pins the binary: one with another checksum is not started."},
	{Name: "plugins.<name>.start_timeout", Type: TypeDuration, Default: "20s",
		Doc: "How long a start of the plugin's process may take until it answers."},
	{Name: "plugins.<name>.env.<NAME>", Type: TypeString, Secret: true,
		Doc: "An environment variable of the plugin's process. It gets these and a few harmless ones of the host, nothing else."},
	{Name: "plugins.<name>.config.<key>", Type: TypeValue, DefaultDoc: "the plugin's; `dir` of rmq: `<data_dir>/rmq` for the plugin `local`, `<data_dir>/rmq-<name>` for others",
		Doc: "The backend's own configuration; `walrig plugin describe NAME` lists its keys."},
	{Name: "flusher.bucket", Type: TypeString, DefaultDoc: "none: nothing is flushed, and nothing removed from the logs",
		Doc: "Where the records of all channels are flushed to, as a URL: `file:///abs/folder`, `s3://bucket?region=…`, `gs://bucket`, `azblob://container`. What is flushed is removed from the logs. See [flusher.md](flusher.md)."},
	{Name: "flusher.max_age", Type: TypeDuration, Default: "10s",
		Doc: "A virtual channel is flushed when its oldest record has waited so long."},
	{Name: "flusher.max_bytes", Type: TypeBytes, Default: "64MiB",
		Doc: "A virtual channel is flushed when so many bytes of it wait. One that holds twice as much, because its files cannot be written, is read from the log again later."},
	{Name: "flusher.max_memory", Type: TypeBytes, Default: "256MiB",
		Doc: "Bounds the records of one channel that are held in memory to be flushed, all virtual channels together. A single transaction may exceed it."},
	{Name: "flusher.parallel", Type: TypeInt, Default: "4",
		Doc: "How many virtual channels of one channel are flushed at once."},
	{Name: "flusher.checkpoint_every", Type: TypeDuration, Default: "1s",
		Doc: "How often the checkpoint of a channel is saved while it moves, and its log truncated."},
	{Name: "flusher.timeout", Type: TypeDuration, Default: "1m",
		Doc: "How long one flush may take before it is given up and tried again."},
	{Name: "flusher.retain.min_age", Type: TypeDuration, Default: "0s",
		Doc: "How old records have to be before they are removed from the log, although they are flushed. Readers that lag further behind lose their position."},
	{Name: "flusher.retain.max_pin_age", Type: TypeDuration, Default: "1h",
		Doc: "How long a reader that is connected and lags keeps records from being removed."},
	{Name: "log.level", Type: TypeString, Default: "info", OneOf: []string{"debug", "info", "warn", "error"},
		Doc: "The least important kind of log line that is written."},
	{Name: "log.format", Type: TypeString, Default: "auto", OneOf: []string{"auto", "console", "json"},
		Doc: "The form of log lines on stderr; `auto` is `console` on a terminal and `json` elsewhere."},
}

// Keys returns the table of keys. The slice is the caller's.
func Keys() []Key { return slices.Clone(keyTable) }

// InMap reports whether the key lies inside a map whose names the user chooses.
// Such keys cannot be set by a variable of the environment or a flag of their own.
func (k Key) InMap() bool { return strings.Contains(k.Name, "<") }

// Env returns the name of the key's environment variable, "" if it has none.
func (k Key) Env() string {
	if k.InMap() {
		return ""
	}
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "__"))
}

// Flag returns the name of the key's flag without the dashes, "" if it has none.
func (k Key) Flag() string {
	if k.InMap() {
		return ""
	}
	return strings.NewReplacer("_", "-", ".", "-").Replace(k.Name)
}

// lastTakesRest reports whether the last part of the name stands for all that
// remains of a path, dots included.
func (k Key) lastTakesRest() bool {
	return strings.HasSuffix(k.Name, ".<key>") || strings.HasSuffix(k.Name, ".<NAME>")
}

// lookup returns the key that a path names. A path that stops above a key is
// inner: a map of the tree.
func lookup(path []string) (key Key, leaf, inner bool) {
	for _, k := range keyTable {
		parts := strings.Split(k.Name, ".")
		if len(path) < len(parts) && match(parts[:len(path)], path) {
			inner = true
		}
		if len(path) == len(parts) && match(parts, path) {
			return k, true, false
		}
	}
	return Key{}, false, inner
}

// children returns the names that may stand below a path, none where the user
// chooses them.
func children(path []string) []string {
	var names []string
	for _, k := range keyTable {
		parts := strings.Split(k.Name, ".")
		if len(parts) <= len(path) || !match(parts[:len(path)], path) {
			continue
		}
		next := parts[len(path)]
		if strings.HasPrefix(next, "<") {
			return nil
		}
		if !slices.Contains(names, next) {
			names = append(names, next)
		}
	}
	return names
}

func match(parts, path []string) bool {
	for i, p := range parts {
		if !strings.HasPrefix(p, "<") && p != path[i] {
			return false
		}
	}
	return true
}

// splitPath cuts the dotted path of a --set. The last part of a plugin's
// config and env keys keeps its dots.
func splitPath(dotted string) []string {
	parts := strings.Split(dotted, ".")
	for _, k := range keyTable {
		want := strings.Split(k.Name, ".")
		if k.lastTakesRest() && len(parts) > len(want) && match(want, parts[:len(want)]) {
			n := len(want) - 1
			return append(parts[:n:n], strings.Join(parts[n:], "."))
		}
	}
	return parts
}
