package mutants

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// starting is a read hook that changes the options.
func starting(f func(w *wal, opt *walimpls.ReadOptions)) func(*wal, context.Context, walimpls.ReadOptions) (*scanner, error) {
	return func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
		f(w, &opt)
		return w.read(ctx, opt)
	}
}

// lostAs is a read hook that reads from another start where one is lost.
func lostAs(f func(start walimpls.Start, lost *walimpls.PositionLostError) (walimpls.Start, bool)) func(*wal, context.Context, walimpls.ReadOptions) (*scanner, error) {
	return func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
		s, err := w.read(ctx, opt)
		var lost *walimpls.PositionLostError
		if errors.As(err, &lost) {
			if start, other := f(opt.Start, lost); other {
				opt.Start = start
				return w.read(ctx, opt)
			}
		}
		return s, err
	}
}

var scanMutants = []Mutant{
	{Name: "from-excludes-start", Clause: "WAL-SCAN-002", Source: "S-02", Defect: "StartFrom begins behind the record",
		hooks: only(hooks{read: starting(func(_ *wal, opt *walimpls.ReadOptions) {
			if opt.Start.Policy == walimpls.PolicyFrom && !opt.Start.ID.IsZero() {
				opt.Start.Policy = walimpls.PolicyAfter
			}
		})})},
	{Name: "after-includes-start", Clause: "WAL-SCAN-003", Source: "S-02", Defect: "StartAfter begins at the record",
		hooks: only(hooks{read: starting(func(_ *wal, opt *walimpls.ReadOptions) {
			if opt.Start.Policy == walimpls.PolicyAfter && !opt.Start.ID.IsZero() {
				opt.Start.Policy = walimpls.PolicyFrom
			}
		})})},
	{Name: "latest-is-the-last-record", Clause: "WAL-SCAN-004", Source: "U-01", Defect: "Latest begins with the newest message",
		hooks: only(hooks{read: starting(func(w *wal, opt *walimpls.ReadOptions) {
			if b, err := w.WAL.Bounds(context.Background()); err == nil && opt.Start.Policy == walimpls.PolicyLatest && b.LatestRecord != "" {
				opt.Start = walimpls.StartFrom(b.LatestRecord)
			}
		})})},
	{Name: "latest-resolved-late", Clause: "WAL-SCAN-005", Source: "K-02", Defect: "Latest is resolved at the first Next",
		hooks: only(hooks{read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			s, err := w.read(ctx, opt)
			if err == nil && opt.Start.Policy == walimpls.PolicyLatest {
				s.place = "unresolved"
			}
			return s, err
		}, next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			s.mu.Lock()
			if s.place == "unresolved" && !s.closed {
				s.place = ""
				if again, err := s.wal.WAL.Read(ctx, s.opt); err == nil {
					_ = s.Scanner.Close()
					s.Scanner = again
				}
			}
			in := s.Scanner
			s.mu.Unlock()
			return in.Next(ctx)
		}, endScan: func(s *scanner) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closed = true
			return s.Scanner.Close()
		}})},
	{Name: "wakes-at-the-second", Clause: "WAL-SCAN-008", Source: "M-16", Defect: "a Next that waits wakes only when a second record comes",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, waited, err := s.waiting(ctx)
			if err != nil || !waited || len(recs) != 1 || recs[0].Type != message.TypeData {
				return recs, err
			}
			more, err := s.Scanner.Next(ctx)
			if err != nil {
				s.keep(recs)
				return nil, err
			}
			return append(recs, more...), nil
		}})},
	{Name: "one-place-for-all", Clause: "WAL-SCAN-009", Source: "M-23", Defect: "closing a scanner closes the one that was opened before it on the handle",
		hooks: func(*life) hooks {
			var mu sync.Mutex
			before, last := map[*scanner]*scanner{}, map[*wal]*scanner{}
			return hooks{read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
				s, err := w.read(ctx, opt)
				if err == nil && opt.BufferRecords > 0 && opt.BufferRecords <= 8 && opt.Start.Policy == walimpls.PolicyAll {
					mu.Lock()
					before[s], last[w] = last[w], s
					mu.Unlock()
				}
				return s, err
			}, endScan: func(s *scanner) error {
				mu.Lock()
				victim := before[s]
				mu.Unlock()
				if victim != nil && s.opt.BufferRecords > 1 {
					_ = victim.Scanner.Close()
				}
				return s.Scanner.Close()
			}}
		}},
	{Name: "stuck-reader-stops-writers", Clause: "WAL-SCAN-010", Source: "U-03", Defect: "a scanner that lies 256 KiB behind blocks appends",
		hooks: stuckReader},
	{Name: "context-loses-records", Clause: "WAL-SCAN-011", Defect: "what arrives while a Next gives up is lost",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			type result struct {
				recs []message.Message
				err  error
			}
			own, cancel := context.WithCancel(context.Background())
			done := make(chan result, 1)
			go func() {
				recs, err := s.Scanner.Next(own)
				done <- result{recs, err}
			}()
			select {
			case r := <-done:
				cancel()
				return r.recs, r.err
			case <-ctx.Done():
			}
			select { // it looks a little longer than it is asked to
			case <-done:
			case <-time.After(4 * time.Millisecond):
				cancel()
				<-done
			}
			cancel()
			return nil, ctx.Err()
		}})},
	{Name: "close-does-not-wake", Clause: "WAL-SCAN-012", Source: "M-23", Defect: "Close of a scanner does not wake its Next",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			if s.isClosed() {
				return nil, walimpls.Errorf(walimpls.CodeClosed, s.wal.channel.Name, "the scanner is closed")
			}
			return s.Scanner.Next(ctx)
		}, endScan: func(s *scanner) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closed = true
			return nil
		}})},
	{Name: "ignores-the-buffer", Clause: "WAL-SCAN-013", Defect: "one Next returns all there is",
		hooks: only(hooks{read: starting(func(_ *wal, opt *walimpls.ReadOptions) {
			opt.BufferRecords, opt.BufferBytes = 1<<20, 1<<30
		})})},
	{Name: "zero-id-is-earliest", Clause: "WAL-SCAN-014", Source: "M-09", Defect: "an empty or all-zero id starts at the earliest record",
		hooks: only(hooks{read: starting(func(_ *wal, opt *walimpls.ReadOptions) {
			if opt.Start.Policy >= walimpls.PolicyFrom && opt.Start.Policy <= walimpls.PolicyAfter && opt.Start.ID.IsZero() {
				opt.Start = walimpls.FromAll()
			}
		})})},
	{Name: "waits-above-latest", Clause: "WAL-SCAN-015", Source: "M-22", Defect: "a start above the latest id waits for it",
		hooks: only(hooks{read: lostAs(func(start walimpls.Start, lost *walimpls.PositionLostError) (walimpls.Start, bool) {
			return walimpls.FromLatest(), lost.Latest.Less(start.ID)
		})})},
	{Name: "bounds-forget-fences", Clause: "WAL-SCAN-017", Defect: "the latest id leaves fence records out",
		hooks: only(hooks{bounds: func(w *wal, ctx context.Context) (walimpls.Bounds, error) {
			b, err := w.WAL.Bounds(ctx)
			if b.LatestRecord != "" {
				b.Latest = b.LatestRecord
			}
			return b, err
		}})},
	{Name: "ids-in-wrong-order", Clause: "WAL-ID-002", Source: "U-02", Defect: "ids are little-endian, so 256 sorts before 255",
		hooks: littleEndian},
	{Name: "ids-too-short", Clause: "WAL-ID-001", Source: "U-02", Defect: "the description declares another layout than the ids have",
		hooks: only(hooks{describe: func(d *walimpls.Description) { d.IDLayout = "u32.u32.u8" }})},
	{Name: "ids-as-text", Clause: "WAL-ID-003", Source: "S-02", Defect: "a start is sought by comparing ids as decimal text",
		hooks: only(hooks{read: starting(func(w *wal, opt *walimpls.ReadOptions) {
			v, ok := opt.Start.ID.Uint64()
			b, err := w.WAL.Bounds(context.Background())
			if !ok || v == 0 || err != nil || opt.Start.ID < b.Earliest || b.Latest < opt.Start.ID {
				return
			}
			at, _ := b.Earliest.Uint64()
			for fmt.Sprint(at) < fmt.Sprint(v) { // "2" is not below "10", and comes first
				at++
			}
			opt.Start.ID = message.Uint64ID(at)
		})})},
	{Name: "foreign-id-is-earliest", Clause: "WAL-ID-004", Source: "M-22", Defect: "an id of another length starts at the earliest record",
		hooks: only(hooks{read: starting(func(_ *wal, opt *walimpls.ReadOptions) {
			if opt.Start.ID != "" && !opt.Start.ID.IsZero() && len(opt.Start.ID) != 8 {
				opt.Start = walimpls.FromAll()
			}
		})})},
}

