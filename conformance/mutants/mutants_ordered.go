package mutants

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// orderedMutants break what a host needs in order to put records into tick order.
var orderedMutants = []Mutant{
	{Name: "sorts-batches-by-tick", Clause: "WAL-REORD-001", Source: "K-04", Defect: "the records of a batch are stored in the order of their ticks",
		hooks: only(hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
			batch = slices.Clone(batch)
			slices.SortStableFunc(batch, func(a, b message.Message) int { return cmp.Compare(a.TimeTick, b.TimeTick) })
			return w.WAL.Append(ctx, batch)
		}})},
	{Name: "one-time-tick-at-a-time", Clause: "WAL-REORD-001", Source: "M-11", Defect: "of two time ticks that Next returns together the first is left out",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			recs, err := s.Scanner.Next(ctx)
			last := -1
			for i := range recs {
				if recs[i].Type == message.TypeTimeTick && len(recs[i].LastConfirmed) == 8 {
					last = i
				}
			}
			out := make([]message.Message, 0, len(recs))
			for i := range recs {
				if recs[i].Type != message.TypeTimeTick || len(recs[i].LastConfirmed) != 8 || i == last {
					out = append(out, recs[i])
				}
			}
			return out, err
		}})},
	{Name: "drops-repeats", Clause: "WAL-REORD-002", Source: "U-04", Defect: "a record with the tick and content of one that is in the log is acknowledged with that one's id and not stored",
		hooks: func(*life) hooks {
			var mu sync.Mutex
			seen := map[string]message.ID{}
			return hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
				mu.Lock()
				defer mu.Unlock()
				var ids []message.ID
				for i := range batch {
					m := &batch[i]
					key := fmt.Sprintf("%s %d %d %s %s", w.channel.StoreID, w.channel.Term, m.TimeTick, m.Type, m.Payload)
					if id := seen[key]; m.Type == message.TypeData && m.TimeTick != 0 && id != "" {
						ids = append(ids, id)
						continue
					}
					if m.TimeTick == 0 { // it has no tick to be known by
						return w.WAL.Append(ctx, batch)
					}
					got, err := w.WAL.Append(ctx, batch[i:i+1])
					if err != nil {
						return nil, err
					}
					seen[key] = got[0]
					ids = append(ids, got[0])
				}
				return ids, nil
			}}
		}},
	{Name: "refuses-late-ticks", Clause: "WAL-REORD-003", Source: "M-16", Defect: "a record whose tick lies below that of a stored time tick record is acknowledged and dropped, unless it is a repeat",
		hooks: lateDropped},
	{Name: "terms-without-their-tail", Clause: "WAL-REORD-004", Source: "M-04", Defect: "an Open of a higher term drops the records behind the last time tick of the term before",
		hooks: func(*life) hooks {
			return hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
				return s.withoutTails(ctx)
			}}
		}},
	{Name: "swallows-time-ticks", Clause: "WAL-APP-005", Also: []string{"WAL-REORD-001", "WAL-TXN-001"}, Defect: "time tick records lose their tick",
		hooks: only(hooks{next: changed(func(_ *scanner, m *message.Message) {
			if m.Type == message.TypeTimeTick {
				m.TimeTick = 0
			}
		})})},
	{Name: "loses-last-confirmed", Clause: "WAL-APP-005", Also: []string{"WAL-REORD-005", "WAL-TXN-003"}, Defect: "the last confirmed id is lost",
		hooks: only(hooks{append: rewritten(func(m *message.Message) { m.LastConfirmed = "" })})},
	{Name: "pair-of-the-reader", Clause: "WAL-APP-006", Also: []string{"WAL-REORD-004", "WAL-TXN-002"}, Defect: "a record carries the pair of the handle through which it is read",
		hooks: only(hooks{next: changed(func(s *scanner, m *message.Message) {
			m.Term, m.Incarnation = s.wal.channel.Term, s.wal.channel.Incarnation
		})})},
	{Name: "txn-ids-of-one-byte", Clause: "WAL-APP-005", Also: []string{"WAL-TXN-001"}, Defect: "of the transaction id the lowest bit alone is kept",
		hooks: only(hooks{append: rewritten(func(m *message.Message) { m.TxnID = m.TxnID & 1 })})},
	{Name: "commit-ends-all", Clause: "WAL-TXN-001", Source: "M-12", Defect: "records of a transaction are not returned when another one's commit lies between them and its own",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			return s.withoutInterrupted(ctx)
		}})},
	{Name: "reopen-rolls-back", Clause: "WAL-TXN-002", Source: "M-12", Defect: "records of transactions that were open at an Open are not returned any more",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			return s.withoutReopened(ctx)
		}})},
	{Name: "parts-without-begin", Clause: "WAL-TXN-003", Source: "M-12", Defect: "a read that starts at an id leaves out transactions whose begin it did not meet in its first batch",
		hooks: only(hooks{next: func(s *scanner, ctx context.Context) ([]message.Message, error) {
			return s.withoutLaterBegins(ctx)
		}})},
}

