package brokers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed kafka/kafka.sh kafka/pom.xml pulsar/pulsar.sh pulsar/pom.xml watchdog.sh
var recipes embed.FS

const (
	// bootTimeout is what a recipe gives a broker to answer; a boot takes 2 to
	// 11 s on two cores that have nothing else to do.
	bootTimeout = 180 * time.Second
	// installTimeout bounds the first download of the jars, up to 210 MB.
	installTimeout = 15 * time.Minute
	// stopTimeout is what a recipe waits between SIGTERM and SIGKILL.
	stopTimeout = 30 * time.Second
)

// recipe is one kind of broker: the script that installs, boots and ends it.
type recipe struct {
	name  string // "kafka" or "pulsar": the folder of its files
	tools []string
}

var (
	kafkaRecipe  = recipe{name: "kafka", tools: []string{"bash", "flock", "setsid", "timeout"}}
	pulsarRecipe = recipe{name: "pulsar", tools: []string{"bash", "flock", "setsid", "timeout", "curl"}}
)

func (r recipe) files() []string {
	return []string{r.name + "/" + r.name + ".sh", r.name + "/pom.xml", "watchdog.sh"}
}

// key names this version of the recipe: two checkouts share a broker only if
// they would start the same one.
func (r recipe) key() (string, error) {
	sum := sha256.New()
	for _, name := range r.files() {
		b, err := recipes.ReadFile(name)
		if err != nil {
			return "", err
		}
		sum.Write(b)
	}
	return r.name + "-" + hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

// unpack writes the recipe's files into dir, unless they are there. A file
// appears whole or not, and is never written over: a shell may be reading it.
func (r recipe) unpack(dir string) error {
	for _, name := range r.files() {
		b, err := recipes.ReadFile(name)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.Base(name))
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
			continue
		}
		if err := os.WriteFile(path+".new", b, 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

// script is an unpacked recipe.
type script struct {
	recipe
	dir string
	// held stay open in each run of the script, as its descriptors 3 and up: a
	// boot whose starter was killed still counts as a user of its room.
	held []*os.File
}

func (s script) path() string { return filepath.Join(s.dir, s.name+".sh") }

// run runs the script with args and more environment, and returns what it
// printed. A failure carries what the script said.
func (s script) run(timeout time.Duration, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{s.path()}, args...)...)
	cmd.Env = append(os.Environ(), seconds("START_TIMEOUT", bootTimeout), seconds("STOP_TIMEOUT", stopTimeout),
		seconds("INSTALL_TIMEOUT", installTimeout), "BROKER_CACHE="+filepath.Join(cacheDir(), s.name))
	cmd.Env = append(cmd.Env, env...)
	cmd.ExtraFiles = s.held
	// Out of the terminal's process group: a Ctrl-C must not end the script
	// between the start of a broker and the note of its pid.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return strings.TrimSpace(stdout.String()), nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("not done within %v: %w", timeout, err)
	}
	return "", fmt.Errorf("%s.sh %s: %w\n%s", s.name, strings.Join(args, " "), err, stderr.String())
}

func seconds(name string, d time.Duration) string {
	return fmt.Sprintf("%s=%d", name, int(d.Seconds()))
}

// cacheDir holds what an install fetches, for all checkouts of this user.
func cacheDir() string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = filepath.Join(os.TempDir(), fmt.Sprintf("walrig-cache-%d", os.Getuid()))
	}
	return filepath.Join(base, "wal-brokers")
}

// cached is what of a recipe is in the cache.
type cached int

const (
	cachedAll  cached = iota // jars and class archive
	cachedJars               // jars only: boots take longer
	cachedNone
)

// check asks the script what is cached.
func (s script) check() (cached, error) {
	_, err := s.run(time.Minute, nil, "check")
	var exit *exec.ExitError
	switch {
	case err == nil:
		return cachedAll, nil
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		return cachedJars, nil
	case errors.As(err, &exit) && exit.ExitCode() == 4:
		return cachedNone, nil
	}
	return cachedNone, err
}

// install fetches the jars and makes the class archive unless that was done.
// Any number of processes may call it at the same time: one works, the others
// wait for it. The one extra boot runs in a room of its own, so that it ends
// with this process too.
func (r recipe) install() error {
	room, err := newRoom(r)
	if err != nil {
		return err
	}
	defer room.close()
	if have, err := room.script.check(); err != nil || have == cachedAll {
		return err
	}
	if err := os.MkdirAll(cacheDir(), 0o755); err != nil {
		return err
	}
	// One lock for both kinds: two Mavens at work in one local repository may
	// hurt each other.
	lock, err := lockFile(filepath.Join(cacheDir(), "install.lock"), exclusive, installTimeout)
	if err != nil {
		return fmt.Errorf("wait for another install: %w", err)
	}
	defer lock.Close()
	if _, err := room.script.run(installTimeout+bootTimeout, nil, "warm", room.node(1)); err != nil {
		return fmt.Errorf("install %s: %w", r.name, err)
	}
	return nil
}
