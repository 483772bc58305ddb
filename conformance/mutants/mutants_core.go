package mutants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// All returns the mutants.
func All() []Mutant {
	return slices.Concat(rootMutants, lifecycleMutants, appendMutants, scanMutants, limitMutants, errorMutants, orderedMutants, claimedMutants, truncateMutants, unknownMutants, restartMutants, crashMutants)
}

// only makes hooks that need no state.
func only(h hooks) func(*life) hooks { return func(*life) hooks { return h } }

var lifecycleMutants = []Mutant{
	{Name: "description-changes", Clause: "WAL-LIFE-001", Defect: "Describe returns another version each time",
		hooks: func() func(*life) hooks {
			var n atomic.Int64
			return only(hooks{describe: func(d *walimpls.Description) { d.Version = fmt.Sprint(n.Add(1)) }})
		}()},
	{Name: "unknown-keys-pass", Clause: "WAL-LIFE-002", Source: "S-03", Defect: "a configuration with an unknown key is accepted",
		hooks: only(hooks{config: func(error) error { return nil }})},
	{Name: "fence-with-tick", Clause: "WAL-LIFE-004", Defect: "the fence record carries a tick",
		hooks: only(hooks{next: changed(func(_ *scanner, m *message.Message) {
			if m.Type == message.TypeFence {
				m.TimeTick = 1
			}
		})})},
	{Name: "names-unchecked", Clause: "WAL-LIFE-005", Defect: "Open takes any name",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				if walimpls.ValidateName("", opt.Channel) != nil && opt.Term > 0 {
					opt.Channel = fmt.Sprintf("x-%x", opt.Channel[:min(len(opt.Channel), 90)])
				}
				return l.open(ctx, opt)
			}}
		}},
	{Name: "incarnation-zero-is-one", Clause: "WAL-LIFE-006", Defect: "incarnation 0 opens as 1",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				if opt.Incarnation == 0 && opt.Access == walimpls.AccessReadWrite {
					opt.Incarnation = 1
				}
				return l.open(ctx, opt)
			}}
		}},
	{Name: "names-ignore-case", Clause: "WAL-LIFE-007", Defect: "names that differ in case alone are one log",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				name := opt.Channel
				opt.Channel = strings.ToLower(name)
				w, err := l.open(ctx, opt)
				if err == nil {
					w.channel.Name = name
				}
				return w, err
			}}
		}},
	{Name: "close-hangs", Clause: "WAL-LIFE-008", Source: "S-02", Defect: "Close of a handle never returns",
		hooks: only(hooks{close: func(w *wal, ctx context.Context) error {
			err := w.WAL.Close(ctx)
			<-w.life.target.release
			return err
		}})},
	{Name: "closed-is-unavailable", Clause: "WAL-LIFE-008", Source: "U-04", Defect: "Append on a closed handle is ErrUnavailable",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			ids, err := w.WAL.Append(ctx, batch)
			if _, each := err.(*walimpls.BatchError); !each && errors.Is(err, walimpls.ErrClosed) { //nolint:errorlint // the bare refusal is meant
				return nil, walimpls.Errorf(walimpls.CodeUnavailable, w.channel.Name, "try again")
			}
			return ids, err
		}})},
	{Name: "close-leaves-scanners", Clause: "WAL-LIFE-009", Source: "M-23", Defect: "scanners of a closed handle go on waiting",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			if errors.Is(err, walimpls.ErrClosed) && !s.isClosed() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return recs, err
		}, endScan: (*scanner).markClosed})},
	{Name: "close-drops-the-last", Clause: "WAL-LIFE-011", Source: "S-02", Defect: "the last record before a Close is acknowledged and dropped by it",
		hooks: pending(true)},
	{Name: "opener-reopens", Clause: "WAL-LIFE-012", Defect: "Open works after the Close of the opener",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if errors.Is(err, walimpls.ErrClosed) && l.boot(ctx) == nil {
					return l.open(ctx, opt)
				}
				return w, err
			}}
		}},
	{Name: "open-ignores-context", Clause: "WAL-LIFE-013", Source: "M-01", Defect: "Open does not look at its context",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				return l.open(context.WithoutCancel(ctx), opt)
			}}
		}},
}

