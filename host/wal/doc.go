// Package wal owns one pchannel at one term: it gives records their time ticks,
// hands them to the backend, settles what a lost backend left unknown, and feeds
// readers. The backend may crash and come back; the WAL outlives it.
//
// It must never send a record again before the fence of the next incarnation is
// in the log and the log was read back, never let a time tick pass a record that
// is not resolved, and never open a backend without asking the catalog row first.
//
//  1. Opening a term: the row's plugin, backend and store id are compared with
//     what is there; the row is claimed; the backend is opened read-write, which
//     fences every earlier owner; the tail of the log is read up to that fence; a
//     tick window above everything ever given out is claimed in the row; the
//     opening time tick is written. Transient failures are tried again with the
//     next incarnation until the budget is used up; permanent ones end the open.
//  2. An append passes the chain (interceptors), gets its tick and its last
//     confirmed id in one step (owner.Core), and is handed to the backend with
//     everything else that waits. From then on its caller's context ends only
//     the wait. While the backend is away nothing gets a tick.
//  3. A lost handle (crash, fence, unknown outcome) is closed and replaced by one
//     with the next incarnation. What is unknown is settled by reading back up to
//     a barrier: found is stored, not found is sent again under its old tick if
//     its caller still waits. A row of another term, or a higher pair in the log,
//     ends the WAL, and leaves what is unresolved unknown.
//  4. What is settled enters the write-ahead buffer (wab) with the tick that
//     covers it. Time ticks are persisted after records, after a re-open and at Close.
//  5. Transactions belong to the term; the owner alone lets them expire, and
//     writes their rollback.
//  6. Readers (scanner) follow (term, tick), over lost handles too.
//
// Start reading at wal.go (the interface) and termwal.go, then opening.go,
// append.go, run.go, resolve.go, beat.go and txn.go.
//
// Lock order: termWAL.mu, then the lock of the write-ahead buffer. termWAL.mu is
// never held while the backend, the catalog or a caller's function is called.
package wal
