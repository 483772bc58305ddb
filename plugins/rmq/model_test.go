package rmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// modelLog is a log as the contract describes it: a slice.
type modelLog struct {
	storeID string
	first   uint64
	records []modelRecord // ids first, first+1, …
	pair    walimpls.Pair
	owner   *modelHandle
	dropped bool
}

type modelRecord struct {
	payload string
	fence   bool
	pair    walimpls.Pair
}

func (l *modelLog) last() uint64 { return l.first + uint64(len(l.records)) - 1 }

func (l *modelLog) lastRecord() message.ID {
	for i := len(l.records) - 1; i >= 0; i-- {
		if !l.records[i].fence {
			return message.Uint64ID(l.first + uint64(i))
		}
	}
	return ""
}

type modelHandle struct {
	wal      walimpls.WAL
	log      *modelLog
	pair     walimpls.Pair
	readOnly bool
	closed   bool
}

// writeError is what an append or truncation of the handle must fail with.
func (h *modelHandle) writeError() error {
	switch {
	case h.closed:
		return walimpls.ErrClosed
	case h.readOnly:
		return walimpls.ErrReadOnly
	case h.log.dropped || h.log.owner != h:
		return walimpls.ErrFenced
	}
	return nil
}

// machine drives the backend and the model side by side.
type machine struct {
	t       *testing.T
	fs      *crashFS
	opener  walimpls.Opener
	logs    map[string]*modelLog
	handles []*modelHandle
	count   int
}

var modelNames = []string{"a", "b"}

func (m *machine) start(fs *crashFS) {
	s := newMemStore(m.t)
	s.fs, s.cfg = fs, walimpls.Config{"segment_size": "256KiB"}
	m.fs, m.opener = fs, s.opener()
	for _, h := range m.handles {
		h.closed = true
	}
}

func want(rt *rapid.T, got, want error) bool {
	if (want == nil) != (got == nil) || want != nil && !errors.Is(got, want) {
		rt.Fatalf("got error %v, want %v", got, want)
	}
	return want == nil
}

func (m *machine) openWrite(rt *rapid.T) {
	name := rapid.SampledFrom(modelNames).Draw(rt, "name")
	asked := walimpls.Pair{Term: rapid.Int64Range(1, 4).Draw(rt, "term"), Incarnation: rapid.Int64Range(0, 4).Draw(rt, "incarnation")}
	l := m.logs[name]
	if l == nil {
		l = &modelLog{first: 1}
	}
	pair := asked
	if pair.Incarnation == 0 {
		pair.Incarnation = 1
		if pair.Term == l.pair.Term {
			pair.Incarnation = l.pair.Incarnation + 1
		}
	}
	w, err := m.opener.Open(context.Background(), rw(name, asked.Term, asked.Incarnation))
	if pair.Compare(l.pair) <= 0 {
		var fenced *walimpls.FencedError
		if !errors.As(err, &fenced) || fenced.Highest != l.pair {
			rt.Fatalf("open %v of a log at %v: %v", pair, l.pair, err)
		}
		return
	}
	want(rt, err, nil)
	ch := w.Channel()
	if l.storeID == "" {
		for _, other := range m.logs {
			if other.storeID == ch.StoreID {
				rt.Fatal("two logs have one store id")
			}
		}
		l.storeID = ch.StoreID
	}
	if ch.StoreID != l.storeID || ch.Pair != pair {
		rt.Fatalf("opened %+v, want store id %s and pair %v", ch, l.storeID, pair)
	}
	h := &modelHandle{wal: w, log: l, pair: pair}
	l.pair, l.owner = pair, h
	l.records = append(l.records, modelRecord{fence: true, pair: pair})
	m.logs[name] = l
	m.handles = append(m.handles, h)
}

func (m *machine) openRead(rt *rapid.T) {
	name := rapid.SampledFrom(modelNames).Draw(rt, "name")
	w, err := m.opener.Open(context.Background(), ro(name))
	l := m.logs[name]
	if l == nil {
		want(rt, err, walimpls.ErrNotFound)
		return
	}
	want(rt, err, nil)
	if w.Channel().Pair != l.pair {
		rt.Fatalf("read-only pair %v, want %v", w.Channel().Pair, l.pair)
	}
	m.handles = append(m.handles, &modelHandle{wal: w, log: l, pair: l.pair, readOnly: true})
}

func (m *machine) handle(rt *rapid.T) *modelHandle {
	if len(m.handles) == 0 {
		rt.Skip("no handle")
	}
	// Mostly a young one, so that not everything is fenced.
	back := min(rapid.IntRange(0, 5).Draw(rt, "handle"), len(m.handles)-1)
	return m.handles[len(m.handles)-1-back]
}

func (m *machine) append(rt *rapid.T) {
	h := m.handle(rt)
	n := rapid.IntRange(1, 5).Draw(rt, "records")
	size := rapid.SampledFrom([]int{0, 10, 3000}).Draw(rt, "size")
	var batch []string
	for range n {
		m.count++
		batch = append(batch, fmt.Sprintf("%d-%s", m.count, make([]byte, size)))
	}
	ids, err := h.wal.Append(context.Background(), batchOf(batch...))
	if !want(rt, err, h.writeError()) {
		return
	}
	for i, text := range batch {
		h.log.records = append(h.log.records, modelRecord{payload: text, pair: h.pair})
		if ids[i] != message.Uint64ID(h.log.last()) {
			rt.Fatalf("id %s, want %d", ids[i], h.log.last())
		}
	}
}

