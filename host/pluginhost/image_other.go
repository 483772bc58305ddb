//go:build unix && !linux

package pluginhost

import (
	"os"
	"path/filepath"
)

// sealer makes a copy of a binary in a folder that only this user can enter.
type sealer struct{ file *os.File }

func newSealer(dir, path string) (*sealer, error) {
	f, err := os.CreateTemp(dir, filepath.Base(path)+".")
	if err != nil {
		return nil, err
	}
	return &sealer{file: f}, f.Chmod(0o500)
}

// finish returns the path of the copy: these systems cannot execute an open file.
// The copy is removed with the folder.
func (s *sealer) finish() (*os.File, string, error) {
	return nil, s.file.Name(), s.file.Close()
}

// executable returns the path to execute.
func (i *image) executable(string) (path string, extra []*os.File, err error) {
	if i.exec != "" {
		return i.exec, nil, nil
	}
	return i.path, nil, nil
}
