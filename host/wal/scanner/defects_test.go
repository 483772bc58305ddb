package scanner

import (
	"flag"
	"strings"
	"testing"
)

var histories = flag.Int("histories", 200, "how many random histories of the pure cores to play")

// TestSimulatedHistoriesHaveNoGapAndNoRepeat plays random histories with the
// pure cores: every reader, live ones and one from every checkpoint that was
// handed out, gets what the whole log says, and every answer was true.
func TestSimulatedHistoriesHaveNoGapAndNoRepeat(t *testing.T) {
	n := *histories
	for _, fenceLost := range []bool{false, true} {
		for seed := range n {
			if s := simulate(uint64(seed), 120, "", fenceLost); s.bad != "" {
				t.Fatalf("seed %d, fencing lost %v: %s\n%s", seed, fenceLost, s.bad, strings.Join(s.trace, "\n"))
			}
		}
	}
}

// TestEveryDefectIsCaught puts one defect at a time between the cores. The names
// are those of the protocol's model; docs/model.md lists them all.
func TestEveryDefectIsCaught(t *testing.T) {
	for _, defect := range []string{
		"lcIsLastAcked", "commitUnpinsAtSend", "txnDoesNotPin", "lcAtSend", "tickPassesPending", "tickConfirmsStoredEnds", "commitDoesNotWait",
		"windowFromRowOnly", "openDoesNotFence", "resolveWithoutOpen", "notFoundIsFinal", "fencedIsDefinite",
		"lateBelowCheckpoint", "skipBodiesByTick", "fallbackKeepsTxn", "noFallback",
		"switchAnywhere", "switchKeepsHeap", "switchClearsTxn",
		"keepStale", "staleByTermOnly", "readBackPlain", "switchAtStale",
	} {
		t.Run(defect, func(t *testing.T) {
			lost := map[string]bool{"keepStale": true, "staleByTermOnly": true, "readBackPlain": true, "switchAtStale": true}[defect]
			// Where a defect shows rarely the search begins close to a history that
			// shows it today; it goes on from there if that changes.
			first := map[string]int{"commitUnpinsAtSend": 690, "txnDoesNotPin": 355, "switchAnywhere": 40}[defect]
			for n := range 6000 {
				seed := (first + n) % 6000
				if s := simulate(uint64(seed), 120, defect, lost); s.bad != "" {
					t.Logf("seed %d: %.200s", seed, s.bad)
					return
				}
			}
			t.Error("6000 histories, and nothing noticed")
		})
	}
}
