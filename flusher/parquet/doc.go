// Package parquet is the default flusher.Sink: Parquet files and manifests in a
// folder or in a cloud bucket, through a blob library.
//
// It owns the layout of the bucket. It must never remove or overwrite what a
// manifest that counts lists, and never let a write of a former owner count.
//
// The objects of one log, below <pchannel>/<store id>/:
//
//	owners/<term>-<open>.intent                   an owner announces itself
//	owners/<term>-<open>.json                     its claim: the manifest it found of each vchannel
//	manifests/<vchannel>/<term>-<open>-<seq>.json a manifest (….drop.json: a tombstone)
//	index/<vchannel>/<…>.json                     pages: older parts of a manifest's list
//	data/<vchannel>/<term>-<open>-<seq>-<n>-<first tick>-<last tick>.parquet
//
// Every object is written once, under a name that is used once. term, open and
// seq are hexadecimal with a fixed width, so that names sort as they were given.
// "open" counts the take-overs within a term: a process that was killed and
// started again in its term is another owner.
//
// The contract:
//
//  1. What counts for a vchannel is the newest manifest of the newest claim's
//     owner, or, if that owner has none yet, the manifest that its claim names.
//     So a former owner's late write changes nothing, not even on a vchannel that
//     the new owner leaves idle.
//  2. A manifest holds the checkpoint and lists all files, the older ones through
//     pages. It is written after everything it lists. A crash before it leaves
//     files that nobody lists; the rows are flushed again, into other files.
//  3. A position (owner, seq) is used for one attempt. After an attempt that
//     failed, or whose outcome is unknown, the next one takes the next seq and the
//     same parent: a manifest that landed late lies below it and does not count.
//  4. An owner announces itself before it reads what is there, and removes an
//     object only after a look that found no newer announcement. Whatever it
//     removes was superseded before a newer owner began to read. No clock decides.
//  5. A write in a folder is durable (file, name and folders are fsynced) when
//     its call returns; create-only is link(2) there and If-None-Match on S3.
//  6. Opening costs a listing of the log's manifests once a term, and one small
//     read a vchannel. Manifests do not grow: 32 files, and 32 pages a level.
//  7. Every call ends soon after its context does, whatever the store does.
//
// Start reading at sink.go (the shell), owner.go (taking over), vchannel.go (one
// write), then the pure parts: manifest.go, view.go and names.go. docs/files.md
// is for those who read the bucket.
package parquet
