package interceptors

import (
	"context"
	"slices"
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
	// The answer is not the end: a caller may leave while its record is still on
	// its way.
	settled := op.Settled
	op.Settled = func() {
		release()
		if settled != nil {
			settled()
		}
	}
	next(op)
}

// keyLock is a readers-writer lock per key under one for all keys, with waits
// that a context bounds. It is fair: who collides with nobody inside and with
// nobody who waits longer is let in, so a stream of one kind starves no other.
type keyLock struct {
	mu   sync.Mutex // guards all below and every slot
	all  slot
	keys map[string]*slot
	// readers and writers count the holders of single keys.
	readers, writers int
	// waiting is in the order of arrival.
	waiting []*waiter
}

// slot is the lock of one key, or the lock of all keys.
type slot struct {
	readers int // shared holders of this very slot
	writer  bool
}

type waiter struct {
	key       string
	exclusive bool
	in        chan struct{} // closed when it holds the lock
}

// ahead sums up those who wait longer than somebody.
type ahead struct {
	any, exclusive       bool
	allAny, allExclusive bool
	keys                 map[string]bool // keys waited for; true: exclusively by at least one
}

func (a *ahead) add(key string, exclusive bool) {
	a.any, a.exclusive = true, a.exclusive || exclusive
	if key == "" {
		a.allAny, a.allExclusive = true, a.allExclusive || exclusive
		return
	}
	if a.keys == nil {
		a.keys = map[string]bool{}
	}
	a.keys[key] = a.keys[key] || exclusive
}

// collides reports whether one of them must come first.
func (a *ahead) collides(key string, exclusive bool) bool {
	on, seen := a.keys[key]
	switch {
	case key == "" && exclusive:
		return a.any
	case key == "":
		return a.exclusive
	case exclusive:
		return a.allAny || seen
	default:
		return a.allExclusive || on
	}
}

func newKeyLock() *keyLock { return &keyLock{keys: map[string]*slot{}} }

// acquire locks the key ("" is all keys) shared or exclusively. A shared lock
// on all keys keeps out the exclusive locks of every key.
func (k *keyLock) acquire(ctx context.Context, key string, exclusive bool) (release func(), err error) {
	release = func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.leave(key, exclusive)
	}
	k.mu.Lock()
	var a ahead
	for _, w := range k.waiting {
		a.add(w.key, w.exclusive)
	}
	if k.free(key, exclusive) && !a.collides(key, exclusive) {
		k.enter(key, exclusive)
		k.mu.Unlock()
		return release, nil
	}
	w := &waiter{key: key, exclusive: exclusive, in: make(chan struct{})}
	k.waiting = append(k.waiting, w)
	k.mu.Unlock()
	select {
	case <-w.in:
		return release, nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-w.in: // let in at the last moment
		k.leave(key, exclusive)
	default:
		k.waiting = slices.DeleteFunc(k.waiting, func(o *waiter) bool { return o == w })
		k.admit()
	}
	return nil, ctx.Err()
}

// free reports whether nobody inside collides; k.mu is held.
func (k *keyLock) free(key string, exclusive bool) bool {
	if key == "" {
		others := k.writers > 0 || exclusive && (k.readers > 0 || k.all.readers > 0)
		return !k.all.writer && !others
	}
	var s slot
	if held := k.keys[key]; held != nil {
		s = *held
	}
	return !k.all.writer && !s.writer && (!exclusive || k.all.readers == 0 && s.readers == 0)
}

func (k *keyLock) enter(key string, exclusive bool) { k.count(key, exclusive, 1) }

// leave gives a lock back and admits who waited for it; k.mu is held.
func (k *keyLock) leave(key string, exclusive bool) {
	k.count(key, exclusive, -1)
	k.admit()
}

func (k *keyLock) count(key string, exclusive bool, n int) {
	s, readers, writers := &k.all, new(int), new(int)
	if key != "" {
		readers, writers = &k.readers, &k.writers
		if s = k.keys[key]; s == nil {
			s = &slot{}
			k.keys[key] = s
		}
	}
	if exclusive {
		s.writer = n > 0
		*writers += n
	} else {
		s.readers += n
		*readers += n
	}
	if key != "" && s.readers == 0 && !s.writer {
		delete(k.keys, key)
	}
}

// admit lets in everybody whose turn it is; k.mu is held.
func (k *keyLock) admit() {
	var a ahead
	k.waiting = slices.DeleteFunc(k.waiting, func(w *waiter) bool {
		if !k.free(w.key, w.exclusive) || a.collides(w.key, w.exclusive) {
			a.add(w.key, w.exclusive)
			return false
		}
		k.enter(w.key, w.exclusive)
		close(w.in)
		return true
	})
}