// changed is a next hook that changes copies of the records.
func changed(f func(s *scanner, m *message.Message)) func(*scanner, context.Context) ([]message.Message, error) {
	return func(s *scanner, ctx context.Context) ([]message.Message, error) {
		recs, err := s.Scanner.Next(ctx)
		for i := range recs {
			f(s, &recs[i])
		}
		return recs, err
	}
}

// rewritten is an append hook that changes copies of the records.
func rewritten(f func(m *message.Message)) func(*wal, context.Context, []message.Message) ([]message.ID, error) {
	return func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
		batch = slices.Clone(batch)
		for i := range batch {
			f(&batch[i])
		}
		return w.WAL.Append(ctx, batch)
	}
}

func (s *scanner) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *scanner) markClosed() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.Scanner.Close()
}

var appendMutants = []Mutant{
	{Name: "reverses-batches", Clause: "WAL-APP-002", Source: "K-04", Defect: "a batch is stored back to front",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			batch = slices.Clone(batch)
			slices.Reverse(batch)
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "empty-payload-is-null", Clause: "WAL-APP-003", Source: "S-02", Defect: "an empty payload comes back as the word null",
		hooks: only(hooks{append: rewritten(func(m *message.Message) {
			if len(m.Payload) == 0 {
				m.Payload = []byte("null")
			}
		})})},
	{Name: "payload-is-text", Clause: "WAL-APP-003", Defect: "a payload ends at its first zero byte",
		hooks: only(hooks{append: rewritten(func(m *message.Message) {
			if at := bytes.IndexByte(m.Payload, 0); at >= 0 && m.Size() <= limits.MaxMessageBytes {
				m.Payload = m.Payload[:at]
			}
		})})},
	{Name: "loses-empty-properties", Clause: "WAL-APP-004", Source: "S-02", Defect: "a property with an empty value is lost",
		hooks: only(hooks{append: rewritten(func(m *message.Message) {
			p := maps.Clone(m.Properties)
			maps.DeleteFunc(p, func(_, v string) bool { return v == "" })
			m.Properties = p
		})})},
	{Name: "loses-txn-id", Clause: "WAL-APP-005", Also: []string{"WAL-TXN-001"}, Defect: "the transaction id is lost",
		hooks: only(hooks{append: rewritten(func(m *message.Message) { m.TxnID = 0 })})},
	{Name: "trusts-the-appender", Clause: "WAL-APP-006", Defect: "a record keeps the term that the appender put into it",
		hooks: func(l *life) hooks {
			return hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				ids, err := w.WAL.Append(ctx, batch)
				l.disk.mu.Lock()
				defer l.disk.mu.Unlock()
				for i := range ids {
					if batch[i].Term != 0 {
						l.disk.notes[ids[i]+message.ID(w.channel.StoreID)] = message.Message{Term: batch[i].Term, Incarnation: batch[i].Incarnation}
					}
				}
				return ids, err
			}, next: changed(func(s *scanner, m *message.Message) {
				l.disk.mu.Lock()
				defer l.disk.mu.Unlock()
				if n, ok := l.disk.notes[m.ID+message.ID(s.wal.channel.StoreID)]; ok {
					m.Term, m.Incarnation = n.Term, n.Incarnation
				}
			})}
		}},
	{Name: "stores-twice", Clause: "WAL-APP-007", Source: "K-04", Defect: "a retry of its own stores a batch twice",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			w.mu.Lock()
			w.count++
			n := w.count
			w.mu.Unlock()
			if len(batch) == 2 && n > 4 {
				_, _ = w.WAL.Append(ctx, batch)
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "loses-under-concurrency", Clause: "WAL-APP-008", Also: []string{"WAL-SOAK-001"}, Source: "M-23", Defect: "of two concurrent appends one is now and then lost, and acknowledged",
		hooks: only(hooks{append: meeting(func(a, b *met) {
			_ = a.run()
			b.ids, b.err = a.ids, a.err
		})})},
	{Name: "cross-wired", Clause: "WAL-APP-009", Source: "M-07", Defect: "of two concurrent appends each gets the id of the other",
		hooks: only(hooks{append: meeting(func(a, b *met) {
			if first, second := a.run(), b.run(); first == nil && second == nil {
				a.ids, b.ids = b.ids, a.ids
			}
		})})},
	{Name: "empty-batch-fails", Clause: "WAL-APP-010", Defect: "an empty batch is refused",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if len(batch) == 0 {
				return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, w.channel.Name, "nothing to append")
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "append-ignores-ended-context", Clause: "WAL-APP-011", Defect: "Append with a context that has ended stores all the same",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if ctx.Err() != nil {
				ctx = context.WithoutCancel(ctx)
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "keeps-the-callers-buffer", Clause: "WAL-APP-013", Defect: "a record shares its payload with the appender's buffer",
		hooks: func(l *life) hooks {
			return hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				ids, err := w.WAL.Append(ctx, batch)
				l.disk.mu.Lock()
				defer l.disk.mu.Unlock()
				for i := range ids {
					l.disk.notes[ids[i]+message.ID(w.channel.StoreID)] = batch[i]
				}
				return ids, err
			}, next: changed(func(s *scanner, m *message.Message) {
				l.disk.mu.Lock()
				defer l.disk.mu.Unlock()
				if n, ok := l.disk.notes[m.ID+message.ID(s.wal.channel.StoreID)]; ok {
					m.Payload = n.Payload
				}
			})}
		}},
	{Name: "stores-invalid-types", Clause: "WAL-APP-014", Defect: "a record of type invalid is stored as data",
		hooks: only(hooks{append: rewritten(func(m *message.Message) {
			if m.Type == message.TypeInvalid {
				m.Type = message.TypeData
			}
		})})},
	{Name: "cuts-batches", Clause: "WAL-APP-015", Source: "P-09", Defect: "of a batch above 4 MiB only the first 4 MiB are stored",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			size := 0
			for i := range batch {
				if size += batch[i].Size(); size > 4<<20 && i > 0 {
					ids, err := w.WAL.Append(ctx, batch[:i])
					for range batch[i:] {
						ids = append(ids, ids[len(ids)-1]+"x")
					}
					return ids, err
				}
			}
			return w.WAL.Append(ctx, batch)
		}})},
}

