package pluginhost

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// image is a binary that was opened, checked and is about to be executed. What
// runs is this open file and not whatever has its path later, so a binary that
// is replaced between the check and the launch is never started.
type image struct {
	path   string
	sum    string
	script bool     // it starts with #!, so its interpreter opens it once more
	file   *os.File // nil where the system can only execute a path
	exec   string   // the path to execute where file is nil
}

func (i *image) close() {
	if i != nil && i.file != nil {
		_ = i.file.Close()
	}
}

// openImage opens the binary and computes its checksum. With a pin it goes on
// only if the checksum is the pinned one, and with a copy that nobody can write
// to any more: a file that was only opened could still be overwritten in place.
func openImage(ctx context.Context, path, pin, dir string) (*image, *failure) {
	// Not blocking, so that a named pipe is told from a file without waiting for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, failf(ReasonNotExecutable, true, err, "let the host read and execute the file", "%s cannot be opened: permission denied", path)
		}
		return nil, missing(path, err)
	}
	img := &image{path: path, file: f}
	if fail := img.check(ctx, pin, dir); fail != nil {
		img.close()
		return img, fail
	}
	return img, nil
}

func (i *image) check(ctx context.Context, pin, dir string) *failure {
	info, err := i.file.Stat()
	switch {
	case err != nil:
		return missing(i.path, err)
	case info.IsDir():
		return failf(ReasonNotExecutable, true, syscall.EISDIR, "name the binary in the folder", "%s is a folder, not a program", i.path)
	case !info.Mode().IsRegular():
		return failf(ReasonNotExecutable, true, nil, "name the plugin's binary", "%s is a %s, not a program", i.path, info.Mode().Type())
	case info.Mode().Perm()&0o111 == 0:
		return failf(ReasonNotExecutable, true, fs.ErrPermission, "make it executable: chmod +x "+i.path, "%s is not executable (mode %s)", i.path, info.Mode().Perm())
	}
	var head [2]byte
	if _, err := i.file.ReadAt(head[:], 0); err == nil {
		i.script = string(head[:]) == "#!"
	}
	if pin == "" {
		return i.hash(ctx, io.Discard)
	}
	original := i.file
	defer func() { _ = original.Close() }()
	seal, err := newSealer(dir, i.path)
	if err != nil {
		i.file = nil
		return failf(ReasonSystem, false, err, "a pinned plugin is executed from a private copy; the system must allow that", "no private copy of it can be made: %v", err)
	}
	fail := i.hash(ctx, seal.file)
	i.file, i.exec, err = seal.finish()
	if fail == nil && err != nil {
		fail = failf(ReasonSystem, false, err, "a pinned plugin is executed from a private copy; the system must allow that", "the private copy of it cannot be sealed: %v", err)
	}
	if fail == nil && !strings.EqualFold(i.sum, pin) {
		fail = failf(ReasonPin, true, nil, "install the pinned binary, or, if this one is wanted, pin its checksum",
			"%s has the SHA-256 %s, but %s is pinned", i.path, i.sum, strings.ToLower(pin))
	}
	return fail
}

// hash computes the checksum of the open file, copying it to w.
func (i *image) hash(ctx context.Context, w io.Writer) *failure {
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(h, w), untilDone{ctx, io.NewSectionReader(i.file, 0, 1<<62)}); err != nil {
		if ctx.Err() != nil {
			return failf(ReasonTimeout, false, ctx.Err(), "", "%s was not read in time", i.path)
		}
		return failf(ReasonSystem, false, err, "", "%s cannot be read: %v", i.path, err)
	}
	i.sum = hex.EncodeToString(h.Sum(nil))
	return nil
}

// untilDone is a reader that ends with its context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// launchFailure says what a failed launch of the image means and what to do.
func (i *image) launchFailure(err error) *failure {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return failf(ReasonNotExecutable, true, err, "build the plugin for "+runtime.GOOS+"/"+runtime.GOARCH,
			"%s %s (exec format error)", i.path, i.format())
	case errors.Is(err, syscall.ENOENT) && i.script:
		return failf(ReasonNotExecutable, true, err, "install the interpreter that its first line names", "%s is a script whose interpreter does not exist", i.path)
	case errors.Is(err, syscall.ENOENT):
		return failf(ReasonNotExecutable, true, err, "install the C library that it was built against, or build it statically; /proc must be mounted",
			"%s is a program whose dynamic loader does not exist here", i.path)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return failf(ReasonNotExecutable, true, err, "check its permissions, and that its file system is not mounted noexec", "%s may not be executed: %v", i.path, err)
	case errors.Is(err, syscall.ETXTBSY):
		return failf(ReasonNotExecutable, false, err, "wait for the copy to end; install with a rename instead of writing in place", "%s is being written to (text file busy)", i.path)
	}
	return failf(ReasonSystem, false, err, "check the limits on processes, open files and memory", "the system does not start it: %v", err)
}

// format describes a file that the system did not take for a program.
func (i *image) format() string {
	var head [20]byte
	if i.file != nil {
		_, _ = i.file.ReadAt(head[:], 0)
	}
	here := runtime.GOOS + "/" + runtime.GOARCH
	switch {
	case bytes.HasPrefix(head[:], []byte(elf.ELFMAG)):
		var order binary.ByteOrder = binary.LittleEndian
		if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
			order = binary.BigEndian
		}
		machine := elf.Machine(order.Uint16(head[18:])).String()
		return fmt.Sprintf("is a program for %s, this host runs on %s", strings.TrimPrefix(machine, "EM_"), here)
	case bytes.HasPrefix(head[:], []byte("MZ")):
		return "is a program for Windows, this host runs on " + here
	case bytes.HasPrefix(head[:], []byte{0xcf, 0xfa, 0xed, 0xfe}), bytes.HasPrefix(head[:], []byte{0xca, 0xfe, 0xba, 0xbe}):
		return "is a program for macOS, this host runs on " + here
	}
	return "is neither a program for " + here + " nor a script that starts with #!"
}
