package flush

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const channel = "orders"

// fixture is a store, a catalog and a folder of files, and hosts on them.
type fixture struct {
	t       testing.TB
	store   *faultbackend.Store
	catalog catalog.Catalog
	bucket  string
	opt     flusher.Options
	// ticks is the WAL's tick interval.
	ticks time.Duration
	term  int64
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, store: faultbackend.NewStore(), bucket: t.TempDir(), ticks: 10 * time.Millisecond, opt: flusher.Options{
		MaxAge: 100 * time.Millisecond, SaveEvery: 20 * time.Millisecond, StallAfter: time.Second,
	}}
	t.Cleanup(func() { _ = f.store.Close() })
	rows, err := catalog.OpenBolt(filepath.Join(t.TempDir(), "catalog"), catalog.BoltOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	f.catalog = rows
	f.create(nil)
	return f
}

func (f *fixture) create(vchannels []catalog.VChannel) {
	f.t.Helper()
	row := catalog.Row{Channel: channel, Plugin: "fault", Backend: faultbackend.Name, VChannels: vchannels, VChannelsKnown: true}
	if err := f.catalog.Create(context.Background(), row); err != nil {
		f.t.Fatal(err)
	}
}

type backend struct {
	walimpls.Opener
	desc walimpls.Description
}

func (b backend) Description(context.Context) (walimpls.Description, error) { return b.desc, nil }

// host is one host's service and its WAL.
type host struct {
	f    *fixture
	s    *Service
	w    wal.WAL
	stop func()
}

