package interceptors

import (
	"context"
	"sync"

	"github.com/walrig/walrig/sdk/walimpls"
)

// lock lets an exclusive record be alone on its vchannel, or on the pchannel.
type lock struct{ keys *keyLock }

// Lock returns the step that keeps exclusive records (message.Type.IsExclusive)
// alone: on their vchannel, or on the whole pchannel when that is "". Everything
// before such a record is resolved when it gets its tick, and nothing behind it
// gets one before it is resolved.
func Lock() Interceptor { return &lock{keys: newKeyLock()} }

func (l *lock) Name() string           { return "lock" }
func (l *lock) Ready() <-chan struct{} { return always }
func (l *lock) Close()                 {}

func (l *lock) Handle(op *Operation, next Handler) {
	first := &op.Batch[0]
	exclusive := first.Type.IsExclusive()
	vchannel := first.VChannel
	for i := range op.Batch {
		m := &op.Batch[i]
		if m.Type.IsExclusive() != exclusive || (exclusive && len(op.Batch) > 1) {
			op.Refuse(walimpls.Errorf(walimpls.CodeInvalidArgument, op.Channel, "append: an exclusive record must be alone in its batch"))
			return
		}
		if m.VChannel != vchannel {
			// A batch over several vchannels takes part in all of them.
			vchannel = ""
		}
	}
	release, err := l.keys.acquire(op.Ctx, vchannel, exclusive)
	if err != nil {
		op.Refuse(walimpls.Errorf(walimpls.CodeTimeout, op.Channel, "append: waiting for an exclusive record: %w", err))
		return
	}
	done := op.Done
	op.Done = func(r []Result) {
		release()
		done(r)
	}
	next(op)
}

// keyLock is a readers-writer lock per key under one for all keys, with waits
// that a context bounds. A waiting writer keeps new readers out.
type keyLock struct {
	mu   sync.Mutex // guards all below and every slot
	all  slot
	keys map[string]*slot
	// readers and writers count the holders of single keys, waiting the writers
	// that wait for one.
	readers, writers, waiting int
	// sleepers wait for change, which is closed and replaced when a lock is
	// released or given up.
	sleepers int
	change   chan struct{}
}

// slot is the lock of one key, or the lock of all keys.
type slot struct {
	readers int // shared holders of this very slot
	waiting int // writers that wait
	writer  bool
}

func newKeyLock() *keyLock {
	return &keyLock{keys: map[string]*slot{}, change: make(chan struct{})}
}

// acquire locks the key ("" is all keys) shared or exclusively. A shared lock
// on all keys keeps out the exclusive locks of every key.
func (k *keyLock) acquire(ctx context.Context, key string, exclusive bool) (release func(), err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.slot(key)
	if !k.take(s, key, exclusive) {
		k.queue(s, key, exclusive, 1)
		err = k.await(ctx, s, key, exclusive)
		k.queue(s, key, exclusive, -1)
		if err != nil {
			k.forget(key, s)
			k.wake()
			return nil, err
		}
	}
	return func() { k.release(s, key, exclusive) }, nil
}

// queue counts a waiting writer in or out.
func (k *keyLock) queue(s *slot, key string, exclusive bool, n int) {
	if exclusive {
		s.waiting += n
		if key != "" {
			k.waiting += n
		}
	}
}

// await sleeps until the lock is taken or ctx ends; k.mu is held but while it sleeps.
func (k *keyLock) await(ctx context.Context, s *slot, key string, exclusive bool) error {
	k.sleepers++
	defer func() { k.sleepers-- }()
	for {
		change := k.change
		k.mu.Unlock()
		var err error
		select {
		case <-change:
		case <-ctx.Done():
			err = ctx.Err()
		}
		k.mu.Lock()
		if err != nil {
			return err
		}
		if k.take(s, key, exclusive) {
			return nil
		}
	}
}

func (k *keyLock) slot(key string) *slot {
	if key == "" {
		return &k.all
	}
	s := k.keys[key]
	if s == nil {
		s = &slot{}
		k.keys[key] = s
	}
	return s
}

// take takes the lock if it is free; k.mu is held.
func (k *keyLock) take(s *slot, key string, exclusive bool) bool {
	switch {
	case key == "" && exclusive:
		if s.readers > 0 || s.writer || k.readers > 0 || k.writers > 0 {
			return false
		}
		s.writer = true
	case key == "":
		if s.writer || s.waiting > 0 || k.writers > 0 || k.waiting > 0 {
			return false
		}
		s.readers++
	case exclusive:
		if k.all.writer || k.all.readers > 0 || s.writer || s.readers > 0 {
			return false
		}
		s.writer = true
		k.writers++
	default:
		if k.all.writer || k.all.waiting > 0 || s.writer || s.waiting > 0 {
			return false
		}
		s.readers++
		k.readers++
	}
	return true
}

func (k *keyLock) release(s *slot, key string, exclusive bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if exclusive {
		s.writer = false
	} else {
		s.readers--
	}
	if key != "" {
		if exclusive {
			k.writers--
		} else {
			k.readers--
		}
	}
	k.forget(key, s)
	k.wake()
}

func (k *keyLock) forget(key string, s *slot) {
	if key != "" && s.readers == 0 && s.waiting == 0 && !s.writer {
		delete(k.keys, key)
	}
}

func (k *keyLock) wake() {
	if k.sleepers > 0 {
		close(k.change)
		k.change = make(chan struct{})
	}
}
