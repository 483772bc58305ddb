// Package plugin serves a backend to the walrig host. An author's whole main is
//
//	func main() { plugin.Serve(mybackend.Builder{}) }
//
// It owns the process (handshake, logs, life-line, signals) and the server side of
// the protocol plugin/v1. sdk/plugin/remote is the other side,
// sdk/plugin/plugintest puts both together inside `go test`, and
// docs/plugin-protocol.md describes what is on the wire for other languages. The
// package must never hand a record to the backend twice, nor call an outcome
// "not stored" when the record was handed over and may yet appear.
//
//  1. Describe may be called at any time. Configure checks the configuration
//     against Describe().Config, builds the Opener and succeeds once; before it
//     everything else is ErrInvalidArgument.
//  2. A handle lives until CloseWAL or the end of its Append stream, which the host
//     opens right behind Open: a host that dies leaves nothing open. A handle
//     without a stream is closed after attachTimeout. Calls on a handle that is not
//     open are ErrClosed; CloseWAL of one is success.
//  3. Append: one goroutine receives, at most maxWaitingBytes ahead; one commits
//     everything that waits as one WAL.Append (cut to the Limits) and answers each
//     request in order. Records above MaxMessageBytes are refused without the
//     backend. If the backend refuses a whole batch for what a record is
//     (ErrInvalidArgument, ErrTooLarge, no outcomes), the batch is halved until
//     only the culprits are refused; no other failure is tried again.
//  4. After an unknown outcome nothing more is handed over; later requests are
//     answered "not stored". Reads go on.
//  5. Read: nothing is read or sent without credit. The first answer is the start
//     as a position: Latest is resolved through Bounds, once.
//  6. A panic in Describe or Build becomes ErrInternal, since nothing is open yet.
//     A panic in any other call is not recovered: the backend may hold locks or
//     have half a change, and a process that hangs is worse than one that restarts.
//     The stack is on stderr, in the host's log; for the host the Append streams
//     broke, so the outcomes are unknown.
//  7. Server.Close, and every close of a handle, is bounded by
//     walimpls.GracePeriod, whatever hangs in the backend.
//
// A plugin process exits with 0 after an orderly stop, 1 after a failure and 2 when
// it was started by hand.
//
// Start reading at serve.go for the process, at server.go and append.go for the
// protocol.
package plugin
