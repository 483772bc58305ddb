package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/walrig/walrig/sdk/walimpls"
)

// DefaultLockTimeout is how long OpenBolt waits for a dying predecessor.
const DefaultLockTimeout = 3 * time.Second

const lockRetry = 20 * time.Millisecond

// BoltOptions are the options of OpenBolt.
type BoltOptions struct {
	// LockTimeout bounds the wait for the file's lock, which another host on
	// the same data folder holds. 0 means DefaultLockTimeout.
	LockTimeout time.Duration

	// openFile replaces os.OpenFile in tests.
	openFile func(string, int, os.FileMode) (*os.File, error)
	// noSync leaves out the sync of every write, for tests that make many.
	noSync bool
}

var (
	metaBucket = []byte("walrig.meta")
	rowsBucket = []byte("walrig.pchannels")
	formatKey  = []byte("format")
)

// OpenBolt opens the catalog in the file at path, and creates it in a folder
// that exists. One process at a time can have it open.
//
// Errors: ErrUnavailable (locked by another host, or not accessible; the text
// says which and names the path), ErrCorrupt, ErrUnsupported (another release's
// format), ErrForeignStore (another program's bbolt file).
func OpenBolt(path string, opt BoltOptions) (Catalog, error) {
	if opt.LockTimeout <= 0 {
		opt.LockTimeout = DefaultLockTimeout
	}
	if opt.openFile == nil {
		opt.openFile = os.OpenFile
	}
	c := &boltCatalog{path: path}
	if err := c.open(opt); err != nil {
		return nil, err
	}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

type boltCatalog struct {
	path string
	db   *bolt.DB
	// file is db's own handle: closing it gives the lock back where db itself
	// cannot be trusted to close any more.
	file *os.File
	// decoded has a lock of its own.
	decoded decodedRows

	mu       sync.Mutex // guards all below
	broken   error      // why nothing works any more
	panicked bool       // bbolt's locks may be held for ever
	closed   bool
}

// open locks and maps the file. bbolt panics on some damage; then its handle is
// closed here, or the lock would stay until the process ends.
func (c *boltCatalog) open(opt BoltOptions) (err error) {
	openFile := func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := opt.openFile(name, flag, mode)
		if err != nil {
			return nil, err
		}
		c.file = f
		return f, lockAndCheck(f, opt.LockTimeout)
	}
	err = c.protect(func() error {
		db, err := bolt.Open(c.path, 0o600, &bolt.Options{Timeout: opt.LockTimeout, OpenFile: openFile, NoSync: opt.noSync, NoGrowSync: opt.noSync})
		c.db = db
		return err
	})
	if err == nil && !opt.noSync {
		err = syncFolder(filepath.Dir(c.path))
	}
	if err == nil {
		return nil
	}
	if c.db != nil {
		_ = c.protect(c.db.Close)
	} else if c.file != nil {
		c.release()
	}
	return c.openError(err, opt.LockTimeout)
}

// lockAndCheck locks the file, as bbolt does again afterwards (the lock belongs
// to the open file, so that is a no-op), and checks it before bbolt reads it.
func lockAndCheck(f *os.File, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !time.Now().Before(deadline) {
			return bolterrors.ErrTimeout
		}
		time.Sleep(lockRetry)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return checkFile(f, info.Size())
}

// openError says what stands in the way of opening, and what to do.
func (c *boltCatalog) openError(err error, waited time.Duration) error {
	var typed *walimpls.Error
	var errno syscall.Errno
	switch {
	case errors.As(err, &typed):
		return err
	case errors.Is(err, bolterrors.ErrTimeout):
		e := walimpls.Errorf(walimpls.CodeUnavailable, "",
			"the catalog %s is locked: another host holds the data folder %s (waited %v)", c.path, filepath.Dir(c.path), waited)
		e.Hint = "stop the other host, or start this one with another data folder"
		return e
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e := walimpls.Errorf(walimpls.CodeUnavailable, "", "the catalog cannot be written: %w", err)
		e.Hint = fmt.Sprintf("make %s writable for the user that runs the host, or use another data folder", filepath.Dir(c.path))
		e.Retryable = false
		return e
	case errors.Is(err, fs.ErrNotExist):
		e := walimpls.Errorf(walimpls.CodeUnavailable, "", "the catalog cannot be created: %w", err)
		e.Hint = "create the folder first"
		e.Retryable = false
		return e
	case errors.Is(err, syscall.ENOSPC):
		return walimpls.Errorf(walimpls.CodeNoSpace, "", "open the catalog %s: %w", c.path, err)
	case errors.As(err, &errno):
		e := walimpls.Errorf(walimpls.CodeUnavailable, "", "open the catalog %s: %w", c.path, err)
		e.Retryable = false
		return e
	}
	return c.corrupt(err)
}

