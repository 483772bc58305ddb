// Command walrig-plugin-kafka serves the Kafka backend to a walrig host.
package main

import (
	"github.com/walrig/walrig/plugins/kafka"
	"github.com/walrig/walrig/sdk/plugin"
)

func main() { plugin.Serve(kafka.NewBuilder()) }
