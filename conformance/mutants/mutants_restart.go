package mutants

import (
	"context"
	"fmt"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// restartMutants forget something at a restart or a kill.
var restartMutants = []Mutant{
	{Name: "index-of-one-life", Clause: "WAL-RST-002", Source: "U-01", Defect: "after a restart a start at a record that is older begins with the earliest",
		hooks: func(l *life) hooks {
			var mu sync.Mutex
			began := map[string]message.ID{} // by store id: the newest id at the first open of this life
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if err != nil {
					return nil, err
				}
				b, err := w.WAL.Bounds(ctx)
				mu.Lock()
				defer mu.Unlock()
				if began[w.channel.StoreID] == "" {
					began[w.channel.StoreID] = b.Latest
				}
				return w, err
			}, read: starting(func(w *wal, opt *walimpls.ReadOptions) {
				mu.Lock()
				defer mu.Unlock()
				if opt.Start.Policy == walimpls.PolicyFrom && len(opt.Start.ID) == 8 && !opt.Start.ID.IsZero() && opt.Start.ID < began[w.channel.StoreID] {
					b, err := w.WAL.Bounds(context.Background())
					if err == nil && b.Earliest < opt.Start.ID {
						opt.Start = walimpls.FromAll()
					}
				}
			})}
		}},
	{Name: "store-id-of-one-life", Clause: "WAL-RST-003", Source: "M-22", Defect: "a log has another store id after a restart",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if err == nil {
					w.channel.StoreID = fmt.Sprintf("%s-%d", w.channel.StoreID, w.born)
				}
				return w, err
			}}
		}},
	{Name: "restart-undoes-drop", Clause: "WAL-DROP-006", Source: "W-05", Defect: "a Drop is forgotten by a restart unless the log is used before",
		hooks: lazyDrop(false)},
	{Name: "kill-undoes-drop", Clause: "WAL-CRASH-005", Source: "W-05", Defect: "a Drop is forgotten by a kill unless the log is used before",
		hooks: lazyDrop(true)},
	{Name: "kill-undoes-truncation", Clause: "WAL-CRASH-003", Source: "W-05", Defect: "a truncation is forgotten by a kill",
		hooks: lazyTruncation},
}

// lazyDrop notes a Drop of a log without open handles, and does it when the log is
// used next. finishes: an orderly stop does what is left.
func lazyDrop(finishes bool) func(*life) hooks {
	return func(l *life) hooks {
		var mu sync.Mutex
		open := map[string]int{}
		noted := map[string]int64{}
		var refs sync.Map // handles that count
		finish := func(ctx context.Context, channel string) {
			if term, ok := noted[channel]; ok {
				delete(noted, channel)
				inner, _ := l.current()
				_ = inner.Drop(ctx, channel, term)
			}
		}
		return hooks{
			open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				mu.Lock()
				defer mu.Unlock()
				finish(ctx, opt.Channel)
				w, err := l.open(ctx, opt)
				if err == nil {
					open[opt.Channel]++
					refs.Store(w, true)
				}
				return w, err
			},
			close: func(w *wal, ctx context.Context) error {
				if _, counts := refs.LoadAndDelete(w); counts {
					mu.Lock()
					open[w.channel.Name]--
					mu.Unlock()
				}
				return w.WAL.Close(ctx)
			},
			drop: func(ctx context.Context, channel string, term int64) error {
				mu.Lock()
				defer mu.Unlock()
				finish(ctx, channel)
				inner, _ := l.current()
				ro, err := inner.Open(ctx, walimpls.OpenOptions{Channel: channel, Access: walimpls.AccessReadOnly})
				if err != nil || open[channel] > 0 || term < ro.Channel().Pair.Term {
					if err == nil {
						_ = ro.Close(ctx)
					}
					return inner.Drop(ctx, channel, term)
				}
				noted[channel] = term
				return ro.Close(ctx)
			},
			closing: func() {
				mu.Lock()
				defer mu.Unlock()
				for c := range noted {
					if finishes {
						finish(context.Background(), c)
					}
				}
			},
		}
	}
}

// lazyTruncation is volatileTruncation whose points an orderly stop makes real.
func lazyTruncation(l *life) hooks {
	var mu sync.Mutex
	points := map[string]message.ID{} // by channel
	h := volatileTruncation(l)
	truncate := h.truncate
	h.truncate = func(w *wal, ctx context.Context, before message.ID) error {
		err := truncate(w, ctx, before)
		if err == nil {
			mu.Lock()
			points[w.channel.Name] = max(points[w.channel.Name], before)
			mu.Unlock()
		}
		return err
	}
	h.closing = func() {
		mu.Lock()
		defer mu.Unlock()
		for c, id := range points {
			if owner := l.owner(c); owner != nil {
				_ = owner.WAL.Truncate(context.Background(), id)
			}
		}
	}
	return h
}
