// Package faultbackend is a backend in memory that keeps the whole contract of
// sdk/walimpls and fails on request. Without rules it is the reference for
// correct behaviour; with rules it shows a host every fault that the contract
// allows. walrig-plugin-fault serves it as a process.
//
// It must never break the contract on its own account: a rule makes calls fail,
// wait or lose their answers, but what a caller is told is always true. The one
// exception is hang, which outlasts contexts and Close. Wrong answers are the
// conformance suite's mutants, not rules. It imports nothing but the SDK.
//
//  1. Fencing, append and truncation happen under one mutex, so nothing comes
//     between the check of a pair and the record behind it. A log begins with
//     its first Open's fence record; ids count from 1 and have no holes.
//  2. An append whose outcome is unknown ends its handle. Records that land late
//     do so only while no higher pair was opened (finality), and never in a log
//     that was dropped.
//  3. Openers that share a Store share its logs: that is a zombie and its
//     successor in one process. A Store may keep a file, so that logs outlive
//     the process; the file has one owner at a time.
//  4. The same rules, seed and sequence of calls give the same faults.
//
// # Rules
//
// One rule a line, or several separated by ';'. '#' begins a comment.
//
//	rule     = call action { selector }
//	call     = open | append | read | next | truncate | bounds | drop | close | any
//	action   = block [until released]         wait ahead of the store until the rule is gone
//	         | block-ack [until released]     the same, between the store and the answer (1)
//	         | delay D | delay-ack D          the same, for a duration such as 20ms
//	         | hang [D]                       a block that neither the context nor Close ends
//	         | error CODE ["text"]            nothing is done; CODE as in walimpls.Codes
//	         | permanent [word | "text"]      nothing is done; an error no retry mends (internal)
//	         | fail-before-write [not_stored | unknown] ["text"]   nothing is done (1)
//	         | fail-after-write [unknown] ["text"]                 done, but the caller is not told (1)
//	         | late [D]                       unknown at once, done after D (50ms) if nobody opened meanwhile (2)
//	         | lose-connection [how much]     the handle is lost; a plugin cuts its connections
//	         | exit [status] [how much]       the process ends; without WithExit as lose-connection
//	how much = before | half | after | torn   how much of the call was done: nothing; the records ahead
//	                                          of the one it fired at; all; half of the bytes in the file.
//	                                          lose-connection: after, exit: before unless given
//	selector = channel=PATTERN | term=N | incarnation=N   what to look at
//	         | after=N                        not the first N
//	         | every=N | 1/N                  of the rest every N-th
//	         | prob=P [seed=N]                of those each with probability P
//	         | count=N                        at most N in all
//	         | per=call                       append: count calls, not records, and act on the whole batch
//	         | name=X                         what Stats calls the rule, and what makes it another one
//
// (1) open, append, truncate, drop. (2) open, append. The outcomes not_stored
// and unknown are for append. A context that ends, a Close and a change of the
// rules release what waits.
//
//	append block until released
//	append fail-before-write not_stored 1/50
//	append fail-after-write unknown count=3 after=10
//	append delay-ack 20ms channel=orders-*
//	append late 200ms prob=0.01 seed=7
//	append exit 3 half after=100
//	open error unavailable "the store is down" count=5
//	read error corrupt channel=orders
//	close hang 30s
//
// Append rules see every record, in order; waits, lose-connection and exit act
// on the record's whole call, the others on the record. next rules see a batch
// that is about to be returned. Rules are asked in the order of their lines; the
// first that decides about a record is the last one that sees it.
//
// A rule that a new set has in common with the old one stays as it is, counters
// and waiting calls included; so SetRules of the same text does not begin anew.
//
// # The file
//
// Append-only: 13 bytes "walrig-fault\n", a version byte (1), then frames.
//
//	length uint32 | crc32c of the payload uint32 | payload = kind, fields
//	'C' log number, name, store id, fence record     a log is created
//	'R' log number, id of the first, records         records are appended
//	'T' log number, id                               what lies before the id is removed
//	'D' log number                                   the log is dropped
//
// Numbers are varints, strings and records (message.AppendRecord) have their
// length in front. Dropping log 1 is
//
//	00 00 00 02 | b2 97 53 09 | 44 01
//
// A torn frame at the end, which a kill leaves behind, is cut before the next
// write; damage ahead of it is ErrCorrupt. Nothing compacts the file.
//
// Start reading at handle.go (the calls) and append.go, then store.go; the rules
// begin in controller.go.
package faultbackend
