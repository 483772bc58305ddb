// Package walmanager decides which term of a pchannel has a WAL: it opens and
// closes the WALs of a host through a wal.Opener, one term of a pchannel at a time.
//
// What it must never do: open a WAL of a pchannel while an older one is not
// closed, let a state go back, hand out a WAL that is not available, or let the
// end of a caller's context decide what happens to a pchannel.
//
// The contract, in numbered points:
//
//  1. The state of a pchannel is the pair (term, available), written "(3,true)".
//     (a) comes before (b) if its term is lower or, within one term, if it is
//     available and (b) is not. What is and what shall be both only move forward:
//
//     (-1,false) → (1,true) → (1,false) → (2,false) → (7,true) → …
//
//  2. Open sets what shall be to (term,true), Remove to (term,false). If that
//     would not be forward it is ErrTermExpired at once, with the name and both
//     terms; if it is the very pair already, the call joins what goes on and
//     gets the same result. So a retried Open is harmless, and an Open after a
//     Remove of its term is refused.
//
//  3. One goroutine per pchannel moves what is towards what shall be: close the
//     old WAL, then open the new one. It exists while there is something to move
//     or a WAL to watch. The opener runs under a context of this goroutine: a
//     caller whose context ends leaves, the move goes on. A move that a later
//     call made pointless is canceled.
//
//  4. Open returns nil when the term is available; the opener's error when that
//     failed, which ends the term; ErrTermExpired when a later call overtook it.
//     Remove returns nil when nothing of the term, or of a lower one, is open,
//     whatever an Open of the term met. Both return the error of their own
//     context, and of no other, when that ends first.
//
//  5. Get hands out the WAL that is and shall be, and nothing else. Unknown name:
//     ErrNotFound, without a trace left. Another term: *UnmatchedTermError.
//     Closing what Get returned does nothing: the manager owns it.
//
//  6. A WAL that ends by itself (its term is taken over) is closed and leaves
//     (term,false) with its error. A higher Open goes on from there.
//
//  7. A Remove keeps its pair, and so the refusal of its term, until Forget.
//
//  8. Close refuses new calls with ErrShutdown, cancels what is being opened,
//     closes every WAL and, last, the opener. It is bounded.
//
// Start reading at machine.go (the rules, as plain values), then lifetime.go
// (their goroutine) and manager.go.
package walmanager
