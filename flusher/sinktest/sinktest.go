package sinktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Target is a sink's place, empty at first.
type Target struct {
	// New returns a sink over the place. Several are open at once, as if in
	// several processes. Run closes them.
	New func(t *testing.T) flusher.Sink
	// ReadFile returns the rows of a file that a sink listed, in the file's order.
	ReadFile func(t *testing.T, f flusher.File) []message.Message
}

// stepTimeout bounds each call, on a machine ten times slower too.
const stepTimeout = 60 * time.Second

// Run runs the suite; each test gets a target of its own.
func Run(t *testing.T, target func(t *testing.T) Target) {
	tests := []struct {
		name string
		run  func(*fixture)
	}{
		{"FlushedRowsAndCheckpointAreThereForTheNextOwner", flushedRowsAreThere},
		{"EmptyFlushMovesTheCheckpointAlone", emptyFlush},
		{"CheckpointNeverGoesBack", checkpointNeverGoesBack},
		{"LaterTermChainsAndEarlierOwnersAreFenced", laterTermFences},
		{"SecondOpenOfATermFencesTheFirst", secondOpenFences},
		{"StaleRowsDoNotCount", staleRowsDoNotCount},
		{"RowsOfAnyContentComeBack", anyContent},
		{"OutputsNeverMeet", outputsNeverMeet},
		{"DroppedVChannelKeepsItsFiles", droppedKeepsFiles},
		{"ManyFlushesStayListed", manyFlushes},
		{"ClosedSinkRefuses", closedRefuses},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.run(&fixture{T: t, target: target(t)})
		})
	}
}

// fixture is one test and its place.
type fixture struct {
	*testing.T
	target Target
}

const (
	channel = "orders"
	storeID = "store-1"
)

func key(vchannel string, term int64) flusher.SinkKey {
	return flusher.SinkKey{PChannel: channel, StoreID: storeID, VChannel: vchannel, Term: term}
}

func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	f.Cleanup(cancel)
	return ctx
}

func (f *fixture) sink() flusher.Sink {
	f.Helper()
	s := f.target.New(f.T)
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Errorf("close the sink: %v", err)
		}
	})
	return s
}

func (f *fixture) open(s flusher.Sink, k flusher.SinkKey) flusher.VChannelSink {
	f.Helper()
	v, err := s.Open(f.context(), k)
	if err != nil {
		f.Fatalf("open %+v: %v", k, err)
	}
	return v
}

// flush must succeed.
func (f *fixture) flush(v flusher.VChannelSink, rows []message.Message, cp message.Checkpoint) []flusher.File {
	f.Helper()
	files, err := v.Flush(f.context(), rows, cp)
	if err != nil {
		f.Fatalf("flush up to %d: %v", cp.Tick, err)
	}
	if got := v.Checkpoint(); got != cp {
		f.Fatalf("checkpoint after the flush is %+v, want %+v", got, cp)
	}
	return files
}

// wantFenced flushes and must be told that the term is over, twice: it is final.
func (f *fixture) wantFenced(v flusher.VChannelSink, rows []message.Message, cp message.Checkpoint) {
	f.Helper()
	for range 2 {
		if _, err := v.Flush(f.context(), rows, cp); !errors.Is(err, walimpls.ErrFenced) {
			f.Fatalf("flush of a former owner: %v, want ErrFenced", err)
		}
	}
}

// wantRows reads every listed file and compares the rows with want, in order.
func (f *fixture) wantRows(v flusher.VChannelSink, want []message.Message) []flusher.File {
	f.Helper()
	files, err := v.Files(f.context())
	if err != nil {
		f.Fatalf("list files: %v", err)
	}
	var got []message.Message
	seen := map[string]bool{}
	for _, file := range files {
		if seen[file.Path] {
			f.Fatalf("file %s is listed twice", file.Path)
		}
		seen[file.Path] = true
		rows := f.target.ReadFile(f.T, file)
		if int64(len(rows)) != file.Rows || file.Rows == 0 || file.Bytes <= 0 {
			f.Fatalf("file %+v has %d rows", file, len(rows))
		}
		first, last := rows[0].TimeTick, rows[0].TimeTick
		for _, row := range rows {
			first, last = min(first, row.TimeTick), max(last, row.TimeTick)
		}
		if first != file.FirstTick || last != file.LastTick {
			f.Fatalf("file %+v holds ticks %d to %d", file, first, last)
		}
		got = append(got, rows...)
	}
	if d := diff(got, want); d != "" {
		f.Fatalf("rows of %d files: %s", len(files), d)
	}
	return files
}

