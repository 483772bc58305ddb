// Package rmq is the embedded backend: durable logs in a folder of this
// machine, kept in a Pebble database, without a broker.
//
// It owns everything below its folder and nothing else. It never acknowledges
// a record before the file system said that it is on the disk, never shows a
// reader a record that is not, never takes a folder that another process holds,
// and never writes into a folder that is not its own.
//
// The contract is that of sdk/walimpls. What this backend adds, or leaves open
// there and decides here:
//
//  1. Appends of all logs go through one queue, bounded in bytes, to one
//     committer, which puts everything that waits into one Pebble batch with one
//     sync. Queue order is log order. There is no timer.
//  2. An Open for writing decides on the pair, fences the handles before it and
//     queues its fence record under the queue's lock: an append of an earlier
//     handle lies before the fence record, or is refused as not stored. If the
//     caller leaves meanwhile, the fence record still lands.
//  3. When the context of an Append ends, records that are still queued are not
//     stored; those that the committer has in hand are unknown, which ends the
//     handle. Close waits up to two seconds for the latter, so most of them end
//     with what really became of them.
//  4. After a failed write or sync of Pebble's log, manifest or folder the whole
//     store is failed: what was in the commit is unknown, everything else is
//     refused as not stored (ErrNoSpace if the disk was full, else
//     ErrUnavailable), scanners end with the same error. Nothing is acknowledged
//     until an Open opens the store again, in the same process or another one.
//     The process does not end for it; see gate.go for how. A defect inside
//     Pebble that panics on one of its own goroutines does end it: the host
//     sees the exit, and starts the plugin again.
//  5. Every Open of the store rewrites what it recovers from Pebble's log into
//     tables, synced, before it shows it.
//  6. Ids are u64 from 1 on, without holes, fence records included. A missing
//     one between the bounds is ErrCorrupt. They are not used again in a log;
//     a log that was dropped and made again starts at 1 with another store id.
//  7. StartFrom and StartAfter need the record with the id to be in the log; so
//     StartAfter the record just below the earliest is *PositionLostError, too.
//  8. Truncate is durable when it returns; the space comes free within seconds,
//     up to an eighth of a write buffer or a third of what is live, whichever is
//     more, because nothing much is rewritten for little (TruncationDeferred; see
//     reclaim.go). Readers hold nothing back.
//  9. Drop deletes the log and its terms. Its handles are fenced; its scanners,
//     and Read and Bounds, are ErrNotFound.
//  10. While the file system has less free than min_free, appends are ErrNoSpace,
//     not stored, and the handle lives on. Opens, truncation and drops use the
//     reserve, and so does the work that gives their space back.
//  11. A record that is too large, or of type invalid or fence, is refused by
//     itself; its neighbours in the batch are stored.
//  12. The first Open opens the folder, waiting up to open_timeout for its lock;
//     a failed opening is tried anew by the next Open. Read-only opens and Drop
//     make no store.
//
// # Folder
//
//	LOCK        flock of the process that has the store open, with its pid as text
//	FORMAT      "walrig rmq store\nformat 1\n"; another number is refused
//	db/         the Pebble database
//
// # Keys
//
// All numbers are big-endian, so the byte order of keys is the log order.
//
//	00                      header: 01 | number of the next log (u64)
//	01 name                 a log's row: 01 | its number (u64) | earliest id (u64) | store id
//	02 number(u64) id(u64)  a record, encoded by message.AppendRecord
//
// The first byte of the header and of a row, and of a record, is its format
// version. The newest record is never deleted: it holds the highest pair and
// the highest id. A log's row and its first fence record are one commit, so is
// a truncation's deletion with the row's new earliest id, and so is a drop.
//
// The log "orders", opened as term 3 incarnation 1, with one record "hi":
//
//	00                                    01 0000000000000002
//	01 6f7264657273                       01 0000000000000001 0000000000000001 "9f86…" (32 hex digits)
//	02 0000000000000001 0000000000000001  01 02 03 01 00 00 00 00 00
//	02 0000000000000001 0000000000000002  01 01 03 01 00 00 00 00 00 68 69
//
// Start reading at opener.go (the folder's life), then openlog.go and queue.go
// (what is admitted), commit.go (what is written), scanner.go, gate.go (what
// happens when the disk fails) and reclaim.go.
package rmq
