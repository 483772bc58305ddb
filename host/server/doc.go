// Package server is the host's API: the gRPC services WALService and
// AdminService, health and reflection, and the rules by which channels come and go.
//
// It must never store a record that it told a client is not stored, never open
// a log that the catalog does not know without being told to adopt it, and never
// let one channel or plugin that fails keep another from working.
//
//  1. Channels. In standalone mode the host opens every channel of the catalog
//     by itself, at one term above the highest that the catalog or the log has
//     seen (terms.go), and tries again, later and later, while an error may pass
//     (keeper.go). In cluster mode a caller gives each term. CreateChannel
//     refuses a log that is there already unless it may adopt it;
//     RemoveChannel keeps the log unless it is to purge it, and never purges a
//     log that is not the channel's.
//  2. Ready means: each plugin's first start has ended, well or badly, and each
//     channel is open or has reported its first error. Only then is health SERVING.
//  3. Append checks names, keys and sizes before it hands anything over. A
//     record above the backend's limit is not stored and leaves the others of
//     its call alone. While a channel is being opened callers wait until their
//     deadline; what was not handed over by then is not stored.
//  4. AppendStream keeps the order of the stream, answers in that order, and
//     holds no more than Options.MaxStreamBytes for one stream. Behind its first
//     record that is not stored or unknown it hands over nothing more. A stream
//     that the host ends says so, and then what it did not answer is not stored.
//  5. Read sends records in log order, as fast as the client takes them and no
//     faster; it resolves "latest" once and tells with every message where
//     another Read would go on.
//  6. Every error is a gRPC status with a walrig.types.v1.Error as its detail,
//     panics too.
//  7. Shutdown refuses what is new, lets what is under way end for
//     Options.DrainTimeout, and ends all else: it returns within
//     DrainTimeout + 2 s. Catalog, manager and plugins stay the caller's.
//
// Lock order: channels.mu, then channel.mu; neither is held while the catalog,
// the manager, a plugin or a WAL is called.
//
// Start reading at server.go, then channels.go and keeper.go, append.go,
// appendstream.go and read.go.
package server
