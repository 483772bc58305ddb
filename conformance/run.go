package conformance

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Options are the parameters of Run. The zero value runs everything.
type Options struct {
	// Run selects checks: a regular expression that matches a check's id, or the
	// name of its group as a whole. "" selects all.
	Run string
	// Levels select the checks of these levels; and each of them must be
	// reached. Empty selects all and demands none.
	Levels []Level
	// Seed gives order and draws; 0 takes a new one.
	Seed uint64
	// InOrder starts the checks in the order of the specification, not shuffled.
	InOrder bool
	// Parallel is how many checks run side by side; 0 means DefaultParallel.
	Parallel int
	// Waivers excuse clauses; see ReadWaivers.
	Waivers []Waiver
	// Soak is how long each soak check works; 0 means DefaultSoak, below 0 leaves
	// them out.
	Soak time.Duration
	// Bound is how long one call of a backend may take, Grace how much longer it
	// may take to notice the end of its context, Quiet how long is long enough to
	// say that nothing comes. 0 means the defaults. Shorter ones are for backends
	// in memory.
	Bound, Grace, Quiet time.Duration
	// SpaceReserve is how many bytes a store may keep for itself behind a
	// truncation. 0 means 64 MiB, which is also the most that is granted; less is
	// stricter, and takes less time.
	SpaceReserve int64
	// Progress is called when a check ends, one call at a time.
	Progress func(Progress)
	// Host identifies the program that runs the suite, for the report.
	Host HostInfo
	// Repeat returns the command that repeats one check; nil makes it from the
	// target's Command.
	Repeat func(checkID string, seed uint64) string
	// Now is the clock for waivers; nil is the system's.
	Now func() time.Time
}

// The defaults of Options.
const (
	DefaultParallel = 6
	DefaultSoak     = 3 * time.Second
	DefaultBound    = 30 * time.Second
	DefaultGrace    = 10 * time.Second
	DefaultQuiet    = 150 * time.Millisecond
)

// Progress tells of a check that has ended.
type Progress struct {
	Done, Total int
	Check       CheckResult
}

// closeBound bounds a Close: what the contract allows, and what a loaded machine adds.
func (o Options) closeBound() time.Duration { return min(walimpls.GracePeriod+time.Second, o.Bound) }

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.Soak, DefaultSoak)
	set(&o.Bound, DefaultBound)
	set(&o.Grace, DefaultGrace)
	set(&o.Quiet, DefaultQuiet)
	if o.SpaceReserve <= 0 || o.SpaceReserve > spaceReserve {
		o.SpaceReserve = spaceReserve
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// run is one run of the suite.
type run struct {
	target Target
	opt    Options
	desc   walimpls.Description
	claims map[Capability]bool
	prefix string
	names  atomic.Int64
	hung   atomic.Bool // a Close did not return: the next ones are not waited for as long
	report *Report

	instMu sync.Mutex // guards inst; checks that change it run alone
	inst   Instance

	mu   sync.Mutex // guards what follows
	done int
}

// Run runs the suite on a target. The error says that the suite could not run at
// all; what the checks found is in the report.
func Run(ctx context.Context, target Target, opt Options) (Report, error) {
	opt = opt.withDefaults()
	selected, err := selection(opt)
	if err != nil {
		return Report{}, err
	}
	if err := checkWaiverIDs(opt.Waivers); err != nil {
		return Report{}, err
	}
	if opt.Seed == 0 {
		opt.Seed = newSeed()
	}
	r := &run{target: target, opt: opt, prefix: newPrefix()}
	began := opt.Now()
	r.report = newReport(target.Info(), opt, began)
	if r.inst, err = target.Start(ctx); err != nil {
		return Report{}, fmt.Errorf("start %s: %w", r.report.Target.Name, err)
	}
	defer func() { _ = r.closeInstance(context.WithoutCancel(ctx)) }()
	describeCtx, cancel := context.WithTimeout(ctx, opt.Bound)
	r.desc, err = r.inst.Description(describeCtx)
	cancel()
	if err != nil {
		return Report{}, fmt.Errorf("describe %s: %w", r.report.Target.Name, err)
	}
	r.claims = claims(r.desc)
	r.report.describe(r.desc, r.claims)
	r.execute(ctx, selected)
	r.report.finish(opt, time.Since(began))
	return *r.report, ctx.Err()
}

// selection returns the ids of the checks that were asked for.
func selection(opt Options) (map[string]bool, error) {
	re, err := regexp.Compile(opt.Run)
	if err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "run: %w", err)
	}
	for _, l := range opt.Levels {
		if _, err := ParseLevel(string(l)); err != nil {
			return nil, err
		}
	}
	out := map[string]bool{}
	for _, c := range List() {
		named := opt.Run == "" || re.MatchString(c.ID) || strings.EqualFold(opt.Run, c.Group)
		leveled := len(opt.Levels) == 0 || slices.ContainsFunc(opt.Levels, func(l Level) bool { return strings.EqualFold(string(l), string(c.Level)) })
		if named && leveled {
			out[c.ID] = true
		}
	}
	return out, nil
}

func newSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])                                 // never fails: it ends the process where there is no randomness
	return binary.BigEndian.Uint64(b[:])%math.MaxInt32 + 1 // short enough to be typed
}

func newPrefix() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // as above
	return fmt.Sprintf("conform-%x", b)
}

// channelName returns a name that no other run and no other check uses.
func (r *run) channelName() string { return fmt.Sprintf("%s-%04d", r.prefix, r.names.Add(1)) }

func (r *run) instance() Instance {
	r.instMu.Lock()
	defer r.instMu.Unlock()
	return r.inst
}

// execute decides about every check, and runs those that can run: first side by
// side, then one by one those that need the instance alone.
func (r *run) execute(ctx context.Context, selected map[string]bool) {
	clauses := clauseByID()
	var shared, alone []check
	for _, c := range allChecks() {
		if v, why := r.mayRun(c, clauses[c.Clause], selected); v != "" {
			r.report.add(CheckResult{ID: c.ID(), Clause: c.Clause, Verdict: v, Reason: why})
			continue
		}
		if c.Alone {
			alone = append(alone, c)
		} else {
			shared = append(shared, c)
		}
	}
	total := len(shared) + len(alone)
	if !r.opt.InOrder {
		order := mathrand.New(mathrand.NewPCG(r.opt.Seed, 0))
		order.Shuffle(len(shared), func(i, j int) { shared[i], shared[j] = shared[j], shared[i] })
		order.Shuffle(len(alone), func(i, j int) { alone[i], alone[j] = alone[j], alone[i] })
	}

	queue := make(chan check)
	var wg sync.WaitGroup
	for range r.opt.Parallel {
		wg.Go(func() {
			for c := range queue {
				r.one(ctx, c, total)
			}
		})
	}
	for _, c := range shared {
		queue <- c
	}
	close(queue)
	wg.Wait()
	for _, c := range alone {
		r.one(ctx, c, total)
	}
}

const notSelected = "not selected"

// mayRun returns the verdict of a check that does not run, and why.
func (r *run) mayRun(c check, cl Clause, selected map[string]bool) (Verdict, string) {
	if !selected[c.ID()] {
		return NotRun, notSelected
	}
	for _, n := range cl.needs() {
		if !r.claims[n] {
			return NotClaimed, fmt.Sprintf("the backend does not claim: %s", n)
		}
	}
	if _, ok := r.inst.(Killer); c.Kills && !ok {
		return NotRun, "this target cannot be killed: run it as a plugin"
	}
	if _, ok := r.target.(ConfigChecker); c.Configures && !ok {
		return NotRun, "this target takes one configuration"
	}
	if c.Sizes {
		s, ok := r.target.(Sizer)
		if !ok {
			return NotRun, "this target cannot measure its store"
		}
		if _, err := s.Size(context.Background()); errors.Is(err, errNoSize) {
			return NotRun, "where the store is was not told"
		}
	}
	if cl.Level == LevelSoak && r.opt.Soak < 0 {
		return NotRun, "soak checks are turned off"
	}
	return "", ""
}

// one runs one check.
func (r *run) one(parent context.Context, c check, total int) {
	if parent.Err() != nil {
		r.end(CheckResult{ID: c.ID(), Clause: c.Clause, Verdict: NotRun, Reason: "the run was interrupted"}, total)
		return
	}
	bound := c.Bound
	if bound == 0 {
		bound = defaultCheckBound
	}
	ctx, cancel := context.WithTimeout(parent, bound)
	defer cancel()
	t := newT(ctx, r, c)
	began := time.Now()
	fail := guard(func() { c.Run(t) })
	took := time.Since(began)
	left, problems := t.cleanup()
	if c.Alone && fail != nil && fail.verdict == "" {
		// It may have left the instance in any state.
		if err := r.closeInstance(parent); err != nil {
			problems = append(problems, "stopping the backend: "+err.Error())
		}
	}
	if c.Alone {
		problems = append(problems, r.revive(parent)...)
	}
	res := CheckResult{ID: c.ID(), Clause: c.Clause, Verdict: Pass, Millis: took.Milliseconds(), Warnings: t.warnings, Notes: t.notes, left: left}
	for _, p := range problems {
		res.Warnings = append(res.Warnings, "clean-up: "+p)
	}
	switch {
	case fail == nil:
	case fail.verdict != "":
		res.Verdict, res.Reason = fail.verdict, fail.text
	default:
		res.Verdict = Fail
		if parent.Err() != nil {
			res.Verdict, res.Reason = NotRun, "the run was interrupted"
		} else {
			if ctx.Err() != nil {
				fail.text += fmt.Sprintf(" (the check's own bound of %s has passed)", bound)
			}
			res.Failure = &Failure{Message: fail.text, Trace: t.trace.lines(), Seed: r.opt.Seed, Command: r.repeat(c.ID())}
		}
	}
	r.end(res, total)
}

