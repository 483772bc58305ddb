package flusher_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/sinktest"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// table is a database that keeps rows in memory. One transaction (its mutex)
// stores rows and checkpoint together, which makes it both file and manifest.
type table struct {
	mu   sync.Mutex
	logs map[string]*owned // by pchannel and store id
}

// owned is a log's data and the open that owns it: the term, and the how-manieth
// take-over of the term.
type owned struct {
	term  int64
	opens int
	by    *tableSink
	outs  map[string]*output
}

type output struct {
	turn    int // opens of this vchannel
	cp      message.Checkpoint
	files   []flusher.File
	rows    map[string][]message.Message // by file
	dropped bool
}

// tableSink is a flusher.Sink over a table.
type tableSink struct {
	t      *table
	closed bool
}

// Open implements flusher.Sink: the log's highest term owns it, and of one term
// the sink that opened last.
func (s *tableSink) Open(_ context.Context, key flusher.SinkKey) (flusher.VChannelSink, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.closed {
		return nil, walimpls.Errorf(walimpls.CodeClosed, key.PChannel, "the sink is closed")
	}
	name := key.PChannel + "/" + key.StoreID
	log := s.t.logs[name]
	if log == nil {
		log = &owned{outs: map[string]*output{}}
		s.t.logs[name] = log
	}
	if key.Term < log.term {
		return nil, walimpls.Errorf(walimpls.CodeFenced, key.PChannel, "term %d is below %d", key.Term, log.term)
	}
	if key.Term > log.term || log.by != s {
		log.term, log.by = key.Term, s
		log.opens++
	}
	out := log.outs[key.VChannel]
	if out == nil {
		out = &output{rows: map[string][]message.Message{}}
		log.outs[key.VChannel] = out
	}
	out.turn++
	return &rows{s: s, key: key, log: log, out: out, opens: log.opens, turn: out.turn}, nil
}

