// Package brokers starts real Kafka and Pulsar brokers for tests and benchmarks.
//
// It owns the recipes (kafka/, pulsar/: a script and the list of jars each), the
// processes that they start and the folders that those write to. It knows
// nothing of walrig, and must never leave a process or a folder behind.
//
// What callers may rely on:
//
//  1. [Kafka] and [Pulsar] return a broker that is shared by all packages of a
//     `go test` run and by parallel runs of the same user with the same recipe,
//     also from another checkout. Its users take names of their own for topics
//     and namespaces and do not change the broker.
//  2. [StartKafka], [StartPulsar] and [StartKafkaCluster] start brokers for one
//     test, which may kill, pause and start them again; data and ports stay.
//  3. A broker ends with its last user, however that ended: a private one at the
//     end of its test, a shared one within seconds of the end of the last
//     `go test` command (or test binary run by hand) that used it. A SIGKILL of
//     the tests, also in the middle of a boot, changes nothing about that.
//  4. A process is only signalled after its command line has shown that it is
//     the broker which the pid was noted for.
//  5. Where something is not installed, or under -short, a test is skipped with
//     the reason; with WALRIG_REQUIRE_BROKERS=1 it fails and says what to
//     install. Under -short it is skipped even then. Maven is needed only until
//     the jars are cached; any number of packages may need them at once.
//  6. WALRIG_TEST_KAFKA and WALRIG_TEST_PULSAR name brokers to use as the shared
//     ones. Private brokers are started all the same.
//  7. Every wait is bounded: a boot by 3 minutes, an install by 15, a stop by
//     half a minute and a SIGKILL.
//
// # How a crash is survived
//
// A broker's folder is a room:
//
//	/tmp/walrig-brokers-1000/kafka-1f0c…/   a shared one; private: /tmp/walrig-kafka-…/
//	    users        locked shared (flock) by each user for as long as it lives
//	    boot         locked by who starts or repairs the shared broker
//	    watchdog     locked by the watchdog while it runs
//	    runs/4711-…  the `go test` commands that keep the shared broker
//	    state        the shared broker's ports
//	    nodes/1/     a broker's configuration, data, log and pid
//	    kafka.sh …   the recipe, unpacked
//
// The kernel drops a process's locks when it dies. The watchdog (watchdog.sh, a
// process of its own, started before any broker) waits for the exclusive lock on
// users, which it gets when nobody is left; then it kills the brokers and removes
// the room. A recipe's script inherits the locks of who runs it, so that a boot
// whose starter was killed is waited for and then cleaned up; the broker itself
// does not inherit them.
//
// Start reading at kafka.go for the interface, at room.go for the locks.
//
// For a try by hand use the recipes as they are:
//
//	internal/brokers/kafka/kafka.sh start /tmp/k     # prints 127.0.0.1:PORT
//	internal/brokers/kafka/kafka.sh stop  /tmp/k
//	internal/brokers/pulsar/pulsar.sh start /tmp/p   # prints both URLs
//	internal/brokers/pulsar/pulsar.sh stop  /tmp/p
package brokers
