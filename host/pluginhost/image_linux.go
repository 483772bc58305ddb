package pluginhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// sealer makes a copy of a binary in anonymous memory that cannot be changed
// once it is finished.
type sealer struct{ file *os.File }

// newSealer returns an empty executable memory file. The folder is not needed here.
func newSealer(_, path string) (*sealer, error) {
	name := filepath.Base(path)
	// Kernels before 6.3 do not know MFD_EXEC and make every such file executable.
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create (is vm.memfd_noexec set?): %w", err)
	}
	return &sealer{file: os.NewFile(uintptr(fd), path)}, nil
}

// finish seals the copy and returns it, open for reading only: the kernel
// refuses to execute what somebody has open for writing.
func (s *sealer) finish() (*os.File, string, error) {
	defer func() { _ = s.file.Close() }()
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(s.file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, "", err
	}
	f, err := os.Open(fdPath(s.file))
	return f, "", err
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// executable returns the path that executes the open file, and the files that
// the child needs for it behind its standard ones. The path is a link in dir,
// so that the process is listed under the binary's name instead of a number.
//
// A program is executed through the host's descriptor, which closes at that
// moment. A script's interpreter opens the path afterwards, so for it the
// descriptor is passed on, as number 3.
func (i *image) executable(dir string) (path string, extra []*os.File, err error) {
	target := fdPath(i.file)
	if i.script {
		target, extra = "/proc/self/fd/3", []*os.File{i.file}
	}
	path = filepath.Join(dir, filepath.Base(i.path))
	return path, extra, os.Symlink(target, path)
}