func (r *run) end(res CheckResult, total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.add(res)
	r.done++
	if r.opt.Progress != nil {
		r.opt.Progress(Progress{Done: r.done, Total: total, Check: res})
	}
}

func (r *run) repeat(id string) string {
	if r.opt.Repeat != nil {
		return r.opt.Repeat(id, r.opt.Seed)
	}
	command := r.report.Target.Command
	if command == "" {
		command = "walrig conform " + r.report.Target.Name
	}
	return fmt.Sprintf("%s --run '^%s$' --seed %d", command, regexp.QuoteMeta(id), r.opt.Seed)
}

// revive makes sure that an instance is up after a check that had it alone.
func (r *run) revive(ctx context.Context) []string {
	r.instMu.Lock()
	down := r.inst == nil
	r.instMu.Unlock()
	if !down {
		return nil
	}
	if err := r.startInstance(ctx); err != nil {
		return []string{"starting the backend again: " + err.Error()}
	}
	return nil
}

func (r *run) startInstance(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.opt.Bound)
	defer cancel()
	inst, err := r.target.Start(ctx)
	if err != nil {
		inst = deadInstance{err}
	}
	r.instMu.Lock()
	defer r.instMu.Unlock()
	r.inst = inst
	return err
}

func (r *run) closeInstance(ctx context.Context) error {
	r.instMu.Lock()
	inst := r.inst
	r.inst = nil
	r.instMu.Unlock()
	if inst == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.opt.closeBound())
	defer cancel()
	// Whatever hangs below must not keep the run.
	done := make(chan error, 1)
	go func() { done <- inst.Close(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(r.opt.Grace):
		return fmt.Errorf("Close of the backend does not return: %w", ctx.Err())
	}
}

// deadInstance stands for a backend that could not be started again.
type deadInstance struct{ err error }

func (d deadInstance) Open(context.Context, walimpls.OpenOptions) (walimpls.WAL, error) {
	return nil, d.err
}
func (d deadInstance) Drop(context.Context, string, int64) error { return d.err }
func (d deadInstance) Close(context.Context) error               { return nil }
func (d deadInstance) Description(context.Context) (walimpls.Description, error) {
	return walimpls.Description{}, d.err
}
func (d deadInstance) Kill(context.Context) error { return d.err }

// stop ends the instance in order; restart starts it again. For checks that run alone.
func (t *T) stop() {
	t.forgetHandles()
	var err error
	_ = t.call(t.ctx, t.run.opt.closeBound()+t.run.opt.Grace, "stop the backend", func(ctx context.Context) (string, error) {
		err = t.run.closeInstance(ctx)
		return "ok", err
	})
	t.expect(err == nil, "the backend stops in order; got %v", err)
}

func (t *T) restart() {
	err := t.call(t.ctx, t.run.opt.Bound, "start the backend", func(ctx context.Context) (string, error) {
		return "ok", t.run.startInstance(ctx)
	})
	t.expect(err == nil, "the backend starts on its store again; got %v", err)
}

// kill ends the instance as kill -9 does.
func (t *T) kill() {
	err := t.call(t.ctx, t.run.opt.Bound, "kill -9", func(ctx context.Context) (string, error) {
		return "dead", t.opener().(Killer).Kill(ctx)
	})
	t.expect(err == nil, "the backend can be killed; got %v", err)
	t.forgetHandles()
}

// breaker returns what breaks the connection to the backend, nil if the target
// has nothing of the kind. Only a check that runs alone may use it.
func (t *T) breaker() func(context.Context) error {
	switch i := t.opener().(type) {
	case Breaker:
		return i.Break
	case Killer:
		return i.Kill
	}
	return nil
}

// breakOff loses the connection to the backend, and with it what was under way.
func (t *T) breakOff() {
	err := t.call(t.ctx, t.run.opt.Bound, "break the connection", func(ctx context.Context) (string, error) {
		return "broken", t.breaker()(ctx)
	})
	t.expect(err == nil, "the connection to the backend can be broken; got %v", err)
	t.forgetHandles()
}

// forgetHandles: what the instance had open ends with it.
func (t *T) forgetHandles() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handles = nil
}
