// Package flush joins flushers to WALs: each WAL that its Opener opens gets a
// flusher, which ends with it.
//
// It must never keep a WAL from opening or closing: a flusher that fails shows
// that in its status, and one whose sink hangs is left behind.
//
//  1. A Service holds one sink for all pchannels. A nil *Service is a host that
//     flushes nothing; its methods work.
//  2. Opener.Open returns when the WAL is open; its flusher recovers beside it.
//  3. Close of the WAL stops the flusher first, and waits for it within the
//     grace period at most.
//
// Start reading at flush.go, then log.go, which shows a WAL and its row to the
// flusher.
package flush
