// Package wire turns the Go types of sdk/message and sdk/walimpls into the
// messages of sdk/proto and back. Both protocols use it, so that there is one
// place where a record, an outcome or an error changes its form.
//
// The package has no I/O and no state. It must never panic, whatever it is given:
// what comes in was written by another process.
//
//  1. A record keeps every field. The messages that carry records by the thousand
//     are encoded and decoded here, without the generated types (Codec); the bytes
//     are those that the generated code makes and takes. Encoding does not keep the
//     record; what is decoded has memory of its own, shared with few neighbours.
//  2. vchannel and properties are text: CheckRecord refuses what is not valid
//     UTF-8, because one such record would make a whole batch unsendable.
//  3. An error keeps code, channel, message, hint and the retryable bit, and the
//     typed errors keep what they carry: FencedError its pair, PositionLostError
//     its bounds, BatchError its outcomes. errors.Is and errors.As answer the same
//     on both sides. The cause (Error.Err) does not cross, but for
//     context.DeadlineExceeded and context.Canceled.
//  4. StatusError and FromStatus carry the same error as the detail of a gRPC
//     status. statusCodes is the one table from a code to a gRPC code.
//  5. What the other side left out or got wrong promises nothing: an outcome of an
//     unknown state is Unknown, an error without a code is internal.
//
// Start reading at codec.go, then decode.go, then errors.go.
package wire
