// Package mutants proves that the conformance suite sees what it claims to see:
// a correct backend, and wrappers of it with one defect each. The suite must fail
// each wrapper in the clause that the defect breaks, and nowhere but there and in
// clauses that depend on it; and it must pass the correct one, whatever the seed.
//
//  1. The reference is conformance/faultbackend in memory, which stands for the
//     disk: a kill (life.Kill) ends everything but the store. It claims every
//     capability, so that every check runs.
//  2. A mutant changes calls on their way to and from the reference (hooks). What
//     it remembers dies with a kill, unless it puts it on the disk.
//  3. A mutant has one defect, always, in the form in which a backend would have
//     it: it does not look for what a check does. It must not break anything that
//     the defect does not break: then the suite could not be judged by it.
//  4. Every clause has a mutant. WAL-AUD-004, WAL-AUD-005 and WAL-SOAK-001 have none
//     of their own, because nothing breaks them but what breaks fencing, durability
//     or concurrency; their checks must fail on the mutants of those (Also).
//
// `go test` runs each mutant against the checks of its clauses; with -full
// (`make conformance`) against every check, and the reference with 20 seeds.
//
// The table of kills, docs/mutants.md, is generated from the runs.
//
// Start reading at hooks.go, then mutants_*.go.
package mutants