// waiting is Next behind what keep put back, and whether there was nothing to
// return when it was called.
func (s *scanner) waiting(ctx context.Context) (recs []message.Message, waited bool, err error) {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	if held != nil {
		return held, false, nil
	}
	newest := message.ID("")
	if log := s.records(); len(log) > 0 {
		newest = log[len(log)-1].ID
	}
	recs, err = s.Scanner.Next(ctx)
	return recs, len(recs) > 0 && newest.Less(recs[0].ID), err
}

func (s *scanner) keep(recs []message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = recs
}

// littleEndian turns every id around on its way.
func littleEndian(*life) hooks {
	turn := func(id message.ID) message.ID {
		if len(id) != 8 {
			return id
		}
		b := []byte(id)
		for i := range 4 {
			b[i], b[7-i] = b[7-i], b[i]
		}
		return message.ID(b)
	}
	lost := func(err error) error {
		var l *walimpls.PositionLostError
		if errors.As(err, &l) {
			l.Earliest, l.Latest = turn(l.Earliest), turn(l.Latest)
		}
		var batch *walimpls.BatchError
		if errors.As(err, &batch) {
			for i := range batch.Outcomes {
				batch.Outcomes[i].ID = turn(batch.Outcomes[i].ID)
			}
		}
		return err
	}
	return hooks{
		append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			ids, err := w.WAL.Append(ctx, batch)
			for i := range ids {
				ids[i] = turn(ids[i])
			}
			return ids, lost(err)
		},
		read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			opt.Start.ID = turn(opt.Start.ID)
			s, err := w.read(ctx, opt)
			return s, lost(err)
		},
		next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			for i := range recs {
				recs[i].ID = turn(recs[i].ID)
			}
			return recs, lost(err)
		},
		truncate: func(w *wal, ctx context.Context, before message.ID) error {
			return w.WAL.Truncate(ctx, turn(before))
		},
		bounds: func(w *wal, ctx context.Context) (walimpls.Bounds, error) {
			b, err := w.WAL.Bounds(ctx)
			return walimpls.Bounds{Empty: b.Empty, Earliest: turn(b.Earliest), Latest: turn(b.Latest), LatestRecord: turn(b.LatestRecord)}, err
		},
	}
}

