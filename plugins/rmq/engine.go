package rmq

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// engine is one opening of the store: the folder's lock, the segments, the logs
// in them, the committer and the keeper. It ends by close, or by itself when
// the disk fails; the opener then makes another one on the same folder.
//
// Lock order: engine.mu, then segmentSet.mu, then view.mu; supply.mu stands
// alone. None but supply.mu is held during a change of the file system.
type engine struct {
	settings settings
	log      *zap.Logger
	lock     io.Closer
	set      *segmentSet
	supply   *supply
	// stopped is closed when the engine takes nothing more.
	stopped chan struct{}
	// released is closed when nothing can touch the folder any more and its
	// lock is free.
	released chan struct{}

	// The committer's.
	w          writer
	full       bool                 // the last appends found the disk full
	storedNext uint64               // the number of the next log that will be stored
	stored     map[uint64]*logState // the logs that are in the store
	// Scratch of one commit: the logs with open frames, and what it finished.
	chosen   []*logState
	finished []*request

	// Of the keeper: died wakes it, kept is closed at its end.
	died chan struct{}
	kept chan struct{}

	mu      sync.Mutex // guards what follows
	state   engineState
	cause   error // of engineFailed
	logs    map[string]*logState
	leaving map[*logState]struct{} // being dropped
	nextLog uint64
	queue   queue
	taken   []*request // what the committer has in hand

	readMu    sync.RWMutex // held for reading while a segment is read
	readsOver bool         // guarded by readMu
}

type engineState int

const (
	engineRunning engineState = iota
	engineClosing
	engineFailed
)

// openEngine takes the folder and opens the store. ctx bounds the wait for the
// lock.
func openEngine(ctx context.Context, s settings, log *zap.Logger) (*engine, error) {
	lock, err := openFolder(ctx, s)
	if err != nil {
		return nil, err
	}
	s.segmentSize = fitting(s)
	dir := s.fs.PathJoin(s.dir, logName)
	e := &engine{
		settings: s, log: log, lock: lock,
		set:      newSegmentSet(s.fs, dir),
		supply:   newSupply(s, dir),
		released: make(chan struct{}),
		died:     make(chan struct{}, 1), kept: make(chan struct{}),
		stored:  make(map[uint64]*logState),
		logs:    make(map[string]*logState),
		leaving: make(map[*logState]struct{}),
		nextLog: 1,
		queue:   newQueue(s.queueBytes),
		stopped: make(chan struct{}),
	}
	if err := e.load(); err != nil {
		e.release()
		return nil, storeError("", fmt.Sprintf("open the store in %q", s.dir), err)
	}
	log.Info("store opened", zap.String("dir", s.dir), zap.Int("logs", len(e.logs)), zap.Int("segments", len(e.set.list)))
	go func() {
		defer close(e.kept)
		e.keep()
	}()
	e.noteDead() // what died before may not have been given back yet
	go e.run()
	return e, nil
}

// load reads the store and makes its end ready to be written to.
func (e *engine) load() error {
	if err := e.settings.fs.MkdirAll(e.set.dir, 0o700); err != nil {
		return err
	}
	if err := syncFolder(e.settings.fs, e.settings.dir); err != nil {
		return err
	}
	c, err := readStore(e.settings.fs, e.set.dir)
	if err != nil {
		return err
	}
	if err := c.fatal(); err != nil {
		return err
	}
	for _, p := range c.problems {
		e.log.Error("store: damaged data", zap.String("path", p.path), zap.Int64("position", p.pos), zap.String("channel", p.channel), zap.String("cause", p.Error()))
	}
	e.nextLog, e.storedNext = c.rows.nextLog, c.rows.nextLog
	for num, r := range c.rows.logs {
		l := &logState{row: *r, highest: r.pair, stored: true, runs: c.runs[num]}
		l.view.span = span{first: r.first, last: r.next - 1, lastRecord: r.lastRecord}
		e.logs[l.name], e.stored[num] = l, l
	}
	e.set.list = c.segments
	e.supply.adopt(c)
	if len(c.segments) == 0 {
		return e.begin()
	}
	return e.resume(c)
}

// begin makes the first segment of a new store.
func (e *engine) begin() error {
	p, err := e.supply.take()
	if err != nil {
		return err
	}
	e.w.into(p, func(b []byte) []byte { return e.snapshot(b, 0, 0) })
	e.w.opening()
	if err := errors.Join(e.w.write(), e.w.sync()); err != nil {
		return err
	}
	p.segment.size, p.segment.end = max(p.segment.size, e.w.end), e.w.end
	e.set.list = append(e.set.list, p.segment)
	return nil
}

// resume makes the newest segment's end ready. Its last commit was perhaps
// never synced, and after a failed sync the page cache may hold what the disk
// does not: so the commit is written again, in its place, and with it the
// frame that cuts off whatever lies behind. Nobody sees a record before that is
// durable.
func (e *engine) resume(c *contents) error {
	g := c.segments[len(c.segments)-1]
	file, err := e.settings.fs.OpenReadWrite(g.path, writeCategory)
	if err != nil {
		return err
	}
	e.w = writer{segment: g, file: file, end: c.active.tail, synced: c.active.tail, chain: c.active.chain, records: len(g.runs) > 0}
	e.w.begin()
	e.w.buf = append(e.w.buf, c.bytes[c.active.tail:c.active.end]...)
	e.w.opening()
	if err := e.w.write(); err != nil {
		return err
	}
	// Not only the data: the file may be younger than its last full sync.
	if err := file.Sync(); err != nil {
		return fmt.Errorf("sync %q: %w", g.path, err)
	}
	e.w.synced = e.w.end
	g.size, g.end = max(g.size, e.w.end), e.w.end
	return syncFolder(e.settings.fs, e.set.dir)
}

