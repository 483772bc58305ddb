package rmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// errStopped ends the keeper's work when the engine stops.
var errStopped = errors.New("the store stops")

const (
	// moveBytes bounds what one request of a move copies at once.
	moveBytes = 1 << 20
	// maxKeepDelay bounds the pause between attempts that fail.
	maxKeepDelay = time.Minute
)

// keep is the keeper: it prepares segments, writes the index of finished ones,
// gives truncated ones back, and moves the rest out of those that are mostly
// truncated. It needs nobody to wait for it.
func (e *engine) keep() {
	// Truncations come in swarms, one a channel: what died waits for more. The
	// next segment may be wanted at once, and does not wait.
	timer := time.NewTimer(0)
	defer timer.Stop()
	waiting := true
	idle, stop := every(e.settings.idleAfter)
	defer stop()
	delay := e.settings.reclaimDelay
	for {
		select {
		case <-e.died:
			if !waiting {
				timer.Reset(delay)
				waiting = true
			}
		case <-timer.C:
			waiting = false
			if !e.tryReclaim(&delay) {
				timer.Reset(delay)
				waiting = true
			}
		case <-idle:
			e.tryReclaim(&delay)
		case <-e.stopped:
			return
		}
		if err := e.supply.prepare(); err != nil && !vfs.IsNoSpaceError(err) {
			e.failed(fmt.Errorf("prepare a segment: %w", err))
			return
		}
		e.index()
	}
}

// tryReclaim gives space back, and reports false if that is to be tried again
// after the delay.
func (e *engine) tryReclaim(delay *time.Duration) bool {
	err := e.reclaim()
	switch {
	case err == nil:
		*delay = e.settings.reclaimDelay
		return true
	case errors.Is(err, errStopped):
		return true
	}
	*delay = min(2*max(*delay, time.Millisecond), maxKeepDelay)
	e.log.Warn("store: space could not be given back now; it is tried again", zap.String("cause", err.Error()), zap.Duration("in", *delay))
	return false
}

// index writes the index files that are missing. One that cannot be written is
// only missed by the next opening, which reads the segment instead.
func (e *engine) index() {
	e.set.mu.RLock()
	var todo []*segment
	for _, g := range e.set.list[:len(e.set.list)-1] {
		if !g.indexed && len(g.damage) == 0 {
			todo = append(todo, g)
		}
	}
	e.set.mu.RUnlock()
	for _, g := range todo {
		if err := e.indexOne(g); err != nil {
			e.log.Warn("store: the index of a segment could not be written", zap.String("path", g.path), zap.String("cause", err.Error()))
			e.set.mu.Lock()
			g.indexed = true // not tried again
			e.set.mu.Unlock()
		}
	}
}

func (e *engine) indexOne(g *segment) error {
	// Nothing changes a finished segment's runs.
	b, places := encodeIndex(g.num, g.end, g.runs)
	path := e.settings.fs.PathJoin(e.set.dir, indexName(g.num))
	file, err := e.settings.fs.Create(path, writeCategory)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	g.indexed = true
	for i, r := range g.runs {
		r.frames, r.list = nil, places[i]
	}
	return nil
}

// reclaim gives back every segment without a live record, then moves the live
// records out of those with the fewest until the dead are less than a third of
// all, or than two segments.
func (e *engine) reclaim() error {
	for {
		live := e.liveBytes()
		e.set.mu.RLock()
		finished := slices.Clone(e.set.list[:len(e.set.list)-1])
		e.set.mu.RUnlock()
		var total, alive int64
		var victim *segment
		for _, g := range finished {
			n := live[g]
			if n == 0 && len(g.damage) == 0 {
				if err := e.giveBack(g); err != nil {
					return err
				}
				continue
			}
			total += g.size
			alive += min(n, g.size)
			if len(g.damage) == 0 && (victim == nil || n*victim.size < live[victim]*g.size) {
				victim = g
			}
		}
		dead := total - alive
		if victim == nil || dead <= max(2*e.settings.segmentSize, alive/2) || live[victim] > victim.size*3/4 {
			break
		}
		if err := e.move(victim); err != nil {
			return err
		}
	}
	_, err := e.supply.shrink()
	return err
}

// liveBytes returns the bytes of each segment's live records.
func (e *engine) liveBytes() map[*segment]int64 {
	logs := e.allLogs()
	live := map[*segment]int64{}
	e.set.mu.RLock()
	defer e.set.mu.RUnlock()
	for _, l := range logs {
		s, _ := l.view.snapshot()
		for _, r := range l.runs {
			if n := r.liveBytes(s.first); n > 0 {
				live[r.segment] += n
			}
		}
	}
	return live
}

