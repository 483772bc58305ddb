// Package flusher moves a pchannel's records to a sink, one vchannel at a time,
// and lets the log get shorter. One Flusher serves one pchannel at one term.
//
//	log ─► one shared reader ─► dispatch ─► a service per vchannel ─► Sink: files, then a manifest
//	                               │                                     │
//	                               └── marks ──► checkpoints (minimum) ◄─┘ ──► row ──► truncation
//
// It must never let a checkpoint pass a record that is not durable in a
// manifest, never flush a record twice into manifests that count, never
// truncate above a checkpoint that is saved in the row, and never let one
// vchannel whose sink hangs keep another from being flushed. It never writes a
// record to the log.
//
//  1. The manifest is the truth. A vchannel resumes at the later of its newest
//     manifest's checkpoint and the pchannel's saved one; units at or below that
//     are skipped whole. So a crash between file, manifest and row neither loses
//     nor repeats.
//  2. The pchannel checkpoint is the minimum by (term, tick) of the vchannels' and
//     of where the shared reader has got to (Checkpoints), rounded down to a place
//     that the reader has passed (Marks). A vchannel with nothing to flush, and a
//     pchannel without vchannels, follow the tick.
//  3. It is saved every SaveEvery while it moves, by compare-and-set on the term,
//     with exponential backoff from RetryMin to RetryMax, and read anew at every
//     try. It carries the (term, tick) of the last data unit that has a record
//     before its id; units that the reader skipped count too.
//  4. Vchannels (Set): a new one is saved before dispatch goes on. A dropped one
//     is flushed up to its drop, gets a tombstone in its manifest and then in the
//     row; the row's is forgotten when the pchannel checkpoint has passed it.
//     Records at or below a tombstone are ignored; one of a vchannel that is
//     neither declared nor dropped stops the flusher with ErrCorrupt.
//  5. A service flushes when it holds MaxBytes, when its oldest row has waited
//     MaxAge, when a flush record asks for it, when it is dropped, or when memory
//     is short and it holds most. A unit's rows of a vchannel are never split.
//  6. Isolation: a service that holds more than twice MaxBytes, or whose sink
//     fails or hangs when memory is short, is detached: what waits is forgotten,
//     and dispatch skips it. When its sink takes a manifest without rows again, it
//     reads the log from its own checkpoint with a reader of its own, asks to join
//     at the place where dispatch is, flushes up to that, and is attached.
//  7. Memory: all services together hold at most three quarters of MaxMemory in
//     rows (payload, vchannel name, properties and 200 bytes each), those in the
//     hands of a sink included; a single unit may exceed it when nothing else is
//     held. The last quarter is for those that catch up, at most four at once.
//  8. Truncation goes to the newest saved checkpoint that is older than MinAge and
//     not above the position of a running reader, which holds it back for
//     MaxPinAge at most.
//  9. A flusher that lost its position counts that, logs it and goes on with the
//     earliest record, once; so does a service that catches up.
//  10. A newer term's manifest (ErrFenced) or row (ErrTermExpired) ends it.
//     Anything else is tried again. Close returns with its context even if a sink
//     hangs; sinks should heed theirs.
//
// Pure cores, without clock, lock and I/O: checkpoints.go, marks.go,
// truncation.go, vchannels.go. Shells: run.go (dispatch), worker.go (flush),
// catchup.go, room.go (memory), recovery.go, keep.go (save and truncate).
// Start reading at sink.go and log.go, which say what it needs, then run.go.
//
// Lock order: run.mu, then Flusher.mu; neither is held while a log, a store or a
// sink is called.
package flusher
