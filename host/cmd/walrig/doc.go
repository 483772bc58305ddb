// Command walrig is the host and its command line. It is the only place that
// knows everything: `walrig serve` wires catalog, plugins, WAL manager and
// server together, every other command is a client of a host's API.
//
// It must never hold a log's bytes in memory without a bound, write anything
// but results to stdout, or guess an outcome: what it prints as stored was
// acknowledged, what it prints as not stored never will be.
//
//  1. stdout carries results, stderr everything else. With -o json a result is
//     one object a line, and an error is one line {"error":{…}} on stderr.
//  2. Exit codes: 0 ok, 1 definite failure, 2 usage or configuration, 3 outcome
//     unknown, 4 unreachable or timed out with nothing sent, 130 interrupted.
//     They come from the table of codes in sdk/walimpls.
//  3. A stdout whose reader went away ends a command silently with 0, as head
//     and its like expect; append goes on appending.
//  4. The first SIGINT or SIGTERM ends a command in order, the second at once.
//  5. JSON fields are only ever added. A field that nothing fills yet is null.
//
// Start reading at app.go (how a command runs and ends), then serve.go and
// wire.go for the host, append.go and read.go for the clients. conform.go runs the
// suite of the package conformance; plugin_init.go writes a new plugin from
// plugintemplate. docs/cli.md is generated from the commands, and tour_test.go runs
// docs/writing-a-backend.md.
package main
