package mutants

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// pauseFor makes concurrent opens meet.
func pauseFor(ctx context.Context, opt walimpls.OpenOptions) {
	if opt.Term != 2 {
		return
	}
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
	}
}

// otherRuns reports whether the other life still runs.
func (l *life) otherRuns(other *life) bool {
	other.mu.Lock()
	defer other.mu.Unlock()
	return !other.closed
}

// short reports whether a context is one of those that are meant to end under way.
func short(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < 100*time.Millisecond
}

func unknown(channel string, n int) error {
	return walimpls.BatchFailure(channel, n, walimpls.Unknown, walimpls.Errorf(walimpls.CodeUnknownOutcome, channel, "the answer did not come"))
}

func endedHandle(channel string) error {
	return walimpls.Errorf(walimpls.CodeUnavailable, channel, "the handle has ended")
}

// background runs an append that its caller does not wait for.
func (w *wal) background(batch []message.Message) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = w.WAL.Append(ctx, batch)
	}()
	return done
}

var unknownMutants = []Mutant{
	{Name: "not-stored-but-is", Clause: "WAL-APP-012", Source: "W-03", Defect: "an append whose context ends is reported as not stored, and is stored",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if !short(ctx) || ctx.Err() != nil {
				return w.WAL.Append(ctx, batch)
			}
			<-w.background(batch)
			return nil, walimpls.Errorf(walimpls.CodeTimeout, w.channel.Name, "not stored in time")
		}})},
	{Name: "unknown-goes-on", Clause: "WAL-UNK-001", Defect: "a handle takes appends after an unknown outcome",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if !short(ctx) || ctx.Err() != nil {
				return w.WAL.Append(ctx, batch)
			}
			<-w.background(batch)
			return nil, unknown(w.channel.Name, len(batch))
		}})},
	{Name: "unknown-lands-late", Clause: "WAL-UNK-002", Defect: "a record whose outcome is unknown lands after the next Open",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			w.mu.Lock()
			ended := w.ended
			w.mu.Unlock()
			if ended {
				return nil, endedHandle(w.channel.Name)
			}
			if !short(ctx) || ctx.Err() != nil {
				return w.WAL.Append(ctx, batch)
			}
			w.mu.Lock()
			w.ended = true
			w.mu.Unlock()
			time.AfterFunc(25*time.Millisecond, func() {
				if owner := w.life.owner(w.channel.Name); owner != nil && owner != w {
					owner.background(batch)
				}
			})
			return nil, unknown(w.channel.Name, len(batch))
		}})},
	{Name: "unknown-is-retryable", Clause: "WAL-UNK-003", Defect: "an unknown outcome says that a retry can help",
		hooks: only(hooks{append: refusing(func(err error) error {
			for _, out := range walimpls.Outcomes("", 2, nil, err) {
				if e := walimpls.AsError(out.Err); out.State == walimpls.Unknown && e != nil {
					e.Retryable = true
				}
			}
			return err
		})})},
}

var crashMutants = []Mutant{
	{Name: "falsely-durable", Clause: "WAL-RST-001", Also: []string{"WAL-AUD-005"}, Source: "W-06", Defect: "nothing outlives a restart",
		hooks: only(hooks{fresh: true})},
	{Name: "acknowledges-before-storing", Clause: "WAL-CRASH-001", Source: "S-02", Defect: "the last record is acknowledged before it is stored, and lost by a kill",
		hooks: pending(false)},
	{Name: "pair-not-durable", Clause: "WAL-CRASH-002", Source: "W-06", Defect: "a kill forgets the pair of the last Open",
		hooks: func(l *life) hooks {
			if l.inner == nil { // the first life of a process, which nobody killed
				return hooks{}
			}
			return admits(func(_ *life, opt walimpls.OpenOptions, _ walimpls.Pair) bool {
				owner := l.owner(opt.Channel)
				return owner != nil && owner.bornBefore(l) && opt.Pair().Compare(owner.channel.Pair) >= 0
			})(l)
		}},
	{Name: "shows-before-storing", Clause: "WAL-CRASH-004", Source: "W-06", Defect: "scanners return records before they are stored",
		hooks: early},
}

// bornBefore reports whether the handle is of an earlier life than l now lives.
func (w *wal) bornBefore(l *life) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.life != l || w.born < l.number
}

// held is a record that was acknowledged and is not stored.
type held struct {
	w *wal
	m message.Message
}

// pending acknowledges a single record with the id that it will have, and stores
// it a little later. A kill loses it; so does a Close, if drops says so.
func pending(drops bool) func(*life) hooks {
	return func(l *life) hooks {
		var mu sync.Mutex
		waiting := map[string]*held{}
		flush := func(channel string) {
			if h := waiting[channel]; h != nil {
				delete(waiting, channel)
				_, _ = h.w.WAL.Append(context.Background(), []message.Message{h.m})
			}
		}
		flushed := func(channel string) {
			mu.Lock()
			defer mu.Unlock()
			flush(channel)
		}
		return hooks{
			open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				mu.Lock()
				defer mu.Unlock()
				flush(opt.Channel)
				return l.open(ctx, opt)
			},
			append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				mu.Lock()
				defer mu.Unlock()
				flush(w.channel.Name)
				simple := len(batch) == 1 && batch[0].Type == message.TypeData && batch[0].Size() < 100
				b, err := w.WAL.Bounds(ctx)
				latest, ok := b.Latest.Uint64()
				if !simple || err != nil || !ok || w.life.owner(w.channel.Name) != w || w.ended || short(ctx) || ctx.Err() != nil {
					ids, err := w.WAL.Append(ctx, batch)
					w.ended = w.ended || errors.Is(err, walimpls.ErrUnknownOutcome)
					return ids, err
				}
				h := &held{w: w, m: batch[0]}
				waiting[w.channel.Name] = h
				time.AfterFunc(5*time.Millisecond, func() {
					mu.Lock()
					defer mu.Unlock()
					if waiting[w.channel.Name] == h {
						flush(w.channel.Name)
					}
				})
				return []message.ID{message.Uint64ID(latest + 1)}, nil
			},
			read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
				flushed(w.channel.Name)
				return w.read(ctx, opt)
			},
			truncate: func(w *wal, ctx context.Context, before message.ID) error {
				flushed(w.channel.Name)
				return w.WAL.Truncate(ctx, before)
			},
			bounds: func(w *wal, ctx context.Context) (walimpls.Bounds, error) {
				flushed(w.channel.Name)
				return w.WAL.Bounds(ctx)
			},
			close: func(w *wal, ctx context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				if h := waiting[w.channel.Name]; h != nil && h.w == w {
					if drops {
						delete(waiting, w.channel.Name)
					}
					flush(w.channel.Name)
				}
				return w.WAL.Close(ctx)
			},
			closing: func() {
				mu.Lock()
				defer mu.Unlock()
				for c := range waiting {
					flush(c)
				}
			},
		}
	}
}