// filtered is Next without the records that keep refuses; it goes on until there is one.
func (s *scanner) filtered(ctx context.Context, keep func(m *message.Message) bool) ([]message.Message, error) {
	for {
		recs, err := s.Scanner.Next(ctx)
		if err != nil {
			return nil, err
		}
		recs = slices.DeleteFunc(recs, func(m message.Message) bool { return !keep(&m) })
		if len(recs) > 0 {
			return recs, nil
		}
	}
}

// records returns the log as it is now.
func (s *scanner) records() []message.Message {
	return s.wal.life.disk.store.Records(s.wal.channel.Name)
}

// withoutTails leaves out the records with a tick that lie between the last time
// tick of a term and the fence record of the next.
func (s *scanner) withoutTails(ctx context.Context) ([]message.Message, error) {
	return s.filtered(ctx, func(m *message.Message) bool {
		if m.TimeTick == 0 || m.Type == message.TypeTimeTick {
			return true
		}
		log := s.records()
		if !slices.ContainsFunc(log, func(r message.Message) bool { return r.Term == m.Term && r.Type == message.TypeTimeTick }) {
			return true // the term has no time tick to lie behind
		}
		ticked := false // a time tick of this term lies behind it
		for i := range log {
			switch r := &log[i]; {
			case r.ID <= m.ID:
			case r.Term > m.Term:
				return ticked
			case r.Type == message.TypeTimeTick && r.TimeTick > m.TimeTick:
				ticked = true
			}
		}
		return true
	})
}

func (s *scanner) withoutInterrupted(ctx context.Context) ([]message.Message, error) {
	return s.filtered(ctx, func(m *message.Message) bool {
		if m.TxnID == 0 || m.Type != message.TypeData {
			return true
		}
		begun := false
		for _, r := range s.records() {
			if r.ID < m.ID && r.Type == message.TypeBeginTxn && r.TxnID == m.TxnID {
				begun = true
			}
			if r.ID > m.ID && r.Type == message.TypeCommitTxn {
				return !begun || r.TxnID == m.TxnID
			}
		}
		return true
	})
}

func (s *scanner) withoutReopened(ctx context.Context) ([]message.Message, error) {
	return s.filtered(ctx, func(m *message.Message) bool {
		if m.TxnID == 0 || m.Type != message.TypeData {
			return true
		}
		fence := false
		for _, r := range s.records() {
			switch {
			case r.ID <= m.ID:
			case r.Type == message.TypeFence:
				fence = true
			case r.Type == message.TypeCommitTxn && r.TxnID == m.TxnID:
				return !fence
			}
		}
		return true
	})
}

func (s *scanner) withoutLaterBegins(ctx context.Context) ([]message.Message, error) {
	return s.filtered(ctx, func(m *message.Message) bool {
		if s.opt.Start.Policy != walimpls.PolicyFrom || m.TxnID == 0 || m.Type != message.TypeBeginTxn {
			return true
		}
		return m.ID == s.opt.Start.ID
	})
}

// lateDropped remembers the highest time tick of each log, and what lies below it.
func lateDropped(l *life) hooks {
	var mu sync.Mutex
	highest := map[string]message.Tick{}
	seen := map[string]bool{}
	return hooks{append: func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error) {
		mu.Lock()
		defer mu.Unlock()
		var kept []message.Message
		dropped := map[int]bool{}
		for i := range batch {
			m := &batch[i]
			key := fmt.Sprint(w.channel.StoreID, m.TimeTick, string(m.Payload))
			if m.TimeTick != 0 && m.Type == message.TypeData && m.TimeTick < highest[w.channel.StoreID] && !seen[key] {
				dropped[i] = true
				continue
			}
			seen[key] = true
			kept = append(kept, *m)
		}
		if len(dropped) > 0 && len(kept) == 0 {
			b, err := w.WAL.Bounds(ctx)
			return slices.Repeat([]message.ID{b.Latest}, len(batch)), err
		}
		ids, err := w.WAL.Append(ctx, kept)
		if err != nil {
			return nil, err
		}
		for i := range batch {
			if m := &batch[i]; m.Type == message.TypeTimeTick && len(m.LastConfirmed) == 8 {
				highest[w.channel.StoreID] = max(highest[w.channel.StoreID], m.TimeTick)
			}
			if dropped[i] {
				ids = slices.Insert(ids, i, ids[max(0, i-1)])
			}
		}
		return ids, nil
	}}
}
