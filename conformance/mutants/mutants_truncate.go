package mutants

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// truncateMutants break what truncation promises beside its effect, and what an
// owner promises to the ones before it.
var truncateMutants = []Mutant{
	{Name: "empties-the-log", Clause: "WAL-TRUNC-006", Source: "S-02", Defect: "a Truncate at the newest record removes it, too",
		hooks: emptied},
	{Name: "truncates-what-comes", Clause: "WAL-TRUNC-007", Source: "W-05", Defect: "a Truncate beside appends removes up to the newest record of the moment",
		hooks: func(*life) hooks {
			var mu sync.Mutex
			under := map[string]int{}
			return hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				mu.Lock()
				under[w.channel.StoreID]++
				mu.Unlock()
				defer func() { mu.Lock(); under[w.channel.StoreID]--; mu.Unlock() }()
				return w.WAL.Append(ctx, batch)
			}, truncate: func(w *wal, ctx context.Context, before message.ID) error {
				mu.Lock()
				busy := under[w.channel.StoreID] > 0
				mu.Unlock()
				if busy {
					time.Sleep(time.Millisecond) // the time that it takes
					if b, err := w.WAL.Bounds(ctx); err == nil {
						before = b.Latest
					}
				}
				return w.WAL.Truncate(ctx, before)
			}}
		}},
	{Name: "never-frees", Clause: "WAL-TRUNC-009", Source: "W-04", Defect: "what is truncated goes on taking space",
		hooks: leaks(1)},
	{Name: "leaks-an-eighth", Clause: "WAL-TRUNC-009", Source: "W-04", Defect: "an eighth of what is truncated goes on taking space",
		hooks: leaks(8)},
	{Name: "in-flight-lands-behind", Clause: "WAL-FENCE-006", Source: "M-02", Defect: "an append that an Open overtakes is stored behind the fence record, and acknowledged",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			mine := w.life.owner(w.channel.Name) == w
			if mine && !short(ctx) {
				time.Sleep(100 * time.Microsecond) // the way to the store
			}
			ids, err := w.WAL.Append(ctx, batch)
			if owner := w.life.owner(w.channel.Name); mine && owner != w && errors.Is(err, walimpls.ErrFenced) {
				return owner.WAL.Append(ctx, batch)
			}
			return ids, err
		}})},
	{Name: "fenced-scanner-hangs", Clause: "WAL-FENCE-010", Source: "M-23", Defect: "a scanner of a fenced handle waits for ever",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			owner := s.wal.life.owner(s.wal.channel.Name)
			if err == nil && s.wal.channel.Access == walimpls.AccessReadWrite && owner != nil && owner != s.wal {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return recs, err
		}})},
}

// leaks makes the store take a share of everything that was ever appended.
func leaks(share int64) func(*life) hooks {
	return only(hooks{size: func(stored, appended int64) int64 { return stored + appended/share }})
}

// emptied hides the record at a truncation point that was the newest.
func emptied(*life) hooks {
	var mu sync.Mutex
	hidden := map[string]message.ID{} // by store id
	of := func(w *wal) message.ID {
		mu.Lock()
		defer mu.Unlock()
		return hidden[w.channel.StoreID]
	}
	return hooks{
		truncate: func(w *wal, ctx context.Context, before message.ID) error {
			b, err := w.WAL.Bounds(ctx)
			if err != nil {
				return err
			}
			if err := w.WAL.Truncate(ctx, before); err != nil {
				return err
			}
			if before == b.Latest {
				mu.Lock()
				hidden[w.channel.StoreID] = before
				mu.Unlock()
			}
			return nil
		},
		bounds: func(w *wal, ctx context.Context) (walimpls.Bounds, error) {
			b, err := w.WAL.Bounds(ctx)
			if err == nil && b.Earliest == of(w) {
				if b.Earliest == b.Latest {
					return walimpls.Bounds{Empty: true}, nil
				}
				v, _ := b.Earliest.Uint64()
				b.Earliest = message.Uint64ID(v + 1)
			}
			return b, err
		},
		read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			if id := of(w); id != "" && opt.Start.Policy == walimpls.PolicyAll {
				if b, err := w.WAL.Bounds(ctx); err == nil && b.Earliest == id {
					opt.Start = walimpls.StartAfter(id)
				}
			}
			return w.read(ctx, opt)
		},
	}
}
