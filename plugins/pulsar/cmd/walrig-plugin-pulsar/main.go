// Command walrig-plugin-pulsar serves the Apache Pulsar backend to a walrig host.
package main

import (
	"github.com/walrig/walrig/plugins/pulsar"
	"github.com/walrig/walrig/sdk/plugin"
)

func main() { plugin.Serve(pulsar.NewBuilder()) }
