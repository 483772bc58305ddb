// Package walimpls is the contract between walrig and a log store: Builder
// makes an Opener, an Opener opens WALs, a WAL appends, reads and truncates one
// pchannel.
//
// The same interfaces are used in process (unit tests, benchmarks) and on the
// host's side of the process boundary. sdk/plugin serves a Builder to the host;
// an author writes nothing else.
//
// The contract, in numbered points (the conformance suite proves each):
//
//  1. Open is strict. After a read-write Open returns, no record of any earlier
//     handle, of a lower or of the same term, lands, and none that did not land
//     before is acknowledged. A pair (term, incarnation) at or below the highest
//     one in the store is refused with *FencedError, before anything disturbs
//     the present owner. The pair is durable before Open returns, every stored
//     record carries its pair, and so pairs never decrease along a log.
//  2. Append is durable when it returns, as far as the declared Durability says.
//     It is not all-or-nothing: a failure is a *BatchError with one outcome a record.
//  3. ErrUnknownOutcome is an outcome of its own. It ends the handle: further
//     Appends are refused as not stored, and only an Open with a higher pair
//     gives a usable handle and settles what was unknown.
//  4. Reads are positional. Latest is fixed when Read returns. A start that is
//     not there any more, lies above the latest id, or is of another log, is
//     *PositionLostError: never a silent jump, never a wait.
//  5. Truncate(before) keeps the record at the id; the newest record always stays.
//  6. Ids are byte strings in log order; the declared layout gives their text form.
//  7. A record above MaxMessageBytes is ErrTooLarge at once and disturbs nobody.
//  8. Close ends everything within GracePeriod, whatever hangs below.
//  9. Errors are typed, carry the channel, say whether a retry can help, and
//     cross the process boundary unchanged (see errors.go).
//
// Start reading at walimpls.go, then errors.go and description.go.
package walimpls
