package faultbackend

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Store holds the logs. Several openers may share one (WithStore), which is how
// a test gets a zombie and its successor. It is safe for concurrent use.
type Store struct {
	path string // "": memory only
	opt  FileOptions

	closing  chan struct{}
	loading  chan struct{} // capacity 1: who holds its token opens the file
	landings sync.WaitGroup

	mu     sync.Mutex // guards all below, and the logs
	loaded bool
	closed bool
	logs   map[string]*chanLog
	lastNo uint64
	file   *journal // nil: memory only
	timers map[*time.Timer]struct{}
}

// NewStore returns an empty store that lives in memory.
func NewStore() *Store {
	return &Store{
		closing: make(chan struct{}), loading: make(chan struct{}, 1), loaded: true,
		logs: map[string]*chanLog{}, timers: map[*time.Timer]struct{}{},
	}
}

// NewFileStore returns a store that keeps its logs in a file as well. The file
// is opened, locked and read by the first Open or Drop.
func NewFileStore(path string, opt FileOptions) *Store {
	s := NewStore()
	s.path, s.opt, s.loaded = path, opt, false
	return s
}

// Close releases the file and cancels what was still to land. It is idempotent.
// A store in memory is gone with it.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.closing)
	for t := range s.timers {
		if t.Stop() {
			s.landings.Done()
		}
	}
	for _, l := range s.logs {
		l.signal()
	}
	file := s.file
	s.mu.Unlock()
	s.landings.Wait()
	if file != nil {
		return file.close()
	}
	return nil
}

// Records returns a copy of what a channel's log holds, fence records included,
// without a handle and without counting as a read; nil for a log that is not there.
func (s *Store) Records(channel string) []message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.logs[channel]; l != nil {
		return slices.Clone(l.recs)
	}
	return nil
}

// Channels returns the names of the logs that are there, sorted.
func (s *Store) Channels() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.logs))
}

// Bytes returns the size of all records that are there.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int64
	for _, l := range s.logs {
		for i := range l.recs {
			n += int64(l.recs[i].Size())
		}
	}
	return n
}

// ready opens the file if that was not done yet. Without create a missing file
// is an fs.ErrNotExist.
func (s *Store) ready(ctx context.Context, create bool) error {
	select {
	case s.loading <- struct{}{}:
	case <-ctx.Done():
		return errGaveUp("", OpOpen, ctx.Err())
	case <-s.closing:
		return errClosed("", "store")
	}
	defer func() { <-s.loading }()
	s.mu.Lock()
	loaded, closed := s.loaded, s.closed
	s.mu.Unlock()
	if closed {
		return errClosed("", "store")
	}
	if loaded {
		return nil
	}
	file, img, err := openJournal(ctx, s.closing, s.path, s.opt, create)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = file.close() // nothing was written
		return errClosed("", "store")
	}
	s.file, s.logs, s.lastNo, s.loaded = file, img.logs, img.lastNo, true
	return nil
}

// write puts frames into the file, if there is one, before the state changes.
// mu is held.
func (s *Store) write(frames []byte) error {
	if s.file == nil {
		return nil
	}
	if s.file.size > 0 {
		return s.file.write(frames)
	}
	if err := s.file.write(append(journalHeader(), frames...)); err != nil {
		return err
	}
	if s.opt.Fsync {
		if err := syncDir(s.path); err != nil {
			s.file.failed = err
			return errors.Join(errInDoubt, err)
		}
	}
	return nil
}

// open checks the pair against the log and makes it durable as a fence record.
func (s *Store) open(ctx context.Context, opt walimpls.OpenOptions) (*chanLog, walimpls.Pair, error) {
	if err := s.ready(ctx, true); err != nil {
		return nil, walimpls.Pair{}, onChannel(err, opt.Channel)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence(opt)
}

// fence is open without the wait for the file. mu is held.
func (s *Store) fence(opt walimpls.OpenOptions) (*chanLog, walimpls.Pair, error) {
	pair := opt.Pair()
	if s.closed {
		return nil, pair, errClosed(opt.Channel, "store")
	}
	l := s.logs[opt.Channel]
	fresh := l == nil
	if fresh {
		l = newChanLog(s.lastNo+1, opt.Channel, newStoreID())
	}
	if pair.Incarnation == 0 {
		pair.Incarnation = 1
		if pair.Term == l.highest.Term {
			pair.Incarnation = l.highest.Incarnation + 1
		}
	}
	if pair.Compare(l.highest) <= 0 {
		return nil, pair, walimpls.NewFencedError(opt.Channel, pair, l.highest)
	}
	recs := []message.Message{{Type: message.TypeFence, Term: pair.Term, Incarnation: pair.Incarnation}}
	var frame []byte
	switch {
	case s.file == nil:
	case fresh:
		frame = createFrame(nil, l, &recs[0])
	default:
		frame = recordsFrame(nil, l, recs)
	}
	if err := s.write(frame); err != nil {
		return nil, pair, fileError(opt.Channel, "write the fence record", err)
	}
	if fresh {
		s.lastNo++
		s.logs[l.name] = l
	}
	l.add(recs)
	return l, pair, nil
}

// openReadOnly finds a log.
func (s *Store) openReadOnly(ctx context.Context, channel string) (*chanLog, walimpls.Pair, error) {
	missing := walimpls.Errorf(walimpls.CodeNotFound, channel, "there is no log; a read-write open creates it")
	if err := s.ready(ctx, false); errors.Is(err, fs.ErrNotExist) {
		return nil, walimpls.Pair{}, missing
	} else if err != nil {
		return nil, walimpls.Pair{}, onChannel(err, channel)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, walimpls.Pair{}, errClosed(channel, "store")
	}
	if l := s.logs[channel]; l != nil {
		return l, l.highest, nil
	}
	return nil, walimpls.Pair{}, missing
}

// drop deletes a log. Its handles are fenced by that.
func (s *Store) drop(ctx context.Context, channel string, term int64) error {
	if err := s.ready(ctx, false); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return onChannel(err, channel)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[channel]
	switch {
	case s.closed:
		return errClosed(channel, "store")
	case l == nil:
		return nil
	case term < l.highest.Term:
		return walimpls.NewFencedError(channel, walimpls.Pair{Term: term}, l.highest)
	}
	if s.file != nil {
		if err := s.write(dropFrame(nil, l)); err != nil {
			return fileError(channel, "drop", err)
		}
	}
	l.drop()
	delete(s.logs, channel)
	return nil
}

// later runs land under mu after d, unless the store is closed first. mu is held.
func (s *Store) later(d time.Duration, land func()) {
	s.landings.Add(1)
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		defer s.landings.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.timers, t)
		if !s.closed {
			land()
		}
	})
	s.timers[t] = struct{}{}
}

// openLater is an Open whose caller has given up: its fence lands late, unless a
// pair at or above its own was there first.
func (s *Store) openLater(ctx context.Context, d time.Duration, opt walimpls.OpenOptions) error {
	if err := s.ready(ctx, true); err != nil {
		return onChannel(err, opt.Channel)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.later(d, func() { _, _, _ = s.fence(opt) })
	}
	return nil
}

// newStoreID names a log for good.
func newStoreID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process where there is no randomness
	return "fault-" + hex.EncodeToString(b[:])
}

// onChannel adds the channel to an error of the store.
func onChannel(err error, channel string) error {
	var e *walimpls.Error
	if !errors.As(err, &e) || e.Channel != "" {
		return err
	}
	e.Channel = channel
	return err
}
