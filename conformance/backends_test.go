package conformance

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/walimpls"
)

// slowFlag adds the runs that `make test` has no time for; `make conformance` sets it.
var slowRuns = flag.Bool("full", false, "also run what takes minutes: the reference over RPC and as a plugin, rmq over RPC, a slow store")

// needFull keeps a test for the full run.
func needFull(t *testing.T) {
	t.Helper()
	if !*slowRuns {
		t.Skip("it takes minutes: run it with -full, or make conformance")
	}
}

// pluginTargetOf is the test binary as a plugin process.
func pluginTargetOf(t *testing.T, backend string, cfg walimpls.Config, store string) Target {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	target, err := Plugin(PluginConfig{
		Path: self, Backend: backend, Config: cfg, Env: map[string]string{serveVariable: backend},
		TargetOptions: TargetOptions{Name: backend, StorePath: store},
	})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// slowAnswers make contexts end under way in a backend that is otherwise too fast.
var slowAnswers = walimpls.Config{"rules": "append delay-ack 1ms prob=0.2 per=call"}

// frugal are options for `make test`: the same checks, on less.
func frugal() Options { return Options{Soak: time.Second, SpaceReserve: 24 << 20} }

// expectLevels fails unless exactly these levels were reached.
func expectLevels(t *testing.T, r Report, want ...Level) {
	t.Helper()
	for _, l := range r.Levels {
		if reached := l.State == Reached; reached != slices.Contains(want, l.Level) {
			t.Errorf("level %s is %s", l.Level, l.State)
		}
	}
	if t.Failed() {
		for _, c := range r.Clauses {
			if c.Verdict == NotRun {
				t.Logf("%s (%s) was not run: %s", c.ID, c.Level, c.Reason)
			}
		}
	}
}

var ofReference = []Level{LevelCore, LevelOrdered, LevelReadOnly, LevelFenced, LevelTruncate, LevelDrop, LevelSoak}

func TestReferenceKeepsTheContract(t *testing.T) {
	t.Parallel()
	opt := frugal()
	opt.Seed = 1
	expectLevels(t, Test(t, InProcess(faultbackend.NewBuilder(), slowAnswers), opt), ofReference...)
}

// A connection that breaks is the one thing that the reference shows over RPC alone.
func TestReferenceSettlesUnknownOutcomesOverRPC(t *testing.T) {
	r := Test(t, OverRPC(t, faultbackend.NewBuilder(), walimpls.Config{}), Options{Run: "unknown"})
	for _, id := range []string{"WAL-UNK-001", "WAL-UNK-002", "WAL-UNK-003"} {
		if c, _ := r.Clause(id); c.Verdict != Pass || !strings.Contains(strings.Join(c.Checks[0].Notes, " "), "a connection that broke") {
			t.Errorf("%s: %s %s %v", id, c.Verdict, c.Reason, c.Checks)
		}
	}
}

func TestReferenceKeepsTheContractOverRPC(t *testing.T) {
	needFull(t)
	expectLevels(t, Test(t, OverRPC(t, faultbackend.NewBuilder(), slowAnswers)), ofReference...)
}

func TestReferenceKeepsTheContractAsAPlugin(t *testing.T) {
	needFull(t)
	file := filepath.Join(t.TempDir(), "log")
	expectLevels(t, Test(t, pluginTargetOf(t, "fault", walimpls.Config{"file": file}, "")), ofReference...)
}

// A store like a broker: an open takes a second, an append several milliseconds.
func TestRunOnASlowStoreStaysShort(t *testing.T) {
	needFull(t)
	const rules = "open delay 1s; drop delay 200ms; read delay 50ms; bounds delay 5ms; append delay-ack 8ms per=call; truncate delay 20ms"
	r := Test(t, InProcess(faultbackend.NewBuilder(), walimpls.Config{"rules": rules}))
	if took := time.Duration(r.Millis) * time.Millisecond; took > 4*time.Minute {
		t.Errorf("the run took %s: a check opens too often, or appends one by one", took)
	}
}

// rmqIn is rmq with what it reserves on the disk made small, whatever the key is.
func rmqIn(dir string) walimpls.Config {
	cfg := walimpls.Config{"dir": dir}
	for _, f := range rmq.NewBuilder().Describe().Config {
		if f.Name == "segment_size" || f.Name == "memtable_size" {
			cfg[f.Name] = "4MiB"
		}
	}
	return cfg
}

func TestRMQKeepsTheContractInProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	expectLevels(t, Test(t, InProcess(rmq.NewBuilder(), rmqIn(dir), TargetOptions{StorePath: dir}), frugal()),
		LevelCore, LevelOrdered, LevelReadOnly, LevelFenced, LevelTruncate, LevelDrop, LevelSpace, LevelSoak) // Durable needs a kill
}

