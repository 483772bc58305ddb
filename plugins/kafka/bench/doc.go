// Package bench compares walrig on Kafka with other producers, on one broker, in one
// run, taking turns:
//
//	go test -run '^$' -bench . -benchtime 1x -timeout 20m .
//
// It is a module of its own and must never be imported.
//
//  1. Throughput: 128 appenders, 1 KiB, each waits for its acknowledgement. The peer is
//     franz-go's idempotent producer, without linger. "plugin" is the backend linked in,
//     "host" is client → host → plugin → broker with real processes.
//  2. Latency: one appender; the peer is kafka-go's Client.Produce.
//  3. The result is the median over the rounds, and a ratio or a difference to the
//     peer. Absolute numbers say more about the machine than about walrig.
//
// TestFranzReadsTheRecords proves that another library reads what walrig writes.
//
// Flags: -rounds, -length; WALRIG_TEST_KAFKA names a broker to use.
//
// Start reading at bench_test.go.
package bench