// open opens the channel at the next term on a host of its own. A sink of nil is
// the folder.
func (f *fixture) open(sink flusher.Sink) *host {
	f.t.Helper()
	if sink == nil {
		var err error
		if sink, err = parquet.Open(within(f.t), "file://"+f.bucket, parquet.Options{}); err != nil {
			f.t.Fatal(err)
		}
	}
	opt := f.opt
	opt.Log = zaptest.NewLogger(f.t, zaptest.Level(zap.ErrorLevel))
	s := New(sink, f.catalog, opt)
	b := faultbackend.NewBuilder(faultbackend.WithStore(f.store))
	o, err := b.Build(context.Background(), walimpls.Config{}, zap.NewNop())
	if err != nil {
		f.t.Fatal(err)
	}
	opener := s.Opener(wal.NewOpener(s.Options(wal.Options{
		Catalog: f.catalog, TickInterval: f.ticks,
		Backend: func(string) (wal.Backend, error) { return backend{o, b.Describe()}, nil },
	})))
	f.term++
	w, err := opener.Open(within(f.t), channel, f.term)
	if err != nil {
		f.t.Fatal(err)
	}
	h := &host{f: f, s: s, w: w}
	closed := false
	h.stop = func() {
		if closed {
			return
		}
		closed = true
		_ = w.Close(context.Background())
		_ = s.Close()
		_ = o.Close(context.Background())
	}
	f.t.Cleanup(h.stop)
	return h
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (h *host) flusher() *flusher.Flusher { return h.s.Flusher(channel) }

func (h *host) append(vchannel string, payloads ...string) []wal.Result {
	h.f.t.Helper()
	batch := make([]message.Message, len(payloads))
	for i, p := range payloads {
		batch[i] = message.Message{Type: message.TypeData, VChannel: vchannel, Payload: []byte(p)}
	}
	results := h.w.Append(within(h.f.t), batch)
	for _, r := range results {
		if r.State != walimpls.Stored {
			h.f.t.Fatal(r.Err)
		}
	}
	return results
}

func (h *host) declare(names ...string) {
	h.f.t.Helper()
	if _, err := h.w.CreateVChannels(within(h.f.t), names); err != nil {
		h.f.t.Fatal(err)
	}
}

func (h *host) flush() {
	h.f.t.Helper()
	r := h.w.Flush(within(h.f.t), "")
	if r.State != walimpls.Stored {
		h.f.t.Fatal(r.Err)
	}
	if err := h.flusher().Wait(within(h.f.t), "", r.Term, r.Tick); err != nil {
		h.f.t.Fatal(err)
	}
}

// rows counts what a vchannel's files hold.
func (h *host) rows(vchannel string) (n int64) {
	h.f.t.Helper()
	files, err := h.flusher().Files(within(h.f.t), vchannel)
	if err != nil {
		h.f.t.Fatal(err)
	}
	for _, file := range files {
		n += file.Rows
	}
	return n
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx := within(t)
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (h *host) cutToTheSaved() bool {
	st := h.flusher().Status(false)
	return st.Saved.ID != "" && st.Truncated.ID == st.Saved.ID
}

// TestRestartedHostCutsAnIdleLog is case M-11's end: nothing is written after a
// restart, and the truncation point still reaches the checkpoint.
func TestRestartedHostCutsAnIdleLog(t *testing.T) {
	f := newFixture(t)
	f.opt.MinAge = time.Hour // nothing is cut before the restart
	h := f.open(nil)
	h.declare("busy", "idle", "few", "gone")
	h.append("few", "1", "2", "3")
	if err := h.w.DropVChannel(within(t), "gone"); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		h.append("busy", fmt.Sprint(i))
	}
	h.flush()
	h.stop()
	f.opt.MinAge = 0
	h = f.open(nil)
	eventually(t, "the log is cut to its end", func() bool {
		b, err := h.w.Bounds(within(t))
		return err == nil && h.cutToTheSaved() && b.Earliest == h.flusher().Status(false).Saved.ID && b.Earliest > message.Uint64ID(50)
	})
	if n := h.rows("busy") + h.rows("few"); n != 53 {
		t.Fatalf("%d rows", n)
	}
}

// TestCatalogAheadOfTheCheckpointKeepsADroppedVChannelDropped is case M-12: the
// row says that v1 is dropped, the stored checkpoint lies before its creation.
func TestCatalogAheadOfTheCheckpointKeepsADroppedVChannelDropped(t *testing.T) {
	f := newFixture(t)
	h := f.open(nil)
	h.flush()
	eventually(t, "a checkpoint is saved", func() bool { return h.flusher().Status(false).Saved.Tick > 0 })
	h.stop()
	before, err := f.catalog.Get(within(t), channel)
	if err != nil {
		t.Fatal(err)
	}
	f.opt.SaveEvery = time.Hour
	h = f.open(hangingSink{})
	h.declare("v1", "v2")
	for i := range 10 {
		h.append("v1", fmt.Sprint(i))
		h.append("v2", fmt.Sprint(i))
	}
	r := h.append("v1", "last")
	h.stop()
	_, err = f.catalog.Update(within(t), channel, f.term, func(row *catalog.Row) error {
		row.Checkpoints = before.Checkpoints
		for i := range row.VChannels {
			if row.VChannels[i].Name == "v1" {
				row.VChannels[i].DroppedTick = r[0].Tick + 1
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.opt.SaveEvery = 20 * time.Millisecond
	began := time.Now()
	h = f.open(nil)
	results := h.w.Append(within(t), []message.Message{{Type: message.TypeData, VChannel: "v1"}})
	if e := walimpls.AsError(results[0].Err); results[0].State != walimpls.NotStored || e.Code != walimpls.CodeNotFound || e.Retryable {
		t.Fatalf("append to a dropped vchannel: %+v", results[0])
	}
	h.flush()
	if took := time.Since(began); took > 50*time.Second {
		t.Fatalf("the tail was reached after %v", took)
	}
	if n := h.rows("v2"); n != 10 {
		t.Fatalf("v2 has %d rows", n)
	}
	if n := h.rows("v1"); n != 0 {
		t.Fatalf("v1 has %d rows", n)
	}
	for _, v := range h.flusher().Status(true).VChannels {
		if v.Name == "v1" {
			t.Fatal("v1 has a service")
		}
	}
}

// hangingSink opens nothing until it is told to end.
type hangingSink struct{}

func (hangingSink) Open(ctx context.Context, _ flusher.SinkKey) (flusher.VChannelSink, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingSink) VChannels(context.Context, string, string) ([]string, error) { return nil, nil }
func (hangingSink) Close() error                                                { return nil }

// TestNoCrashLosesOrRepeatsARow stops hosts at random moments, some as zombies
// that live on beside the next owner, and counts rows.
func TestNoCrashLosesOrRepeatsARow(t *testing.T) {
	for seed := range 4 {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 5))
			f := newFixture(t)
			names := []string{"", "v1", "v2", "v3"}
			want := map[string]int64{}
			var h *host
			for round := range 8 {
				next := f.open(nil)
				if h != nil && rng.IntN(2) == 0 {
					h.stop()
				}
				h = next // a host that was not stopped is a zombie now
				if round == 0 {
					h.declare(names[1:]...)
				}
				for range rng.IntN(40) {
					v := names[rng.IntN(len(names))]
					if v != "" && rng.IntN(4) == 0 {
						want[v] += txn(t, h.w, v, rng.IntN(5))
						continue
					}
					h.append(v, "x")
					want[v]++
					time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
				}
			}
			h.flush()
			for _, v := range names {
				if n := h.rows(v); n != want[v] {
					t.Errorf("vchannel %q has %d rows, want %d", v, n, want[v])
				}
			}
			eventually(t, "the log is cut", h.cutToTheSaved)
		})
	}
}

func txn(t testing.TB, w wal.WAL, v string, n int) int64 {
	t.Helper()
	x, err := w.Begin(within(t), v, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		r := w.Append(within(t), []message.Message{{Type: message.TypeData, VChannel: v, TxnID: x.ID}})
		if r[0].State != walimpls.Stored {
			t.Fatal(r[0].Err)
		}
	}
	if r := w.Commit(within(t), x.ID); r.State != walimpls.Stored {
		t.Fatal(r.Err)
	}
	return int64(n)
}

// TestCheckpointIsJudgedByWhatWasRemoved flushes and cuts, with transactions
// that begin long before they commit, and resumes at every checkpoint: one that
// missed a unit is a lost position, any other goes on.
func TestCheckpointIsJudgedByWhatWasRemoved(t *testing.T) {
	for seed := range 4 {
		f := newFixture(t)
		f.opt.MinAge = time.Hour
		rng := rand.New(rand.NewPCG(uint64(seed), 6))
		h := f.open(nil)
		h.declare("v1", "v2")
		var open []wal.Txn
		for range 40 {
			switch rng.IntN(6) {
			case 0:
				x, err := h.w.Begin(within(t), "v1", 0)
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, x)
			case 1:
				if len(open) > 0 {
					h.w.Append(within(t), []message.Message{{Type: message.TypeData, VChannel: "v1", TxnID: open[0].ID}})
				}
			case 2:
				if len(open) > 0 {
					h.w.Commit(within(t), open[0].ID)
					open = open[1:]
				}
			default:
				h.append([]string{"", "v1", "v2"}[rng.IntN(3)], "x")
			}
		}
		units := readAll(t, h.w)
		first := map[message.Tick]message.ID{}
		for _, m := range f.store.Records(channel) {
			if m.Type == message.TypeBeginTxn {
				first[message.Tick(m.TxnID)] = m.ID
			}
		}
		h.flush()
		h.stop()
		f.opt.MinAge = 0
		h = f.open(nil)
		eventually(t, "the log is cut", func() bool {
			return h.cutToTheSaved() && h.flusher().Status(false).Saved.ID >= units[len(units)-1].Checkpoint.ID
		})
		h.stop()
		f.opt.MinAge = time.Hour
		h = f.open(nil)
		row, err := f.catalog.Get(within(t), channel)
		if err != nil {
			t.Fatal(err)
		}
		cut := row.TruncatedBefore.ID
		for _, u := range units {
			for _, cp := range []message.Checkpoint{u.Before, u.Checkpoint} {
				missed := false
				for _, o := range units {
					begin := o.Messages[0].ID
					if o.TxnID != 0 {
						begin = first[message.Tick(o.TxnID)]
					}
					missed = missed || begin < cut && !cp.Covers(o.Term, o.Tick)
				}
				s, err := h.w.Read(within(t), scanner.Options{Start: scanner.Checkpoint, Checkpoint: cp})
				var lost *walimpls.PositionLostError
				if missed != errors.As(err, &lost) {
					t.Fatalf("seed %d: resumed at %+v, cut at %v (last unit %d): missed %v, %v", seed, cp, cut, row.TruncatedBefore.LastUnitTick, missed, err)
				}
				if err == nil {
					_ = s.Close()
				}
			}
		}
	}
}

