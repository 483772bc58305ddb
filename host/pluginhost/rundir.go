package pluginhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// The name of a host's private folder is runDirPrefix and random digits; while it
// is being made it has the other prefix.
const (
	runDirPrefix   = "walrig-run-"
	freshDirPrefix = "walrig-new-"
)

// A folder that is still called fresh after freshAge was left by a host that died
// while it made it.
const freshAge = time.Minute

// A unix socket's path has at most maxSocketPath bytes. Below the place of the
// private folder it needs socketPathRest of them:
// /walrig-run-0123456789/plugin-dir0123456789/plugin0123456789.
const (
	maxSocketPath  = 103 // 107 on Linux
	socketPathRest = len("/"+runDirPrefix) + 10 + len("/plugin-dir") + 10 + len("/plugin") + 10
)

// runDir is the private folder that holds the sockets of a host's plugins. The
// host holds a lock on the folder for as long as it lives; a folder of that
// kind without a lock was left by a dead host. No pid is ever read from a file,
// so nobody's process can be taken for ours.
type runDir struct {
	places []string
	log    *zap.Logger

	mu   sync.Mutex // guards what follows
	path string
	lock *os.File
}

// runPlaces returns where the private folder may be made, best first: the
// configured place, the temporary folder, the user's runtime folder, and
// folders that every system has.
func runPlaces(configured string) []string {
	places := []string{configured, os.TempDir(), os.Getenv("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp", "/dev/shm"}
	var out []string
	seen := map[string]bool{}
	for _, p := range places {
		if p == "" {
			continue
		}
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		if !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

func newRunDir(places []string, log *zap.Logger) *runDir {
	return &runDir{places: places, log: log}
}

// sweep removes the folders of dead hosts.
func (d *runDir) sweep() {
	for _, place := range d.places {
		left, _ := filepath.Glob(filepath.Join(globEscape(place), runDirPrefix+"*"))
		fresh, _ := filepath.Glob(filepath.Join(globEscape(place), freshDirPrefix+"*"))
		for _, path := range fresh {
			if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > freshAge {
				left = append(left, path)
			}
		}
		for _, path := range left {
			if removed, err := sweepOne(path); err != nil {
				d.log.Warn("the socket folder of a host that is gone cannot be removed", zap.String("path", path), zap.Error(err))
			} else if removed {
				d.log.Info("removed the socket folder of a host that is gone", zap.String("path", path))
			}
		}
	}
}

func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// sweepOne removes a folder if it is ours and its host is dead.
func sweepOne(path string) (removed bool, err error) {
	if !oursAndPrivate(path) {
		return false, nil
	}
	lock, err := lockDir(path)
	if err != nil {
		return false, nil // its host lives, or it went away just now
	}
	defer func() { _ = lock.Close() }()
	return true, os.RemoveAll(path)
}

// oursAndPrivate says whether path is a folder, not a link, that belongs to
// this user and that nobody else can enter.
func oursAndPrivate(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}

var errRunDirTaken = errors.New("the folder was taken away")

// lockDir opens a folder and locks it. It fails if another process holds the
// lock, or if the folder was removed between the two steps.
func lockDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	held, err1 := f.Stat()
	there, err2 := os.Lstat(path)
	if err1 != nil || err2 != nil || !os.SameFile(held, there) {
		_ = f.Close()
		return nil, errRunDirTaken
	}
	return f, nil
}

// get returns the path of the folder. It makes the folder if there is none, or
// none any more: cleaners of temporary folders run for years beside a host.
func (d *runDir) get() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.path != "" {
		if oursAndPrivate(d.path) {
			return d.path, nil
		}
		d.drop()
	}
	var problems []string
	for _, place := range d.places {
		if n := len(place) + socketPathRest; n > maxSocketPath {
			problems = append(problems, fmt.Sprintf("%s is too long (a socket in it has a path of %d bytes, %d is the limit)", place, n, maxSocketPath))
			continue
		}
		path, lock, err := makeRunDir(place)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		if len(problems) > 0 {
			d.log.Info("the sockets of the plugins are in another folder than usual", zap.String("path", path), zap.Strings("because", problems))
		}
		d.path, d.lock = path, lock
		return path, nil
	}
	return "", fmt.Errorf("no folder for the plugins' sockets can be made: %s", strings.Join(problems, "; "))
}

// makeRunDir makes and locks a folder. It gets the name that is swept only when
// it is locked, so a host that sweeps at this moment does not take it for a dead one's.
func makeRunDir(place string) (string, *os.File, error) {
	fresh, err := os.MkdirTemp(place, freshDirPrefix)
	if err != nil {
		return "", nil, err
	}
	lock, err := lockDir(fresh)
	if err == nil {
		path := filepath.Join(place, runDirPrefix+strings.TrimPrefix(filepath.Base(fresh), freshDirPrefix))
		if err = os.Rename(fresh, path); err == nil {
			return path, lock, nil
		}
		_ = lock.Close()
	}
	_ = os.Remove(fresh)
	return "", nil, err
}

// remove removes the folder. No plugin may run any more.
func (d *runDir) remove() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.path != "" {
		_ = os.RemoveAll(d.path)
		d.drop()
	}
}

func (d *runDir) drop() {
	_ = d.lock.Close()
	d.path, d.lock = "", nil
}
