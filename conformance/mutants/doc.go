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
//  3. A mutant has one defect. It must not break anything that the defect does
//     not break: then the suite could not be judged by it.
//
// The table of kills, docs/mutants.md, is generated from the runs.
//
// Start reading at hooks.go, then mutants_*.go.
package mutants