func TestRMQKeepsTheContractOverRPC(t *testing.T) {
	needFull(t)
	dir := filepath.Join(t.TempDir(), "store")
	Test(t, OverRPC(t, rmq.NewBuilder(), rmqIn(dir), TargetOptions{StorePath: dir}))
}

func TestRMQKeepsTheContractAsAPlugin(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	r := Test(t, pluginTargetOf(t, "rmq", rmqIn(dir), dir), frugal())
	expectLevels(t, r, LevelCore, LevelOrdered, LevelReadOnly, LevelFenced, LevelTruncate, LevelDrop, LevelDurable, LevelSpace, LevelSoak)
	t.Logf("the checks of level Core took %s one after the other", coreTime(r))
}

// coreTime is what the checks of Core took, one after the other.
func coreTime(r Report) time.Duration {
	var sum int64
	for i := range r.Clauses {
		if r.Clauses[i].Level == LevelCore {
			sum += r.Clauses[i].Millis
		}
	}
	return time.Duration(sum) * time.Millisecond
}

// dirty are the checks of a repeated run: those that keep state, and few others.
const dirty = "WAL-(LIFE-0(03|11)|APP-001|SCAN-00[1-5]|ID-003|RO|FENCE-0(01|03|05|06|11)|TRUNC-00[1-8]|DROP|RST-00[13])"

// The suite may be repeated on a dirty store, in any order.
func TestThreeRunsOnOneStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	target := InProcess(rmq.NewBuilder(), rmqIn(dir))
	for run := 1; run <= 3; run++ {
		r, err := Run(t.Context(), target, Options{Run: dirty, Seed: uint64(run), Soak: -1})
		if err != nil {
			t.Fatal(err)
		}
		expectClean(t, r)
	}
}

// Two runs at one time on one store disturb each other in nothing. They share one
// process, as the store is exclusive.
func TestTwoRunsAtOneTimeOnOneStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	target := InProcess(rmq.NewBuilder(), rmqIn(dir))
	inst, err := target.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := inst.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	reports := make(chan Report, 2)
	for seed := range 2 {
		go func() {
			r, err := Run(t.Context(), &sharedTarget{target, inst}, Options{Run: "WAL-(LIFE-00[3-79]|APP-00[1-9]|SCAN-0(0[1-9]|1[0-6])|ID|RO|FENCE-0(0[1-9]|10)|TRUNC-00[1-7]|DROP-00[1-5])-?", Seed: uint64(seed + 1), Soak: -1})
			if err != nil {
				t.Error(err)
			}
			reports <- r
		}()
	}
	for range 2 {
		expectClean(t, <-reports)
	}
}

// sharedTarget gives every run the same instance, which outlives them.
type sharedTarget struct {
	Target
	inst Instance
}

func (s *sharedTarget) Start(context.Context) (Instance, error) { return shared{s.inst}, nil }

type shared struct{ Instance }

func (shared) Close(context.Context) error { return nil }

// A run drops every channel it made: the next one finds the store as it was.
func TestRunLeavesNothingBehind(t *testing.T) {
	store := faultbackend.NewStore()
	defer func() { _ = store.Close() }()
	target := InProcess(faultbackend.NewBuilder(faultbackend.WithStore(store)), walimpls.Config{})
	r := Test(t, target, Options{Soak: 200 * time.Millisecond, Run: "^WAL-(LIFE|APP|SCAN|ID|RO|FENCE|TRUNC|DROP|SOAK)"})
	expectClean(t, r)
	if left := store.Channels(); len(left) > 0 {
		t.Errorf("channels are left: %v", left)
	}
}

func expectClean(t *testing.T, r Report) {
	t.Helper()
	for _, id := range r.Failed() {
		c, _ := r.Clause(id)
		for k := range c.Checks {
			if c.Checks[k].Failure != nil {
				t.Errorf("seed %d: %s", r.Seed, c.explain(&c.Checks[k]))
			}
		}
	}
	if !r.OK() || len(r.Left) > 0 {
		t.Errorf("seed %d: %s %v, left behind: %v", r.Seed, r.Result, r.Reasons, r.Left)
	}
}

// No backend of walrig's own is excused from any clause.
func TestNoBackendOfOursIsWaived(t *testing.T) {
	root := ".."
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.Contains(strings.ToLower(d.Name()), "waiver") && filepath.Ext(path) != ".go" {
			t.Errorf("%s: a waiver file; none may exist for rmq, kafka and pulsar", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
