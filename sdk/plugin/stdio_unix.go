//go:build unix && !linux

package plugin

import (
	"os"

	"golang.org/x/sys/unix"
)

// redirectStdout makes file descriptor 1 a copy of w and returns the old one,
// which programs that this process starts do not inherit.
func redirectStdout(w *os.File) (*os.File, error) {
	old, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if err := unix.Dup2(int(w.Fd()), 1); err != nil {
		_ = unix.Close(old)
		return nil, err
	}
	return os.NewFile(uintptr(old), "handshake"), nil
}
