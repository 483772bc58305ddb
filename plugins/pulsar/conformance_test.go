package pulsar

import (
	"os"
	"testing"

	"github.com/walrig/walrig/conformance"
)

func TestPulsarKeepsTheContractAsAPlugin(t *testing.T) {
	s := sharedStore(t)
	self, err := os.Executable()
	must(t, err)
	target, err := conformance.Plugin(conformance.PluginConfig{
		Path: self, Backend: "pulsar", Config: s.cfg, Env: map[string]string{serveVariable: "1"},
		TargetOptions: conformance.TargetOptions{Name: "pulsar"},
	})
	must(t, err)
	report := conformance.Test(t, target)
	for _, l := range report.Levels {
		if l.State != "reached" && l.Level != "Space" {
			t.Errorf("level %s: %s", l.Level, l.State)
		}
	}
}

// In process the race detector and the leak detector see the backend at work.
func TestPulsarKeepsTheContractInProcess(t *testing.T) {
	opt := conformance.Options{}
	if os.Getenv(longVariable) == "" {
		opt.Run, opt.Soak = "WAL-(LIFE|FENCE|TRUNC|DROP|UNK|SHARE)-", -1
	}
	conformance.Test(t, conformance.InProcess(NewBuilder(), sharedStore(t).cfg), opt)
}
