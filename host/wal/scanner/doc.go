// Package scanner reads one pchannel in (term, tick) order: every unit exactly
// once, transactions whole, from the backend (catch-up) or from the owner's
// write-ahead buffer (tailing).
//
// The way of a record, in catch-up:
//
//		backend → drop stale → reorder → (at each time tick) → transactions → skip and filter → pending
//
//	 1. Stale: a record whose pair is below the highest seen, or whose term is
//	    below the start checkpoint's, landed although it was fenced. It is dropped.
//	 2. Reorder: records wait until a time tick releases them in tick order. A
//	    repeat (same (term, tick) and content) of a record that waits or was
//	    released recently is dropped. Any other late record ends the scanner with
//	    ErrCorrupt, or is dropped and counted, as the options say.
//	 3. Transactions: a unit appears at its commit's tick. A part whose begin was
//	    not seen is ignored; a commit that counts more bodies than were seen is
//	    ErrCorrupt; a time tick of a newer term ends what older terms left open.
//	 4. A unit at or below the start checkpoint is skipped, whole; its parts are
//	    never skipped by their own ticks.
//	 5. The checkpoint follows the released time ticks, also when the filter lets
//	    nothing through.
//	 6. At a time tick of the owner's own term that the write-ahead buffer covers
//	    the scanner switches to tailing; the reorder buffer is cleared, because
//	    everything behind that tick is there, and open transactions are kept.
//	    Evicted from the buffer it goes back to catch-up behind its last unit.
//	 7. A start, a resume and a fall-back begin with empty buffers, at the restart
//	    position. When the backend fails the scanner resumes; nothing is repeated.
//	 8. What waits to be handed out is bounded in bytes: it is the only place where
//	    reading stops, so that the time tick that everything waits for can come.
//
// reorder.go, txns.go and core.go are pure; scanner.go is the shell around them.
// A Scanner has no goroutine: Next does the work.
package scanner
