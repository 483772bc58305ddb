package rmq

import (
	"fmt"
	"runtime"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	// commitBytes bounds one commit: enough for any number of appenders, and
	// little enough that a sync does not take long.
	commitBytes = 4 << 20
	// commitYields: each yield lets appenders that the last commit woke queue
	// their next batch, which makes the next commit larger. A timer would only
	// add latency.
	commitYields = 3
)

// run is the committer: the only goroutine that writes records. It takes
// everything that waits, of all logs, and commits it with one write and one
// sync; requests that arrive meanwhile make the next commit. So the order of
// the queue is the order of every log.
func (e *engine) run() {
	defer e.teardown()
	tick, stop := every(e.settings.syncInterval)
	defer stop()
	for {
		select {
		case <-e.queue.wake:
		case <-tick:
			e.syncInterval()
		}
		for {
			for range commitYields {
				runtime.Gosched()
			}
			e.mu.Lock()
			if e.state != engineRunning {
				e.mu.Unlock()
				return
			}
			taken := e.queue.takeLocked(commitBytes)
			e.taken = taken
			e.mu.Unlock()
			if len(taken) == 0 {
				break
			}
			e.commit(taken)
			select {
			case <-tick: // also under constant load
				e.syncInterval()
			default:
			}
		}
	}
}

// syncInterval makes durable what was acknowledged since the last time.
func (e *engine) syncInterval() {
	if e.w.synced == e.w.end {
		return
	}
	if err := e.w.sync(); err != nil {
		e.failed(err)
	}
}

// commit makes the requests durable and ends each.
func (e *engine) commit(requests []*request) {
	if e.settings.onCommit != nil {
		e.settings.onCommit(len(requests))
	}
	requests = e.refuseIfFull(requests)
	sealed, err := e.build(&requests)
	if err == nil && len(e.w.buf) > 0 {
		err = e.w.write()
		if err == nil && e.settings.syncInterval == 0 {
			err = e.w.sync()
		}
	}
	if err != nil {
		if sealed != nil {
			_ = sealed.file.Close()
		}
		e.failed(err)
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, r := range requests {
			r.abandonLocked(fmt.Errorf("the commit failed: %w", err))
		}
		return
	}
	died := e.publish(sealed)
	done := e.finished[:0]
	e.mu.Lock()
	e.taken = nil
	for _, r := range requests {
		if r.kind == requestDrop {
			r.log.view.finish(droppedError(r.log.name, "read"))
			delete(e.leaving, r.log)
			died = true
		}
		if r.state == requestTaken {
			r.state = requestDone
			done = append(done, r)
		}
	}
	e.mu.Unlock()
	// Not under the lock: whoever wakes up wants it for the next append.
	for _, r := range done {
		close(r.done)
	}
	clear(done)
	e.finished = done[:0]
	if died || sealed != nil {
		e.noteDead()
	}
}

// build puts the frames of the requests into the writer's buffer, in a fresh
// segment if the present one is full; that one's file is returned.
func (e *engine) build(requests *[]*request) (sealed *sealing, err error) {
	w := &e.w
	need := int64(0)
	for _, r := range *requests {
		need += int64(len(r.data)+4*r.count()) + 2*frameHeaderLen + int64(len(r.data)/frameBody)*(frameHeaderLen+frameAlign)
		if r.kind == requestFence {
			need += 512 // a new log's row
		}
	}
	w.begin()
	if need > 0 && w.records && w.end+need > e.settings.segmentSize {
		sealed, err = e.roll()
		if vfs.IsNoSpaceError(err) {
			// Nothing was written: the appends can be refused, and the rest
			// still finds room at the end of the file.
			*requests = e.refuseAppends(*requests, func(r *request) error { return storeError(r.log.name, "append", err) })
			err = nil
		}
		if err != nil {
			return nil, err
		}
	}
	e.fill(*requests)
	return sealed, nil
}

// sealing is a segment that a commit has left.
type sealing struct {
	segment *segment
	file    vfs.File
}

// roll moves the writer to the next segment. The one before is durable whole
// by then, so that what is found in the new one proves it.
func (e *engine) roll() (*sealing, error) {
	if e.w.synced != e.w.end {
		if err := e.w.sync(); err != nil {
			return nil, err
		}
	}
	p, err := e.supply.take()
	if err != nil {
		return nil, err
	}
	old := &sealing{segment: e.w.segment, file: e.w.file}
	end := e.w.end
	e.w.into(p, func(b []byte) []byte { return e.snapshot(b, old.segment.num, end) })
	return old, nil
}

