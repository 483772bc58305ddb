// Package interceptors is the way of an append through the owner, up to the
// point where it gets its ticks: a chain of steps around one handler.
//
//  1. A step gets an Operation and the next Handler. It calls next once, or it
//     answers the operation itself; never both, never neither.
//  2. An operation is answered exactly once, by calling its Done, and settled
//     exactly once behind that. A step that has something to count wraps Done,
//     one that holds something while records are unresolved wraps Settled.
//  3. Handlers run in the caller's goroutine and in the order of the calls, so
//     the records of one append stream keep their order. They may block, as long
//     as the operation's context bounds it.
//  4. A Chain lets operations in when every step is ready. Close refuses new
//     ones, waits for those under way within the context, then closes the steps.
//
// The steps, outermost first: metrics, term, lock, txn; then the owner's time
// tick and, when the records are settled, the write-ahead buffer.
package interceptors
