// Package pulsar is the backend that keeps logs in Apache Pulsar, one topic a log,
// through apache/pulsar-client-go and the admin REST API.
//
// It owns one namespace. It must never let the broker decide what is deleted,
// acknowledge a record whose place it does not know, make a producer outside of
// an Open, or wait without a bound for a client that does not know contexts.
//
// The contract is that of sdk/walimpls. What this backend adds, or leaves open
// there and decides here:
//
//  1. Open for writing (openlog.go): look at the tail; refuse a pair that is not
//     above it before anything is disturbed; unload the topic and make an
//     Exclusive producer until that is won; read the tail, which is final now;
//     append the fence record; read the tail again to see that nothing lies
//     between. Whoever loses its place starts over, until the log holds a pair
//     that is not below its own, or the open timeout passes.
//  2. A producer that the broker fenced is never made again. The client
//     reconnects one that lost its connection: the broker knows its epoch, and
//     deduplication drops what it sends twice. Producer names are
//     walrig/CHANNEL/TERM/INCARNATION.
//  3. A batch is one Pulsar message, made here, so its borders are the same
//     whenever it is sent (the client's own batching is off). It holds what waits,
//     up to batch_bytes; up to max_in_flight messages are under way; there is no timer.
//  4. After an answer without a place (-1:-1, a repetition that was dropped) the
//     place is found by reading behind the message before it.
//  5. An unknown outcome, a deadline that passes under way and any error of the
//     client after the hand-over end the handle and close its producer. What was
//     under way is unknown, what waited is not stored. A handle that the broker
//     fenced says ErrFenced; what was under way is unknown all the same.
//  6. Ids are (ledger, entry, index in the message). Records have indexes of their
//     own, from 1 on without holes. A reader that meets a truncated place jumps
//     without a word: an index that is not the next becomes *PositionLostError.
//     Its Earliest is where reading can go on, also when the gap is inside the log.
//  7. Every producer and every scanner has a client, and so a connection, of its
//     own: they share no memory budget, and closing it clears whatever a close
//     that met a reconnect left on the broker. A reader lives as long as its first
//     connection; then the scanner makes another where it stands.
//  8. The subscription "wal" holds the data; it is made before the first write,
//     with the store id among its properties. Truncate stores the point there,
//     then moves the subscription: Pulsar deletes the ledgers below it, later
//     (TruncationDeferred; docs/pulsar.md says when). Records below the point in a
//     ledger that stays are hidden. StartAfter a truncated id is *PositionLostError.
//  9. Other processes' truncations and drops are seen by a look at the
//     subscription once a second, and by each Read and Bounds.
//  10. Drop deletes the topic. The namespace does not allow topics to be made by
//     connecting, so no left-over reader or producer brings it back.
//  11. The limit of a record is 4 MiB, for a broker's usual 5 MiB. A broker that
//     takes less says so when it is connected; a record above that is ErrTooLarge.
//
// # What is stored
//
// Channel "orders" is the topic persistent://TENANT/NAMESPACE/orders.wal. A message
// has properties, and a payload of records, each with its length as a varint in
// front and encoded by message.AppendRecord. An Open of term 3 with a record "hi":
//
//	walrig=1 walrig-pair=3.1 walrig-first=1 walrig-count=1 walrig-last=none
//	    09 | 01 02 03 01 00 00 00 00 00
//	walrig=1 walrig-pair=3.1 walrig-first=2 walrig-count=1
//	    0b | 01 01 03 01 00 00 00 00 00 68 69
//
// walrig is the format's version; another one is refused. walrig-first is the index
// of the first record, walrig-count how many there are, and walrig-last marks a
// fence record and names the newest record before it that is none.
//
// Start reading at opener.go and openlog.go (an Open), then appender.go and
// window.go (an Append), scanner.go and reader.go (a Read), topic.go and policy.go
// (what is asked of the admin API).
package pulsar
