package rmq

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// errLeaving is what Pebble's background work gets for its table writes while
// the engine closes, so that it gives up at once instead of finishing.
var errLeaving = errors.New("rmq: the store is closing")

// gate stands between one Pebble instance and the file system.
//
// Pebble panics, or asks its logger to end the process, when a write or sync of
// its log, manifest or folder fails. The gate makes such a failure harmless and
// final instead: it notes the cause, reports it to the engine, and from that
// very operation on swallows everything that would change the disk, answering
// success. Pebble then believes in work that never happened, but nothing it
// believes reaches the disk or an acknowledgement: the engine asks the gate
// after each commit. So the instance can be closed in an orderly way, and a new
// one opened on what the disk really holds.
//
// Failures of table files are passed on: Pebble answers them by writing the
// table again under another name, from data that is still in its log. Not so
// while the store opens: pebble.Open would repeat a failed flush for ever, and
// leak goroutines when another write fails. It is let through to its end, on
// swallowed work, and the engine that it made is closed.
type gate struct {
	inner  vfs.FS
	pause  time.Duration
	onFail func(cause error)

	mu       sync.Mutex // guards what follows
	mode     gateMode
	cause    error
	inFlight int
	drained  chan struct{} // closed at inFlight 0; made by whoever waits
	hurry    chan struct{} // closed when the gate is no longer open
}

type gateMode int

const (
	gateStarting gateMode = iota // every failure shuts the gate
	gateOpen                     // failures of critical files shut the gate
	gateLeaving                  // table writes are refused, the rest is open
	gateShut                     // every change is swallowed
)

func newGate(inner vfs.FS, pause time.Duration, onFail func(error)) *gate {
	return &gate{inner: inner, pause: pause, onFail: onFail, hurry: make(chan struct{})}
}

// fail shuts the gate because of cause, unless it is shut already.
func (g *gate) fail(cause error) {
	g.mu.Lock()
	first := g.mode != gateShut
	if first {
		g.cause = cause
		g.toLocked(gateShut)
	}
	g.mu.Unlock()
	if first {
		g.onFail(cause)
	}
}

// to moves the gate on; it never moves back.
func (g *gate) to(mode gateMode) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.toLocked(mode)
}

func (g *gate) toLocked(mode gateMode) {
	if mode <= g.mode {
		return
	}
	if g.mode < gateLeaving && mode >= gateLeaving {
		close(g.hurry)
	}
	g.mode = mode
}

// failure returns what shut the gate, nil if nothing did.
func (g *gate) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause
}

// drain returns a channel that is closed when no change is under way. Use it
// when the gate is shut: after it, the instance cannot touch the disk any more.
func (g *gate) drain() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drained == nil {
		g.drained = make(chan struct{})
	}
	if g.inFlight == 0 {
		close(g.drained)
		done := g.drained
		g.drained = nil
		return done
	}
	return g.drained
}

// change runs f, which changes the disk, unless the gate swallows it.
func (g *gate) change(kind fileKind, f func() error) error {
	g.mu.Lock()
	switch {
	case g.mode == gateShut:
		g.mu.Unlock()
		return nil
	case g.mode == gateLeaving && kind == fileTable:
		g.mu.Unlock()
		return errLeaving
	}
	g.inFlight++
	g.mu.Unlock()

	err := f()

	g.mu.Lock()
	g.inFlight--
	if g.inFlight == 0 && g.drained != nil {
		close(g.drained)
		g.drained = nil
	}
	mode := g.mode
	g.mu.Unlock()

	if err == nil {
		return nil
	}
	switch {
	case mode == gateShut:
		return nil
	case kind == fileCritical, kind == fileTable && mode == gateStarting:
		g.fail(err)
		return nil
	case kind == fileTable && mode == gateOpen:
		// Pebble repeats a failed flush at once and for ever.
		timer := time.NewTimer(g.pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-g.hurry:
		}
	}
	return err
}

// fileKind says what a failure to change a file means.
type fileKind int

const (
	fileCritical fileKind = iota // log, manifest, marker, options, folder: the end of the instance
	fileTable                    // Pebble writes the table again
	fileHint                     // Pebble copes: removals, hints
)

func kindOf(name string) fileKind {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		return fileTable
	}
	return fileCritical
}

var _ vfs.FS = (*gate)(nil)

