// Package e2e holds tests that run the real programs: they build walrig and its
// plugins, start hosts on data folders of their own, kill them, and hold what
// clients were told against what is read afterwards.
//
// The oracle of every test that writes: acknowledged ⊆ read, each once, in
// order; a definite failure is never read; an unknown outcome at most once.
package e2e
