// Package sinktest proves that a flusher.Sink keeps its contract. A sink's author
// calls Run from a test of his own:
//
//	sinktest.Run(t, func(t *testing.T) sinktest.Target { … })
//
// The numbered contract, each point a test of its name:
//
//  1. A flush that returned nil is there for whoever opens next, each row once,
//     and so is its checkpoint.
//  2. A flush without rows moves the checkpoint alone; one that changes nothing
//     is no error.
//  3. A checkpoint never goes back, and one of another log is refused.
//  4. A later term chains from the newest manifest of whatever term. From then on
//     nothing that an earlier owner writes counts, and it is told so with
//     ErrFenced, for good. The same holds for a second Open of the same term.
//  5. Rows may have any payload, properties and names; outputs of different
//     pchannels, logs and vchannels never meet.
//  6. A dropped vchannel is not listed any more, keeps its files, refuses to be
//     flushed, and may be opened and flushed again under the same name.
//  7. Many flushes stay cheap to open, and every file stays listed, oldest first.
//
// Start reading at sinktest.go.
package sinktest
