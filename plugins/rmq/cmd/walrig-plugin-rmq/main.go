// Command walrig-plugin-rmq serves the embedded backend to a walrig host.
package main

import (
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/plugin"
)

func main() { plugin.Serve(rmq.NewBuilder()) }
