package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/sdk/walimpls"
)

func mustLock(t *testing.T, dir string) *dataLock {
	t.Helper()
	lock, err := lockDataDir(context.Background(), dir, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func TestDataFolderIsForOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "a", "b")
		first := mustLock(t, dir)
		defer first.release()
		pid := strconv.Itoa(os.Getpid())
		told := []string{}
		start := time.Now()
		_, err := lockDataDir(context.Background(), dir, func(pid string) { told = append(told, pid) })
		if !errors.Is(err, walimpls.ErrUnavailable) || !strings.Contains(err.Error(), "pid "+pid) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took < lockPatience || took > lockPatience+time.Second {
			t.Errorf("waited %v", took)
		}
		if len(told) != 1 || told[0] != pid {
			t.Errorf("told %q", told)
		}
	})
}

func TestSuccessorWaitsForAHostThatIsOnItsWayOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		first := mustLock(t, dir)
		first.stopping()
		time.AfterFunc(shutdownBudget, first.release)
		second, err := lockDataDir(context.Background(), dir, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		defer second.release()
		data, err := os.ReadFile(filepath.Join(dir, lockName))
		if want := strconv.Itoa(os.Getpid()) + "\n"; err != nil || string(data) != want {
			t.Errorf("lock file %q, %v", data, err)
		}
	})
}

func TestWaitForTheDataFolderCanBeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		defer mustLock(t, dir).release()
		ctx, cancel := context.WithCancelCause(context.Background())
		_, err := lockDataDir(ctx, dir, func(string) { cancel(errInterrupted) })
		if !errors.Is(err, errInterrupted) {
			t.Errorf("error %v", err)
		}
	})
}

func TestFolderThatCannotBeUsedIsOneClearError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "x")} {
		_, err := lockDataDir(context.Background(), dir, func(string) {})
		if err == nil || !strings.Contains(err.Error(), dir) || exitCode(context.Background(), err) != walimpls.ExitFailure || walimpls.AsError(err).Retryable {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if os.Geteuid() == 0 {
		return // root may write to a read-only folder
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := lockDataDir(context.Background(), dir, func(string) {}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("read-only folder: %v", err)
	}
}

func TestReadyFileIsThereWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ready")
	info := readyInfo{Addr: "127.0.0.1:1", DataDir: "/d", PID: 7, Version: "v"}
	for range 2 { // the second one replaces the first
		if err := writeReady(path, info); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	var got readyInfo
	if err != nil || json.Unmarshal(data, &got) != nil || got != info {
		t.Errorf("%q, %v", data, err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files left: %v", files)
	}
	for range 2 {
		if err := removeReady(path); err != nil {
			t.Error(err)
		}
	}
	err = writeReady(filepath.Join(dir, "none", "ready"), info)
	if exitCode(context.Background(), err) != walimpls.ExitUsage || !strings.Contains(err.Error(), "ready file") {
		t.Errorf("error %v", err)
	}
}

func TestLogsAreJSONUnlessTheyAreForEyes(t *testing.T) {
	for format, want := range map[string]string{"auto": `{"level":"warn",`, "json": `{"level":"warn",`, "console": "  WARN  "} {
		var b strings.Builder
		log, err := newLogger(&b, config.Log{Level: "warn", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		log.Info("not this")
		log.Warn("this")
		if got := b.String(); !strings.Contains(got, want) || strings.Contains(got, "not this") || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", format, got)
		}
	}
}
