package brokers

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
)

// PulsarEndpoint is where clients reach a Pulsar.
type PulsarEndpoint struct {
	ServiceURL string // pulsar://HOST:PORT
	AdminURL   string // http://HOST:PORT
}

// PulsarOptions are the settings of a private Pulsar broker.
type PulsarOptions struct {
	// Conf are lines of standalone.conf; they win over the recipe's. For example
	// managedLedgerMaxEntriesPerLedger=10 for small ledgers.
	Conf map[string]string
	// HeapMB is the JVM's heap; 0 is 1024. As much as half of it is used outside
	// of the heap.
	HeapMB int
	// JavaOpts replace the recipe's JVM options for a quick boot; benchmarks set
	// "-XX:+UseG1GC".
	JavaOpts string
}

// PulsarBroker is a private broker, which its test may kill and start again. Its
// methods may be called from any goroutine, one at a time.
type PulsarBroker struct {
	PulsarEndpoint
	*node
}

// Pulsar returns a broker that the tests of all packages of a `go test` run
// share, and parallel runs of this user too: a test takes topic or namespace
// names of its own, and does not change the broker. The first one starts it; it
// ends by itself after the last run that used it. EnvPulsar names an existing
// broker instead.
func Pulsar(t testing.TB) PulsarEndpoint {
	t.Helper()
	skipIfShort(t)
	if named := os.Getenv(EnvPulsar); named != "" {
		at, err := namedPulsar(named, os.Getenv(EnvPulsarAdmin))
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	r, ports, err := joinShared(pulsarRecipe, 3, func(p []int) []string {
		return pulsarEnv(PulsarOptions{}, p)
	})
	if err != nil {
		end(t, "Pulsar", err)
	}
	t.Cleanup(r.close)
	return pulsarAt(ports)
}

// StartPulsar starts a broker for this test alone, and ends it with the test.
func StartPulsar(t testing.TB, opts PulsarOptions) *PulsarBroker {
	t.Helper()
	r := privateRoom(t, pulsarRecipe, "Pulsar")
	b := &PulsarBroker{node: &node{room: r, dir: r.node(1)}}
	err := bootFresh(3, func(p []int) error {
		b.PulsarEndpoint = pulsarAt(p)
		b.env = pulsarEnv(opts, p)
		return b.startEmpty()
	})
	closeWith(t, r, b.node)
	if err != nil {
		end(t, "Pulsar", err)
	}
	return b
}

func pulsarAt(ports []int) PulsarEndpoint {
	return PulsarEndpoint{ServiceURL: "pulsar://" + local(ports[0]), AdminURL: "http://" + local(ports[1])}
}

// namedPulsar reads the URLs of an existing broker and checks that both answer.
func namedPulsar(named, admin string) (PulsarEndpoint, error) {
	var service []string
	for _, part := range strings.Split(named, ",") {
		// A service URL may itself list several hosts.
		if strings.HasPrefix(part, "http://") || strings.HasPrefix(part, "https://") {
			admin = part
			continue
		}
		service = append(service, part)
	}
	at := PulsarEndpoint{ServiceURL: strings.Join(service, ","), AdminURL: strings.TrimSuffix(admin, "/")}
	if at.AdminURL == "" {
		return at, fmt.Errorf("%s names no admin URL: set %s=http://HOST:8080, or append it behind a comma", EnvPulsar, EnvPulsarAdmin)
	}
	if len(service) == 0 {
		return at, fmt.Errorf("%s=%q names no service URL such as pulsar://HOST:6650", EnvPulsar, named)
	}
	for _, raw := range []string{service[0], at.AdminURL} {
		u, err := url.Parse(raw)
		if err != nil || u.Port() == "" {
			return at, fmt.Errorf("%s: %q is no URL with a host and a port", EnvPulsar, raw)
		}
		if !answers(u.Host) {
			return at, fmt.Errorf("%s names %s, which accepts no connection: start that broker or unset the variable", EnvPulsar, u.Host)
		}
	}
	return at, nil
}

// pulsarEnv is what the recipe is told. The ports are the clients', the web
// service's and the bookie's.
func pulsarEnv(opts PulsarOptions, ports []int) []string {
	heap := opts.HeapMB
	if heap == 0 {
		heap = 1024
	}
	java := opts.JavaOpts
	if java == "" {
		java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
	}
	// Every knob, so that none is taken from the environment by chance.
	return []string{
		fmt.Sprintf("BROKER_PORT=%d", ports[0]),
		fmt.Sprintf("WEB_PORT=%d", ports[1]),
		fmt.Sprintf("BOOKIE_PORT=%d", ports[2]),
		fmt.Sprintf("HEAP=%dm", heap),
		fmt.Sprintf("DIRECT=%dm", heap/2),
		"JOURNAL_SYNC=", "DEDUP=", "MAX_ENTRIES_PER_LEDGER=", "LOG_LEVEL=", "NO_CDS=", "ARCHIVE_TO=",
		"JAVA_OPTS=" + java,
		"EXTRA_CONF=" + lines(opts.Conf),
	}
}