// diff compares rows by what a sink keeps.
func diff(got, want []message.Message) string {
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if g.ID != w.ID || g.TimeTick != w.TimeTick || g.Term != w.Term || g.Type != w.Type || g.VChannel != w.VChannel ||
			g.TxnID != w.TxnID || !maps.Equal(g.Properties, w.Properties) || string(g.Payload) != string(w.Payload) {
			return fmt.Sprintf("row %d is %+v, want %+v", i, g, w)
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("%d rows, want %d", len(got), len(want))
	}
	return ""
}

// rows makes n data rows with the ticks from first on.
func rows(vchannel string, term int64, first message.Tick, n int) []message.Message {
	out := make([]message.Message, n)
	for i := range out {
		tick := first + message.Tick(i)
		out[i] = message.Message{
			ID: message.Uint64ID(uint64(tick)), Type: message.TypeData, VChannel: vchannel, Term: term, TimeTick: tick,
			Properties: map[string]string{"n": fmt.Sprint(tick)}, Payload: fmt.Appendf(nil, "row %d", tick),
		}
	}
	return out
}

func checkpoint(term int64, tick message.Tick) message.Checkpoint {
	return message.Checkpoint{StoreID: storeID, ID: message.Uint64ID(uint64(tick)), Term: term, Tick: tick}
}

func flushedRowsAreThere(f *fixture) {
	a := f.sink()
	v := f.open(a, key("v1", 1))
	if cp := v.Checkpoint(); cp != (message.Checkpoint{}) {
		f.Fatalf("checkpoint of a new output: %+v", cp)
	}
	one, two := rows("v1", 1, 10, 100), rows("v1", 1, 200, 3)
	if files := f.flush(v, one, checkpoint(1, 150)); len(files) == 0 {
		f.Fatal("a flush of rows returned no file")
	}
	f.flush(v, two, checkpoint(1, 300))
	all := slices.Concat(one, two)
	listed := f.wantRows(v, all)

	v = f.open(f.sink(), key("v1", 2))
	if cp := v.Checkpoint(); cp != checkpoint(1, 300) {
		f.Fatalf("checkpoint for the next owner: %+v", cp)
	}
	if again := f.wantRows(v, all); !slices.Equal(again, listed) {
		f.Fatalf("the next owner lists %+v, want %+v", again, listed)
	}
}

func emptyFlush(f *fixture) {
	s := f.sink()
	v := f.open(s, key("v1", 1))
	for _, tick := range []message.Tick{5, 9, 9} {
		if files := f.flush(v, nil, checkpoint(1, tick)); len(files) != 0 {
			f.Fatalf("a flush without rows made %+v", files)
		}
	}
	f.wantRows(v, nil)
	if cp := f.open(f.sink(), key("v1", 2)).Checkpoint(); cp != checkpoint(1, 9) {
		f.Fatalf("checkpoint for the next owner: %+v", cp)
	}
}

func checkpointNeverGoesBack(f *fixture) {
	v := f.open(f.sink(), key("v1", 3))
	f.flush(v, nil, checkpoint(3, 50))
	foreign := checkpoint(3, 60)
	foreign.StoreID = "another"
	for _, cp := range []message.Checkpoint{checkpoint(3, 49), checkpoint(2, 70), foreign, {}} {
		if _, err := v.Flush(f.context(), rows("v1", 3, 51, 1), cp); !errors.Is(err, walimpls.ErrInvalidArgument) {
			f.Fatalf("flush with checkpoint %+v: %v, want ErrInvalidArgument", cp, err)
		}
	}
	f.wantRows(v, nil)
	f.flush(v, nil, checkpoint(4, 10)) // the term decides before the tick
}

func laterTermFences(f *fixture) {
	a, b := f.sink(), f.sink()
	old := f.open(a, key("v1", 1))
	one := rows("v1", 1, 1, 5)
	f.flush(old, one, checkpoint(1, 5))
	v := f.open(b, key("v1", 2))
	f.wantFenced(old, rows("v1", 1, 6, 5), checkpoint(1, 10))
	two := rows("v1", 2, 11, 5)
	f.flush(v, two, checkpoint(2, 15))
	f.wantFenced(old, rows("v1", 1, 6, 5), checkpoint(1, 10))
	f.wantRows(v, slices.Concat(one, two))
	for _, s := range []flusher.Sink{a, b, f.sink()} {
		if _, err := s.Open(f.context(), key("v1", 1)); !errors.Is(err, walimpls.ErrFenced) {
			f.Fatalf("open of a former term: %v, want ErrFenced", err)
		}
	}
	// Also for vchannels that the new owner has not touched.
	f.wantRows(f.open(f.sink(), key("v1", 3)), slices.Concat(one, two))
}

