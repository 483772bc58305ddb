// Package conformance proves that a backend keeps the contract of sdk/walimpls,
// clause by clause, whether it is linked in, served over the protocol, or a
// plugin process.
//
//	func TestConformance(t *testing.T) {
//		conformance.Test(t, conformance.InProcess(mylog.Builder{}, walimpls.Config{"dir": t.TempDir()}))
//	}
//
// It must never judge by anything but the contract: a check that fails on a
// backend that keeps every clause is a defect of the suite. It must not leave
// anything in the store, nor need an empty one.
//
//  1. The clauses are one table (clauses.go, clauses_*.go). Each has an id that
//     never changes its meaning, a level, and the capabilities that it needs.
//     SPEC.md is generated from it.
//  2. A check proves one clause; a clause may have several checks. The checks are
//     data (check_*.go). A check that needs what the backend does not claim is
//     "not claimed", and so is one whose clause is empty for it: there are no holes
//     in ids that are consecutive. One that needs what the target cannot do (such
//     as being killed), that was not asked for, or that could not make happen what
//     its clause is about, is "not run". Neither counts as passed.
//  3. Every call that a check makes is bounded, traced and counted. A call that
//     does not return in time fails its check, whatever it ignores.
//  4. The order of the checks, and what they draw, follow from the seed. A check
//     that is repeated alone with the same seed draws the same.
//  5. Checks share one instance of the backend and run side by side, but for
//     those that stop or kill it, which have it alone, afterwards.
//  6. Channel names are unique to the run. What a check made is dropped when it
//     ends, where the backend can drop; else the report lists it.
//  7. An unknown outcome is made by contexts that end under way and by a connection
//     that breaks: a plugin is killed, a socket is cut (provoke.go).
//  8. A level is reached when each of its clauses that the backend claims has
//     passed; a waived, failed or not run clause keeps it from being reached. A
//     run that executed no check fails.
//
// The groups reorder and txn judge a backend by what the host's own scanner makes
// of its Read (ordered.go): it writes a log as an owner does, and compares with a
// naive model.
//
// conformance/faultbackend is the reference, conformance/mutants proves that the
// suite sees what it claims to see, FOUND.md lists what it found.
//
// Start reading at clauses.go and check.go, then t.go (what a check works with)
// and run.go.
package conformance
