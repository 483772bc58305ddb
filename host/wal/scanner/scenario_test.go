package scanner

import (
	"testing"
	"testing/synctest"
)

// TestScenarios plays testdata/*.txt; -update writes what is printed now.
func TestScenarios(t *testing.T) {
	for file, owner := range map[string]bool{"reorder": false, "txn": false, "switch": true} {
		t.Run(file, func(t *testing.T) { playWorlds(t, "testdata/"+file+".txt", owner) })
	}
}

// playWorlds plays a file with one world a scenario, each in a bubble of its own.
// Without an owner there is no write-ahead buffer to switch to.
func playWorlds(t *testing.T, path string, owner bool) {
	playScenarios(t, path, func(t *testing.T, events string) (printed string) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			defer w.close()
			if !owner {
				w.buffer = nil
			}
			printed = playEvents(events, func(event string) []string { return w.play(t, event) })
		})
		return printed
	})
}
