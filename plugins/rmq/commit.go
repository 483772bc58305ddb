package rmq

import (
	"fmt"
	"math"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// droppedBelow dooms every record of a log.
const droppedBelow = math.MaxUint64

const (
	// commitBytes bounds one commit. Pebble makes a table of its own of a batch
	// above half a write buffer; the sync is paid for long before.
	commitBytes = 4 << 20
	// commitYields: each yield lets appenders that the last commit woke queue
	// their next batch, which makes the next commit larger. A timer would only
	// add latency.
	commitYields = 3
)

// run is the committer: the only goroutine that writes to Pebble. It takes
// everything that waits, of all logs, and commits it with one sync; requests
// that arrive meanwhile make the next commit. So the order of the queue is the
// order of every log.
func (e *engine) run() {
	defer e.teardown()
	for {
		<-e.queue.wake
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
		}
	}
}

// commit makes the requests durable and ends each.
func (e *engine) commit(requests []*request) {
	if e.settings.onCommit != nil {
		e.settings.onCommit(len(requests))
	}
	requests = e.refuseIfFull(requests)

	size := 0
	for _, r := range requests {
		size += len(r.data) + r.count()*(recordKeyLen+16) + 256
	}
	batch := e.db.NewBatchWithSize(size)
	touched := make(map[*logState]span, 8)
	died := false
	for _, r := range requests {
		switch r.kind {
		case requestTruncate:
			r.log.view.doom(r.first)
		case requestDrop:
			r.log.view.doom(droppedBelow)
		default:
			continue
		}
		died = true
	}
	err := e.fill(batch, requests, touched)
	if err == nil && !batch.Empty() {
		err = e.apply(batch)
	}
	if err != nil {
		e.gate.fail(err)
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, r := range requests {
			r.abandonLocked(fmt.Errorf("the commit failed: %w", err))
		}
		return
	}
	_ = batch.Close()
	if died {
		e.noteDead()
	}

	// Readers see the records before an appender hears of them, so that what
	// is acknowledged can be read at once.
	for l, s := range touched {
		l.view.publish(s)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken = nil
	for _, r := range requests {
		if r.kind == requestDrop {
			r.log.view.finish(droppedError(r.log.name, "read"))
			delete(e.leaving, r.log)
		}
		r.finishLocked(requestDone, nil)
	}
}

// fill turns requests into changes of keys, and notes in touched what readers
// shall see once they are durable.
func (e *engine) fill(batch *pebble.Batch, requests []*request, touched map[*logState]span) error {
	var key []byte
	for _, r := range requests {
		l := r.log
		s, ok := touched[l]
		if !ok && l != nil {
			s = l.view.span // only the committer writes it
		}
		switch r.kind {
		case requestBarrier:
			continue
		case requestDrop:
			if err := batch.Delete(rowKey(l.name), nil); err != nil {
				return err
			}
			if err := batch.DeleteRange(recordKey(l.num, 0), recordKey(l.num+1, 0), nil); err != nil {
				return err
			}
			continue
		case requestTruncate:
			if r.first <= l.first {
				continue
			}
			if err := batch.DeleteRange(recordKey(l.num, 0), recordKey(l.num, r.first), nil); err != nil {
				return err
			}
			l.first = r.first
			if err := batch.Set(rowKey(l.name), l.row().encode(), nil); err != nil {
				return err
			}
		case requestFence:
			if !l.stored {
				l.stored = true
				if err := batch.Set(headerKey(), encodeHeader(l.num+1), nil); err != nil {
					return err
				}
				if err := batch.Set(rowKey(l.name), l.row().encode(), nil); err != nil {
					return err
				}
			}
			m := message.Message{Type: message.TypeFence, Term: r.pair.Term, Incarnation: r.pair.Incarnation}
			r.first = l.next
			l.next++
			if err := batch.Set(recordKey(l.num, r.first), message.AppendRecord(nil, &m), nil); err != nil {
				return err
			}
		case requestAppend:
			r.first = l.next
			begin := 0
			for _, end := range r.ends {
				key = appendRecordKey(key[:0], l.num, l.next)
				if err := batch.Set(key, r.data[begin:end], nil); err != nil {
					return err
				}
				begin = end
				l.next++
			}
			s.lastRecord = l.next - 1
		}
		s.first, s.last = l.first, l.next-1
		touched[l] = s
	}
	return nil
}

// row returns what is stored of the log now; for the committer.
func (l *logState) row() row { return row{num: l.num, first: l.first, storeID: l.storeID} }

// apply commits the batch and syncs it. Pebble answers success also for work
// that the gate swallowed, hence the second question.
func (e *engine) apply(batch *pebble.Batch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("pebble panicked: %v", p)
		}
	}()
	if err := e.db.Apply(batch, pebble.Sync); err != nil {
		return err
	}
	return e.gate.failure()
}

// refuseIfFull ends the appends among the requests with ErrNoSpace, as not
// stored, while the file system has less free than the reserve. The reserve is
// what keeps opens, truncation and Pebble's own work possible on a full disk.
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
	free, reserve, ok := e.freeSpace()
	if !ok || free >= reserve+uint64(need) {
		e.full = false
		return requests
	}
	if !e.full {
		e.full = true
		e.log.Warn("appends are refused: the disk is full", zap.Uint64("free", free), zap.Uint64("reserve", reserve))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := requests[:0:0]
	for _, r := range requests {
		if r.kind != requestAppend {
			kept = append(kept, r)
			continue
		}
		err := walimpls.Errorf(walimpls.CodeNoSpace, r.log.name, "append: the file system of %q has %d bytes free, %d are kept in reserve (key %q)",
			e.settings.dir, free, reserve, keyMinFree)
		err.Hint = "free space on the file system, or truncate"
		r.finishLocked(requestRefused, err)
	}
	return kept
}
