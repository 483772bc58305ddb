package mutants

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// admits opens a refused pair all the same, if f says so: with the next pair of
// the store, and says that it is the one that was asked for.
func admits(f func(l *life, opt walimpls.OpenOptions, highest walimpls.Pair) bool) func(*life) hooks {
	return func(l *life) hooks {
		return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
			w, err := l.open(ctx, opt)
			var fenced *walimpls.FencedError
			if !errors.As(err, &fenced) || !f(l, opt, fenced.Highest) {
				return w, err
			}
			asked := opt.Pair()
			opt.Term, opt.Incarnation = fenced.Highest.Term, fenced.Highest.Incarnation+1
			if w, err = l.open(ctx, opt); err == nil {
				w.channel.Pair = asked
			}
			return w, err
		}}
	}
}

// zombie lets a fenced handle append through the owner's, if f says so.
func zombie(f func(old, owner *wal) bool) func(*life) hooks {
	return only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
		ids, err := w.WAL.Append(ctx, batch)
		if owner := w.life.owner(w.channel.Name); errors.Is(err, walimpls.ErrFenced) && owner != nil && owner != w && f(w, owner) {
			return owner.WAL.Append(ctx, batch)
		}
		if err == nil {
			w.mu.Lock()
			w.count++
			w.mu.Unlock()
		}
		return ids, err
	}})
}

