package rmq

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// writeCategory is what Pebble's vfs counts the writes under.
	writeCategory vfs.DiskWriteCategory = "rmq-log"
	// maxSpares bounds the truncated segments that wait to be used again.
	maxSpares = 3
	// slowRoll: a segment that took longer to fill is followed by one that was
	// written with zeros before. Syncs into blocks that were written before cost
	// half as much; under load the zeros would compete for the disk.
	slowRoll  = 2 * time.Second
	zeroChunk = 1 << 20
)

// supply makes segments ready before the committer needs them: truncated ones
// that are used again, or new ones. A prepared segment's name is durable, so
// that a commit into it needs one sync and no more.
type supply struct {
	settings settings
	fs       vfs.FS
	dir      string
	// hurry stops the writing of zeros: the committer waits. So does ending: the
	// engine stops.
	hurry, ending atomic.Bool

	mu       sync.Mutex // guards what follows, and is held while a segment is made
	next     *prepared
	spares   []string // file names
	lastNum  uint64   // the number of the newest segment that was prepared
	lastTake time.Time
	nextFree uint64 // names spares
	err      error  // a folder sync failed: no name is durable any more
}

// prepared is a segment that nothing was committed to.
type prepared struct {
	segment *segment
	file    vfs.File
}

func newSupply(s settings, dir string) *supply {
	return &supply{settings: s, fs: s.fs, dir: dir, lastTake: time.Now()}
}

// adopt takes over what an earlier opening prepared.
func (s *supply) adopt(c *contents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(c.segments); n > 0 {
		s.lastNum = c.segments[n-1].num
	}
	s.spares = append(s.spares, c.spares...)
	for _, num := range c.unstarted {
		s.spares = append(s.spares, segmentName(num))
	}
	s.nextFree = s.lastNum
}

// take returns a segment to write to. The caller closes its file.
func (s *supply) take() (*prepared, error) {
	s.hurry.Store(true)
	defer s.hurry.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.prepareLocked(false); err != nil {
		return nil, err
	}
	p := s.next
	s.next, s.lastTake = nil, time.Now()
	return p, nil
}

// prepare makes the next segment ready in advance.
func (s *supply) prepare() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prepareLocked(time.Since(s.lastTake) > s.settings.slowRoll || s.lastNum <= 1)
}

func (s *supply) prepareLocked(fill bool) error {
	if s.err != nil {
		return s.err
	}
	if s.next != nil {
		return nil
	}
	num := s.lastNum + 1
	path := s.fs.PathJoin(s.dir, segmentName(num))
	size, recycled := int64(0), false
	for len(s.spares) > 0 && !recycled {
		name := s.spares[len(s.spares)-1]
		s.spares = s.spares[:len(s.spares)-1]
		old := s.fs.PathJoin(s.dir, name)
		info, err := s.fs.Stat(old)
		if err != nil {
			continue
		}
		if old != path {
			if err := s.fs.Rename(old, path); err != nil {
				return fmt.Errorf("rename %q to %q: %w", old, path, err)
			}
		}
		size, recycled = info.Size(), true
	}
	open := s.fs.Create
	if recycled {
		open = func(name string, c vfs.DiskWriteCategory) (vfs.File, error) { return s.fs.OpenReadWrite(name, c) }
	}
	file, err := open(path, writeCategory)
	if err != nil {
		return fmt.Errorf("make %q: %w", path, err)
	}
	if !recycled && fill {
		// Synced once here, so that the first commit need not.
		if size, err = s.zeros(file); err == nil {
			err = file.Sync()
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("prepare %q: %w", path, err), file.Close(), s.fs.Remove(path))
	}
	if err := syncFolder(s.fs, s.dir); err != nil {
		// A second sync may say success for what the first one lost.
		s.err = fmt.Errorf("sync the folder %q: %w", s.dir, err)
		return errors.Join(s.err, file.Close())
	}
	s.lastNum = num
	s.next = &prepared{segment: &segment{num: num, path: path, size: size}, file: file}
	return nil
}

// zeros writes a new segment full of zeros, as far as there is time.
func (s *supply) zeros(file vfs.File) (size int64, err error) {
	free, kept, ok := s.freeSpace()
	if ok && free < 2*kept+uint64(s.settings.segmentSize) {
		return 0, nil
	}
	zeros := make([]byte, min(zeroChunk, s.settings.segmentSize))
	for size < s.settings.segmentSize && !s.hurry.Load() && !s.ending.Load() {
		n, err := file.WriteAt(zeros[:min(int64(len(zeros)), s.settings.segmentSize-size)], size)
		size += int64(n)
		if err != nil {
			return size, err
		}
	}
	return size, nil
}

// giveBack takes a segment whose records are all gone: it waits for its next
// use, or is removed.
func (s *supply) giveBack(g *segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keepsLocked(g.size) {
		s.nextFree++
		name := spareName(s.nextFree)
		if err := s.fs.Rename(g.path, s.fs.PathJoin(s.dir, name)); err != nil {
			return fmt.Errorf("rename %q: %w", g.path, err)
		}
		s.spares = append(s.spares, name)
		return nil
	}
	if err := s.fs.Remove(g.path); err != nil {
		return fmt.Errorf("remove %q: %w", g.path, err)
	}
	return nil
}

// keepsLocked says whether a file of that size shall wait for its next use.
func (s *supply) keepsLocked(size int64) bool {
	if len(s.spares) >= maxSpares || size > s.settings.segmentSize*5/4 || s.idleLocked() {
		return false
	}
	free, kept, ok := s.freeSpace()
	return !ok || free >= 2*kept+uint64(size)
}

func (s *supply) idleLocked() bool { return time.Since(s.lastTake) > s.settings.idleAfter }

// shrink removes the spares of an idle store, and of a full disk. It reports
// whether any are left.
func (s *supply) shrink() (left bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, kept, ok := s.freeSpace()
	if !s.idleLocked() && (!ok || free >= 2*kept) {
		return len(s.spares) > 0, nil
	}
	for len(s.spares) > 0 {
		name := s.spares[len(s.spares)-1]
		if err := s.fs.Remove(s.fs.PathJoin(s.dir, name)); err != nil {
			return true, fmt.Errorf("remove %q: %w", name, err)
		}
		s.spares = s.spares[:len(s.spares)-1]
	}
	return false, nil
}

func (s *supply) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		_ = s.next.file.Close()
		s.next = nil
	}
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
func (s *supply) freeSpace() (free, kept uint64, ok bool) {
	usage, err := s.fs.GetDiskUsage(s.settings.dir)
	if err != nil || usage.TotalBytes == 0 {
		return 0, 0, false
	}
	return usage.AvailBytes, reserve(s.settings.minFree, usage.TotalBytes), true
}

// fitting is the configured segment size, less on a small file system, where
// the few segments that are always there would fill the disk.
func fitting(s settings) int64 {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil || usage.TotalBytes == 0 {
		return s.segmentSize
	}
	return min(s.segmentSize, max(256<<10, int64(usage.TotalBytes/64)))
}