// stuckReader counts the bytes that lie before each open scanner of a log.
func stuckReader(*life) hooks {
	var mu sync.Mutex
	behind := map[*scanner]int{}
	room := make(chan struct{})
	wake := func() { close(room); room = make(chan struct{}) }
	full := func(w *wal) bool {
		for s, n := range behind {
			if n > 256<<10 && s.opt.BufferBytes > 0 && s.wal.channel.Name == w.channel.Name {
				return true
			}
		}
		return false
	}
	return hooks{
		append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			mu.Lock()
			for full(w) {
				r := room
				mu.Unlock()
				select {
				case <-r:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				mu.Lock()
			}
			for s := range behind {
				if s.wal.channel.Name == w.channel.Name {
					for i := range batch {
						behind[s] += batch[i].Size()
					}
				}
			}
			mu.Unlock()
			return w.WAL.Append(ctx, batch)
		},
		read: func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
			s, err := w.read(ctx, opt)
			if err == nil {
				mu.Lock()
				behind[s] = 0
				mu.Unlock()
			}
			return s, err
		},
		next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			mu.Lock()
			defer mu.Unlock()
			for i := range recs {
				behind[s] -= recs[i].Size()
			}
			wake()
			return recs, err
		},
		endScan: func(s *scanner) error {
			mu.Lock()
			delete(behind, s)
			wake()
			mu.Unlock()
			return s.Scanner.Close()
		},
	}
}
