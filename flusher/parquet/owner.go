package parquet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gocloud.dev/gcerrors"

	"github.com/walrig/walrig/flusher"
)

// Bounds of what is read into memory at once.
const (
	maxManifestBytes = 4 << 20
	maxClaimBytes    = 1 << 30
)

// takeOverTries bounds how often a take-over starts again because another one
// of the same term came between.
const takeOverTries = 10

// logOwner is what one taking over of a log holds in this process.
type logOwner struct {
	s        *Sink
	l        layout
	pchannel string
	storeID  string
	id       owner

	mu     sync.Mutex
	states map[string]*vstate // guarded by mu
	by     *owner             // who fenced this owner, nil: nobody; guarded by mu
	doomed []string           // keys to be removed; guarded by mu

	// One listing answers everybody who asked before it began.
	checkGate chan struct{}
	asked     uint64 // guarded by mu
	answered  uint64 // the count of asked when the last good check began; guarded by mu
}

// takeOver makes key's term the owner of the log: it announces itself, reads
// what is there, and writes that down as its claim.
//
// The announcement comes before the reading. An owner removes an object only
// after a look that found no announcement newer than itself, so whatever it
// removes was superseded before the newer owner began to read: the newer one
// can never have chosen it.
func (s *Sink) takeOver(ctx context.Context, l layout, key flusher.SinkKey) (*logOwner, error) {
	writer := newNonce()
	var id owner
	for try := 0; ; try++ {
		found, _, err := s.listOwners(ctx, l)
		if err != nil {
			return nil, err
		}
		if key.Term < found.highest.Term {
			return nil, fencedError(key.PChannel, owner{Term: key.Term}, found.highest)
		}
		id = owner{Term: key.Term, Open: 1}
		if found.highest.Term == key.Term {
			id.Open = found.highest.Open + 1
		}
		err = s.putOnce(ctx, l.intent(id), []byte(writer+"\n"))
		if err == nil {
			break
		}
		if !errors.Is(err, errExists) || try == takeOverTries {
			return nil, err
		}
	}
	found, last, err := s.readOwners(ctx, l, id)
	if err != nil {
		return nil, err
	}
	if id.less(found.highest) {
		return nil, fencedError(key.PChannel, id, found.highest)
	}
	newest, rest, err := s.readManifests(ctx, l, last)
	if err != nil {
		return nil, err
	}
	c := claim{
		Format: formatVersion, PChannel: key.PChannel, StoreID: key.StoreID,
		Term: id.Term, Open: id.Open, Writer: writer, Newest: make(map[string]string, len(newest)),
	}
	o := &logOwner{
		s: s, l: l, pchannel: key.PChannel, storeID: key.StoreID, id: id,
		states: make(map[string]*vstate, len(newest)), checkGate: make(chan struct{}, 1),
		doomed: append(rest, found.stale...),
	}
	if last != nil {
		before := owner{Term: last.Term, Open: last.Open}
		o.doomed = append(o.doomed, l.claim(before), l.intent(before))
	}
	sweepAt := time.Now().Add(s.opt.GarbageAge)
	for v, r := range newest {
		c.Newest[v] = r.String()
		o.states[v] = &vstate{newest: r, base: r.At, nextSeq: 1, sweepAt: sweepAt}
	}
	if err := s.putOnce(ctx, l.claim(id), encodeJSON(c)); err != nil {
		return nil, err
	}
	return o, nil
}

func (s *Sink) listOwners(ctx context.Context, l layout) (listing, []string, error) {
	keys, err := s.keys(ctx, l.owners(), "")
	return readOwners(l, keys), keys, err
}

// readOwners lists the owners and reads the newest claim below self, if there
// is one; a zero self means of all. A claim that vanishes was removed by a newer
// owner, which the next look finds.
func (s *Sink) readOwners(ctx context.Context, l layout, self owner) (listing, *claim, error) {
	for try := 0; ; try++ {
		found, _, err := s.listOwners(ctx, l)
		if err != nil || found.claimed == (owner{}) {
			return found, nil, err
		}
		key := l.claim(found.claimed)
		data, err := s.st.get(ctx, key, maxClaimBytes)
		if errors.Is(err, gcerrors.ErrNotFound) && try < takeOverTries {
			continue
		}
		if err != nil {
			return found, nil, err
		}
		c, err := decodeClaim(key, found.claimed, data)
		if err != nil {
			return found, nil, corrupt("", key, err)
		}
		if self != (owner{}) && !found.claimed.less(self) {
			found.highest = found.claimed // the caller sees that it is fenced
		}
		return found, c, nil
	}
}

