//go:build conformance

package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/walimpls"
)

// pluginTargetOf is the test binary as a plugin process.
func pluginTargetOf(t *testing.T, backend string, cfg walimpls.Config, store string) Target {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	target, err := Plugin(PluginConfig{
		Path: self, Backend: backend, Config: cfg, Env: map[string]string{serveVariable: backend},
		TargetOptions: TargetOptions{Name: backend, StorePath: store},
	})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestReferenceKeepsTheContractInProcess(t *testing.T) {
	Test(t, InProcess(faultbackend.NewBuilder(), walimpls.Config{}))
}

func TestReferenceKeepsTheContractOverRPC(t *testing.T) {
	Test(t, OverRPC(t, faultbackend.NewBuilder(), walimpls.Config{}))
}

func TestReferenceKeepsTheContractAsAPlugin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	Test(t, pluginTargetOf(t, "fault", walimpls.Config{"file": file}, ""))
}

// small keeps what the store reserves for itself below what the suite looks at.
func small(dir string) walimpls.Config {
	return walimpls.Config{"dir": dir, "segment_size": "4MiB"}
}

func TestRMQKeepsTheContractInProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, InProcess(rmq.NewBuilder(), small(dir), TargetOptions{StorePath: dir}))
}

func TestRMQKeepsTheContractOverRPC(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, OverRPC(t, rmq.NewBuilder(), small(dir), TargetOptions{StorePath: dir}))
}

func TestRMQKeepsTheContractAsAPlugin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, pluginTargetOf(t, "rmq", small(dir), dir))
}

// The suite may be repeated on a dirty store, in any order, beside another run.
func TestThreeRunsOnOneStore(t *testing.T) {
	if testing.Short() {
		t.Skip("three runs take too long for -short")
	}
	dir := filepath.Join(t.TempDir(), "store")
	target := InProcess(rmq.NewBuilder(), small(dir))
	beside := make(chan Report, 1)
	go func() {
		r, err := Run(t.Context(), InProcess(faultbackend.NewBuilder(), walimpls.Config{}), Options{Run: "WAL-(LIFE|FENCE|TRUNC|DROP)-", Soak: -1})
		if err != nil {
			r.Reasons = []string{err.Error()}
		}
		beside <- r
	}()
	for run := 1; run <= 3; run++ {
		r, err := Run(t.Context(), target, Options{Run: "WAL-(LIFE|SCAN|ID|RO|FENCE|TRUNC-00[1-8]|DROP|UNK|RST)-?", Seed: uint64(run), Soak: -1})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range r.Failed() {
			c, _ := r.Clause(id)
			for k := range c.Checks {
				if c.Checks[k].Failure != nil {
					t.Errorf("run %d: %s", run, c.explain(&c.Checks[k]))
				}
			}
		}
		if len(r.Left) > 0 {
			t.Errorf("run %d left %v behind", run, r.Left)
		}
	}
	if r := <-beside; !r.OK() {
		t.Errorf("a run beside them: %s %v", r.Result, r.Reasons)
	}
}
