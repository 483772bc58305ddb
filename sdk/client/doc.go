// Package client is the Go client of a walrig host: it appends, reads and
// manages channels.
//
// It must never send a record twice, never call a record "not stored" that a
// connection was handed, and never leave a goroutine behind a Close.
//
//  1. Dial connects at once and says ErrUnreachable, naming the address, when
//     nobody answers there. With WithLazyConnect the first call does.
//  2. Append stores a few records in one call. An Appender is for many: it
//     collects records into requests while earlier ones are under way, keeps
//     their order, and gives a Future for each.
//  3. Every record gets one Result. A lost connection, or a deadline that
//     passes, makes ErrUnknownOutcome of what the connection was handed and "not
//     stored" of what it was not. Nothing is sent again.
//  4. After its first record that is not stored or unknown an Appender takes no
//     more. What was under way by then gets its own results: read them, then go
//     on behind the last stored record with a new Appender.
//  5. A Reader connects again when the connection or the host went away and goes
//     on behind what it has got: no gap, no repeat. It asks for more only as
//     fast as Next is called.
//  6. Errors are *walimpls.Error, also below *walimpls.PositionLostError and
//     friends: errors.Is and errors.As see what the host saw.
//
// Start reading at client.go, then append.go, appender.go and reader.go.
package client