func readAll(t testing.TB, w wal.WAL) (out []scanner.Unit) {
	t.Helper()
	s, err := w.Read(within(t), scanner.Options{Start: scanner.All})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		units, err := s.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range units {
			if len(u.Messages) > 0 {
				out = append(out, u)
			}
			if u.CaughtUp {
				return out
			}
		}
	}
}

// TestConnectedReaderThatLagsKeepsWhatItNeeds: a reader pins the log at its
// restart position until it is too old.
func TestConnectedReaderThatLagsKeepsWhatItNeeds(t *testing.T) {
	f := newFixture(t)
	h := f.open(nil)
	h.declare("v1")
	h.append("v1", "1", "2", "3")
	s, err := h.w.Read(within(t), scanner.Options{Start: scanner.All, MaxBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h.flush()
	eventually(t, "a checkpoint is saved", func() bool { return h.flusher().Status(false).Saved.Tick > 0 })
	time.Sleep(200 * time.Millisecond)
	n := 0
	for n < 3 {
		units, err := s.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range units {
			n += len(u.Messages)
		}
	}
	_ = s.Close()
	eventually(t, "the log is cut when the reader has gone", h.cutToTheSaved)
}

// BenchmarkRecovery opens a pchannel with 10,000 vchannels that have manifests.
// It reports how long that takes, of that the processor's time, and what the idle
// flusher costs of one core.
func BenchmarkRecovery(b *testing.B) {
	const n = 10_000
	f := newFixture(b)
	f.opt, f.ticks = flusher.Options{}, 0 // the defaults
	row, err := f.catalog.Get(within(b), channel)
	if err != nil {
		b.Fatal(err)
	}
	if err := f.catalog.Delete(within(b), channel, row.Term); err != nil {
		b.Fatal(err)
	}
	list := make([]catalog.VChannel, n)
	for i := range list {
		list[i].Name = fmt.Sprintf("vchannel-%05d", i)
	}
	f.create(list)
	h := f.open(nil)
	for i := 0; i < n; i += 1000 {
		batch := make([]message.Message, 1000)
		for j := range batch {
			batch[j] = message.Message{Type: message.TypeData, VChannel: list[i+j].Name, Payload: []byte("x")}
		}
		h.w.Append(context.Background(), batch)
	}
	r := h.w.Flush(context.Background(), "")
	if err := h.flusher().Wait(context.Background(), "", r.Term, r.Tick); err != nil {
		b.Fatal(err)
	}
	h.stop()
	for b.Loop() {
		began, used := time.Now(), cpu(b)
		h = f.open(nil)
		eventually(b, "recovered", func() bool { return h.flusher().Status(false).State == flusher.Working })
		b.ReportMetric(time.Since(began).Seconds(), "recovery-s")
		b.ReportMetric((cpu(b) - used).Seconds(), "recovery-cpu-s")
		time.Sleep(2 * time.Second)
		before := cpu(b)
		time.Sleep(20 * time.Second)
		b.ReportMetric((cpu(b)-before).Seconds()/20*100, "idle-cpu%")
		h.stop()
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
