package brokers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lingerSeconds is how long a shared broker outlives its last user if no `go
// test` command keeps it: a test binary that is run by hand boots it once.
const lingerSeconds = 3

// room is the folder of one broker or cluster, and this process's lease on it.
// The package documentation lists what is in it.
type room struct {
	dir    string
	script script
	users  *os.File // the lease
	shared bool
}

func (r *room) node(id int) string { return filepath.Join(r.dir, "nodes", strconv.Itoa(id)) }

// newRoom makes a private room, which goes with this process.
func newRoom(rec recipe) (*room, error) {
	dir, err := os.MkdirTemp("", "walrig-"+rec.name+"-")
	if err != nil {
		return nil, err
	}
	r := &room{dir: dir}
	if r.users, err = lockFile(filepath.Join(dir, "users"), shared, time.Minute); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := r.furnish(rec); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// joinRoom takes a lease on the shared room of rec, which it makes if nobody
// else has. The broker in it may run or not.
func joinRoom(rec recipe, deadline time.Time) (*room, error) {
	dir, err := rec.sharedRoom()
	if err != nil {
		return nil, err
	}
	for {
		users, err := joinOnce(dir, time.Until(deadline))
		if err == nil {
			return &room{dir: dir, users: users, shared: true}, nil
		}
		// The watchdog removed the room meanwhile: make the next one.
		if !errors.Is(err, errRoomGone) || time.Now().After(deadline) {
			return nil, err
		}
	}
}

// sharedRoom is where the shared broker of this recipe lives.
func (r recipe) sharedRoom() (string, error) {
	key, err := r.key()
	if err != nil {
		return "", err
	}
	base, err := sharedDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, key), nil
}

var errRoomGone = errors.New("the room was removed")

func joinOnce(dir string, timeout time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "users")
	users, err := lockFile(path, shared, timeout)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errRoomGone
	}
	if err != nil {
		return nil, err
	}
	held, err := users.Stat()
	if err != nil {
		users.Close()
		return nil, err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(held, now) {
		users.Close()
		return nil, errRoomGone
	}
	return users, nil
}

// sharedDir is this user's folder of shared rooms. It is refused if somebody
// else could write to it, since scripts are run from it.
func sharedDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("walrig-brokers-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s is not a private folder of this user: remove it, or set TMPDIR", dir)
	}
	return dir, nil
}

// furnish unpacks the recipe and sees that the watchdog runs. In a shared room
// the caller holds the boot lock.
func (r *room) furnish(rec recipe, held ...*os.File) error {
	if err := rec.unpack(r.dir); err != nil {
		return err
	}
	r.script = script{recipe: rec, dir: r.dir, held: append([]*os.File{r.users}, held...)}
	for _, d := range []string{"nodes", "runs"} {
		if err := os.MkdirAll(filepath.Join(r.dir, d), 0o700); err != nil {
			return err
		}
	}
	return r.watch()
}

// watch starts the watchdog unless it runs. It starts before any broker, so
// that there is no moment at which a SIGKILL of this process leaves one behind.
func (r *room) watch() error {
	if r.watched() {
		return nil
	}
	linger := 0
	if r.shared {
		linger = lingerSeconds
	}
	// Through a shell that ends at once: the watchdog is nobody's child, and
	// this process has nothing to wait for.
	cmd := exec.Command("bash", "-c", `setsid bash "$@" </dev/null >/dev/null 2>&1 &`, "watchdog",
		filepath.Join(r.dir, "watchdog.sh"), r.script.path(), r.dir, strconv.Itoa(linger))
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start the broker watchdog: %w: %s", err, out)
	}
	for deadline := time.Now().Add(time.Minute); !r.watched(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the broker watchdog of %s did not come up", r.dir)
		}
	}
	return nil
}

func (r *room) watched() bool {
	lock, err := lockFile(filepath.Join(r.dir, "watchdog"), exclusive, 0)
	if err != nil {
		return errors.Is(err, errLocked)
	}
	lock.Close()
	return false
}

// keepForRun lets the broker live until the `go test` command that runs this
// test binary has ended, so that the packages of one run share it even when
// there is a pause between them.
func (r *room) keepForRun() error {
	pid := os.Getppid()
	name, born, err := process(pid)
	if err != nil || name != "go" {
		return nil // not below `go test`: the lease and the linger time do
	}
	note := filepath.Join(r.dir, "runs", fmt.Sprintf("%d-%s", pid, born))
	// In one step, since the watchdog may read it at any time.
	tmp := filepath.Join(r.dir, fmt.Sprintf("run-%d", os.Getpid()))
	if err := os.WriteFile(tmp, fmt.Appendf(nil, "%d %s\n", pid, born), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, note)
}

// process returns the command name of a process and its start time, which
// tells it from a later one with the same pid.
func process(pid int) (name, born string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	s := string(b)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return "", "", fmt.Errorf("unexpected /proc/%d/stat: %q", pid, s)
	}
	// Field 22 of the line; the name is field 2.
	fields := strings.Fields(s[end+1:])
	if len(fields) < 20 {
		return "", "", fmt.Errorf("unexpected /proc/%d/stat: %q", pid, s)
	}
	return s[open+1 : end], fields[19], nil
}

// close gives the lease back. A private room is gone with its brokers when it
// returns; a shared one is left to the watchdog.
func (r *room) close() {
	if r.shared {
		// The linger time counts from here. A room that cannot be touched only
		// ends sooner.
		now := time.Now()
		_ = os.Chtimes(r.users.Name(), now, now)
		r.users.Close()
		return
	}
	nodes, _ := filepath.Glob(filepath.Join(r.dir, "nodes", "*"))
	clean := true
	for _, node := range nodes {
		if _, err := r.script.run(time.Minute, nil, "kill", node); err != nil {
			clean = false // the watchdog tries again and removes the room
		}
	}
	if clean {
		os.RemoveAll(r.dir)
	}
	r.users.Close()
}

var errLocked = errors.New("locked by another process")

const (
	shared    = syscall.LOCK_SH
	exclusive = syscall.LOCK_EX
)

// lockFile opens path, making it if needed, and locks it. It waits up to
// timeout, then fails with errLocked. Closing the file unlocks it. The
// descriptor is not inherited by commands, unless they are given it.
func lockFile(path string, how int, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			f.Close()
			return nil, &os.PathError{Op: "flock", Path: path, Err: err}
		case time.Now().After(deadline):
			f.Close()
			return nil, fmt.Errorf("%s: %w", path, errLocked)
		}
	}
}
