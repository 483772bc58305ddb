package pulsar

import (
	"os"
	"testing"
	"time"

	"github.com/walrig/walrig/conformance"
)

func TestPulsarKeepsTheContractAsAPlugin(t *testing.T) {
	t.Parallel() // it mostly waits for the broker
	s := sharedStore(t)
	self, err := os.Executable()
	must(t, err)
	target, err := conformance.Plugin(conformance.PluginConfig{
		Path: self, Backend: "pulsar", Config: s.cfg, Env: map[string]string{serveVariable: "1"},
		StartTimeout:  2 * time.Minute, // the test binary is large, and the machine may be busy
		TargetOptions: conformance.TargetOptions{Name: "pulsar"},
	})
	must(t, err)
	opt := conformance.Options{}
	if !long() {
		opt.Run, opt.Soak = processClauses, -1
	}
	report := conformance.Test(t, target, opt)
	for _, l := range report.Levels {
		// Space needs to know where the bookies keep their files, and that they
		// collect their garbage within a minute; TestOnAPrivateBroker looks at ledgers.
		if long() && l.State != "reached" && l.Level != "Space" {
			t.Errorf("level %s: %s", l.Level, l.State)
		}
	}
}

// processClauses are proved by processes that die or share the store; by default
// the others are proved in process, where the race detector and the leak detector
// see the backend at work.
const processClauses = "WAL-(CRASH|RST|SHARE|AUD)-"

func TestPulsarKeepsTheContractInProcess(t *testing.T) {
	t.Parallel()
	opt := conformance.Options{}
	if !long() {
		opt.Soak = -1
	}
	conformance.Test(t, conformance.InProcess(NewBuilder(), sharedStore(t).cfg), opt)
}