// allLogs returns the logs whose records must stay, and drops the runs that
// are truncated.
func (e *engine) allLogs() []*logState {
	e.mu.Lock()
	logs := slices.Collect(maps.Values(e.logs))
	for l := range e.leaving {
		logs = append(logs, l)
	}
	e.mu.Unlock()
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	for _, l := range logs {
		s, _ := l.view.snapshot()
		n := 0
		for n < len(l.runs) && l.runs[n].last < s.first {
			n++
		}
		if n > 0 {
			l.runs = slices.Clone(l.runs[n:])
		}
	}
	return logs
}

// giveBack takes a segment out of use. A reader that is in it has it a while
// longer.
func (e *engine) giveBack(g *segment) error {
	e.set.mu.Lock()
	if g.readers > 0 {
		e.set.mu.Unlock()
		e.noteDead()
		return nil
	}
	g.dead = true
	if g.file != nil {
		_ = g.file.Close()
		g.file = nil
		e.set.opened--
	}
	e.set.list = slices.DeleteFunc(slices.Clone(e.set.list), func(other *segment) bool { return other == g })
	e.set.mu.Unlock()
	// Without its index first: an index alone would say that a segment is lost.
	err := e.settings.fs.Remove(e.settings.fs.PathJoin(e.set.dir, indexName(g.num)))
	if err != nil && !isNotExist(err) {
		return fmt.Errorf("remove the index of %q: %w", g.path, err)
	}
	return e.supply.giveBack(g)
}

// move copies the live records of a segment to the end of the store's log,
// and sends readers there.
func (e *engine) move(g *segment) error {
	for _, l := range e.allLogs() {
		e.set.mu.RLock()
		var here []*run
		for _, r := range l.runs {
			if r.segment == g {
				here = append(here, r)
			}
		}
		e.set.mu.RUnlock()
		for _, r := range here {
			if err := e.moveRun(l, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *engine) moveRun(l *logState, r *run) error {
	s, _ := l.view.snapshot()
	from := max(r.first, s.first)
	var moved []*run
	for id := from; id <= r.last; {
		frames, err := e.readFrames(l, r, id)
		if err != nil {
			return err
		}
		var requests []*request
		e.mu.Lock()
		if e.state != engineRunning {
			e.mu.Unlock()
			return errStopped
		}
		for i := range frames {
			f := frames[i].frame
			f.kind = frameMovedData
			if frames[i].kind != frameData && frames[i].kind != frameMovedData {
				f.kind = frameMovedFence
			}
			q := newRequest(requestMove, l)
			q.frame, q.data = f, frames[i].data
			if f.kind == frameMovedFence {
				q.data = nil
			}
			requests = append(requests, q)
			e.queue.pushMoveLocked(q)
			id = f.last() + 1
		}
		e.mu.Unlock()
		for _, q := range requests {
			if err := e.await(context.Background(), q); err != nil {
				return err
			}
			moved = append(moved, q.runs...)
		}
	}
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	// Runs of the log may have come or gone meanwhile, but not this one, unless
	// it was truncated.
	others := slices.DeleteFunc(slices.Clone(l.runs), func(other *run) bool { return other == r })
	for _, m := range moved {
		others = append(others, subtract(m, others)...)
		slices.SortFunc(others, compareRuns)
	}
	l.runs = others
	return nil
}

// readFrame is a frame with its body.
type readFrame struct {
	frame
	data []byte
}

// readFrames reads frames of a run from the one that holds id on.
func (e *engine) readFrames(l *logState, r *run, id uint64) ([]readFrame, error) {
	e.set.mu.Lock()
	file, err := e.set.acquireLocked(r.segment)
	refs := r.frames
	e.set.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer e.set.release(r.segment)
	if refs == nil {
		if refs, err = e.set.loadFrames(r); err != nil {
			return nil, err
		}
	}
	i := frameIndex(refs, id)
	var out []readFrame
	for total := 0; i < len(refs) && (total < moveBytes || len(out) == 0) && refs[i].first <= r.last; i++ {
		b := make([]byte, int64(refs[i].size)*frameAlign)
		if _, err := file.ReadAt(b, int64(refs[i].pos)*frameAlign); err != nil {
			return nil, fmt.Errorf("read %q: %w", r.segment.path, err)
		}
		f, body, err := checkFrame(b, r, refs[i])
		if err != nil {
			// It stays where it is, and so does its segment.
			e.set.mu.Lock()
			r.segment.damage = append(r.segment.damage, damage{pos: int64(refs[i].pos) * frameAlign, size: int64(len(b)), why: err.Error()})
			e.set.mu.Unlock()
			return nil, storeError(l.name, "move", err)
		}
		out = append(out, readFrame{f, body})
		total += len(b)
	}
	return out, nil
}
