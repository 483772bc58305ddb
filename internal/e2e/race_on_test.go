//go:build race

package e2e

// raceFlag builds the programs under test with the race detector too.
var raceFlag = []string{"-race"}
