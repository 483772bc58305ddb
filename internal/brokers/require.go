package brokers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// The environment variables that this package reads.
const (
	// EnvKafka names an existing Kafka for Kafka: "HOST:PORT[,HOST:PORT…]".
	EnvKafka = "WALRIG_TEST_KAFKA"
	// EnvPulsar names an existing Pulsar for Pulsar: its service URL, with its
	// admin URL behind a comma unless EnvPulsarAdmin names that.
	EnvPulsar = "WALRIG_TEST_PULSAR"
	// EnvPulsarAdmin is the admin URL of the broker in EnvPulsar.
	EnvPulsarAdmin = "WALRIG_TEST_PULSAR_ADMIN"
	// EnvRequire set to 1 makes a test fail that would be skipped because
	// something is not installed.
	EnvRequire = "WALRIG_REQUIRE_BROKERS"
)

// minJava is the oldest Java that both brokers run on.
const minJava = 17

// missingError says what has to be installed to start a broker.
type missingError struct{ what string }

func (e *missingError) Error() string { return e.what }

// skipIfShort skips brokers' tests among the quick ones, even if brokers are
// required: who asks for -short asks for that.
func skipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real broker: run without -short")
	}
}

// end ends a test that got no broker: it is skipped if something is not
// installed and brokers are not required.
func end(t testing.TB, kind string, err error) {
	t.Helper()
	var missing *missingError
	switch {
	case !errors.As(err, &missing):
		t.Fatalf("start %s: %v", kind, err)
	case os.Getenv(EnvRequire) == "1":
		t.Fatalf("%s=1, but %s cannot be started here: %v", EnvRequire, kind, err)
	default:
		t.Skipf("no %s: %v (set %s=1 to make this a failure)", kind, err, EnvRequire)
	}
}

// require finds out whether this machine can start a broker of the recipe.
func (r recipe) require() error {
	if runtime.GOOS != "linux" {
		return &missingError{"the broker recipes need Linux; name an existing broker in " + EnvKafka + " or " + EnvPulsar}
	}
	for _, tool := range r.tools {
		if _, err := exec.LookPath(tool); err != nil {
			return &missingError{fmt.Sprintf("no %q on PATH: install bash, util-linux, coreutils and curl", tool)}
		}
	}
	if err := requireJava(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "walrig-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := r.unpack(dir); err != nil {
		return err
	}
	have, err := script{recipe: r, dir: dir}.check()
	if err != nil || have != cachedNone {
		return err
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return &missingError{fmt.Sprintf("no Maven (mvn) on PATH, and the %s jars are not yet in %s: "+
			"install Maven 3.8 or newer", r.name, filepath.Join(cacheDir(), r.name))}
	}
	return nil
}

func requireJava() error {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	if own := os.Getenv("JAVA"); own != "" {
		java = own
	}
	advice := fmt.Sprintf("install a Java runtime, %d or newer, and put it on PATH or name it in JAVA_HOME", minJava)
	path, err := exec.LookPath(java)
	if err != nil {
		return &missingError{fmt.Sprintf("no %q: %s", java, advice)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return &missingError{fmt.Sprintf("%s -version fails (%v): %s", path, err, advice)}
	}
	major, ok := javaMajor(out)
	switch {
	case !ok:
		return &missingError{fmt.Sprintf("%s -version prints no version that is understood (%q): %s", path, out, advice)}
	case major < minJava:
		return &missingError{fmt.Sprintf("%s is Java %d: %s", path, major, advice)}
	}
	return nil
}

var javaVersion = regexp.MustCompile(`version "(?:1\.)?(\d+)`)

// javaMajor reads the major version out of what `java -version` prints; up to
// Java 8 it is the number behind "1.".
func javaMajor(out []byte) (int, bool) {
	m := javaVersion.FindSubmatch(bytes.TrimSpace(out))
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(m[1]))
	return n, err == nil
}
