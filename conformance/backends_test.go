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

func TestRMQKeepsTheContractInProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, InProcess(rmq.NewBuilder(), walimpls.Config{"dir": dir}, TargetOptions{StorePath: dir}))
}

func TestRMQKeepsTheContractOverRPC(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, OverRPC(t, rmq.NewBuilder(), walimpls.Config{"dir": dir}, TargetOptions{StorePath: dir}))
}

func TestRMQKeepsTheContractAsAPlugin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, pluginTargetOf(t, "rmq", walimpls.Config{"dir": dir}, dir))
}
