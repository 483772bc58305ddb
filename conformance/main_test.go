package conformance

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/plugin"
)

// The test binary is the plugin, too: with this variable in its environment it
// serves the backend of that name.
const serveVariable = "WALRIG_TEST_CONFORM_SERVE"

func TestMain(m *testing.M) {
	switch os.Getenv(serveVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "rmq":
		plugin.Serve(rmq.NewBuilder())
	case "fault":
		plugin.Serve(faultbackend.NewBuilder())
	}
}