// snapshot appends the state of all stored logs, and where the segment before
// the new one ends.
func (e *engine) snapshot(b []byte, prevSegment uint64, prevEnd int64) []byte {
	nums := make([]uint64, 0, len(e.stored))
	next := uint64(1)
	for num := range e.stored {
		nums = append(nums, num)
	}
	slices.Sort(nums)
	if n := len(nums); n > 0 {
		next = nums[n-1] + 1
	}
	next = max(next, e.storedNext)
	s := snapshot{prevSegment: prevSegment, prevEnd: prevEnd, state: &rows{nextLog: next}}
	return s.encode(b, func(yield func(*row)) {
		for _, num := range nums {
			yield(&e.stored[num].row)
		}
	})
}

// failed ends the engine because of cause: everything that waits is refused,
// and readers end.
func (e *engine) failed(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != engineRunning {
		return
	}
	e.state, e.cause = engineFailed, cause
	e.log.Error("store failed; nothing more is acknowledged until it is opened again", zap.String("cause", cause.Error()))
	e.stopLocked()
}

// stopLocked refuses what waits and ends all readers, for the reason that
// usableLocked gives. The caller holds e.mu.
func (e *engine) stopLocked() {
	e.queue.refuseLocked(
		func(*request) bool { return true },
		func(r *request) error { return e.usableLocked(r.log.name) })
	close(e.stopped)
	e.supply.ending.Store(true)
	for _, l := range e.logs {
		l.view.finish(e.usableLocked(l.name))
	}
	for l := range e.leaving {
		l.view.finish(e.usableLocked(l.name))
	}
	e.queue.signal()
}

// usableLocked returns why the engine takes nothing more, nil while it does.
func (e *engine) usableLocked(channel string) error {
	switch e.state {
	case engineClosing:
		return walimpls.Errorf(walimpls.CodeClosed, channel, "the store is closed")
	case engineFailed:
		return failedError(channel, e.cause)
	}
	return nil
}

// usable reports whether the engine still runs.
func (e *engine) usable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state == engineRunning
}

// beginRead keeps the segments' files open until release is called.
func (e *engine) beginRead(channel string) (release func(), err error) {
	e.readMu.RLock()
	if !e.readsOver {
		return e.readMu.RUnlock, nil
	}
	e.readMu.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	return nil, e.usableLocked(channel)
}

// close ends the engine. It returns within the grace whatever hangs below; the
// folder's lock is then kept until the hanging operation is over, so that
// nobody else can write in between.
func (e *engine) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.settings.closeGrace)
	defer cancel()
	e.mu.Lock()
	if e.state == engineRunning {
		e.state = engineClosing
		e.stopLocked()
	}
	taken := e.taken
	e.mu.Unlock()
	e.waitOrAbandon(ctx, taken)
	select {
	case <-e.released:
		return nil
	case <-ctx.Done():
		return walimpls.Errorf(walimpls.CodeUnavailable, "", "close: a file operation in %q hangs; the folder stays locked until it ends: %w", e.settings.dir, ctx.Err())
	}
}

// waitOrAbandon gives requests that the committer has in hand a little time to
// end with their real outcome.
func (e *engine) waitOrAbandon(ctx context.Context, taken []*request) {
	ctx, cancel := context.WithTimeout(ctx, e.settings.inFlightGrace)
	defer cancel()
	for _, r := range taken {
		select {
		case <-r.done:
		case <-ctx.Done():
			e.mu.Lock()
			r.abandonLocked(errors.New("the handle was closed while the commit hung"))
			e.mu.Unlock()
		}
	}
}

// teardown is the end of the committer's goroutine.
func (e *engine) teardown() {
	<-e.kept
	e.mu.Lock()
	orderly := e.state == engineClosing
	e.mu.Unlock()
	if orderly {
		e.sayClosed()
	}
	e.readMu.Lock()
	e.readsOver = true
	e.readMu.Unlock()
	e.release()
	e.log.Debug("store closed", zap.String("dir", e.settings.dir))
}

// sayClosed writes the frame that proves everything before it durable, so that
// damage to the last commit is told from a torn one. It is a help, not a need.
func (e *engine) sayClosed() {
	e.w.begin()
	err := e.w.sync() // of what an interval has not reached
	if err == nil {
		e.w.bare(newFrame{frame: frame{kind: frameClose}})
		err = errors.Join(e.w.write(), e.w.sync())
	}
	if err != nil {
		e.log.Warn("store: closing it", zap.String("cause", err.Error()))
	}
}

// release closes all files and gives up the folder's lock.
func (e *engine) release() {
	if e.w.file != nil {
		_ = e.w.file.Close()
	}
	e.supply.close()
	e.set.close()
	if err := e.lock.Close(); err != nil {
		e.log.Warn("store: releasing the lock", zap.String("cause", err.Error()))
	}
	close(e.released)
}

// newStoreID returns a name that no other log has.
func newStoreID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// noteDead wakes the keeper; it never blocks.
func (e *engine) noteDead() {
	select {
	case e.died <- struct{}{}:
	default:
	}
}

// every is a ticker's channel, or nil for never.
func every(d time.Duration) (<-chan time.Time, func()) {
	if d <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(d)
	return t.C, t.Stop
}
