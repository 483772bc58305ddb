package main

import (
	"os"
	"runtime/debug"
)

// Set by the linker: -X main.version=v1.2.3 -X main.commit=0123456789ab.
var (
	version = "devel"
	commit  = "unknown"
)

// gcPercent lets the heap grow to five times what is in use between collections.
// What is in use is bounded and small, and records pass through quickly: with the
// runtime's 100 a catch-up read spends a third of the host's time on collecting.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(run(os.Args[1:]))
}
