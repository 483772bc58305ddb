// Package catalog holds the metadata of all pchannels: one row each, behind the
// interface Catalog. OpenBolt keeps the rows in one bbolt file, for one host;
// NewMemory keeps them in memory, for tests.
//
// What it must never do: judge who owns a channel by a clock or a lease, hand
// out memory that a later call changes, write half a row, or answer with a row
// that it cannot vouch for.
//
// The contract, in numbered points:
//
//  1. Every write is a compare-and-set on the row's term in one transaction.
//     Claim takes a strictly higher term; Update and Delete take the present one.
//     Of all claims of one term at most one succeeds, ever.
//  2. A write is on disk when the call returns without error. After an error of
//     a write below (not: full disk) the handle refuses further writes, because
//     nobody knows what the disk holds; opening the file again tells.
//  3. Update may call change more than once, each time with a fresh copy of the
//     row as it is then. What the last call
//     left is written, or nothing.
//  4. Channel and Term never change in an Update, TickBound never goes back, and
//     TruncatedBefore never goes back in the order of its id. Ids of two logs
//     have no order: an Update that sets another StoreID may set any TruncatedBefore.
//  5. A row goes in and out as a copy.
//  6. Damage is ErrCorrupt, of the one channel where only its row is damaged,
//     and never a panic. A row in an unknown format is ErrUnsupported and names
//     the release that reads it.
//
// What is on disk: the bucket "walrig.meta" holds, under "format", the format of the file;
// the bucket "walrig.pchannels" holds one row a key, the key being the channel's name.
// Both are JSON (here with line breaks):
//
//	{"format":1,"read_by":"walrig 0.1","crc":"d2c9a62b",
//	 "row":{"channel":"orders","plugin":"local","backend":"rmq","store_id":"…","term":3,"tick_bound":77}}
//
// format and read_by come first in every format to come, so that an old build
// can say which release reads a row. crc is the CRC-32C of the bytes of row: bbolt checks its two head
// pages only, and a term that lost a bit must not look like a term.
//
// Start reading at catalog.go (the interface), rules.go (what a write may do),
// then row.go (the encoding), bolt.go and boltstore.go.
package catalog