var claimedMutants = []Mutant{
	{Name: "read-only-creates", Clause: "WAL-RO-001", Defect: "a read-only Open creates a missing log",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if opt.Access == walimpls.AccessReadOnly && errors.Is(err, walimpls.ErrNotFound) {
					first := opt
					first.Access, first.Term, first.Incarnation = walimpls.AccessReadWrite, 1, 0
					if made, err := l.open(ctx, first); err == nil {
						_ = made.WAL.Close(ctx)
					}
					return l.open(ctx, opt)
				}
				return w, err
			}}
		}},
	{Name: "read-only-without-pair", Clause: "WAL-RO-002", Defect: "a read-only handle does not know the highest pair",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if err == nil && opt.Access == walimpls.AccessReadOnly {
					w.channel.Pair = walimpls.Pair{}
				}
				return w, err
			}}
		}},
	{Name: "read-only-writes", Clause: "WAL-RO-003", Defect: "Append on a read-only handle is stored by way of the owner",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if owner := w.life.owner(w.channel.Name); w.channel.Access == walimpls.AccessReadOnly && owner != nil {
				return owner.WAL.Append(ctx, batch)
			}
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "read-only-fences", Clause: "WAL-RO-004", Defect: "a read-only Open fences the owner",
		hooks: func(l *life) hooks {
			var mu sync.Mutex
			fenced := map[*wal]bool{}
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				if owner := l.owner(opt.Channel); owner != nil && opt.Access == walimpls.AccessReadOnly {
					mu.Lock()
					fenced[owner] = true
					mu.Unlock()
				}
				return l.open(ctx, opt)
			}, append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				mu.Lock()
				out := fenced[w]
				mu.Unlock()
				if out {
					return nil, walimpls.Errorf(walimpls.CodeFenced, w.channel.Name, "fenced by a reader")
				}
				return w.WAL.Append(ctx, batch)
			}}
		}},
	{Name: "lower-term-opens", Clause: "WAL-FENCE-001", Source: "S-02", Defect: "an Open of a lower term succeeds",
		hooks: admits(func(_ *life, opt walimpls.OpenOptions, highest walimpls.Pair) bool { return opt.Term < highest.Term })},
	{Name: "equal-pair-opens", Clause: "WAL-FENCE-001", Source: "S-01", Defect: "an Open with the pair that is open succeeds again",
		hooks: admits(func(_ *life, opt walimpls.OpenOptions, highest walimpls.Pair) bool { return opt.Pair() == highest })},
	{Name: "incarnation-unchecked", Clause: "WAL-FENCE-001", Defect: "an Open of the present term succeeds with any incarnation",
		hooks: admits(func(_ *life, opt walimpls.OpenOptions, highest walimpls.Pair) bool {
			return opt.Term == highest.Term && opt.Incarnation < highest.Incarnation
		})},
	{Name: "fenced-without-highest", Clause: "WAL-FENCE-002", Defect: "the FencedError of Open carries no pair",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				var fenced *walimpls.FencedError
				if errors.As(err, &fenced) {
					fenced.Highest = walimpls.Pair{}
				}
				return w, err
			}}
		}},
	{Name: "fences-at-the-first-write", Clause: "WAL-FENCE-003", Source: "M-04", Defect: "an old term writes until the new owner does",
		hooks: zombie(func(old, owner *wal) bool {
			owner.mu.Lock()
			defer owner.mu.Unlock()
			return old.channel.Term < owner.channel.Term && owner.count == 0
		})},
	{Name: "never-fences", Clause: "WAL-FENCE-003", Also: []string{"WAL-AUD-004"}, Defect: "an old term writes for ever",
		hooks: zombie(func(old, owner *wal) bool { return old.channel.Term < owner.channel.Term })},
	{Name: "same-term-zombie", Clause: "WAL-FENCE-004", Defect: "an earlier handle of the same term writes on",
		hooks: zombie(func(old, owner *wal) bool { return old.channel.Term == owner.channel.Term })},
	{Name: "late-open-disturbs", Clause: "WAL-FENCE-005", Source: "M-02", Defect: "an Open that is refused has fenced an owner that was appending",
		hooks: func(l *life) hooks {
			var mu sync.Mutex
			busy, hit := map[*wal]int{}, map[*wal]bool{}
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if owner := l.owner(opt.Channel); owner != nil && errors.Is(err, walimpls.ErrFenced) {
					mu.Lock()
					hit[owner] = hit[owner] || busy[owner] > 0
					mu.Unlock()
				}
				return w, err
			}, append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				mu.Lock()
				busy[w]++
				out := hit[w]
				mu.Unlock()
				defer func() { mu.Lock(); busy[w]--; mu.Unlock() }()
				if out {
					return nil, walimpls.Errorf(walimpls.CodeFenced, w.channel.Name, "fenced by an open that was refused")
				}
				return w.WAL.Append(ctx, batch)
			}}
		}},
	{Name: "two-winners", Clause: "WAL-FENCE-007", Source: "M-02", Defect: "of two Opens with one pair at the same time both succeed",
		hooks: func(l *life) hooks {
			var mu sync.Mutex
			now := map[string]int{}
			admit := admits(func(_ *life, opt walimpls.OpenOptions, highest walimpls.Pair) bool {
				mu.Lock()
				defer mu.Unlock()
				return opt.Pair() == highest && now[opt.Channel] > 1
			})(l)
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				mu.Lock()
				now[opt.Channel]++
				mu.Unlock()
				defer func() { mu.Lock(); now[opt.Channel]--; mu.Unlock() }()
				pauseFor(ctx, opt)
				return admit.open(ctx, opt)
			}}
		}},
	{Name: "fenced-handle-truncates", Clause: "WAL-FENCE-008", Defect: "a fenced handle truncates",
		hooks: only(hooks{truncate: func(w *wal, ctx context.Context, before message.ID) error {
			err := w.WAL.Truncate(ctx, before)
			if owner := w.life.owner(w.channel.Name); errors.Is(err, walimpls.ErrFenced) && owner != nil {
				return owner.WAL.Truncate(ctx, before)
			}
			return err
		}})},
	{Name: "truncation-forgets-the-pair", Clause: "WAL-FENCE-009", Defect: "after a truncation up to the newest record any pair opens",
		hooks: admits(func(l *life, opt walimpls.OpenOptions, _ walimpls.Pair) bool {
			owner := l.owner(opt.Channel)
			ro, err := l.open(context.Background(), walimpls.OpenOptions{Channel: opt.Channel, Access: walimpls.AccessReadOnly})
			if err != nil || owner == nil {
				return false
			}
			defer func() { _ = ro.WAL.Close(context.Background()) }()
			b, err := ro.WAL.Bounds(context.Background())
			return err == nil && b.Earliest == b.Latest && b.LatestRecord == b.Latest
		})},
	{Name: "restart-forgets-the-pair", Clause: "WAL-FENCE-011", Source: "W-05", Defect: "after a restart the first Open of a log succeeds with any pair",
		hooks: admits(func(l *life, opt walimpls.OpenOptions, _ walimpls.Pair) bool {
			owner := l.owner(opt.Channel)
			return owner != nil && owner.life != l && !l.otherRuns(owner.life)
		})},
	{Name: "truncates-the-record", Clause: "WAL-TRUNC-001", Source: "S-02", Defect: "Truncate removes the record at the id, too",
		hooks: only(hooks{truncate: func(w *wal, ctx context.Context, before message.ID) error {
			b, err := w.WAL.Bounds(ctx)
			if v, ok := before.Uint64(); err == nil && ok && before.Less(b.Latest) && b.Earliest.Less(before) {
				before = message.Uint64ID(v + 1)
			}
			return w.WAL.Truncate(ctx, before)
		}})},
	{Name: "truncates-nothing", Clause: "WAL-TRUNC-001", Source: "W-04", Defect: "Truncate returns and removes nothing",
		hooks: only(hooks{truncate: func(w *wal, ctx context.Context, before message.ID) error {
			b, err := w.WAL.Bounds(ctx)
			if err == nil && len(before) == 8 && before.Compare(b.Latest) <= 0 && before.Compare(b.Earliest) > 0 {
				before = b.Earliest
			}
			return w.WAL.Truncate(ctx, before)
		}})},
	{Name: "second-truncate-fails", Clause: "WAL-TRUNC-002", Source: "S-01", Defect: "a Truncate behind the present point is refused",
		hooks: only(hooks{truncate: func(w *wal, ctx context.Context, before message.ID) error {
			b, err := w.WAL.Bounds(ctx)
			if err == nil && len(before) == 8 && before.Less(b.Earliest) {
				return walimpls.Errorf(walimpls.CodeInvalidArgument, w.channel.Name, "it was truncated already")
			}
			return w.WAL.Truncate(ctx, before)
		}})},
	{Name: "truncates-above-latest", Clause: "WAL-TRUNC-003", Defect: "Truncate above the latest id truncates up to it",
		hooks: only(hooks{truncate: func(w *wal, ctx context.Context, before message.ID) error {
			b, err := w.WAL.Bounds(ctx)
			if err == nil && len(before) == 8 && b.Latest.Less(before) {
				before = b.Latest
			}
			return w.WAL.Truncate(ctx, before)
		}})},
	{Name: "start-jumps-over-the-cut", Clause: "WAL-TRUNC-004", Source: "M-22", Defect: "a start that was truncated begins at the earliest record",
		hooks: only(hooks{read: lostAs(func(start walimpls.Start, lost *walimpls.PositionLostError) (walimpls.Start, bool) {
			return walimpls.FromAll(), start.ID.Less(lost.Earliest)
		})})},
	{Name: "scanner-jumps-over-the-cut", Clause: "WAL-TRUNC-005", Source: "M-22", Defect: "a scanner below the truncation point goes on at the earliest record",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			var lost *walimpls.PositionLostError
			if errors.As(err, &lost) {
				s.opt.Start = walimpls.FromAll()
				again, err := s.wal.WAL.Read(ctx, s.opt)
				if err != nil {
					return nil, err
				}
				s.Scanner = again
				return again.Next(ctx)
			}
			return recs, err
		}})},
	{Name: "restart-undoes-truncation", Clause: "WAL-TRUNC-008", Source: "W-05", Defect: "a truncation is forgotten by a restart",
		hooks: volatileTruncation},
	{Name: "drop-keeps-the-store-id", Clause: "WAL-DROP-001", Source: "M-22", Defect: "a log that was dropped and created again has the same store id",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if err == nil {
					w.channel.StoreID = "store-of-" + opt.Channel[:min(len(opt.Channel), 150)]
				}
				return w, err
			}}
		}},
	{Name: "second-drop-fails", Clause: "WAL-DROP-002", Source: "S-01", Defect: "Drop of a log that does not exist is ErrNotFound",
		hooks: func(l *life) hooks {
			return hooks{drop: func(ctx context.Context, channel string, term int64) error {
				inner, _ := l.current()
				ro, err := inner.Open(ctx, walimpls.OpenOptions{Channel: channel, Access: walimpls.AccessReadOnly})
				if errors.Is(err, walimpls.ErrNotFound) {
					return err
				}
				if err == nil {
					_ = ro.Close(ctx)
				}
				return inner.Drop(ctx, channel, term)
			}}
		}},
	{Name: "lower-term-drops", Clause: "WAL-DROP-003", Defect: "a Drop of a lower term deletes the log",
		hooks: func(l *life) hooks {
			return hooks{drop: func(ctx context.Context, channel string, _ int64) error {
				inner, _ := l.current()
				return inner.Drop(ctx, channel, 1<<62)
			}}
		}},
	{Name: "drop-leaves-handles", Clause: "WAL-DROP-004", Defect: "appends on a handle of a dropped log are acknowledged",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			ids, err := w.WAL.Append(ctx, batch)
			if errors.Is(err, walimpls.ErrFenced) && len(batch) == 1 && strings.Contains(err.Error(), "dropped") {
				return []message.ID{message.Uint64ID(99)}, nil
			}
			return ids, err
		}})},
	{Name: "drop-by-prefix", Clause: "WAL-DROP-005", Defect: "Drop deletes every log whose name begins like it",
		hooks: func(l *life) hooks {
			return hooks{drop: func(ctx context.Context, channel string, term int64) error {
				inner, _ := l.current()
				if walimpls.ValidateName("", channel) != nil {
					return inner.Drop(ctx, channel, term)
				}
				l.disk.mu.Lock()
				var names []string
				for n := range l.disk.owner {
					if rest, ok := strings.CutPrefix(n, channel); ok && rest != "" && (rest[0] < '1' || rest[0] > '9') {
						names = append(names, n)
					}
				}
				l.disk.mu.Unlock()
				for _, n := range names {
					_ = inner.Drop(ctx, n, 1<<62)
				}
				return inner.Drop(ctx, channel, term)
			}}
		}},
	{Name: "unclaimed-truncate-does-nothing", Clause: "WAL-AUD-001", Source: "S-02", Defect: "truncation is not claimed, and Truncate returns without an error",
		hooks: only(hooks{describe: func(d *walimpls.Description) { d.Capabilities.Truncation = walimpls.TruncationNone },
			truncate: func(*wal, context.Context, message.ID) error { return nil }})},
	{Name: "unclaimed-drop-does-nothing", Clause: "WAL-AUD-002", Source: "S-02", Defect: "Drop is not claimed, and returns without an error",
		hooks: only(hooks{describe: func(d *walimpls.Description) { d.Capabilities.Drop = false },
			drop: func(context.Context, string, int64) error { return nil }})},
	{Name: "unclaimed-read-only-fails-otherwise", Clause: "WAL-AUD-003", Defect: "read-only handles are not claimed, and a read-only Open is ErrInternal",
		hooks: func(l *life) hooks {
			return hooks{describe: func(d *walimpls.Description) { d.Capabilities.ReadOnly = false },
				open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
					if opt.Access == walimpls.AccessReadOnly {
						return nil, walimpls.Errorf(walimpls.CodeInternal, opt.Channel, "not written yet")
					}
					return l.open(ctx, opt)
				}}
		}},
	{Name: "falsely-exclusive", Clause: "WAL-AUD-006", Defect: "the store is said to be exclusive and lets a second process in",
		hooks: only(hooks{describe: func(d *walimpls.Description) { d.Capabilities.ExclusiveStore = true }})},
	{Name: "fencing-ends-at-the-process", Clause: "WAL-SHARE-001", Defect: "a handle is fenced by Opens of its own process alone",
		hooks: zombie(func(old, owner *wal) bool { return old.life != owner.life })},
}
