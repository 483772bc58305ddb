// Package remote is the host's side of the protocol plugin/v1: a walimpls.Opener
// whose WALs and scanners live in a plugin process behind a gRPC connection. It
// keeps the contract of sdk/walimpls; what follows is what it adds.
//
// It owns the streams and goroutines of what it opened, never the connection nor
// the process. It never sends a record twice, and it never panics, whatever the
// plugin answers.
//
//  1. Appends of all callers go over one stream a WAL, in the order in which they
//     were handed over. While batches are in flight (maxInFlight at most) what
//     comes in is collected into the next one; there is no timer.
//  2. WAL.AppendAsync never blocks; what it hands over waits in memory. WAL.Append
//     waits while more than maxQueuedBytes are waiting or in flight.
//  3. A record above MaxMessageBytes, or one that cannot be sent, is refused
//     before the RPC and its neighbours are stored all the same. Batches are cut to
//     the backend's limits.
//  4. An unknown outcome ends the handle, and so does a broken stream or an answer
//     that breaks the protocol (another number of ids than records, ids that do not
//     ascend, another sequence): what is in flight is unknown, what waits is not
//     stored, and later appends are refused as not stored (ErrUnavailable).
//     WAL.Broken is closed then. Reads on it may go on.
//  5. When the ctx of an Append ends, records that were not sent are not stored,
//     with ctx's error; those that were sent are unknown at once, which ends the
//     handle (point 4) although the plugin goes on with the batch.
//  6. A scanner reads ahead as far as the credit that it gave; credit is given
//     again as records are consumed. Scanner.Resolved is a start that can be used
//     again, never Latest.
//  7. Every Close is bounded by walimpls.GracePeriod, even when the plugin hangs.
//     What hangs is left to end with the stream or with the process.
//
// Buffers: an appended payload is read until Append returns (AppendAsync: until
// done is called) and never written to; a payload that a scanner returns is shared
// with nobody.
//
// Start reading at client.go, then queue.go, the pure part of an append.
package remote