// fill turns requests into frames. Records of one log and pair that come one
// behind the other share frames; the order within each log is the requests'.
func (e *engine) fill(requests []*request) {
	w := &e.w
	open := e.chosen[:0]
	for _, r := range requests {
		l := r.log
		if r.kind == requestAppend {
			if len(l.pending) == 0 {
				open = append(open, l)
			}
			l.pending = append(l.pending, recordsOf{data: r.data, ends: r.ends})
			l.pendingPair = r.handle.ch.Pair
			r.first = l.next
			l.next += uint64(r.count())
			l.lastRecord = l.next - 1
			continue
		}
		e.flush(l)
		switch r.kind {
		case requestFence:
			e.fence(r)
		case requestTruncate:
			if r.first > l.first {
				l.first = r.first
				w.bare(newFrame{frame: frame{kind: frameTruncate, log: l.num, first: r.first}, log: l})
			}
		case requestDrop:
			delete(e.stored, l.num)
			w.bare(newFrame{frame: frame{kind: frameDrop, log: l.num}})
		case requestMove:
			if e.stored[l.num] == nil || r.frame.last() < l.first {
				continue // nobody needs it any more
			}
			start := w.open()
			w.buf = append(w.buf, r.data...)
			f := r.frame
			w.close(start, newFrame{frame: frame{kind: f.kind, log: f.log, first: f.first, count: f.count, pair: f.pair}, log: l, req: r})
			w.records = true
		}
	}
	for _, l := range open {
		e.flush(l)
	}
	clear(open)
	e.chosen = open[:0]
}

// flush writes the records of a log that wait for their frame.
func (e *engine) flush(l *logState) {
	if len(l.pending) == 0 {
		return
	}
	first := l.next
	for _, r := range l.pending {
		first -= uint64(r.count())
	}
	e.w.data(frameData, l, l.pendingPair, first, l.pending)
	l.pair = l.pendingPair
	clear(l.pending)
	l.pending = l.pending[:0]
	if cap(l.pending) > 4096 {
		l.pending = nil
	}
}

func (e *engine) fence(r *request) {
	w, l := &e.w, r.log
	f := frame{kind: frameFence, log: l.num, first: l.next, count: 1, pair: r.pair}
	start := w.open()
	if !l.stored {
		l.stored = true
		f.kind = frameCreate
		e.stored[l.num] = l
		e.storedNext = max(e.storedNext, l.num+1)
		w.buf = encodeCreate(w.buf, l.name, l.storeID)
	}
	r.first = l.next
	l.next++
	l.pair = r.pair
	w.records = true
	w.close(start, newFrame{frame: f, log: l})
}

// publish shows readers what became durable, before any appender hears of it:
// so what is acknowledged can be read at once. It reports whether records died.
func (e *engine) publish(sealed *sealing) (died bool) {
	w := &e.w
	e.set.mu.Lock()
	if sealed != nil {
		w.segment.size = max(w.segment.size, w.end)
		e.set.list = append(e.set.list, w.segment)
		sealed.segment.open = nil
	}
	g := w.segment
	g.end, g.size = w.end, max(g.size, w.end)
	for i := range w.frames {
		f := &w.frames[i]
		if !f.kind.records() {
			continue
		}
		began := g.add(&f.frame, f.pos)
		switch {
		case began == nil:
		case f.req != nil:
			f.req.runs = append(f.req.runs, began)
		default:
			f.log.runs = append(f.log.runs, began)
		}
	}
	e.set.mu.Unlock()
	for i := range w.frames {
		f := &w.frames[i]
		if f.log == nil || f.req != nil {
			continue
		}
		died = died || f.kind == frameTruncate
		f.log.view.publish(span{first: f.log.first, last: f.log.next - 1, lastRecord: f.log.lastRecord})
	}
	clear(w.frames)
	if cap(w.buf) > 2*commitBytes {
		w.buf = nil
	}
	if sealed != nil {
		_ = sealed.file.Close()
	}
	return died
}

// refuseIfFull ends the appends among the requests with ErrNoSpace, as not
// stored, while the file system has less free than the reserve. The reserve is
// what keeps opens, truncation and the keeper's work possible on a full disk.
func (e *engine) refuseIfFull(requests []*request) []*request {
	need := 0
	for _, r := range requests {
		if r.kind == requestAppend {
			need += len(r.data)
		}
	}
	if need == 0 {
		return requests
	}
	free, reserve, ok := e.supply.freeSpace()
	if !ok || free >= reserve+uint64(need) {
		e.full = false
		return requests
	}
	if !e.full {
		e.full = true
		e.log.Warn("appends are refused: the disk is full", zap.Uint64("free", free), zap.Uint64("reserve", reserve))
		e.noteDead()
	}
	return e.refuseAppends(requests, func(r *request) error {
		err := walimpls.Errorf(walimpls.CodeNoSpace, r.log.name, "append: the file system of %q has %d bytes free, %d are kept in reserve (key %q)",
			e.settings.dir, free, reserve, keyMinFree)
		err.Hint = "free space on the file system, or truncate"
		return err
	})
}

// refuseAppends ends the appends among the requests and returns the others.
func (e *engine) refuseAppends(requests []*request, why func(*request) error) []*request {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := requests[:0:0]
	for _, r := range requests {
		if r.kind != requestAppend {
			kept = append(kept, r)
			continue
		}
		r.finishLocked(requestRefused, why(r))
	}
	return kept
}
