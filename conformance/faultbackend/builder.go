package faultbackend

import (
	"context"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Name is the backend's name.
const Name = "fault"

const version = "1.0.0"

// The limits unless WithLimits gives others.
const (
	defaultMaxMessageBytes = 16 << 20
	defaultMaxBatchRecords = 4096
	defaultMaxBatchBytes   = 32 << 20
)

// Builder is the walimpls.Builder of this backend. It never changes.
type Builder struct {
	store  *Store      // nil: a new one for each Build
	ctl    *Controller // nil: a new one for each Build
	exit   func(status int)
	lose   func()
	limits walimpls.Limits
}

// Option changes a Builder.
type Option func(*Builder)

// WithStore makes all that the Builder builds share a store. It stays open when
// they close; its owner closes it.
func WithStore(s *Store) Option { return func(b *Builder) { b.store = s } }

// WithController lets the caller steer what the Builder builds.
func WithController(c *Controller) Option { return func(b *Builder) { b.ctl = c } }

// WithExit says how an exit rule ends the process, such as os.Exit. Without it
// the rule loses the connection instead.
func WithExit(exit func(status int)) Option { return func(b *Builder) { b.exit = exit } }

// WithLoseConnection says how a lose-connection rule cuts the connections of the
// process. Without it the rule costs the handle alone.
func WithLoseConnection(lose func()) Option { return func(b *Builder) { b.lose = lose } }

// WithLimits replaces the limits that the backend declares and keeps.
func WithLimits(l walimpls.Limits) Option { return func(b *Builder) { b.limits = l } }

// NewBuilder returns a Builder. Without options each Build has a store in memory
// and rules of its own.
func NewBuilder(opts ...Option) *Builder {
	b := &Builder{limits: walimpls.Limits{
		MaxMessageBytes: defaultMaxMessageBytes,
		MaxBatchRecords: defaultMaxBatchRecords,
		MaxBatchBytes:   defaultMaxBatchBytes,
	}}
	for _, opt := range opts {
		opt(b)
	}
	return b
}

// Name implements walimpls.Builder.
func (b *Builder) Name() string { return Name }

// Describe implements walimpls.Builder. Durability is that of the memory, which
// is what a file without fsync comes to when the machine dies.
func (b *Builder) Describe() walimpls.Description {
	return walimpls.Description{
		Backend:  Name,
		Version:  version,
		IDLayout: "u64",
		Capabilities: walimpls.Capabilities{
			Fencing:    walimpls.FencingStrict,
			Durability: walimpls.DurabilityMemory,
			Truncation: walimpls.TruncationImmediate,
			Drop:       true, ReadOnly: true, ExclusiveStore: true,
		},
		Limits: b.limits,
		Config: configFields(),
	}
}

func configFields() []walimpls.ConfigField {
	return []walimpls.ConfigField{
		{Name: "rules", Type: walimpls.ConfigString, Doc: "fault rules, one a line or separated by ';'; empty for a backend without faults"},
		{Name: "rules_file", Type: walimpls.ConfigString, Doc: "path of a file with more rules; it is read again whenever it changes and may be missing"},
		{Name: "seed", Type: walimpls.ConfigInt, Default: int64(defaultSeed), Doc: "seed of the rules with prob= and without seed="},
		{Name: "stats_file", Type: walimpls.ConfigString, Doc: "path of a JSON file that is kept up to date with the counters of calls and faults"},
		{Name: "file", Type: walimpls.ConfigString, Doc: "path of a file that keeps the logs over a restart of the process; empty for memory alone"},
		{Name: "fsync", Type: walimpls.ConfigBool, Doc: "sync the file before each acknowledgement"},
		{Name: "lock_timeout", Type: walimpls.ConfigDuration, Default: defaultLockTimeout, Doc: "how long the first open waits for another process to let the file go"},
	}
}

// Build implements walimpls.Builder.
func (b *Builder) Build(_ context.Context, cfg walimpls.Config, log *zap.Logger) (walimpls.Opener, error) {
	values, err := cfg.Decode(configFields())
	if err != nil {
		return nil, err
	}
	ctl := b.ctl
	if ctl == nil {
		ctl = NewController()
	}
	if err := configure(ctl, values); err != nil {
		return nil, err
	}
	store, owned := b.store, false
	switch path := values.String("file"); {
	case store != nil && path != "":
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", `configuration: key "file": this builder has a store already`)
	case path != "":
		store, owned = NewFileStore(path, FileOptions{Fsync: values.Bool("fsync"), LockTimeout: values.Duration("lock_timeout")}), true
	case store == nil:
		store, owned = NewStore(), true
	}
	if log == nil {
		log = zap.NewNop()
	}
	o := &opener{
		engine: &engine{Controller: ctl, log: log, exit: b.exit, lose: b.lose},
		store:  store, owned: owned, limits: b.limits,
		closing: make(chan struct{}), handles: map[*handle]struct{}{},
	}
	if path := values.String("stats_file"); path != "" {
		o.engine.writer = startStatsWriter(ctl, path, log)
	}
	return o, nil
}

// configure hands what the configuration says about rules to the controller. A
// shared controller keeps what the configuration does not mention.
func configure(ctl *Controller, values walimpls.Values) error {
	if seed := values.Int("seed"); seed != defaultSeed {
		ctl.setSeed(uint64(seed))
	}
	if text := values.String("rules"); text != "" {
		if err := ctl.SetRules(text); err != nil {
			e := walimpls.AsError(err)
			e.Message = `configuration: key "rules": ` + e.Message
			return e
		}
	}
	if path := values.String("rules_file"); path != "" {
		return ctl.useFile(path)
	}
	return nil
}

var _ walimpls.Builder = (*Builder)(nil)
