package pluginhost

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// What the plugin in testdata/testplugin is to do comes in by its environment.
const (
	modeVariable   = "WALRIG_TEST_MODE"
	argVariable    = "WALRIG_TEST_ARG"
	cookieVariable = "WALRIG_TEST_COOKIE"
)

// buildDir holds the test plugin. It is built once, when the first test needs
// it, and without the race detector: a start takes half of the time then.
var (
	buildDir string
	built    = sync.OnceValues(func() (string, error) {
		path := filepath.Join(buildDir, "walrig-plugin-mem")
		out, err := exec.Command("go", "build", "-ldflags=-w", "-o", path, "./testdata/testplugin").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return path, err
	})
)

func TestMain(m *testing.M) {
	// The test binary is also the host that is killed (TestNoOrphan…).
	if os.Getenv(modeVariable) == "host" {
		runTestHost(os.Getenv(argVariable))
		return
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "walrig-pluginhost-test"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(buildDir)
		os.Exit(code)
	}))
}

// testPlugin returns the path of the test plugin.
func testPlugin(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// runTestHost is a host that runs until it is killed. It prints the pid of its
// plugin, and its socket folder, once that runs.
func runTestHost(arg string) {
	path, arg, _ := strings.Cut(arg, "|")
	mode, arg, _ := strings.Cut(arg, "|")
	h, err := New(Options{Plugins: []Config{{Name: "p", Backend: "mem", Path: path, Env: map[string]string{modeVariable: mode, argVariable: arg}}}})
	if err != nil {
		panic(err)
	}
	p := h.Plugins()[0]
	if err := p.WaitFirstStart(context.Background()); err != nil {
		panic(err)
	}
	fmt.Println(p.Status().PID, h.dirs.path)
	_, _ = io.Copy(io.Discard, os.Stdin)
	select {}
}
