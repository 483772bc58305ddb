// Package wal turns a backend's handle into a WAL that outlives it: one
// pchannel, owned at one term, whose backend may crash and come back.
//
// It must never retry a record whose outcome is unknown, and never open a
// backend without asking the catalog row first.
//
//  1. Opening: the row's plugin, backend and store id are compared with what is
//     there; the row is claimed for the term; the backend is opened read-write,
//     which fences every earlier owner; the store id is noted in the row.
//     Transient failures are tried again with the next incarnation until the
//     budget is used up; permanent ones end the open at once.
//  2. Appends are handed to the backend in the order in which they came, many
//     in flight. What was not handed over when the handle was lost goes first
//     on the next handle, unless something behind it was stored already, so
//     that the log keeps the order of every append stream.
//  3. A lost handle (crash, fence, unknown outcome) is closed and replaced by
//     one with the next incarnation. A row of another term, or a higher pair
//     in the log, ends the WAL.
//  4. Readers follow the backend's order, drop fence records, and go on behind
//     their last record on the next handle.
//
// Start reading at wal.go (the interfaces), then opener.go, adaptor.go,
// queue.go and reader.go.
//
// Lock order: adaptor.mu is never held while the backend, the catalog or a
// caller's function is called.
package wal
