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
const Version = "0.1.0"

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
	keyCacheSize    = "cache_size"
	keyMemtableSize = "memtable_size"
	keyMinFree      = "min_free"
)

var configFields = []walimpls.ConfigField{
	{Name: keyDir, Type: walimpls.ConfigString, Required: true,
		Doc: "folder of the store; made with mode 0700 by the first open that writes; one process at a time"},
	{Name: keyOpenTimeout, Type: walimpls.ConfigDuration, Default: "10s",
		Doc: "how long an open waits for another process to let go of the folder"},
	{Name: keyCacheSize, Type: walimpls.ConfigBytes, Default: "32MiB",
		Doc: "memory for blocks read from table files"},
	{Name: keyMemtableSize, Type: walimpls.ConfigBytes, Default: "32MiB",
		Doc: "size of one write buffer; up to four exist at a time; 256KiB to 1GiB"},
	{Name: keyMinFree, Type: walimpls.ConfigBytes, Default: "0",
		Doc: "appends are refused with no_space while the file system has less than this free, so that reads, opens and truncation still work; 0 means 128MiB, or a quarter of a small file system"},
}

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
	dir          string
	openTimeout  time.Duration
	cacheSize    int64
	memtableSize int64
	minFree      int64
	limits       walimpls.Limits
	// queueBytes bounds the encoded bytes that wait for the committer.
	queueBytes int
	// reclaimDelay is how long a truncation may wait before the write buffer
	// that holds it is flushed, which is when space begins to come free.
	reclaimDelay time.Duration
	// retryPause slows down the repetition of a failed table write.
	retryPause time.Duration
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
		reclaimDelay:  time.Second,
		retryPause:    100 * time.Millisecond,
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
	s.cacheSize = v.Bytes(keyCacheSize)
	s.memtableSize = v.Bytes(keyMemtableSize)
	s.minFree = v.Bytes(keyMinFree)

	var problems []string
	if strings.TrimSpace(s.dir) == "" {
		problems = append(problems, `key "dir": it is empty`)
	}
	if s.memtableSize < 256<<10 || s.memtableSize > 1<<30 {
		problems = append(problems, `key "memtable_size": want 256KiB to 1GiB`)
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
