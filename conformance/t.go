package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// T is what a check works with: bounded and traced calls on the target, channels
// of its own, random draws that follow from the seed, and a way to fail.
type T struct {
	ctx   context.Context
	run   *run
	check check
	trace *trace
	quiet time.Duration // how long is long enough to say that nothing comes

	mu       sync.Mutex // guards what follows
	rng      *rand.Rand
	channels map[string]int64 // channel → the highest term that was used
	handles  []*handle
	numbers  int
	warnings []string
	notes    []string
}

// failure is what a check that ends early panics with; guard catches it.
type failure struct {
	text string
	// verdict is "" for a check that failed, and otherwise why it did not prove
	// its clause; see notRun and notClaimed.
	verdict Verdict
}

// newT makes the T of one run of a check.
func newT(ctx context.Context, r *run, c check) *T {
	h := fnv.New64a()
	h.Write([]byte(c.ID()))
	return &T{
		ctx: ctx, run: r, check: c, trace: newTrace(), quiet: r.opt.Quiet,
		rng:      rand.New(rand.NewPCG(r.report.Seed, h.Sum64())),
		channels: map[string]int64{},
	}
}

// fatalf ends the check: what was expected, and what came instead.
func (t *T) fatalf(format string, args ...any) {
	panic(failure{text: fmt.Sprintf(format, args...)})
}

// notRun ends a check that could not make happen what its clause is about. It
// must never count as passed.
func (t *T) notRun(format string, args ...any) {
	panic(failure{text: fmt.Sprintf(format, args...), verdict: NotRun})
}

// notClaimed ends a check whose clause is empty for this backend: the form of its
// ids, or what it says of itself, leaves nothing that could be right or wrong.
func (t *T) notClaimed(format string, args ...any) {
	panic(failure{text: fmt.Sprintf(format, args...), verdict: NotClaimed})
}

// expect fails the check unless ok.
func (t *T) expect(ok bool, format string, args ...any) {
	if !ok {
		t.fatalf(format, args...)
	}
}

// notef adds an event to the trace.
func (t *T) notef(format string, args ...any) { t.trace.note(fmt.Sprintf(format, args...)) }

// warnf adds a warning to the report; the check goes on.
func (t *T) warnf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
}

// remarkf says in the report what a passed check could not look at.
func (t *T) remarkf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// guard runs f and returns its failure, a panic of its own included.
func guard(f func()) (fail *failure) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			fail = &p
		default:
			fail = &failure{text: fmt.Sprintf("the check itself panicked, which is a defect of the suite: %v\n%s", p, debug.Stack())}
		}
	}()
	f()
	return nil
}

// parallel runs f n times side by side, waits for all, and fails with the first failure.
func (t *T) parallel(n int, f func(i int)) {
	fails := make([]*failure, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fails[i] = guard(func() { f(i) }) })
	}
	wg.Wait()
	for _, f := range fails {
		if f != nil {
			panic(*f)
		}
	}
}

// task is a goroutine of a check.
type task struct {
	t    *T
	done chan struct{}
	fail *failure
}

// start runs f beside the check.
func (t *T) start(f func()) *task {
	k := &task{t: t, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		k.fail = guard(f)
	}()
	return k
}

// wait waits for the goroutine and fails if it failed.
func (k *task) wait() {
	<-k.done
	if k.fail != nil {
		panic(*k.fail)
	}
}

// intn, bytes and shuffle draw from the check's seed.
func (t *T) intn(n int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rng.IntN(n)
}

func (t *T) bytes(n int) []byte {
	var seed [32]byte
	t.mu.Lock()
	binary.LittleEndian.PutUint64(seed[:], t.rng.Uint64())
	t.mu.Unlock()
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b) // it never fails
	return b
}

// channel returns a name that nobody used, with a suffix for checks that need
// related names.
func (t *T) channel(suffix ...string) string {
	name := t.run.channelName()
	if len(suffix) > 0 {
		name += suffix[0]
	}
	t.own(name, 0)
	return name
}

