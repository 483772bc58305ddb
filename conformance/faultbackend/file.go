package faultbackend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// FileOptions are the options of NewFileStore.
type FileOptions struct {
	// Fsync makes every write durable before it is acknowledged. Without it a
	// record survives the death of the process, not that of the machine.
	Fsync bool
	// LockTimeout is how long the first use waits for another process to let the
	// file go. 0 means 10 seconds.
	LockTimeout time.Duration
}

const (
	defaultLockTimeout = 10 * time.Second
	lockPoll           = 20 * time.Millisecond
)

// rawFile is the part of *os.File that a journal writes through, so that tests
// can break it.
type rawFile interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// journal is the open file of a store. The store's mutex guards it.
type journal struct {
	f     rawFile
	size  int64 // the end of the last intact frame
	tail  bool  // something lies behind size that must be cut before the next write
	fsync bool
	// failed is why the file takes nothing more, nil while it works. After a
	// failed sync the kernel may have thrown away what it had not written, so no
	// later success proves anything about it.
	failed error
}

// errInDoubt marks a failed write whose bytes may be in the file all the same,
// errFileFailed one that was refused because of an earlier one.
var (
	errInDoubt    = errors.New("the bytes may be in the file")
	errFileFailed = errors.New("the file takes nothing more until it is opened again")
)

// write appends frames. An error that is not errInDoubt means that the file is
// as it was.
func (j *journal) write(frames []byte) error {
	if j.failed != nil {
		return fmt.Errorf("%w: %w", errFileFailed, j.failed)
	}
	if j.tail {
		if err := j.f.Truncate(j.size); err != nil {
			return err
		}
		j.tail = false
	}
	if len(frames) == 0 {
		return nil
	}
	if _, err := j.f.Write(frames); err != nil {
		if cut := j.f.Truncate(j.size); cut != nil {
			j.failed = fmt.Errorf("%w; taking it back: %w", err, cut)
			return fmt.Errorf("%w: %w", errInDoubt, j.failed)
		}
		return err
	}
	j.size += int64(len(frames))
	if j.fsync {
		if err := j.f.Sync(); err != nil {
			j.failed = err
			return fmt.Errorf("%w: %w", errInDoubt, err)
		}
	}
	return nil
}

// writeTorn writes half of the frames and gives the file up, as a kill in the
// middle of a write would.
func (j *journal) writeTorn(frames []byte) {
	if j.write(nil) != nil {
		return
	}
	_, _ = j.f.Write(frames[:len(frames)/2]) // as little as it likes
	j.failed = errors.New("a rule tore its last write")
}

func (j *journal) close() error { return j.f.Close() }

// fileError turns an error of the file system into one of the contract.
func fileError(channel, what string, err error) *walimpls.Error {
	code := walimpls.CodeUnavailable
	if (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && !errors.Is(err, errFileFailed) {
		code = walimpls.CodeNoSpace
	}
	return walimpls.Errorf(code, channel, "%s: %w", what, err)
}

// openJournal locks and reads a file. With create it makes the file if it is
// missing, else that is an fs.ErrNotExist. The torn tail is cut by the first
// write, so that opening to read writes nothing.
func openJournal(ctx context.Context, closing <-chan struct{}, path string, opt FileOptions, create bool) (*journal, *image, error) {
	flags := os.O_RDWR | os.O_APPEND
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !create {
			return nil, nil, err
		}
		return nil, nil, pathHint(fileError("", "open the log's file", err))
	}
	j, img, err := loadJournal(ctx, closing, f, path, opt)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return j, img, nil
}

func pathHint(err *walimpls.Error) *walimpls.Error {
	err.Hint = `check the plugin's configuration key "file": its folder must exist and be writable`
	return err
}

func loadJournal(ctx context.Context, closing <-chan struct{}, f *os.File, path string, opt FileOptions) (*journal, *image, error) {
	if err := waitLock(ctx, closing, f, path, opt.LockTimeout); err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, fileError("", "read the log's file", err)
	}
	img, good, err := decodeJournal(data)
	if err != nil {
		e := walimpls.Errorf(walimpls.CodeCorrupt, "", "%s: %w", path, err)
		e.Hint = "nothing was changed; move the file away to begin with an empty store"
		return nil, nil, e
	}
	j := &journal{f: f, size: int64(good), tail: good < len(data), fsync: opt.Fsync}
	if good == 0 {
		return j, img, nil // the header goes with the first frame, see Store.write
	}
	if opt.Fsync {
		// What a killed process wrote but did not sync must be durable before
		// anybody reads it.
		if err := f.Sync(); err != nil {
			return nil, nil, fileError("", "sync the log's file", err)
		}
	}
	return j, img, nil
}

// waitLock takes the file's lock, which keeps a second process out. It waits
// for an owner that is on its way out.
func waitLock(ctx context.Context, closing <-chan struct{}, f *os.File, path string, limit time.Duration) error {
	if limit <= 0 {
		limit = defaultLockTimeout
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	again := time.NewTicker(lockPoll)
	defer again.Stop()
	for {
		held, err := tryLock(f)
		if err != nil {
			return fileError("", "lock "+path, err)
		}
		if held {
			return nil
		}
		select {
		case <-again.C:
		case <-over.C:
			return walimpls.Errorf(walimpls.CodeUnavailable, "", "%s is held by another process or store; waited %s", path, limit)
		case <-ctx.Done():
			return errGaveUp("", OpOpen, ctx.Err())
		case <-closing:
			return errClosed("", "store")
		}
	}
}

// syncDir makes a file's directory entry durable.
func syncDir(file string) error {
	d, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