// VChannels implements flusher.Sink.
func (s *tableSink) VChannels(_ context.Context, pchannel, storeID string) ([]string, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.closed {
		return nil, walimpls.Errorf(walimpls.CodeClosed, pchannel, "the sink is closed")
	}
	var names []string
	if log := s.t.logs[pchannel+"/"+storeID]; log != nil {
		for name, out := range log.outs {
			if name != "" && !out.dropped && out.cp.StoreID != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Close implements flusher.Sink.
func (s *tableSink) Close() error {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.closed = true
	return nil
}

// rows is a flusher.VChannelSink.
type rows struct {
	s           *tableSink
	key         flusher.SinkKey
	log         *owned
	out         *output
	opens, turn int
	closed      bool
	gone        bool
}

func (r *rows) Checkpoint() message.Checkpoint {
	r.s.t.mu.Lock()
	defer r.s.t.mu.Unlock()
	return r.out.cp
}

func (r *rows) Flush(_ context.Context, batch []message.Message, cp message.Checkpoint) ([]flusher.File, error) {
	r.s.t.mu.Lock()
	defer r.s.t.mu.Unlock()
	if err := r.admit(cp); err != nil {
		return nil, err
	}
	r.out.cp, r.out.dropped = cp, false
	if len(batch) == 0 {
		return nil, nil
	}
	f := flusher.File{
		Path: fmt.Sprintf("%s/%s/%d", r.key.PChannel, r.key.VChannel, len(r.out.files)), Rows: int64(len(batch)), Term: r.key.Term,
		FirstTick: batch[0].TimeTick,
	}
	for i := range batch {
		f.FirstTick, f.LastTick = min(f.FirstTick, batch[i].TimeTick), max(f.LastTick, batch[i].TimeTick)
		f.Bytes += int64(batch[i].Size()) + 1
	}
	r.out.files = append(r.out.files, f)
	r.out.rows[f.Path] = slices.Clone(batch)
	return []flusher.File{f}, nil
}

// admit says why nothing may be written; the table is locked.
func (r *rows) admit(cp message.Checkpoint) error {
	refuse := func(code walimpls.Code, text string) error { return walimpls.Errorf(code, r.key.PChannel, "%s", text) }
	switch {
	case r.closed || r.s.closed:
		return refuse(walimpls.CodeClosed, "the output is closed")
	case r.opens != r.log.opens || r.turn != r.out.turn:
		return refuse(walimpls.CodeFenced, "another owner writes")
	case r.gone:
		return refuse(walimpls.CodeNotFound, "the vchannel was dropped")
	case cp.StoreID != r.key.StoreID, cp.Term < r.out.cp.Term, cp.Term == r.out.cp.Term && cp.Tick < r.out.cp.Tick:
		return refuse(walimpls.CodeInvalidArgument, "the checkpoint goes back, or is another log's")
	}
	return nil
}

func (r *rows) Files(context.Context) ([]flusher.File, error) {
	r.s.t.mu.Lock()
	defer r.s.t.mu.Unlock()
	if r.closed || r.s.closed {
		return nil, walimpls.Errorf(walimpls.CodeClosed, r.key.PChannel, "the output is closed")
	}
	return slices.Clone(r.out.files), nil
}

func (r *rows) Drop(_ context.Context, at message.Checkpoint) error {
	r.s.t.mu.Lock()
	defer r.s.t.mu.Unlock()
	if err := r.admit(at); err != nil {
		return err
	}
	r.out.cp, r.out.dropped, r.gone = at, true, true
	return nil
}

func (r *rows) Close() error {
	r.s.t.mu.Lock()
	defer r.s.t.mu.Unlock()
	r.closed = true
	return nil
}

// A sink of one's own: a database instead of files. A host uses it through
// flusher.Start, as host/flush does with the Parquet one.
func ExampleSink() {
	ctx := context.Background()
	var sink flusher.Sink = &tableSink{t: &table{logs: map[string]*owned{}}}
	key := flusher.SinkKey{PChannel: "orders", StoreID: "log-1", VChannel: "eu", Term: 1}
	first, _ := sink.Open(ctx, key)
	at := func(term int64, tick message.Tick) message.Checkpoint {
		return message.Checkpoint{StoreID: "log-1", ID: message.Uint64ID(uint64(tick)), Term: term, Tick: tick}
	}
	row := message.Message{ID: message.Uint64ID(7), Type: message.TypeData, VChannel: "eu", Term: 1, TimeTick: 7, Payload: []byte("hello")}
	files, err := first.Flush(ctx, []message.Message{row}, at(1, 7))
	fmt.Println(files[0].Path, files[0].Rows, err)

	// The next owner goes on behind the checkpoint, and the former one is fenced.
	key.Term = 2
	second, _ := sink.Open(ctx, key)
	fmt.Println("resume behind tick", second.Checkpoint().Tick)
	_, err = first.Flush(ctx, nil, at(1, 9))
	fmt.Println(walimpls.AsError(err).Code)
	// Output:
	// orders/eu/0 1 <nil>
	// resume behind tick 7
	// fenced
}

// TestExampleSinkKeepsTheContract runs the suite for sinks on it.
func TestExampleSinkKeepsTheContract(t *testing.T) {
	sinktest.Run(t, func(*testing.T) sinktest.Target {
		place := &table{logs: map[string]*owned{}}
		return sinktest.Target{
			New: func(*testing.T) flusher.Sink { return &tableSink{t: place} },
			ReadFile: func(_ *testing.T, f flusher.File) []message.Message {
				place.mu.Lock()
				defer place.mu.Unlock()
				for _, log := range place.logs {
					for _, out := range log.outs {
						if found, ok := out.rows[f.Path]; ok && out.files != nil && slices.Contains(out.files, f) {
							return slices.Clone(found)
						}
					}
				}
				return nil
			},
		}
	})
}
