package rmq

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// deadSpan is a range of record keys that belongs to no log any more.
type deadSpan struct{ start, end []byte }

// reclaim gives the space of truncated and dropped records back. Pebble drops
// tables that hold nothing else by itself; tables that hold live records too
// keep their dead ones until a compaction happens to meet them, which on an
// idle store is never. So this goroutine asks for it.
func (e *engine) reclaim(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.died:
		case <-ctx.Done():
			return
		}
		// Truncations come in swarms, one a channel.
		timer.Reset(e.settings.reclaimDelay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if err := e.reclaimOnce(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("store: space could not be given back now", zap.Error(err))
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

// reclaimOnce compacts what is worth it: a span that is large by itself, and
// all together when they are a good part of the store. So the dead never are
// much more than a third of the live, and no compaction rewrites much for little.
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
		if err := e.compact(ctx, s); err != nil {
			return err
		}
	}
	if dead >= max(worth, total/4) {
		return e.compact(ctx, deadSpan{small[0].start, small[len(small)-1].end})
	}
	return nil
}

func (e *engine) compact(ctx context.Context, s deadSpan) error {
	err := e.db.Compact(ctx, s.start, s.end, false)
	if errors.Is(err, pebble.ErrCancelledCompaction) {
		return nil // another one does the work
	}
	return err
}

// deadSpans returns what lies between the live records of the logs, in order.
func (e *engine) deadSpans() []deadSpan {
	e.mu.Lock()
	live := make([]row, 0, len(e.logs))
	for _, l := range e.logs {
		if s, _ := l.view.snapshot(); s.last > 0 || l.broken != nil {
			live = append(live, row{num: l.num, first: s.first})
		}
	}
	next := e.nextLog
	e.mu.Unlock()
	slices.SortFunc(live, func(a, b row) int { return int(int64(a.num) - int64(b.num)) })

	var spans []deadSpan
	start := recordKey(0, 0)
	add := func(end []byte) {
		if bytes.Compare(start, end) < 0 {
			spans = append(spans, deadSpan{start, end})
		}
	}
	for _, r := range live {
		add(recordKey(r.num, r.first))
		start = recordKey(r.num+1, 0)
	}
	add(recordKey(next, 0))
	return spans
}