// met is one of two appends that meet.
type met struct {
	w     *wal
	ctx   context.Context
	batch []message.Message
	ids   []message.ID
	err   error
	done  chan struct{}
}

func (m *met) run() error {
	m.ids, m.err = m.w.WAL.Append(m.ctx, m.batch)
	return m.err
}

// meeting is an append hook that lets every few single records of one handle wait
// a little for another, and hands both to f.
func meeting(f func(a, b *met)) func(*wal, context.Context, []message.Message) ([]message.ID, error) {
	var mu sync.Mutex
	waiting := map[*wal]*met{}
	return func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
		_, short := ctx.Deadline()
		if short {
			deadline, _ := ctx.Deadline()
			short = time.Until(deadline) < time.Second
		}
		if len(batch) != 1 || batch[0].Size() > 1000 || short {
			return w.WAL.Append(ctx, batch)
		}
		mu.Lock()
		w.mu.Lock()
		w.count++
		n := w.count
		w.mu.Unlock()
		me := &met{w: w, ctx: ctx, batch: batch, done: make(chan struct{})}
		if other := waiting[w]; other != nil {
			delete(waiting, w)
			mu.Unlock()
			f(other, me)
			close(other.done)
			return me.ids, me.err
		}
		if n%5 != 0 {
			mu.Unlock()
			return w.WAL.Append(ctx, batch)
		}
		waiting[w] = me
		mu.Unlock()
		select {
		case <-me.done:
			return me.ids, me.err
		case <-time.After(3 * time.Millisecond):
		}
		mu.Lock()
		if waiting[w] == me {
			delete(waiting, w)
			mu.Unlock()
			return w.WAL.Append(ctx, batch)
		}
		mu.Unlock()
		<-me.done
		return me.ids, me.err
	}
}
