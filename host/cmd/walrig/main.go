package main

import "os"

// Set by the linker: -X main.version=v1.2.3 -X main.commit=0123456789ab.
var (
	version = "devel"
	commit  = "unknown"
)

func main() { os.Exit(run(os.Args[1:])) }