func (c *boltCatalog) corrupt(cause error) *walimpls.Error {
	e := walimpls.Errorf(walimpls.CodeCorrupt, "", "the catalog %s is damaged: %w", c.path, cause)
	e.Hint = "restore the file from a copy; without one, move it away and create the channels with --adopt"
	return e
}

// protect runs f and turns a panic of bbolt, and a fault in the mapped file,
// into an error. Memory faults are fatal to the process without SetPanicOnFault.
func (c *boltCatalog) protect(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = c.corrupt(fmt.Errorf("%v", p))
			c.breakWith(err, true)
		}
	}()
	return f()
}

// breakWith ends the use of the handle: after a panic inside bbolt its locks
// may be held for ever, after a failed write nobody knows what the disk holds.
func (c *boltCatalog) breakWith(err error, panicked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.panicked = c.panicked || panicked
	if c.broken == nil {
		c.broken = err
	}
}

func (c *boltCatalog) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return closedError()
	}
	return c.broken
}

// prepare checks that the file is ours, in a format that this build reads, or
// makes an empty one ours.
func (c *boltCatalog) prepare() error {
	return c.write(context.Background(), func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			if first, _ := tx.Cursor().First(); first != nil {
				e := walimpls.Errorf(walimpls.CodeForeignStore, "", "%s is a bbolt file of another program", c.path)
				e.Hint = "move it away, or use another data folder"
				return e
			}
			var err error
			if meta, err = tx.CreateBucket(metaBucket); err != nil {
				return err
			}
			if _, err = tx.CreateBucket(rowsBucket); err != nil {
				return err
			}
			return meta.Put(formatKey, fmt.Appendf(nil, `{"format":%d,"read_by":%q}`, rowFormat, rowReadBy))
		}
		if err := checkFormat("", "catalog "+c.path, meta.Get(formatKey)); err != nil {
			return err
		}
		if tx.Bucket(rowsBucket) == nil {
			return c.corrupt(errors.New("it has no rows bucket"))
		}
		return errNothingToWrite
	})
}

// errNothingToWrite ends a write transaction that found nothing to do.
var errNothingToWrite = errors.New("nothing to write")

func (c *boltCatalog) read(ctx context.Context, f func(*bolt.Bucket) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	err := c.protect(func() error {
		return c.db.View(func(tx *bolt.Tx) error { return f(tx.Bucket(rowsBucket)) })
	})
	return c.storeError(err)
}

// write runs f in a transaction that is on disk when write returns nil.
func (c *boltCatalog) write(ctx context.Context, f func(*bolt.Tx) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	committing := false
	err := c.protect(func() error {
		return c.db.Update(func(tx *bolt.Tx) error {
			// The one who waited for the writer before may come after its failure.
			if err := c.usable(ctx); err != nil {
				return err
			}
			err := f(tx)
			committing = err == nil
			return err
		})
	})
	switch {
	case errors.Is(err, errNothingToWrite):
		return nil
	case err == nil || !committing || errors.Is(err, syscall.ENOSPC):
		return c.storeError(err)
	}
	// A sync that failed once may succeed the next time without having written
	// the pages of the first, so no later success on this handle means anything.
	e := walimpls.Errorf(walimpls.CodeUnavailable, "", "write the catalog %s: %w", c.path, err)
	e.Hint = "check the disk, then restart the host: the catalog is read-only until then"
	e.Retryable = false
	c.breakWith(e, false)
	return e
}

// storeError types the errors of bbolt and of the system; it leaves others alone.
func (c *boltCatalog) storeError(err error) error {
	var typed *walimpls.Error
	switch {
	case err == nil, errors.As(err, &typed):
		return err
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		return closedError()
	case errors.Is(err, syscall.ENOSPC):
		return walimpls.Errorf(walimpls.CodeNoSpace, "", "write the catalog %s: %w", c.path, err)
	}
	return walimpls.Errorf(walimpls.CodeInternal, "", "the catalog %s: %w", c.path, err)
}

func (c *boltCatalog) Close() error {
	c.mu.Lock()
	closed, broken, panicked := c.closed, c.broken, c.panicked
	c.closed = true
	c.mu.Unlock()
	switch {
	case closed:
		return nil
	case panicked:
		// db.Close could wait for ever for a lock that the panic left behind.
		c.release()
		return nil
	}
	if err := c.protect(c.db.Close); err != nil && broken == nil {
		return walimpls.Errorf(walimpls.CodeUnavailable, "", "close the catalog %s: %w", c.path, err)
	}
	return nil
}

// release gives the file's lock back without bbolt. Closing the file alone does
// not: the lock lives as long as the mapping, which only bbolt can undo.
func (c *boltCatalog) release() {
	_ = syscall.Flock(int(c.file.Fd()), syscall.LOCK_UN)
	_ = c.file.Close()
}

// syncFolder makes a file's entry in its folder durable: syncing the file alone
// does not.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
