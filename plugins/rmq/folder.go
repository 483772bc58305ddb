package rmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Names in the store's folder.
const (
	lockName   = "LOCK"
	formatName = "FORMAT"
	formatTemp = "FORMAT.tmp"
	logName    = "log"
)

const (
	formatMagic   = "walrig rmq store"
	formatVersion = 2
	// pebbleVersion was the format of rmq 0.1, a Pebble database.
	pebbleVersion = 1
)

// lockPoll is how often a held lock is tried again.
const lockPoll = 25 * time.Millisecond

// hasStore reports whether the folder holds a store already.
func hasStore(f vfs.FS, dir string) (bool, error) {
	_, err := f.Stat(f.PathJoin(dir, formatName))
	if err == nil {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return false, storeError("", fmt.Sprintf("look at the store folder %q", dir), err)
}

// openFolder makes the folder if needed, takes its lock, waiting for a dying
// owner until ctx ends, and checks or writes the format version. The closer
// releases the lock.
func openFolder(ctx context.Context, s settings) (io.Closer, error) {
	// Looking before anything is made leaves a foreign folder as it was.
	if _, err := inspectFolder(s.fs, s.dir); err != nil {
		return nil, err
	}
	if err := makeFolder(s.fs, s.dir); err != nil {
		return nil, storeError("", fmt.Sprintf("make the store folder %q", s.dir), err)
	}
	lock, err := lockFolder(ctx, s)
	if err != nil {
		return nil, err
	}
	ready, err := inspectFolder(s.fs, s.dir)
	if err == nil && !ready {
		if err = writeFormat(s.fs, s.dir); err != nil {
			err = storeError("", fmt.Sprintf("write %q", s.fs.PathJoin(s.dir, formatName)), err)
		}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// inspectFolder reports whether the folder holds a store of this format; false
// means that it is missing or empty. Anything else is an error.
func inspectFolder(f vfs.FS, dir string) (ready bool, err error) {
	names, err := f.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, storeError("", fmt.Sprintf("list the store folder %q", dir), err)
	}
	var foreign string
	for _, name := range names {
		switch name {
		case formatName:
			return true, checkFormat(f, dir)
		case lockName, formatTemp, "lost+found":
		default:
			if foreign == "" || name < foreign {
				foreign = name
			}
		}
	}
	if foreign != "" {
		return false, foreignError(dir, fmt.Sprintf("it holds %q and no %s file", foreign, formatName))
	}
	return false, nil
}

func foreignError(dir, why string) error {
	e := walimpls.Errorf(walimpls.CodeForeignStore, "", "the folder %q is not a store of rmq: %s", dir, why)
	e.Hint = `let the key "dir" name an empty folder, or one that rmq made`
	return e
}

func checkFormat(f vfs.FS, dir string) error {
	path := f.PathJoin(dir, formatName)
	file, err := f.Open(path)
	if err != nil {
		return storeError("", fmt.Sprintf("open %q", path), err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return storeError("", fmt.Sprintf("read %q", path), err)
	}
	lines := strings.Split(string(text), "\n")
	if lines[0] != formatMagic || len(lines) < 2 {
		return foreignError(dir, fmt.Sprintf("its %s file is another's", formatName))
	}
	number, ok := strings.CutPrefix(lines[1], "format ")
	version, err := strconv.Atoi(number)
	if !ok || err != nil || version < 1 {
		return foreignError(dir, fmt.Sprintf("its %s file is damaged", formatName))
	}
	if version != formatVersion {
		reader := "a newer build reads it"
		if version == pebbleVersion {
			reader = "rmq 0.1.0 reads it"
		}
		e := walimpls.Errorf(walimpls.CodeUnsupported, "", "the store in %q has format version %d, this build (rmq %s) reads version %d; %s",
			dir, version, Version, formatVersion, reader)
		e.Hint = "use that build, or read the channels out with it and append them to a new store; nothing was changed"
		return e
	}
	return nil
}

// makeFolder makes dir and its parents, durably: each folder that is new is
// synced into its parent.
func makeFolder(f vfs.FS, dir string) error {
	var missing []string
	for p := dir; ; p = f.PathDir(p) {
		if _, err := f.Stat(p); err == nil || p == f.PathDir(p) {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, p)
	}
	if err := f.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, p := range missing {
		if err := syncFolder(f, f.PathDir(p)); err != nil {
			return err
		}
	}
	return nil
}

func syncFolder(f vfs.FS, dir string) error {
	d, err := f.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeFormat(f vfs.FS, dir string) error {
	temp := f.PathJoin(dir, formatTemp)
	file, err := f.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s\nformat %d\n", formatMagic, formatVersion)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := f.Rename(temp, f.PathJoin(dir, formatName)); err != nil {
		return err
	}
	return syncFolder(f, dir)
}

// lockFolder takes the folder's lock. It never steals: the lock of a process
// that died is free, one that lives keeps it.
func lockFolder(ctx context.Context, s settings) (io.Closer, error) {
	path := s.fs.PathJoin(s.dir, lockName)
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		lock, err := tryLock(s.fs, path)
		if err != nil {
			return nil, storeError("", fmt.Sprintf("lock %q", path), err)
		}
		if lock != nil {
			return lock, nil
		}
		select {
		case <-ctx.Done():
			e := walimpls.Errorf(walimpls.CodeUnavailable, "", "the store folder %q is held by %s: %w", s.dir, lockHolder(s.fs, path), ctx.Err())
			e.Hint = `one process at a time can use the folder: stop the other one, or name another "dir"`
			return nil, e
		case <-tick.C:
		}
	}
}

// tryLock returns nil without an error while somebody else has the lock.
func tryLock(f vfs.FS, path string) (io.Closer, error) {
	if f != vfs.Default {
		lock, err := f.Lock(path)
		if errors.Is(err, syscall.EAGAIN) {
			return nil, nil
		}
		return lock, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	held, err := lockFile(file)
	if !held || err != nil {
		file.Close()
		return nil, err
	}
	// For the message of whoever finds it held; the lock itself is the kernel's.
	_ = file.Truncate(0)
	_, _ = file.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return file, nil
}

func lockHolder(f vfs.FS, path string) string {
	if f != vfs.Default {
		return "another opener"
	}
	text, _ := os.ReadFile(path)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	switch {
	case err != nil:
		return "another process"
	case pid == os.Getpid():
		return fmt.Sprintf("another opener in this very process (pid %d)", pid)
	}
	return fmt.Sprintf("the process with pid %d", pid)
}