// own notes that the check made the channel, so that it is dropped.
func (t *T) own(name string, term int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.channels[name] = max(t.channels[name], term)
}

// number returns the next number for a handle or scanner in the trace.
func (t *T) number() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.numbers++
	return t.numbers
}

// call runs one call of the contract in a goroutine of its own, so that a call
// that hangs is a failure and not the end of the run. bound limits its context;
// f returns the error and what to show of the result.
func (t *T) call(parent context.Context, bound time.Duration, what string, f func(ctx context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(parent, bound)
	defer cancel()
	type answer struct {
		show  string
		err   error
		panic any
		stack []byte
	}
	n := t.trace.start(what)
	began := time.Now()
	done := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a.panic, a.stack = p, debug.Stack()
			}
			done <- a
		}()
		a.show, a.err = f(ctx)
	}()
	grace := t.run.opt.Grace
	late := time.NewTimer(bound + grace)
	defer late.Stop()
	// A context that ends early must end the call as well as one that ends late.
	over := ctx.Done()
	for {
		select {
		case a := <-done:
			switch {
			case a.panic != nil:
				t.trace.end(n, time.Since(began), fmt.Sprintf("panic: %v", a.panic))
				t.fatalf("the call returns or fails; it panicked: %v\n%s", a.panic, a.stack)
			case a.err != nil:
				t.trace.end(n, time.Since(began), "error: "+a.err.Error())
			default:
				t.trace.end(n, time.Since(began), a.show)
			}
			return a.err
		case <-over:
			over = nil
			late.Reset(grace)
		case <-late.C:
			t.fatalf("%s returns soon after its context has ended; event #%d has not returned %s later", what, n, grace)
		}
	}
}

// opener is the instance that the check works on.
func (t *T) opener() Instance { return t.run.instance() }

// description is what the backend said when the run began.
func (t *T) description() walimpls.Description { return t.run.desc }

// claimed reports a capability.
func (t *T) claimed(c Capability) bool { return t.run.claims[c] }

// cleanup closes what the check left open and drops its channels. It returns the
// channels that stay, and why something went wrong.
func (t *T) cleanup() (left []string, problems []string) {
	t.mu.Lock()
	handles := slices.Clone(t.handles)
	channels := map[string]int64{}
	for k, v := range t.channels {
		channels[k] = v
	}
	t.mu.Unlock()
	ctx := context.WithoutCancel(t.ctx)
	// Everything side by side: a handle that hangs must not hold up the rest.
	said := make([]string, len(handles))
	var wg sync.WaitGroup
	for i, h := range handles {
		if h.open() {
			wg.Go(func() { said[i] = t.closeQuietly(ctx, h) })
		}
	}
	wg.Wait()
	for i, text := range said {
		if text != "" {
			problems = append(problems, fmt.Sprintf("closing %s: %s", handles[i], text))
			break
		}
	}
	if !t.claimed(CapDrop) {
		for c := range channels {
			left = append(left, c)
		}
		return left, problems
	}
	var mu sync.Mutex // guards left and problems
	for c, term := range channels {
		wg.Go(func() {
			fail := guard(func() {
				err := t.call(ctx, t.run.opt.Bound, fmt.Sprintf("clean up: Drop(%s, %d)", c, term), func(ctx context.Context) (string, error) {
					return "ok", t.opener().Drop(ctx, c, max(term, 1))
				})
				t.expect(err == nil, "%v", err)
			})
			if fail != nil {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, c)
				problems = append(problems, "dropping "+c+": "+fail.text)
			}
		})
	}
	wg.Wait()
	return left, problems
}

// data makes a record of type data with a payload of text.
func data(text string) message.Message {
	return message.Message{Type: message.TypeData, Payload: []byte(text)}
}

// series makes n records "prefix-0", "prefix-1", ….
func series(prefix string, n int) []message.Message {
	out := make([]message.Message, n)
	for i := range out {
		out[i] = data(fmt.Sprintf("%s-%d", prefix, i))
	}
	return out
}
