package scanner

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// reorder holds records until a time tick releases them in tick order.
type reorder struct {
	channel  string
	dropLate bool
	// waiting is in tick order but for what came behind sorted.
	waiting []message.Message
	sorted  bool
	bytes   int
	// last is the last released tick; it never goes back.
	last message.Tick
	// recent remembers what was released, to tell a repeat from a late record.
	recent      []message.Message
	recentBytes int
	violations  int64
}

// The bounds of what is remembered of released records.
const (
	maxRecent      = 1024
	maxRecentBytes = 1 << 20
)

func newReorder(channel string, dropLate bool) *reorder {
	return &reorder{channel: channel, dropLate: dropLate, sorted: true}
}

// push takes a record that is not a time tick. A tick that was released already
// is a repeat, or late.
func (r *reorder) push(m message.Message) error {
	if m.TimeTick <= r.last {
		if r.repeats(m) {
			return nil
		}
		return r.late(m, "its tick was released already")
	}
	if n := len(r.waiting); n > 0 && m.TimeTick <= r.waiting[n-1].TimeTick {
		r.sorted = false
	}
	r.waiting = append(r.waiting, m)
	r.bytes += m.Size()
	return nil
}

// expect makes room for n records, which would grow it step by step otherwise:
// what was released has taken the room along.
func (r *reorder) expect(n int) { r.waiting = slices.Grow(r.waiting, n) }

func (r *reorder) repeats(m message.Message) bool {
	for i := range r.recent {
		if same(&r.recent[i], &m) {
			return true
		}
	}
	return false
}

func (r *reorder) late(m message.Message, why string) error {
	r.violations++
	if r.dropLate {
		return nil
	}
	return walimpls.Errorf(walimpls.CodeCorrupt, r.channel,
		"time tick violation: record %s of term %d.%d with tick %d: %s (last released tick %d)", m.ID, m.Term, m.Incarnation, m.TimeTick, why, r.last)
}

// release returns what waits with a tick at or below the time tick's, in tick
// order. A time tick at or below the last released one releases nothing.
func (r *reorder) release(tick message.Tick) ([]message.Message, error) {
	if tick <= r.last {
		return nil, nil
	}
	if !r.sorted {
		slices.SortStableFunc(r.waiting, func(a, b message.Message) int { return cmp.Compare(a.TimeTick, b.TimeTick) })
		if err := r.dropRepeats(); err != nil {
			return nil, err
		}
		r.sorted = true
	}
	n, _ := slices.BinarySearchFunc(r.waiting, tick+1, func(m message.Message, t message.Tick) int { return cmp.Compare(m.TimeTick, t) })
	out := r.waiting[:n:n]
	r.waiting = r.waiting[n:]
	for i := range out {
		r.bytes -= out[i].Size()
	}
	r.last = tick
	r.remember(out)
	return out, nil
}

// dropRepeats drops neighbours that are the same record; two records with one
// tick that are not the same are late, the later one.
func (r *reorder) dropRepeats() error {
	kept := r.waiting[:0]
	for _, m := range r.waiting {
		if n := len(kept); n > 0 && kept[n-1].TimeTick == m.TimeTick {
			r.bytes -= m.Size()
			if same(&kept[n-1], &m) {
				continue
			}
			if err := r.late(m, "another record has its tick"); err != nil {
				return err
			}
			continue
		}
		kept = append(kept, m)
	}
	clear(r.waiting[len(kept):])
	r.waiting = kept
	return nil
}

// remember keeps the newest released records within its bounds.
func (r *reorder) remember(out []message.Message) {
	for i := max(0, len(out)-maxRecent); i < len(out); i++ {
		r.recent = append(r.recent, out[i])
		r.recentBytes += out[i].Size()
	}
	drop := 0
	for drop < len(r.recent) && (len(r.recent)-drop > maxRecent || r.recentBytes > maxRecentBytes) {
		r.recentBytes -= r.recent[drop].Size()
		drop++
	}
	r.recent = slices.Delete(r.recent, 0, drop)
}

// same reports whether two records are one: equal (term, tick) and content. The
// id and the incarnation may differ.
func same(a, b *message.Message) bool {
	return a.TimeTick == b.TimeTick && a.Term == b.Term && a.Type == b.Type && a.VChannel == b.VChannel && a.TxnID == b.TxnID &&
		bytes.Equal(a.Payload, b.Payload) && maps.Equal(a.Properties, b.Properties)
}