// makeFile runs a call that makes a writable file; a swallowed one makes a
// file that takes everything and holds nothing.
func (g *gate) makeFile(name string, f func() (vfs.File, error)) (vfs.File, error) {
	kind := kindOf(name)
	var file vfs.File
	err := g.change(kind, func() error {
		made, err := f()
		if err == nil {
			file = made
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if file == nil {
		return nullFile{name: g.inner.PathBase(name)}, nil
	}
	return &gatedFile{File: file, gate: g, kind: kind}, nil
}

// Create, OpenReadWrite and ReuseForWrite are gated; see gate.
func (g *gate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.makeFile(name, func() (vfs.File, error) { return g.inner.Create(name, c) })
}

func (g *gate) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return g.makeFile(name, func() (vfs.File, error) { return g.inner.OpenReadWrite(name, c, opts...) })
}

func (g *gate) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.makeFile(newname, func() (vfs.File, error) { return g.inner.ReuseForWrite(oldname, newname, c) })
}

func (g *gate) Link(oldname, newname string) error {
	return g.change(kindOf(newname), func() error { return g.inner.Link(oldname, newname) })
}

func (g *gate) Rename(oldname, newname string) error {
	return g.change(kindOf(newname), func() error { return g.inner.Rename(oldname, newname) })
}

// Remove is never critical: a file that could not be removed is removed by the
// next open.
func (g *gate) Remove(name string) error {
	return g.change(fileHint, func() error { return g.inner.Remove(name) })
}

func (g *gate) RemoveAll(name string) error {
	return g.change(fileHint, func() error { return g.inner.RemoveAll(name) })
}

func (g *gate) MkdirAll(dir string, perm os.FileMode) error {
	return g.change(fileHint, func() error { return g.inner.MkdirAll(dir, perm) })
}

func (g *gate) OpenDir(name string) (vfs.File, error) {
	f, err := g.inner.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &gatedFile{File: f, gate: g, kind: fileCritical}, nil
}

// Lock does nothing: the folder's own lock keeps other processes and other
// instances out, for as long as any change may still be under way.
func (g *gate) Lock(string) (io.Closer, error) { return nopCloser{}, nil }

type nopCloser struct{}

func (nopCloser) Close() error { return nil }

func (g *gate) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return g.inner.Open(name, opts...)
}
func (g *gate) List(dir string) ([]string, error)            { return g.inner.List(dir) }
func (g *gate) Stat(name string) (vfs.FileInfo, error)       { return g.inner.Stat(name) }
func (g *gate) PathBase(path string) string                  { return g.inner.PathBase(path) }
func (g *gate) PathJoin(elem ...string) string               { return g.inner.PathJoin(elem...) }
func (g *gate) PathDir(path string) string                   { return g.inner.PathDir(path) }
func (g *gate) GetDiskUsage(p string) (vfs.DiskUsage, error) { return g.inner.GetDiskUsage(p) }
func (g *gate) Unwrap() vfs.FS                               { return g.inner }

// gatedFile is a file whose changes go through the gate.
type gatedFile struct {
	vfs.File
	gate *gate
	kind fileKind
}

func (f *gatedFile) Write(p []byte) (int, error) {
	n := len(p)
	err := f.gate.change(f.kind, func() error {
		m, err := f.File.Write(p)
		if err == nil && m < n {
			err = io.ErrShortWrite
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (f *gatedFile) WriteAt(p []byte, off int64) (int, error) {
	n := len(p)
	err := f.gate.change(f.kind, func() error {
		m, err := f.File.WriteAt(p, off)
		if err == nil && m < n {
			err = io.ErrShortWrite
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (f *gatedFile) Sync() error     { return f.gate.change(f.kind, f.File.Sync) }
func (f *gatedFile) SyncData() error { return f.gate.change(f.kind, f.File.SyncData) }

func (f *gatedFile) SyncTo(length int64) (fullSync bool, err error) {
	err = f.gate.change(f.kind, func() (err error) {
		fullSync, err = f.File.SyncTo(length)
		return err
	})
	return fullSync, err
}

// Preallocate is a hint; a file system that cannot do it is no failure.
func (f *gatedFile) Preallocate(offset, length int64) error {
	return f.gate.change(fileHint, func() error { return f.File.Preallocate(offset, length) })
}

// nullFile stands for a file whose making was swallowed.
type nullFile struct{ name string }

var _ vfs.File = nullFile{}

func (nullFile) Close() error                            { return nil }
func (nullFile) Read([]byte) (int, error)                { return 0, io.EOF }
func (nullFile) ReadAt([]byte, int64) (int, error)       { return 0, io.EOF }
func (nullFile) Write(p []byte) (int, error)             { return len(p), nil }
func (nullFile) WriteAt(p []byte, _ int64) (int, error)  { return len(p), nil }
func (nullFile) Preallocate(int64, int64) error          { return nil }
func (nullFile) Sync() error                             { return nil }
func (nullFile) SyncTo(int64) (fullSync bool, err error) { return false, nil }
func (nullFile) SyncData() error                         { return nil }
func (nullFile) Prefetch(int64, int64) error             { return nil }
func (nullFile) Fd() uintptr                             { return vfs.InvalidFd }
func (f nullFile) Stat() (vfs.FileInfo, error)           { return nullInfo(f), nil }

type nullInfo struct{ name string }

func (i nullInfo) Name() string         { return i.name }
func (nullInfo) Size() int64            { return 0 }
func (nullInfo) Mode() os.FileMode      { return 0o600 }
func (nullInfo) ModTime() time.Time     { return time.Time{} }
func (nullInfo) IsDir() bool            { return false }
func (nullInfo) Sys() any               { return nil }
func (nullInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
