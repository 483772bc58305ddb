package brokers

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
)

// KafkaEndpoint is where clients reach a Kafka.
type KafkaEndpoint struct {
	// Addr is the HOST:PORT of a broker.
	Addr string
	// Addrs are the addresses of all brokers to start from; Addr is the first.
	Addrs []string
}

// KafkaOptions are the settings of a private Kafka broker.
type KafkaOptions struct {
	// Props are lines of server.properties; they win over the recipe's. A restart
	// after a kill waits for broker.session.timeout.ms, 2 s here (3 s in a
	// cluster); on a busy machine a broker may miss it and lose its leaderships for
	// a moment, so a longer one goes with a broker.heartbeat.interval.ms of a fifth.
	Props map[string]string
	// Listeners are further client listeners by upper-case name, each with its
	// security protocol (SASL_PLAINTEXT, SSL, SASL_SSL, PLAINTEXT). They get free
	// ports; KafkaBroker.Listeners has their addresses. What a protocol needs is
	// set in Props, as listener.name.NAME.….
	Listeners map[string]string
	// HeapMB is the JVM's heap; 0 is 512.
	HeapMB int
	// JavaOpts are further JVM options. Benchmarks want
	// "-XX:TieredStopAtLevel=4": the recipe's quick compiler is for short lives.
	JavaOpts string
}

// KafkaBroker is a private broker, which its test may kill and start again. Its
// methods may be called from any goroutine, one at a time.
type KafkaBroker struct {
	KafkaEndpoint
	// ID is the broker's node id.
	ID int
	// Listeners are the addresses of KafkaOptions.Listeners.
	Listeners map[string]string
	*node
}

// Kafka returns a broker that the tests of all packages of a `go test` run share,
// and parallel runs of this user too: a test takes topic names of its own, and
// does not change the broker. The first one starts it; it ends by itself after
// the last run that used it. EnvKafka names an existing broker instead.
func Kafka(t testing.TB) KafkaEndpoint {
	t.Helper()
	skipIfShort(t)
	if named := os.Getenv(EnvKafka); named != "" {
		addrs := strings.Split(named, ",")
		if !answers(addrs[0]) {
			t.Fatalf("%s names %s, which accepts no connection: start that broker or unset the variable", EnvKafka, addrs[0])
		}
		return KafkaEndpoint{Addr: addrs[0], Addrs: addrs}
	}
	r, ports, err := joinShared(kafkaRecipe, 2, func(p []int) []string {
		// Nobody kills it, so its session may be long: on a busy machine a broker
		// that misses heartbeats gives up its leaderships for a while.
		return append(kafkaEnv(KafkaOptions{}, p, nil), "SESSION_MS=9000")
	})
	if err != nil {
		end(t, "Kafka", err)
	}
	t.Cleanup(r.close)
	return kafkaAt(ports[0])
}

// StartKafka starts a broker for this test alone, and ends it with the test.
func StartKafka(t testing.TB, opts KafkaOptions) *KafkaBroker {
	t.Helper()
	r := privateRoom(t, kafkaRecipe, "Kafka")
	b := &KafkaBroker{ID: 1, node: &node{room: r, dir: r.node(1)}}
	err := bootFresh(2+len(opts.Listeners), func(p []int) error {
		b.KafkaEndpoint = kafkaAt(p[0])
		b.Listeners = listenerAddrs(opts, p[2:])
		b.env = kafkaEnv(opts, p, nil)
		return b.startEmpty()
	})
	closeWith(t, r, b.node)
	if err != nil {
		end(t, "Kafka", err)
	}
	return b
}

// privateRoom checks that a broker can be started here, and makes its room.
func privateRoom(t testing.TB, rec recipe, kind string) *room {
	t.Helper()
	skipIfShort(t)
	err := rec.require()
	if err == nil {
		err = rec.install()
	}
	var r *room
	if err == nil {
		r, err = newRoom(rec)
	}
	if err != nil {
		end(t, kind, err)
	}
	return r
}

func kafkaAt(port int) KafkaEndpoint {
	return KafkaEndpoint{Addr: local(port), Addrs: []string{local(port)}}
}

// kafkaEnv is what the recipe is told. The ports are the client's, the
// controller's and one for each further listener; more are properties between
// the recipe's and the test's.
func kafkaEnv(opts KafkaOptions, ports []int, more map[string]string) []string {
	props := map[string]string{}
	if len(opts.Listeners) > 0 {
		listeners := []string{fmt.Sprintf("PLAINTEXT://%s", local(ports[0]))}
		protocols := []string{"PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"}
		addrs := listenerAddrs(opts, ports[2:])
		for _, name := range listenerNames(opts) {
			listeners = append(listeners, name+"://"+addrs[name])
			protocols = append(protocols, name+":"+opts.Listeners[name])
		}
		advertised := strings.Join(listeners, ",")
		props["listeners"] = advertised + ",CONTROLLER://" + local(ports[1])
		props["advertised.listeners"] = advertised
		props["listener.security.protocol.map"] = strings.Join(protocols, ",")
	}
	heap := opts.HeapMB
	if heap == 0 {
		heap = 512
	}
	// Every knob, so that none is taken from the environment by chance.
	return []string{
		fmt.Sprintf("PORT=%d", ports[0]),
		fmt.Sprintf("CONTROLLER_PORT=%d", ports[1]),
		fmt.Sprintf("HEAP=%dm", heap),
		"MAX_MESSAGE_BYTES=", "SESSION_MS=2000", "CLUSTER_ID=", "NO_CDS=",
		"JAVA_OPTS_EXTRA=" + opts.JavaOpts,
		"KAFKA_PROPS=" + lines(props, more, opts.Props),
	}
}

func listenerNames(opts KafkaOptions) []string {
	names := make([]string, 0, len(opts.Listeners))
	for name := range opts.Listeners {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func listenerAddrs(opts KafkaOptions, ports []int) map[string]string {
	addrs := map[string]string{}
	for i, name := range listenerNames(opts) {
		addrs[name] = local(ports[i])
	}
	return addrs
}
