// Package message holds what a log is made of: the record (Message), its
// position (ID), its hybrid logical time (Tick) and its kind (Type).
//
// The package has no I/O and imports nothing else of walrig.
//
//  1. A Message is payload bytes plus string properties plus a type. It is
//     immutable once it has an ID: nobody who is handed one may write to its
//     Payload or Properties, because readers share them.
//  2. An ID is an opaque byte string whose byte order is the log order. Only
//     the backend that made it knows what is inside; everybody else compares,
//     stores and prints it. A Layout gives the text form.
//  3. A Tick is 46 bits of Unix milliseconds above 18 bits of logical counter.
//     It is unique and growing on one pchannel, across terms too.
//  4. AppendRecord and DecodeRecord are a compact, versioned encoding of a
//     record for backends that store one blob per record. DecodeRecord never
//     panics, whatever bytes it is given.
//
// Start reading at message.go.
package message
