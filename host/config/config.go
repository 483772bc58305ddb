package config

import (
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Config is a checked configuration. It holds secrets in clear: it must not be
// logged or printed; Explain returns what may be shown.
type Config struct {
	// DataDir is absolute.
	DataDir string
	Listen  string
	// MetricsListen is where /metrics is served, "" for nowhere.
	MetricsListen string
	// Insecure allows to listen beyond loopback.
	Insecure bool
	// Mode is ModeStandalone or ModeCluster.
	Mode      string
	PluginDir string
	// DefaultPlugin is the name of one of Plugins.
	DefaultPlugin string
	// Plugins are sorted by name; there is at least one.
	Plugins []Plugin
	Flusher Flusher
	Log     Log

	entries []Entry
}

// Plugin is one configured plugin. Paths are as they were written.
type Plugin struct {
	Name    string
	Backend string
	// Path is the binary, "" to search for it.
	Path string
	// SHA256 is the pin in lower-case hexadecimal, "" for none.
	SHA256 string
	// Env is the explicit environment, secrets resolved.
	Env map[string]string
	// StartTimeout bounds a start.
	StartTimeout time.Duration
	// Config is the backend's configuration, secrets resolved.
	Config walimpls.Config
}

// Flusher says where and when records are flushed.
type Flusher struct {
	// Bucket is a URL; "" flushes nothing.
	Bucket              string
	MaxAge              time.Duration
	MaxBytes, MaxMemory int
	Parallel            int
	CheckpointEvery     time.Duration
	Timeout             time.Duration
	MinAge, MaxPinAge   time.Duration
}

// Log says what is logged and how.
type Log struct {
	// Level is debug, info, warn or error.
	Level string
	// Format is auto, console or json.
	Format string
}

// Entry is one key with its effective value, for `walrig config explain`.
type Entry struct {
	// Key is the dotted path, with the names that the user chose.
	Key  string
	Type Type
	// Value is printable: a secret is shown by its reference or as Hidden.
	Value string
	// Default is the default as documented.
	Default string
	Source  Source
	Secret  bool
	Doc     string
}

// Hidden stands for a secret that was written in clear.
const Hidden = "(hidden)"

// Explain returns all keys with their effective values, in the table's order
// and the plugins by name.
func (c *Config) Explain() []Entry { return append([]Entry(nil), c.entries...) }
