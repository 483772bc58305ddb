package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	lockName = "walrig.lock"
	// A host that is being stopped needs up to shutdownBudget. One that was just
	// told to, or was killed, shows that within lockPatience.
	lockPatience = 3 * time.Second
	lockStopping = shutdownBudget + 2*time.Second
	lockPoll     = 50 * time.Millisecond
	stoppingMark = "stopping"
)

// dataLock is held by the one host that may use a data folder. The kernel lets
// go of it when the process ends, however it ends; the file stays.
type dataLock struct{ f *os.File }

// lockDataDir creates the folder if it is missing and locks it. While another
// host holds it, it waits for as long as that one may be on its way out, and
// calls waiting once with its pid.
func lockDataDir(ctx context.Context, dir string, waiting func(pid string)) (*dataLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, dataDirError(dir, err)
	}
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dataDirError(dir, err)
	}
	lock := &dataLock{f: f}
	if err := lock.acquire(ctx, dir, waiting); err != nil {
		f.Close()
		return nil, err
	}
	if err := lock.write(strconv.Itoa(os.Getpid())); err != nil {
		f.Close()
		return nil, dataDirError(dir, err)
	}
	return lock, nil
}

func (l *dataLock) acquire(ctx context.Context, dir string, waiting func(pid string)) error {
	start := time.Now()
	for told := false; ; {
		err := unix.Flock(int(l.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return dataDirError(dir, fmt.Errorf("cannot lock %s: %w", lockName, err))
		}
		pid, stopping := l.holder()
		patience := lockPatience
		if stopping {
			patience = lockStopping
		}
		if time.Since(start) > patience {
			e := walimpls.Errorf(walimpls.CodeUnavailable, "", "the data folder %s is in use by the host with pid %s", dir, pid)
			e.Hint = "stop that host, or serve another folder with --data-dir"
			return e
		}
		if !told {
			told = true
			waiting(pid)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// holder reads who holds the lock, and whether that host is being stopped.
func (l *dataLock) holder() (pid string, stopping bool) {
	buf := make([]byte, 64)
	n, _ := l.f.ReadAt(buf, 0)
	fields := strings.Fields(string(buf[:n]))
	if len(fields) == 0 {
		return "unknown", false
	}
	return fields[0], len(fields) > 1 && fields[1] == stoppingMark
}

func (l *dataLock) write(text string) error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt([]byte(text+"\n"), 0)
	return err
}

// stopping tells a successor that it is worth waiting.
func (l *dataLock) stopping() { _ = l.write(strconv.Itoa(os.Getpid()) + " " + stoppingMark) }

// release lets go of the folder.
func (l *dataLock) release() { l.f.Close() }

func dataDirError(dir string, err error) error {
	e := walimpls.Errorf(walimpls.CodeUnavailable, "", "the data folder %s cannot be used: %w", dir, err)
	e.Retryable = false
	e.Hint = "choose a folder that this user can write to with --data-dir"
	if errors.Is(err, syscall.ENOSPC) {
		e.Code, e.Hint = walimpls.CodeNoSpace, "make room on its file system"
	}
	return e
}
