package rmq

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Version is the backend's version, as status shows it.
const Version = "0.2.0"

// The limits of one record and of one Append.
const (
	maxMessageBytes = 32 << 20
	maxBatchRecords = 16384
	maxBatchBytes   = 64 << 20
)

// The configuration keys.
const (
	keyDir          = "dir"
	keyOpenTimeout  = "open_timeout"
	keySegmentSize  = "segment_size"
	keySync         = "sync"
	keySyncInterval = "sync_interval"
	keyMinFree      = "min_free"
)

var configFields = []walimpls.ConfigField{
	{Name: keyDir, Type: walimpls.ConfigString, Required: true,
		Doc: "folder of the store; made with mode 0700 by the first open that writes; one process at a time"},
	{Name: keyOpenTimeout, Type: walimpls.ConfigDuration, Default: "10s",
		Doc: "how long an open waits for another process to let go of the folder"},
	{Name: keySegmentSize, Type: walimpls.ConfigBytes, Default: "16MiB",
		Doc: "size of one file of the store's log, and of the one or two that an idle store keeps ready; 256KiB to 256MiB; less on a small file system"},
	{Name: keySync, Type: walimpls.ConfigString, Default: syncAlways, OneOf: []string{syncAlways, syncByInterval},
		Doc: "when a record is acknowledged: \"always\" after it is synced to the disk; \"interval\" after it is written, so that a power loss or a crash of the system loses what was acknowledged in the last sync_interval, plus the time of one sync, always the newest records and no others (a crash of the process loses nothing)"},
	{Name: keySyncInterval, Type: walimpls.ConfigDuration, Default: "50ms",
		Doc: "how often the disk is synced with sync \"interval\"; 1ms to 1m"},
	{Name: keyMinFree, Type: walimpls.ConfigBytes, Default: "0",
		Doc: "appends are refused with no_space while the file system has less than this free, so that reads, opens and truncation still work; 0 means 128MiB, or a quarter of a small file system"},
}

// The values of the key "sync".
const (
	syncAlways     = "always"
	syncByInterval = "interval"
)

// Builder makes the embedded backend. The zero value is ready to use.
type Builder struct {
	// fs is the file system; nil is the operating system's. Tests put fault
	// injection and crashes here.
	fs vfs.FS
	// tune changes what tests need to be small or quick; nil in production.
	tune func(*settings)
}

// NewBuilder returns the builder of the embedded backend.
func NewBuilder() Builder { return Builder{} }

var _ walimpls.Builder = Builder{}

// Name returns "rmq".
func (Builder) Name() string { return "rmq" }

// Describe says what the backend is and can do.
func (b Builder) Describe() walimpls.Description {
	return walimpls.Description{
		Backend:  b.Name(),
		Version:  Version,
		IDLayout: "u64",
		Capabilities: walimpls.Capabilities{
			Fencing:        walimpls.FencingStrict,
			Durability:     walimpls.DurabilityFsync,
			Truncation:     walimpls.TruncationDeferred,
			Drop:           true,
			ReadOnly:       true,
			ExclusiveStore: true,
		},
		Limits: defaultLimits(),
		Config: append([]walimpls.ConfigField(nil), configFields...),
	}
}

// settings are a store's parameters, checked.
type settings struct {
	dir         string
	openTimeout time.Duration
	segmentSize int64
	// syncInterval is 0 when every commit is synced.
	syncInterval time.Duration
	minFree      int64
	limits       walimpls.Limits
	// queueBytes bounds the encoded bytes that wait for the committer.
	queueBytes int
	// reclaimDelay is how long truncations are collected before their space is
	// given back; idleAfter how long no segment was begun before the spare ones
	// are removed; slowRoll see supply.
	reclaimDelay time.Duration
	idleAfter    time.Duration
	slowRoll     time.Duration
	// closeGrace bounds Close; inFlightGrace the part of it that is spent on
	// appends that the committer has in hand.
	closeGrace    time.Duration
	inFlightGrace time.Duration
	fs            vfs.FS
	// onCommit, if set, runs before each commit, with the number of requests.
	onCommit func(requests int)
}

func defaultLimits() walimpls.Limits {
	return walimpls.Limits{MaxMessageBytes: maxMessageBytes, MaxBatchRecords: maxBatchRecords, MaxBatchBytes: maxBatchBytes}
}

func (b Builder) settings() settings {
	s := settings{
		limits:        defaultLimits(),
		queueBytes:    64 << 20,
		reclaimDelay:  200 * time.Millisecond,
		idleAfter:     10 * time.Second,
		slowRoll:      slowRoll,
		closeGrace:    walimpls.GracePeriod - 500*time.Millisecond,
		inFlightGrace: 2 * time.Second,
		fs:            b.fs,
	}
	if s.fs == nil {
		s.fs = vfs.Default
	}
	return s
}

// Build checks cfg and returns an Opener that has touched nothing yet.
func (b Builder) Build(_ context.Context, cfg walimpls.Config, log *zap.Logger) (walimpls.Opener, error) {
	v, err := cfg.Decode(configFields)
	if err != nil {
		return nil, err
	}
	s := b.settings()
	s.dir = v.String(keyDir)
	s.openTimeout = v.Duration(keyOpenTimeout)
	s.segmentSize = v.Bytes(keySegmentSize)
	s.minFree = v.Bytes(keyMinFree)

	var problems []string
	if strings.TrimSpace(s.dir) == "" {
		problems = append(problems, `key "dir": it is empty`)
	}
	if s.segmentSize < 256<<10 || s.segmentSize > 256<<20 {
		problems = append(problems, `key "segment_size": want 256KiB to 256MiB`)
	}
	if interval := v.Duration(keySyncInterval); interval < time.Millisecond || interval > time.Minute {
		problems = append(problems, `key "sync_interval": want 1ms to 1m`)
	} else if v.String(keySync) == syncByInterval {
		s.syncInterval = interval
	}
	if len(problems) > 0 {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "configuration: %s", strings.Join(problems, "; "))
	}
	// An absolute path keeps messages useful and a later chdir harmless.
	if abs, err := filepath.Abs(s.dir); err == nil {
		s.dir = abs
	}
	if log == nil {
		log = zap.NewNop()
	}
	if b.tune != nil {
		b.tune(&s)
	}
	return newOpener(s, log), nil
}