func secondOpenFences(f *fixture) {
	a := f.sink()
	first := f.open(a, key("v1", 1))
	one := rows("v1", 1, 1, 5)
	f.flush(first, one, checkpoint(1, 5))
	second := f.open(a, key("v1", 1)) // the same process
	f.wantFenced(first, rows("v1", 1, 6, 1), checkpoint(1, 6))
	two := rows("v1", 1, 6, 2)
	f.flush(second, two, checkpoint(1, 7))
	third := f.open(f.sink(), key("v1", 1)) // another process
	three := rows("v1", 1, 8, 2)
	f.flush(third, three, checkpoint(1, 9))
	f.wantFenced(second, rows("v1", 1, 8, 1), checkpoint(1, 8))
	f.wantRows(third, slices.Concat(one, two, three))
	// The first process may take over again.
	four := rows("v1", 1, 10, 1)
	fourth := f.open(a, key("v1", 1))
	f.flush(fourth, four, checkpoint(1, 10))
	f.wantRows(fourth, slices.Concat(one, two, three, four))
}

// staleRowsDoNotCount lets a former owner write behind the new owner's back, on a
// vchannel that the new owner leaves idle: what it wrote must not appear to the
// owner after that.
func staleRowsDoNotCount(f *fixture) {
	a, b := f.sink(), f.sink()
	idle, busy := f.open(a, key("idle", 1)), f.open(a, key("busy", 1))
	one := rows("idle", 1, 1, 5)
	f.flush(idle, one, checkpoint(1, 5))
	f.open(b, key("busy", 2))
	f.wantFenced(idle, rows("idle", 1, 6, 5), checkpoint(1, 10))
	f.wantFenced(busy, rows("busy", 1, 6, 5), checkpoint(1, 10))
	for _, s := range []flusher.Sink{b, f.sink()} {
		for term := int64(2); term <= 3; term++ {
			v, err := s.Open(f.context(), key("idle", term))
			if errors.Is(err, walimpls.ErrFenced) && term == 2 {
				continue // term 3 came before
			}
			if err != nil {
				f.Fatal(err)
			}
			if cp := v.Checkpoint(); cp != checkpoint(1, 5) {
				f.Fatalf("term %d goes on from %+v: a former owner's write counts", term, cp)
			}
			f.wantRows(v, one)
			f.wantRows(f.open(s, key("busy", term)), nil)
		}
	}
}

func anyContent(f *fixture) {
	v := f.open(f.sink(), key("v1", 1))
	in := []message.Message{
		{ID: message.ID("\x00"), Type: message.TypeData, Term: 1, TimeTick: 7, VChannel: "v1"},
		{ID: message.ID("\xff\x00\xfe"), Type: message.TypeData, Term: 1, TimeTick: 3, VChannel: "v1", TxnID: 1 << 63, Payload: []byte{0, 0xff, '\n'}},
		{ID: message.Uint64ID(9), Type: message.TypeData, Term: 1 << 62, TimeTick: 1<<64 - 1, Properties: map[string]string{"": "", "ключ": "значение", "a": strings.Repeat("x", 70_000)}},
		{ID: message.Uint64ID(10), Type: message.TypeData, Term: 1, TimeTick: 8, VChannel: "v1", Payload: []byte(strings.Repeat("big", 1<<20))},
		{ID: message.Uint64ID(11), Type: message.TypeFlush, Term: 1, TimeTick: 9, VChannel: "v1"},
	}
	f.flush(v, in, checkpoint(1, 10))
	f.wantRows(v, in)
}

func outputsNeverMeet(f *fixture) {
	s := f.sink()
	long := strings.Repeat("v", 200)
	keys := []flusher.SinkKey{
		{PChannel: "a", StoreID: "s", VChannel: "x"}, {PChannel: "a", StoreID: "s", VChannel: ""},
		{PChannel: "a", StoreID: "s", VChannel: "_broadcast"}, {PChannel: "a", StoreID: "s", VChannel: "../x"},
		{PChannel: "a", StoreID: "s", VChannel: "~x"}, {PChannel: "a", StoreID: "s", VChannel: ".."},
		{PChannel: "a", StoreID: "s", VChannel: long}, {PChannel: "a", StoreID: "s", VChannel: "x.json"},
		{PChannel: "a", StoreID: "s/x", VChannel: "x"}, {PChannel: "a", StoreID: "s2", VChannel: "x"},
		{PChannel: "a", StoreID: strings.Repeat("/", 200), VChannel: "x"}, {PChannel: "a", StoreID: strings.Repeat("/", 199) + ":", VChannel: "x"},
		{PChannel: "b", StoreID: "s", VChannel: "x"}, {PChannel: "a-", StoreID: "s", VChannel: "x"},
	}
	want := map[flusher.SinkKey][]message.Message{}
	for i, k := range keys {
		k.Term = 1
		v := f.open(s, k)
		want[k] = rows(k.VChannel, 1, message.Tick(1+i*10), 3)
		cp := checkpoint(1, message.Tick(5+i*10))
		cp.StoreID = k.StoreID
		f.flush(v, want[k], cp)
	}
	other := f.sink()
	for k, r := range want {
		k.Term = 2
		f.wantRows(f.open(other, k), r)
	}
	names, err := other.VChannels(f.context(), "a", "s")
	if err != nil {
		f.Fatal(err)
	}
	wantNames := []string{"x", "_broadcast", "../x", "~x", "..", long, "x.json"}
	slices.Sort(wantNames)
	slices.Sort(names)
	if !slices.Equal(names, wantNames) {
		f.Fatalf("vchannels %q, want %q", names, wantNames)
	}
	if names, err := other.VChannels(f.context(), "nobody", "s"); err != nil || len(names) != 0 {
		f.Fatalf("vchannels of an unknown log: %q, %v", names, err)
	}
}