// volatileTruncation keeps the truncation points in memory and hides what lies
// before them.
func volatileTruncation(*life) hooks {
	var mu sync.Mutex
	points := map[string]message.ID{} // by store id
	point := func(w *wal) message.ID {
		mu.Lock()
		defer mu.Unlock()
		return points[w.channel.StoreID]
	}
	lost := func(w *wal) error {
		b, _ := w.WAL.Bounds(context.Background())
		b.Earliest = point(w)
		return walimpls.NewPositionLostError(w.channel.Name, b, "it was truncated")
	}
	return hooks{
		truncate: func(w *wal, ctx context.Context, before message.ID) error {
			b, err := w.WAL.Bounds(ctx)
			if err != nil || len(before) != 8 || b.Latest.Less(before) {
				return w.WAL.Truncate(ctx, before)
			}
			if err := w.WAL.Truncate(ctx, b.Earliest); err != nil { // is it allowed at all?
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			points[w.channel.StoreID] = max(points[w.channel.StoreID], before)
			return nil
		},
		bounds: func(w *wal, ctx context.Context) (walimpls.Bounds, error) {
			b, err := w.WAL.Bounds(ctx)
			if err == nil {
				b.Earliest = max(b.Earliest, point(w))
				if b.LatestRecord < b.Earliest {
					b.LatestRecord = ""
				}
			}
			return b, err
		},
		read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			p := point(w)
			switch {
			case p == "":
			case opt.Start.Policy == walimpls.PolicyAll:
				opt.Start = walimpls.StartFrom(p)
			case opt.Start.Policy >= walimpls.PolicyFrom && len(opt.Start.ID) == 8 && !opt.Start.ID.IsZero() && opt.Start.ID < p:
				return nil, lost(w)
			}
			return w.read(ctx, opt)
		},
		next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			if s.isClosed() {
				return s.Scanner.Next(ctx)
			}
			recs, err := s.Scanner.Next(ctx)
			if err == nil && recs[0].ID < point(s.wal) {
				s.keep(recs)
				return nil, lost(s.wal)
			}
			return recs, err
		},
		endScan: (*scanner).markClosed,
	}
}

// early shows a single record to scanners from Latest, with the id that it will
// have, a few milliseconds before it is stored.
func early(*life) hooks {
	var mu sync.Mutex
	shown := map[string]message.Message{} // by channel: what is about to be stored
	changed := make(chan struct{})
	show := func(channel string, m message.Message) {
		mu.Lock()
		defer mu.Unlock()
		shown[channel] = m
		close(changed)
		changed = make(chan struct{})
	}
	// sight is what the scanner may see early, and what tells of the next such thing.
	sight := func(s *scanner) (message.Message, <-chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		m := shown[s.wal.channel.Name]
		if s.opt.Start.Policy != walimpls.PolicyLatest || !s.place.Less(m.ID) {
			m = message.Message{}
		}
		return m, changed
	}
	var storing sync.Mutex
	return hooks{
		append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			if len(batch) != 1 || batch[0].Type != message.TypeData || batch[0].Size() > 100 || short(ctx) || w.life.owner(w.channel.Name) != w {
				return w.WAL.Append(ctx, batch)
			}
			storing.Lock()
			defer storing.Unlock()
			if b, err := w.WAL.Bounds(ctx); err == nil {
				m := batch[0]
				latest, _ := b.Latest.Uint64()
				m.ID, m.Term, m.Incarnation = message.Uint64ID(latest+1), w.channel.Term, w.channel.Incarnation
				show(w.channel.Name, m)
				select {
				case <-time.After(4 * time.Millisecond):
				case <-ctx.Done():
				}
				defer show(w.channel.Name, message.Message{})
			}
			return w.WAL.Append(ctx, batch)
		},
		next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			for {
				m, tell := sight(s)
				if m.ID != "" {
					s.place = m.ID
					return []message.Message{m}, nil
				}
				own, cancel := context.WithCancel(ctx)
				go func() {
					select {
					case <-tell:
						cancel()
					case <-own.Done():
					}
				}()
				recs, err := s.Scanner.Next(own)
				cancel()
				if err != nil && ctx.Err() == nil && own.Err() != nil && isCanceled(err) {
					continue
				}
				for len(recs) > 0 && recs[0].ID.Compare(s.place) <= 0 {
					recs = recs[1:]
				}
				if err != nil || len(recs) > 0 {
					if len(recs) > 0 {
						s.place = recs[len(recs)-1].ID
					}
					return recs, err
				}
			}
		},
	}
}

func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || walimpls.AsError(err).Code == walimpls.CodeCanceled
}
