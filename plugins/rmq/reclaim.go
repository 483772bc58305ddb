package rmq

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// deadSpan is a range of record keys that belongs to no log any more.
type deadSpan struct {
	start, end []byte
	before     []byte // the live key before start
	last       []byte // the last dead record, where a live one follows; else nil
}

// maxReclaimDelay bounds the pause between attempts that fail.
const maxReclaimDelay = time.Minute

// reclaim gives the space of truncated and dropped records back. Pebble by
// itself drops only tables that hold nothing else, not all of those, and on an
// idle store it never compacts the others. So this goroutine asks for it.
func (e *engine) reclaim(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	delay := e.settings.reclaimDelay
	for {
		select {
		case <-e.died:
		case <-ctx.Done():
			return
		}
		// Truncations come in swarms, one a channel.
		timer.Reset(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if err := e.reclaimOnce(ctx); err == nil || ctx.Err() != nil {
			delay = e.settings.reclaimDelay
		} else {
			delay = min(2*delay, maxReclaimDelay)
			e.log.Warn("store: space could not be given back now; it is tried again", zap.String("cause", err.Error()), zap.Duration("in", delay))
			e.noteDead()
		}
	}
}

// noteDead says that records died; it never blocks.
func (e *engine) noteDead() {
	select {
	case e.died <- struct{}{}:
	default:
	}
}

// reclaimOnce gives back what is worth it: a span that is large by itself, and
// all together when they are a good part of the store. So the dead never are
// much more than a third of the live, and nothing much is rewritten for little.
func (e *engine) reclaimOnce(ctx context.Context) error {
	spans := e.deadSpans()
	if len(spans) == 0 {
		return nil
	}
	worth := uint64(e.memtableSize() / 8)
	total, err := e.db.EstimateDiskUsage([]byte{prefixRecord}, []byte{prefixRecord + 1})
	if err != nil {
		return err
	}
	var small []deadSpan
	var dead uint64
	for _, s := range spans {
		size, err := e.db.EstimateDiskUsage(s.start, s.end)
		if err != nil {
			return err
		}
		if size < worth {
			dead += size
			small = append(small, s)
			continue
		}
		if err := e.giveBack(ctx, s); err != nil {
			return err
		}
	}
	if dead >= max(worth, total/4) {
		return e.db.Compact(ctx, small[0].start, small[len(small)-1].end, false)
	}
	return nil
}

// giveBack frees the space of one span: it compacts what overlaps it. A
// compaction writes before it deletes, so on a nearly full disk the span is cut
// out first, which drops whole tables and writes next to nothing.
func (e *engine) giveBack(ctx context.Context, s deadSpan) error {
	free, kept, ok := e.freeSpace()
	if !ok || free >= 2*kept {
		return e.db.Compact(ctx, s.start, s.end, false)
	}
	if err := e.cutOut(ctx, s); err != nil {
		return err
	}
	return e.db.Compact(ctx, s.before, s.end, false)
}

// cutOut removes a span from the tables' metadata. The files of the two tables
// at its ends keep their dead part until a compaction rewrites them, which it
// does only where newer data overlaps them. At the right end that is the last
// dead record's deletion, which is left for it; at the left end it is the
// truncated log's row, or what the neighbour appended lately.
func (e *engine) cutOut(ctx context.Context, s deadSpan) error {
	// The deletions must be in tables: Excise waits for memory to be flushed,
	// and cannot be interrupted.
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
	case <-ctx.Done():
		return ctx.Err()
	}
	end := s.end
	if s.last != nil {
		end = s.last
	}
	if bytes.Compare(s.start, end) >= 0 {
		return nil
	}
	return e.db.Excise(ctx, pebble.KeyRange{Start: s.start, End: end})
}

// deadSpans returns what lies between the live records of the logs, in order.
func (e *engine) deadSpans() []deadSpan {
	e.mu.Lock()
	type liveLog struct{ num, first, last uint64 }
	live := make([]liveLog, 0, len(e.logs))
	for _, l := range e.logs {
		if s, _ := l.view.snapshot(); s.last > 0 || l.broken != nil {
			live = append(live, liveLog{l.num, s.first, s.last})
		}
	}
	next := e.nextLog
	e.mu.Unlock()
	slices.SortFunc(live, func(a, b liveLog) int { return cmp.Compare(a.num, b.num) })

	var spans []deadSpan
	start, before := recordKey(0, 0), headerKey()
	for _, r := range live {
		s := deadSpan{start: start, before: before, end: recordKey(r.num, r.first)}
		if r.first > 1 {
			s.last = recordKey(r.num, r.first-1)
		}
		if bytes.Compare(s.start, s.end) < 0 {
			spans = append(spans, s)
		}
		start, before = recordKey(r.num+1, 0), recordKey(r.num, r.last)
	}
	if end := recordKey(next, 0); bytes.Compare(start, end) < 0 {
		spans = append(spans, deadSpan{start: start, before: before, end: end})
	}
	return spans
}
