package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/walrig/walrig/sdk/walimpls"
)

// readyInfo is what --ready-file holds. Fields are only ever added.
type readyInfo struct {
	Addr    string `json:"addr"`
	DataDir string `json:"data_dir"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// writeReady puts the file there at once or not at all.
func writeReady(path string, info readyInfo) error {
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".walrig-ready-*")
	if err != nil {
		return readyError(path, err)
	}
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return readyError(path, err)
	}
	return nil
}

// removeReady removes the file if it is there. It is called at start too: what
// is there then was left by a host that was killed.
func removeReady(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return readyError(path, err)
	}
	return nil
}

func readyError(path string, err error) error {
	e := walimpls.Errorf(walimpls.CodeConfig, "", "the ready file %s cannot be written: %w", path, err)
	e.Hint = "name a file in a folder that this user can write to with --ready-file"
	return e
}
