// Package rmq is the embedded backend: durable logs in a folder of this
// machine, kept in segment files, without a broker.
//
// It owns everything below its folder and nothing else. It never acknowledges
// a record before the file system said that it is on the disk, never shows a
// reader a record that is not (the opt-in sync "interval" excepted, see
// README.md), never takes a folder that another process holds, never writes
// into a folder that is not its own, and never takes damage for an end.
//
// The contract is that of sdk/walimpls. What this backend adds, or leaves open
// there and decides here:
//
//  1. Appends of all logs go through one queue, bounded in bytes, to one
//     committer, which writes everything that waits with one write and one sync.
//     Queue order is log order. There is no timer.
//  2. An Open for writing decides on the pair, fences the handles before it and
//     queues its fence record under the queue's lock: an append of an earlier
//     handle lies before the fence record, or is refused as not stored. If the
//     caller leaves meanwhile, the fence record still lands.
//  3. When the context of an Append ends, records that are still queued are not
//     stored; those that the committer has in hand are unknown, which ends the
//     handle. Close waits up to two seconds for the latter, so most of them end
//     with what really became of them.
//  4. After a failed write or sync of a segment or of the folder the whole store
//     is failed: what was in the commit is unknown, everything else is refused as
//     not stored (ErrNoSpace if the disk was full, else ErrUnavailable), scanners
//     end with the same error. Nothing is acknowledged until an Open opens the
//     store again, in the same process or another one.
//  5. Every Open of the store writes the last commit that it recovers again, in
//     its place, and syncs it, before it shows it. All commits before that one
//     were synced before it was written.
//  6. Ids are u64 from 1 on, without holes, fence records included. A missing
//     one between the bounds is ErrCorrupt, unless a repair gave it up. They are
//     not used again in a log; a log that was dropped and made again starts at 1
//     with another store id.
//  7. StartFrom and StartAfter need the record with the id to be in the log; so
//     StartAfter the record just below the earliest is *PositionLostError, too.
//  8. Truncate is durable when it returns; the space comes free within seconds,
//     up to two segments or a third of what is live, whichever is more, because
//     nothing much is copied for little (TruncationDeferred; see keeper.go).
//     Readers hold nothing back.
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
//  13. A torn tail of any form is cut off. Damage is ErrCorrupt with file and
//     position: of a record's bytes, when a reader comes to it, and nothing else
//     is held up; of a frame's header in the newest segment, when the store is
//     opened, because it may have been about any log. Damage is never repaired
//     or deleted unless Repair is asked to. What cannot be told from a torn tail
//     is damage to the very last commit of a store that was not closed in order.
//
// # Folder
//
//	LOCK              flock of the process that has the store open, with its pid as text
//	FORMAT            "walrig rmq store\nformat 2\n"; another number is refused
//	log/N.seg         segment number N, twelve digits; the highest with a snapshot is active
//	log/N.idx         what finished segment N holds and where; a cache
//	log/N.free        a segment whose records are gone, waiting to be used again
//
// # Segment
//
// Frames, one behind the other from position 0, each padded with zeros to 8
// bytes. Integers of headers and tables are little-endian:
//
//	 0 u32  CRC-32C of the position (u64) and of bytes 4 to 63
//	 4 u32  CRC-32C of the body
//	 8 u64  the segment's number
//	16 u32  the first field of the frame before it, 0 in the first
//	20 u32  synced: everything before this position (times 8) was durable when this was written
//	24 u32  length of the body
//	28 u32  kind (upper 8 bits), number of records
//	32 u64  the log's number
//	40 u64  first id
//	48 i64  term, 56 i64 incarnation
//
//	1 snapshot     the state of all logs and where the segment before ended; first in each segment
//	2 open         an opening of the store; first id is random
//	3 close        an orderly end
//	4 create       a new log: name, store id; also its first fence record
//	5 fence        a fence record: all of it is in the header
//	6 data         count × u32, where each record ends; the records by message.AppendRecord
//	7 truncate     first id is the earliest that is left
//	8 drop         the log is gone
//	9, 10          moved data, moved fence: copies out of an older segment
//
// Number, position and chain (16) keep old bytes of a recycled segment, and
// frames that were cut off, from ever being taken for new ones. A place that
// is no frame is a torn tail, unless a frame behind it has a synced above it:
// then it was durable once, and is damaged. The record "hi" of term 3,
// incarnation 1, as id 2 of log 1, at position 0 of segment 1:
//
//	42de98ef 72f396c1 0100000000000000 00000000 00000000 0f000000 01000006
//	0100000000000000 0200000000000000 0300000000000000 0100000000000000
//	0b000000 0101030100000000006869 00
//
// # Invariants
//
//   - A commit is written only when the one before it is durable, and a segment
//     is begun only when the one before it is durable whole.
//   - A segment's name is durable before anything is committed to it; its index is
//     written after the next segment's first commit is durable.
//   - A segment is given back only when each record in it is truncated, dropped,
//     or durable in a later segment; of two copies the later counts.
//
// Start reading at opener.go (the folder's life), then openlog.go and queue.go
// (what is admitted), commit.go and writer.go (what is written), load.go and
// scansegment.go (what is recovered), scanner.go, keeper.go and supply.go (what
// becomes of segments), and verify.go.
package rmq