func droppedKeepsFiles(f *fixture) {
	s := f.sink()
	v, kept := f.open(s, key("v1", 1)), f.open(s, key("v2", 1))
	one := rows("v1", 1, 1, 5)
	f.flush(v, one, checkpoint(1, 5))
	f.flush(kept, nil, checkpoint(1, 5))
	if err := v.Drop(f.context(), checkpoint(1, 8)); err != nil {
		f.Fatal(err)
	}
	if _, err := v.Flush(f.context(), rows("v1", 1, 9, 1), checkpoint(1, 9)); !errors.Is(err, walimpls.ErrNotFound) {
		f.Fatalf("flush of a dropped vchannel: %v, want ErrNotFound", err)
	}
	f.wantRows(v, one)
	wantListed := func(want ...string) {
		f.Helper()
		for _, s := range []flusher.Sink{s, f.sink()} {
			names, err := s.VChannels(f.context(), channel, storeID)
			if err != nil || !slices.Equal(names, want) {
				f.Fatalf("vchannels %q (%v), want %q", names, err, want)
			}
		}
	}
	wantListed("v2")
	again := f.open(f.sink(), key("v1", 2))
	if cp := again.Checkpoint(); cp != checkpoint(1, 8) {
		f.Fatalf("checkpoint of a dropped vchannel: %+v", cp)
	}
	f.wantRows(again, one)
	wantListed("v2") // opening alone brings nothing back
	two := rows("v1", 2, 20, 2)
	f.flush(again, two, checkpoint(2, 30))
	wantListed("v1", "v2")
	f.wantRows(again, slices.Concat(one, two))
}

func manyFlushes(f *fixture) {
	const flushes = 150
	s := f.sink()
	v := f.open(s, key("v1", 1))
	var all []message.Message
	for i := range flushes {
		r := rows("v1", 1, message.Tick(1+i*2), 1)
		f.flush(v, r, checkpoint(1, message.Tick(2+i*2)))
		all = append(all, r...)
	}
	files, err := v.Files(f.context())
	if err != nil || len(files) != flushes {
		f.Fatalf("%d files (%v), want %d", len(files), err, flushes)
	}
	for i, file := range files {
		if file.FirstTick != all[i].TimeTick || file.Rows != 1 {
			f.Fatalf("file %d is %+v: not oldest first", i, file)
		}
	}
	again, err := f.open(f.sink(), key("v1", 2)).Files(f.context())
	if err != nil || !slices.Equal(again, files) {
		f.Fatalf("the next owner lists %d files (%v), want %d", len(again), err, len(files))
	}
}

func closedRefuses(f *fixture) {
	s := f.target.New(f.T)
	v := f.open(s, key("v1", 1))
	w := f.open(s, key("v2", 1))
	for range 2 {
		if err := v.Close(); err != nil {
			f.Fatal(err)
		}
	}
	if _, err := v.Flush(f.context(), rows("v1", 1, 1, 1), checkpoint(1, 1)); !errors.Is(err, walimpls.ErrClosed) {
		f.Fatalf("flush on a closed output: %v, want ErrClosed", err)
	}
	f.flush(w, nil, checkpoint(1, 1))
	f.flush(f.open(s, key("v1", 1)), nil, checkpoint(1, 2))
	for range 2 {
		if err := s.Close(); err != nil {
			f.Fatal(err)
		}
	}
	if _, err := s.Open(f.context(), key("v1", 1)); !errors.Is(err, walimpls.ErrClosed) {
		f.Fatalf("open on a closed sink: %v, want ErrClosed", err)
	}
	if _, err := w.Flush(f.context(), nil, checkpoint(1, 3)); !errors.Is(err, walimpls.ErrClosed) {
		f.Fatalf("flush after the sink was closed: %v, want ErrClosed", err)
	}
}
