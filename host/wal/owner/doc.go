// Package owner is what the owner of a term knows about its pchannel: which
// ticks it gave out, which appends are unresolved, which transactions are open,
// and up to which tick everything is settled. It is a pure state machine: no
// clock, no goroutine, no I/O; the WAL's shell drives it under one lock.
//
//  1. Accept gives a batch its ticks and its last confirmed id in one step;
//     they never change again, not on a re-append either.
//  2. A record's last confirmed id is the smallest *known* (highest
//     acknowledged id when the tick was taken) among all unresolved records and
//     the Begin records of all open transactions, or its own.
//  3. Everything is released in tick order, and only as a prefix: no tick is
//     released while a record at or below it is unresolved.
//  4. A persisted time tick is a record like any other, but may be sent only
//     when everything below it is resolved (it is the front of the window).
//  5. A transaction is open from its Begin's tick until its commit or rollback
//     is stored; it pins the last confirmed id for as long.
//  6. A commit gets its tick when every body is resolved; with a failed body it
//     is refused and the transaction is rolled back.
//
// Start reading at core.go, then txn.go.
package owner
