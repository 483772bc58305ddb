package mutants

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// rootMutants break what every check uses.
var rootMutants = []Mutant{
	{Name: "one-store-id", Clause: "WAL-LIFE-003", Source: "M-22", Defect: "all logs of a store have one store id",
		hooks: func(l *life) hooks {
			return hooks{open: func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
				w, err := l.open(ctx, opt)
				if err == nil {
					w.channel.StoreID = "the-store"
				}
				return w, err
			}}
		}},
	{Name: "returns-the-id-before", Clause: "WAL-APP-001", Source: "M-07", Defect: "Append returns the id of the record before",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			ids, err := w.WAL.Append(ctx, batch)
			for i := range ids {
				v, _ := ids[i].Uint64()
				ids[i] = message.Uint64ID(v - 1)
			}
			return ids, err
		}})},
	{Name: "swaps-neighbours", Clause: "WAL-SCAN-001", Source: "K-04", Also: []string{"WAL-REORD-001"}, Defect: "the first two records of what Next returns are swapped",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			if len(recs) > 1 {
				recs[0], recs[1] = recs[1], recs[0]
			}
			return recs, err
		}})},
	{Name: "close-denies-what-it-met", Clause: "WAL-LIFE-010", Source: "W-03", Defect: "an append that a Close meets is reported as not stored, and is stored",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			ids, err := w.WAL.Append(ctx, batch)
			w.mu.Lock()
			closed := w.ended
			w.mu.Unlock()
			if closed && errors.Is(err, walimpls.ErrUnknownOutcome) {
				return nil, walimpls.Errorf(walimpls.CodeClosed, w.channel.Name, "the handle is closed")
			}
			return ids, err
		}, close: func(w *wal, ctx context.Context) error {
			w.mu.Lock()
			w.ended = true
			w.mu.Unlock()
			return w.WAL.Close(ctx)
		}})},
	{Name: "latest-of-an-empty-log", Clause: "WAL-SCAN-006", Source: "K-02", Defect: "Latest on a log without messages begins behind the first one",
		hooks: only(hooks{read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			b, err := w.WAL.Bounds(ctx)
			s, readErr := w.read(ctx, opt)
			if err == nil && readErr == nil && opt.Start.Policy == walimpls.PolicyLatest && b.LatestRecord == "" {
				s.place = "missing the first"
			}
			return s, readErr
		}, next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			for err == nil && s.place != "" && len(recs) > 0 {
				if recs[0].Type == message.TypeFence {
					return recs[:1], nil
				}
				s.place = ""
				if recs = recs[1:]; len(recs) == 0 {
					recs, err = s.Scanner.Next(ctx)
				}
			}
			return recs, err
		}})},
	{Name: "crossed-starts", Clause: "WAL-SCAN-016", Source: "M-23", Defect: "of two Reads of a handle at the same time the second gets the start of the first",
		hooks: func(*life) hooks {
			var mu sync.Mutex
			under := map[*wal]*walimpls.ReadOptions{}
			return hooks{read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
				mu.Lock()
				if first := under[w]; first != nil {
					opt.Start = first.Start
				} else {
					under[w] = &opt
					defer func() { mu.Lock(); delete(under, w); mu.Unlock() }()
				}
				mu.Unlock()
				time.Sleep(200 * time.Microsecond) // so that they meet
				return w.read(ctx, opt)
			}}
		}},
	{Name: "after-a-hole-skips", Clause: "WAL-SCAN-007", Source: "U-01", Defect: "StartAfter of an id in a hole skips the next record",
		hooks: holed(func(start walimpls.Start, below uint64) walimpls.Start {
			if start.Policy == walimpls.PolicyAfter {
				return walimpls.StartAfter(message.Uint64ID(below + 1))
			}
			return walimpls.StartFrom(message.Uint64ID(below + 1))
		})},
	{Name: "hole-is-lost", Clause: "WAL-SCAN-007", Source: "M-22", Defect: "an id in a hole is PositionLostError",
		hooks: holed(func(walimpls.Start, uint64) walimpls.Start { return walimpls.StartFrom(message.Uint64ID(1 << 60)) })},
}

// stride is how far apart the ids of a log with holes are.
const stride = 3

// WithHoles is the reference with holes between all ids. It is correct.
var WithHoles = Mutant{Name: "with holes", hooks: holed(func(_ walimpls.Start, below uint64) walimpls.Start {
	return walimpls.StartFrom(message.Uint64ID(below + 1))
})}

// holed spreads the ids of the reference, so that there are holes between them.
// inHole says where a start at an id between the record below and the next begins.
func holed(inHole func(start walimpls.Start, below uint64) walimpls.Start) func(*life) hooks {
	out := func(id message.ID) message.ID {
		v, ok := id.Uint64()
		if !ok {
			return id
		}
		return message.Uint64ID(v * stride)
	}
	lost := func(err error) error {
		var l *walimpls.PositionLostError
		if errors.As(err, &l) {
			l.Earliest, l.Latest = out(l.Earliest), out(l.Latest)
		}
		var batch *walimpls.BatchError
		if errors.As(err, &batch) {
			for i := range batch.Outcomes {
				batch.Outcomes[i].ID = out(batch.Outcomes[i].ID)
			}
		}
		return err
	}
	return only(hooks{
		append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			ids, err := w.WAL.Append(ctx, batch)
			for i := range ids {
				ids[i] = out(ids[i])
			}
			return ids, lost(err)
		},
		read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			b, err := w.WAL.Bounds(ctx)
			if err != nil {
				return nil, err
			}
			if v, ok := opt.Start.ID.Uint64(); ok && v > 0 && opt.Start.Policy >= walimpls.PolicyFrom {
				first, _ := b.Earliest.Uint64()
				last, _ := b.Latest.Uint64()
				switch below := v / stride; {
				case v < first*stride:
					opt.Start.ID = message.Uint64ID(max(below, 1))
					if below >= first || below == 0 {
						opt.Start.ID = message.Uint64ID(first - 1)
					}
					if opt.Start.ID.IsZero() { // nothing was truncated: it lies before the first record
						opt.Start = walimpls.FromAll()
					}
				case v > last*stride:
					opt.Start.ID = message.Uint64ID(last + 1)
				case v%stride == 0:
					opt.Start.ID = message.Uint64ID(below)
				default:
					opt.Start = inHole(opt.Start, below)
				}
			}
			s, err := w.read(ctx, opt)
			return s, lost(err)
		},
		next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			for i := range recs {
				recs[i].ID = out(recs[i].ID)
			}
			return recs, lost(err)
		},
		truncate: func(w *wal, ctx context.Context, before message.ID) error {
			if v, ok := before.Uint64(); ok {
				before = message.Uint64ID((v + stride - 1) / stride)
			}
			return w.WAL.Truncate(ctx, before)
		},
		bounds: func(w *wal, ctx context.Context) (walimpls.Bounds, error) {
			b, err := w.WAL.Bounds(ctx)
			b.Earliest, b.Latest = out(b.Earliest), out(b.Latest)
			if b.LatestRecord != "" {
				b.LatestRecord = out(b.LatestRecord)
			}
			return b, err
		},
	})
}
