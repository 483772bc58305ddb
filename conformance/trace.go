package conformance

import (
	"fmt"
	"sync"
	"time"
)

// The trace keeps the beginning and the end of what happened; what lies between
// is counted.
const (
	traceHead = 60
	traceTail = 240
)

// trace is the numbered list of what one check did and saw.
type trace struct {
	begin time.Time

	mu      sync.Mutex // guards what follows
	n       int
	head    []string
	tail    []string // a ring once it is full
	pending map[int]string
}

func newTrace() *trace { return &trace{begin: time.Now(), pending: map[int]string{}} }

// start notes a call that has begun and returns its number.
func (tr *trace) start(what string) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.n++
	tr.pending[tr.n] = what
	return tr.n
}

// end notes what came of a call.
func (tr *trace) end(n int, took time.Duration, result string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	what := tr.pending[n]
	delete(tr.pending, n)
	tr.addLocked(fmt.Sprintf("#%d %s %s → %s (%s)", n, tr.atLocked(), what, result, round(took)))
}

// note adds an event that is no call.
func (tr *trace) note(text string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.n++
	tr.addLocked(fmt.Sprintf("#%d %s %s", tr.n, tr.atLocked(), text))
}

func (tr *trace) atLocked() string { return fmt.Sprintf("+%.3fs", time.Since(tr.begin).Seconds()) }

func (tr *trace) addLocked(line string) {
	switch {
	case len(tr.head) < traceHead:
		tr.head = append(tr.head, line)
	case len(tr.tail) < traceTail:
		tr.tail = append(tr.tail, line)
	default:
		copy(tr.tail, tr.tail[1:])
		tr.tail[traceTail-1] = line
	}
}

// lines returns the events in the order in which they ended, and the calls that
// have not returned.
func (tr *trace) lines() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	out := append([]string(nil), tr.head...)
	if left := tr.n - len(tr.pending) - len(tr.head) - len(tr.tail); left > 0 {
		out = append(out, fmt.Sprintf("… %d events left out …", left))
	}
	out = append(out, tr.tail...)
	for n := 1; n <= tr.n; n++ {
		if what, ok := tr.pending[n]; ok {
			out = append(out, fmt.Sprintf("#%d %s → has not returned", n, what))
		}
	}
	return out
}

func round(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}
