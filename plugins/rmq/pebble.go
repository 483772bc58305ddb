package rmq

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// pebbleFormat is fixed, so that a new Pebble does not change the bytes on disk
// behind the back of formatVersion. This one can tell a torn tail of its log
// from damage.
const pebbleFormat = pebble.FormatTableFormatV6

// writeBuffers is how many write buffers may exist before writes wait for
// their flush.
const writeBuffers = 4

// pebbleOptions returns Pebble's options: a log that is appended to, read in
// order, and cut off in front, in little memory.
func (e *engine) pebbleOptions() *pebble.Options {
	s := e.settings
	opt := &pebble.Options{
		FS:                          e.gate,
		FormatMajorVersion:          pebbleFormat,
		Logger:                      pebbleLogger{e},
		EventListener:               e.pebbleEvents(),
		CacheSize:                   s.cacheSize,
		MemTableSize:                uint64(e.memtableSize()),
		MemTableStopWritesThreshold: writeBuffers,
		// Logs lie side by side in each flushed table, so the number of
		// overlapping tables grows with every flush. Waiting for compaction
		// costs appends more than it gains reads.
		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 64,
		CompactionConcurrencyRange: func() (lower, upper int) {
			return 1, 2
		},
		FlushDelayDeleteRange: s.reclaimDelay,
		MaxOpenFiles:          500,
	}
	for i := range opt.TargetFileSizes {
		opt.TargetFileSizes[i] = e.memtableSize() / 2
	}
	for i := range opt.Levels {
		opt.Levels[i].BlockSize = 32 << 10
	}
	// Fast compression leaves a block as it is when that gains nothing.
	opt.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	return opt
}

// memtableSize is the configured one, less on a small file system, where the
// write buffers' logs would fill the disk before the first flush.
func (e *engine) memtableSize() int64 {
	size := e.settings.memtableSize
	usage, err := e.settings.fs.GetDiskUsage(e.settings.dir)
	if err != nil || usage.TotalBytes == 0 {
		return size
	}
	return max(256<<10, min(size, int64(usage.TotalBytes/32)))
}

// reserve is how much of the file system appends leave free.
func reserve(minFree int64, total uint64) uint64 {
	if minFree > 0 {
		return uint64(minFree)
	}
	return min(128<<20, total/4)
}

// freeSpace returns what the file system has free and what appends leave of it;
// ok is false where the file system does not tell.
func (e *engine) freeSpace() (free, kept uint64, ok bool) {
	usage, err := e.settings.fs.GetDiskUsage(e.settings.dir)
	if err != nil || usage.TotalBytes == 0 {
		return 0, 0, false
	}
	return usage.AvailBytes, reserve(e.settings.minFree, usage.TotalBytes), true
}

// pebbleEvents logs what an operator wants to know. While the store opens, a
// background error is Pebble's failed flush of what it recovered: it would be
// repeated for ever inside pebble.Open, so it ends the attempt instead.
func (e *engine) pebbleEvents() *pebble.EventListener {
	var lastLogged atomic.Int64
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if e.opening.Load() {
				e.gate.fail(err)
				return
			}
			now := time.Now().UnixNano()
			if last := lastLogged.Load(); now-last > int64(time.Second) && lastLogged.CompareAndSwap(last, now) {
				e.log.Warn("store: background work failed and is repeated", zap.String("cause", err.Error()))
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			e.log.Error("store: damaged data", zap.String("path", info.Path), zap.String("cause", info.Details.Error()))
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			e.log.Info("store: appends wait for the disk", zap.String("reason", info.Reason))
		},
		WriteStallEnd: func() { e.log.Info("store: appends go on") },
		DiskSlow: func(info pebble.DiskSlowInfo) {
			e.log.Warn("store: the disk is slow", zap.String("operation", info.String()))
		},
	}
}

// pebbleLogger takes Pebble's log lines.
type pebbleLogger struct{ e *engine }

func (l pebbleLogger) Infof(format string, args ...any) {
	if ce := l.e.log.Check(zap.DebugLevel, "pebble"); ce != nil {
		ce.Write(zap.String("text", fmt.Sprintf(format, args...)))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.e.log.Warn("pebble", zap.String("text", fmt.Sprintf(format, args...)))
}

// Fatalf must not end the process: other logs' callers would lose what the
// engine can still tell them. Shutting the gate is what makes it safe to return.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	fatal := &fatalError{text: "pebble: " + fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			fatal.cause = err
		}
	}
	l.e.gate.fail(fatal)
}

// fatalError keeps the cause inside Pebble's text, so that a full disk is told
// from a broken one.
type fatalError struct {
	text  string
	cause error
}

func (e *fatalError) Error() string { return e.text }
func (e *fatalError) Unwrap() error { return e.cause }
