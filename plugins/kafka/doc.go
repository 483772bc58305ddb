// Package kafka is the backend whose logs are topics of an Apache Kafka cluster: one
// topic with one partition for each pchannel.
//
// It owns the topics whose names begin with its prefix, their transactional ids, and
// every connection that it makes. It never writes into a topic that may lose records
// by itself, never creates one for a reader, never uses kafka.Reader or kafka.Writer
// (they jump, block and reorder), and never calls a batch "not stored" that a broker
// may have taken.
//
// The contract is that of sdk/walimpls. What this backend adds, or leaves open there
// and decides here:
//
//  1. Ids are Kafka offsets, u64. They have holes: each Open and each renewal leaves a
//     marker. The store id is the topic id, so a topic that was made again is another log.
//  2. Append: one goroutine for each handle cuts batches, sends them over one
//     connection to the leader, at most 4 at a time (a broker recognises a resend of
//     the last five), and takes the answers in order. After a lost connection, a
//     change of the leader or a refusal that may pass, everything in flight is sent
//     again, byte for byte, in order. Sequences wrap between batches only.
//  3. A batch that each attempt was refused for sure is not stored, its sequence is used
//     again, and the handle lives on. One that may be stored is unknown, which ends
//     the handle. A batch that was sent once and answered with "fenced" is not stored.
//  4. Open: compare the pair in the tail; InitProducerID, whose epoch grows; an empty
//     transaction, aborted; read on until its marker is in the log, from where on no
//     lower epoch can write; compare again; append the fence record. If the producer
//     id is another one than the tail's (the transactional id expired, or ran out of
//     epochs), a hidden record of the old id's highest epoch fences that first. Opens
//     that lose their place start over; a nonce in the fence record tells an Open
//     its own from another's.
//  5. An owner renews producer state and transactional id by another empty transaction, at
//     a quarter of the brokers' expirations. One that was silent for half of
//     them proves that it is still the owner before it sends anything.
//  6. Every record carries its pair and a part of the topic id. Readers leave out what a
//     zombie wrote into a log whose brokers had forgotten what fences it: a pair below
//     one before it, or another topic's tag.
//  7. A scanner has a connection of its own and reads one fetch ahead. What it read ahead
//     beyond BufferRecords is checked against the log start before it is returned.
//  8. Truncate looks at the tail for a higher pair (DeleteRecords knows no producer), then
//     deletes; brokers free whole segments later (TruncationDeferred).
//  9. Every wait is bounded by the caller's context, by a timeout of the configuration,
//     or ends with Close. A connection that does not answer in request_timeout is lost.
//
// # Records
//
// The value is the payload, the key the vchannel (null for ""), and the headers are
// _walrig, then the properties by key. The value of _walrig, numbers as unsigned
// varints:
//
//	01 | first 8 bytes of the topic id | type | term | incarnation | tick | txn id | length, last confirmed id | nonce (8 bytes, fence records)
//
// A data record of term 3, incarnation 1, without tick, in a topic whose id begins
// with 0102030405060708:
//
//	01 0102030405060708 01 03 01 00 00 00
//
// The first byte is the format version; another one is refused and named. A record of
// type 0 is hidden: it only keeps a former producer fenced. Batches are Kafka's record
// batches v2.
//
// Start reading at open.go, then window.go (what becomes of a batch), producer.go (who
// sends it), scanner.go and log.go (how the log is read), conn.go and cluster.go.
package kafka
