// Package s3test starts a real S3 server (versitygw over a folder) on loopback
// for tests.
//
// It owns the server's process and folder, and must never leave either behind.
//
//  1. The server is the pinned tool tools/versitygw.mod, built by the go command
//     into its cache the first time (one to two minutes, from the module proxy).
//  2. A server is private to its test: any number may run, each on a free port of
//     127.0.0.1. It ends with the test, and with the test's process, however
//     that ends.
//  3. Under -short a test is skipped. Where the server cannot be built a test is
//     skipped with the reason, and with WALRIG_REQUIRE_BROKERS=1 it fails.
//  4. Every wait is bounded: the build by 10 minutes, a start by one.
//
// Start reading at s3test.go.
package s3test