func (m *machine) truncate(rt *rapid.T) {
	h := m.handle(rt)
	l := h.log
	id := uint64(rapid.Int64Range(0, 3).Draw(rt, "near"))
	if rapid.Bool().Draw(rt, "fromEnd") {
		id = l.last() + 2 - id
	} else {
		id += l.first - 1
	}
	err := h.wal.Truncate(context.Background(), message.Uint64ID(id))
	if wanted := h.writeError(); wanted != nil {
		want(rt, err, wanted)
		return
	}
	if id == 0 || id > l.last() {
		want(rt, err, walimpls.ErrInvalidArgument)
		return
	}
	want(rt, err, nil)
	if id > l.first {
		l.records = l.records[id-l.first:]
		l.first = id
	}
}

func (m *machine) drop(rt *rapid.T) {
	name := rapid.SampledFrom(modelNames).Draw(rt, "name")
	term := rapid.Int64Range(1, 4).Draw(rt, "term")
	err := m.opener.Drop(context.Background(), name, term)
	l := m.logs[name]
	if l != nil && term < l.pair.Term {
		want(rt, err, walimpls.ErrFenced)
		return
	}
	want(rt, err, nil)
	if l != nil {
		l.dropped = true
		delete(m.logs, name)
	}
}

func (m *machine) close(rt *rapid.T) {
	h := m.handle(rt)
	want(rt, h.wal.Close(context.Background()), nil)
	h.closed = true
	if h.log.owner == h {
		h.log.owner = nil
	}
}

func (m *machine) restart(rt *rapid.T) {
	want(rt, m.opener.Close(context.Background()), nil)
	m.start(m.fs)
}

func (m *machine) powerLoss(rt *rapid.T) {
	percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(rt, "unsynced")
	clone := m.fs.crash(percent, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)))
	want(rt, m.opener.Close(context.Background()), nil)
	m.start(clone)
}

// read reads through a handle, from a random start, and compares.
func (m *machine) read(rt *rapid.T) {
	h := m.handle(rt)
	l := h.log
	ctx := context.Background()
	bounds, err := h.wal.Bounds(ctx)
	switch {
	case h.closed:
		want(rt, err, walimpls.ErrClosed)
		return
	case l.dropped:
		want(rt, err, walimpls.ErrNotFound)
		return
	}
	want(rt, err, nil)
	if wanted := (walimpls.Bounds{Earliest: message.Uint64ID(l.first), Latest: message.Uint64ID(l.last()), LatestRecord: l.lastRecord()}); bounds != wanted {
		rt.Fatalf("bounds %+v, want %+v", bounds, wanted)
	}
	id := uint64(rapid.Int64Range(max(1, int64(l.first)-2), int64(l.last())+2).Draw(rt, "id"))
	start, next := walimpls.FromAll(), l.first
	switch rapid.IntRange(0, 3).Draw(rt, "policy") {
	case 1:
		start, next = walimpls.FromLatest(), l.last()+1
	case 2:
		start, next = walimpls.StartFrom(message.Uint64ID(id)), id
	case 3:
		start, next = walimpls.StartAfter(message.Uint64ID(id)), id+1
	}
	s, err := h.wal.Read(ctx, walimpls.ReadOptions{Start: start, BufferRecords: rapid.IntRange(1, 10).Draw(rt, "buffer")})
	if start.ID != "" && (id < l.first || id > l.last()) {
		var lost *walimpls.PositionLostError
		if !errors.As(err, &lost) || lost.Earliest != bounds.Earliest || lost.Latest != bounds.Latest {
			rt.Fatalf("start at %d of %d to %d: %v", id, l.first, l.last(), err)
		}
		return
	}
	want(rt, err, nil)
	defer s.Close()
	for next <= l.last() {
		records, err := s.Next(ctx)
		want(rt, err, nil)
		for _, got := range records {
			w := l.records[next-l.first]
			if got.ID != message.Uint64ID(next) || string(got.Payload) != w.payload || (got.Type == message.TypeFence) != w.fence ||
				got.Term != w.pair.Term || got.Incarnation != w.pair.Incarnation {
				rt.Fatalf("read %+v at %d, want %+v", got, next, w)
			}
			next++
		}
	}
}

// The backend does what a slice would do, whatever is done to it in whatever order.
func TestBackendBehavesLikeItsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{t: t, logs: map[string]*modelLog{}}
		m.start(newCrashFS())
		defer func() { closeOpener(t, m.opener) }()
		rt.Repeat(map[string]func(*rapid.T){
			"openWrite": m.openWrite, "openRead": m.openRead,
			"append": m.append, "append2": m.append, "append3": m.append,
			"truncate": m.truncate, "drop": m.drop, "close": m.close,
			"restart": m.restart, "powerLoss": m.powerLoss,
			"read": m.read, "read2": m.read,
		})
		for _, name := range slices.Sorted(func(yield func(string) bool) {
			for name := range m.logs {
				if !yield(name) {
					return
				}
			}
		}) {
			w, err := m.opener.Open(context.Background(), ro(name))
			want(rt, err, nil)
			if got := len(readAll(t, w)); got != len(m.logs[name].records) {
				rt.Fatalf("log %s has %d records, want %d", name, got, len(m.logs[name].records))
			}
		}
	})
}
