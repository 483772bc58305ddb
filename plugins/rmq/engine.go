package rmq

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// engine is one opening of the store: the folder's lock, a Pebble instance, the
// logs in it, and the committer. It ends by close, or by itself when the store
// fails; the opener then makes another one on the same folder.
//
// Lock order: engine.mu, then view.mu. Neither is held during a call of Pebble
// or of the file system, because Pebble calls back (gate.onFail) from within.
type engine struct {
	settings settings
	log      *zap.Logger
	lock     io.Closer
	gate     *gate
	db       *pebble.DB
	// opening is true while pebble.Open runs.
	opening atomic.Bool
	// stopped is closed when the engine takes nothing more.
	stopped chan struct{}
	// released is closed when nothing can touch the folder any more and its
	// lock is free.
	released chan struct{}

	full bool // the committer's: the last appends found the disk full

	// died wakes reclaim, which stopReclaim ends; reclaimed is closed then.
	died        chan struct{}
	stopReclaim context.CancelFunc
	reclaimed   chan struct{}

	mu      sync.Mutex // guards what follows
	state   engineState
	cause   error // of engineFailed
	logs    map[string]*logState
	leaving map[*logState]struct{} // being dropped
	nextLog uint64
	queue   queue
	taken   []*request // what the committer has in hand

	readMu    sync.RWMutex // held for reading while an iterator is open
	readsOver bool         // guarded by readMu
}

type engineState int

const (
	engineRunning engineState = iota
	engineClosing
	engineFailed
)

// openEngine takes the folder and opens the store. ctx bounds the wait for the
// lock; Pebble itself cannot be interrupted.
func openEngine(ctx context.Context, s settings, log *zap.Logger) (*engine, error) {
	lock, err := openFolder(ctx, s)
	if err != nil {
		return nil, err
	}
	e := &engine{
		settings: s, log: log, lock: lock,
		released: make(chan struct{}),
		died:     make(chan struct{}, 1), reclaimed: make(chan struct{}),
		logs:    make(map[string]*logState),
		leaving: make(map[*logState]struct{}),
		nextLog: 1,
		queue:   newQueue(s.queueBytes),
		stopped: make(chan struct{}),
	}
	e.gate = newGate(s.fs, s.retryPause, e.failed)
	err = e.openPebble()
	if err == nil {
		err = e.load()
	}
	if err == nil {
		e.gate.to(gateOpen)
		err = e.gate.failure()
	}
	if err != nil {
		e.release()
		return nil, storeError("", fmt.Sprintf("open the store in %q", s.dir), err)
	}
	log.Info("store opened", zap.String("dir", s.dir), zap.Int("logs", len(e.logs)))
	reclaimCtx, stop := context.WithCancel(context.Background())
	e.stopReclaim = stop
	go func() {
		defer close(e.reclaimed)
		e.reclaim(reclaimCtx)
	}()
	e.noteDead() // what died before may not have been given back yet
	go e.run()
	return e, nil
}

// openPebble opens the database. What Pebble finds in its log it has written to
// tables, synced, before it returns: so nothing is shown to a reader that only
// the page cache holds, also not after a failed sync.
func (e *engine) openPebble() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("pebble panicked: %v", p)
		}
	}()
	e.opening.Store(true)
	defer e.opening.Store(false)
	e.db, err = pebble.Open(e.settings.fs.PathJoin(e.settings.dir, dbName), e.pebbleOptions())
	// When the gate shut meanwhile, its cause says more than what Pebble made
	// of the swallowed work.
	if cause := e.gate.failure(); cause != nil {
		return cause
	}
	return err
}

// load reads every log's row and newest record. A log that is damaged is
// refused when it is opened; the others are not held up by it.
func (e *engine) load() error {
	header, closer, err := e.db.Get(headerKey())
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	e.nextLog, err = decodeHeader(header)
	if err = errors.Join(err, closer.Close()); err != nil {
		return err
	}
	it, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	for valid := it.SeekGE([]byte{prefixRow}); valid && it.Key()[0] == prefixRow; valid = it.Next() {
		l := &logState{name: string(it.Key()[1:])}
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		e.logs[l.name] = l
		r, err := decodeRow(value)
		if err == nil {
			l.num, l.storeID, l.first, l.stored = r.num, r.storeID, r.first, true
			err = e.loadLog(l)
		}
		if err != nil {
			broken := storeError(l.name, "open", err)
			if broken.Code != walimpls.CodeCorrupt {
				return err
			}
			l.broken = broken
			e.log.Error("store: a log is damaged", zap.String("channel", l.name), zap.String("cause", err.Error()))
		}
	}
	return it.Error()
}

// loadLog finds the newest record, which has the highest pair and the highest
// id, and the newest one that is no fence record.
func (e *engine) loadLog(l *logState) error {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: recordKey(l.num, l.first), UpperBound: recordKey(l.num+1, 0)})
	if err != nil {
		return err
	}
	defer it.Close()
	s := span{first: l.first}
	for valid := it.Last(); valid; valid = it.Prev() {
		_, id, ok := decodeRecordKey(it.Key())
		if !ok {
			return fmt.Errorf("%w: key %x among its records", errBadRow, it.Key())
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		m, err := message.DecodeRecord(value)
		if err != nil {
			return fmt.Errorf("the record %d: %w", id, err)
		}
		if s.last == 0 {
			s.last, l.next = id, id+1
			l.pair = walimpls.Pair{Term: m.Term, Incarnation: m.Incarnation}
		}
		if m.Type != message.TypeFence {
			s.lastRecord = id
			break
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	if s.last == 0 {
		return fmt.Errorf("%w: it has no record from %d on", errBadRow, l.first)
	}
	l.view.span = s
	return nil
}

// failed is called once, when the gate shuts because of cause. Everything that
// waits is refused, readers end, and the committer closes Pebble.
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

// beginRead keeps Pebble open until release is called.
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

// Once the engine closes, Pebble's background work may go on for leaveAfter; it
// begins again at the next open. At shutAfter the rest is given up: everything
// that was acknowledged is in Pebble's log, synced, whatever else is missing.
const (
	leaveAfter = 500 * time.Millisecond
	shutAfter  = 2 * time.Second
)

// teardown is the end of the committer's goroutine.
func (e *engine) teardown() {
	// An iterator that is open while Pebble closes reads freed memory.
	e.readMu.Lock()
	e.readsOver = true
	e.readMu.Unlock()
	leave := time.AfterFunc(leaveAfter, func() { e.gate.to(gateLeaving) })
	defer leave.Stop()
	shut := time.AfterFunc(shutAfter, func() { e.gate.to(gateShut) })
	defer shut.Stop()
	e.stopReclaim()
	<-e.reclaimed
	e.release()
	e.log.Debug("store closed", zap.String("dir", e.settings.dir))
}

// release closes Pebble, waits until nothing can touch the folder any more,
// and gives up its lock.
func (e *engine) release() {
	if e.db != nil {
		if err := closePebble(e.db); err != nil && e.gate.failure() == nil {
			e.log.Warn("store: closing it", zap.String("cause", err.Error()))
		}
	}
	e.gate.to(gateShut)
	<-e.gate.drain()
	if err := e.lock.Close(); err != nil {
		e.log.Warn("store: releasing the lock", zap.String("cause", err.Error()))
	}
	close(e.released)
}

func closePebble(db *pebble.DB) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("pebble panicked: %v", p)
		}
	}()
	return db.Close()
}

// newStoreID returns a name that no other log has.
func newStoreID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
