// Package bench measures how fast a log takes and gives records.
//
// It owns the load and the arithmetic and knows nothing of what it measures: a
// Target is a channel of a host, a plugin, or a backend in this process.
//
//  1. A closed loop has a number of appenders of which each waits for its answer:
//     it measures the highest throughput, and the latency at it.
//  2. An open loop has a rate. A batch's latency counts from when it was to be
//     sent, not from when an appender was free for it: a pause of the log is in the
//     latency of everything that would have come in it (no coordinated omission).
//  3. What is sent during the warm-up, and what is answered after the end, is not
//     counted. The time that is counted is the one that passed.
//  4. The first failure ends the run: a figure of a log that fails is no figure.
//
// Start reading at append.go.
package bench
