// Command walrig-plugin-fault serves the fault backend to a walrig host. Its
// configuration and rules are described in the package faultbackend.
package main

import (
	"os"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/sdk/plugin"
)

func main() {
	plugin.Serve(faultbackend.NewBuilder(
		faultbackend.WithExit(os.Exit),
		faultbackend.WithLoseConnection(loseConnections),
	))
}