func (s *Sink) readManifests(ctx context.Context, l layout, last *claim) (newest map[string]ref, rest []string, err error) {
	keys, err := s.keys(ctx, l.manifests(), "")
	if err != nil {
		return nil, nil, err
	}
	newest, rest = newestManifests(l, last, keys)
	return newest, rest, nil
}

func (s *Sink) keys(ctx context.Context, prefix, after string) ([]string, error) {
	var keys []string
	err := s.st.list(ctx, prefix, after, func(o object) error {
		keys = append(keys, o.key)
		return nil
	})
	return keys, err
}

// putOnce writes an object under a name that only this call may use. A client
// library that lost the first answer tries again and is told that the object is
// there: it is then this call's own, if the content is.
func (s *Sink) putOnce(ctx context.Context, key string, data []byte) error {
	err := s.st.put(ctx, key, data)
	if !errors.Is(err, errExists) {
		return err
	}
	there, getErr := s.st.get(ctx, key, int64(len(data)))
	if getErr == nil && bytes.Equal(there, data) {
		return nil
	}
	return fmt.Errorf("object %q: %w", key, err)
}

// fence marks the owner as superseded.
func (o *logOwner) fence(by owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil {
		o.by = &by
		o.doomed = nil
	}
}

// fencedBy returns the error of a fenced owner, or nil.
func (o *logOwner) fencedBy() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil {
		return nil
	}
	return fencedError(o.pchannel, o.id, *o.by)
}

// check looks whether a newer owner has announced itself. The look began after
// the call did.
func (o *logOwner) check(ctx context.Context) error {
	o.mu.Lock()
	o.asked++
	mine := o.asked
	o.mu.Unlock()
	select {
	case o.checkGate <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-o.checkGate }()
	o.mu.Lock()
	done, by := o.answered >= mine, o.by
	now := o.asked
	o.mu.Unlock()
	if by == nil && !done {
		keys, err := o.s.keys(ctx, o.l.owners(), o.l.claim(o.id))
		if err != nil {
			return err
		}
		if highest := readOwners(o.l, keys).highest; o.id.less(highest) {
			o.fence(highest)
		}
		o.mu.Lock()
		o.answered = now
		o.mu.Unlock()
	}
	return o.fencedBy()
}

// doom gives keys to the collector.
func (o *logOwner) doom(keys ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil && len(o.doomed) < maxDoomed {
		o.doomed = append(o.doomed, keys...)
	}
}

// open returns the sink of one vchannel, and fences an earlier one of this owner.
func (o *logOwner) open(ctx context.Context, vchannel string) (*vchannelSink, error) {
	o.mu.Lock()
	st := o.states[vchannel]
	if st == nil {
		st = &vstate{nextSeq: 1, sweepAt: time.Now().Add(o.s.opt.GarbageAge)}
		o.states[vchannel] = st
	}
	o.mu.Unlock()

	if err := o.loaded(ctx, vchannel, st); err != nil {
		return nil, err
	}
	defer st.mu.Unlock()
	st.turn++
	v := &vchannelSink{o: o, vchannel: vchannel, st: st, turn: st.turn, slot: make(chan struct{}, 1)}
	v.ctx, v.cancel = context.WithCancelCause(o.s.ctx)
	return v, nil
}

// loaded returns with the state's mutex held and its newest manifest in memory.
func (o *logOwner) loaded(ctx context.Context, vchannel string, st *vstate) error {
	st.mu.Lock()
	for st.m == nil {
		newest := st.newest
		if newest.At.isZero() {
			st.m = &manifest{PChannel: o.pchannel, StoreID: o.storeID, VChannel: vchannel}
			break
		}
		st.mu.Unlock()
		m, err := o.load(ctx, vchannel, newest)
		if err != nil {
			return err
		}
		st.mu.Lock()
		if st.m == nil && st.newest == newest {
			st.m = m
		}
	}
	return nil
}

// missing types the absence of an object that this owner's chain names: a newer
// owner removes what it did not choose, so a former one may find it gone.
func (o *logOwner) missing(ctx context.Context, key string) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	return corrupt(o.pchannel, key, errMissing)
}

func (o *logOwner) load(ctx context.Context, vchannel string, r ref) (*manifest, error) {
	key := o.l.manifest(vchannel, r)
	data, err := o.s.st.get(ctx, key, maxManifestBytes)
	if errors.Is(err, gcerrors.ErrNotFound) {
		return nil, o.missing(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(o.l, manifestKey{o.pchannel, o.storeID, vchannel, r}, data)
	if err != nil {
		return nil, corrupt(o.pchannel, key, err)
	}
	return m, nil
}
