package parquet

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"gocloud.dev/gcerrors"
	"golang.org/x/sync/errgroup"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// vstate is what an owner knows of one vchannel, shared by the sinks that were
// opened for it one after the other.
type vstate struct {
	mu      sync.Mutex
	newest  ref       // guarded by mu, as all below
	m       *manifest // nil: not loaded
	nextSeq int64     // never used twice, whatever became of the attempt
	turn    int64     // the turn of the sink that was opened last
	base    position  // the newest manifest at the take-over, zero if there was none
	swept   position  // up to where this owner looked for left-over files
	sweepAt time.Time // when it will look; zero: it has
}

// vchannelSink is one vchannel's output.
type vchannelSink struct {
	o        *logOwner
	vchannel string
	st       *vstate
	turn     int64
	slot     chan struct{} // held by the one write that is under way, also when it was given up
	ctx      context.Context
	cancel   context.CancelCauseFunc

	mu      sync.Mutex
	dropped bool     // guarded by mu
	strays  []string // what failed attempts left; guarded by mu
}

var _ flusher.VChannelSink = (*vchannelSink)(nil)

func (v *vchannelSink) Checkpoint() message.Checkpoint {
	v.st.mu.Lock()
	defer v.st.mu.Unlock()
	if v.st.m == nil {
		return message.Checkpoint{}
	}
	return v.st.m.Checkpoint
}

func (v *vchannelSink) Flush(ctx context.Context, rows []message.Message, cp message.Checkpoint) ([]flusher.File, error) {
	return v.write(ctx, rows, cp, false)
}

// Drop writes a manifest that is a tombstone. The files stay, and stay listed. A
// later Open and Flush of the same name goes on behind them.
func (v *vchannelSink) Drop(ctx context.Context, at message.Checkpoint) error {
	if _, err := v.write(ctx, nil, at, true); err != nil {
		return err
	}
	v.mu.Lock()
	v.dropped = true
	v.mu.Unlock()
	return nil
}

// Close ends what is under way. It does not wait for a store that hangs: what
// lands after Close does not count.
func (v *vchannelSink) Close() error {
	v.st.mu.Lock()
	if v.turn == v.st.turn {
		v.st.turn++
		v.st.m = nil // loaded again by the next Open
	}
	v.st.mu.Unlock()
	v.cancel(walimpls.Errorf(walimpls.CodeClosed, v.o.pchannel, "sink of vchannel %q: closed", v.vchannel))
	return nil
}

// attempt is one write. Its fields are guarded by the state's mutex.
type attempt struct {
	base    *manifest
	at      position
	swept   position
	adopted bool // it counts
	givenUp bool // it must not count any more
	files   []flusher.File
	keys    []string // what it may have written; for its goroutine only
}

// write makes one attempt. The store is called in a goroutine, so that a store
// that hangs cannot hold up the caller beyond its context; an attempt that was
// given up does not count when it gets through after all.
func (v *vchannelSink) write(ctx context.Context, rows []message.Message, cp message.Checkpoint, drop bool) ([]flusher.File, error) {
	if err := v.admit(cp); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(v.ctx, func() { cancel(context.Cause(v.ctx)) })
	release := func() {
		stop()
		cancel(nil)
	}
	select {
	case v.slot <- struct{}{}:
	case <-ctx.Done():
		defer release()
		e := walimpls.ContextError(ctx, v.o.pchannel, "sink: an earlier write is still under way")
		e.Hint = "the bucket does not answer; look at its endpoint and the network"
		return nil, e
	}
	a, err := v.start(cp, len(rows) == 0 && !drop)
	if err == nil && a != nil {
		err = v.o.s.begin()
	}
	if err != nil || a == nil {
		<-v.slot
		release()
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		defer v.o.s.work.Done()
		defer func() { <-v.slot }()
		defer release()
		err := v.run(ctx, a, rows, cp, drop)
		done <- storeError(ctx, v.o.pchannel, "flush vchannel "+strconv.Quote(v.vchannel), err)
	}()
	select {
	case err := <-done:
		return a.files, err
	case <-ctx.Done():
	}
	timer := time.NewTimer(hangGrace)
	defer timer.Stop()
	select {
	case err := <-done:
		return a.files, err
	case <-timer.C:
	}
	v.st.mu.Lock()
	defer v.st.mu.Unlock()
	if a.adopted {
		return a.files, nil
	}
	a.givenUp = true
	return nil, storeError(ctx, v.o.pchannel, "flush vchannel "+strconv.Quote(v.vchannel), ctx.Err())
}

// admit refuses what can never succeed.
func (v *vchannelSink) admit(cp message.Checkpoint) error {
	if v.ctx.Err() != nil {
		return walimpls.ContextError(v.ctx, v.o.pchannel, "sink")
	}
	if cp.StoreID != v.o.storeID {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, v.o.pchannel, "sink: the checkpoint is of store %q, the output of store %q", cp.StoreID, v.o.storeID)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dropped {
		return walimpls.Errorf(walimpls.CodeNotFound, v.o.pchannel, "sink: vchannel %q was dropped", v.vchannel)
	}
	return nil
}

// start takes the next position. It returns nil if there is nothing to write.
func (v *vchannelSink) start(cp message.Checkpoint, onlyCheckpoint bool) (*attempt, error) {
	if err := v.o.fencedBy(); err != nil {
		return nil, err
	}
	v.st.mu.Lock()
	defer v.st.mu.Unlock()
	if v.turn != v.st.turn {
		return nil, v.superseded()
	}
	old := v.st.m.Checkpoint
	if cp.Term < old.Term || (cp.Term == old.Term && cp.Tick < old.Tick) {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, v.o.pchannel, "sink: the checkpoint (%d, %d) of vchannel %q lies before the manifest's (%d, %d)", cp.Term, cp.Tick, v.vchannel, old.Term, old.Tick)
	}
	if onlyCheckpoint && cp == old && !v.st.newest.Dropped {
		return nil, nil
	}
	a := &attempt{base: v.st.m, swept: v.st.swept, at: position{Owner: v.o.id, Seq: v.st.nextSeq}}
	v.st.nextSeq++
	return a, nil
}

func (v *vchannelSink) superseded() error {
	if v.ctx.Err() != nil {
		return walimpls.ContextError(v.ctx, v.o.pchannel, "sink")
	}
	return walimpls.Errorf(walimpls.CodeFenced, v.o.pchannel, "sink: vchannel %q was opened again", v.vchannel)
}

// run writes the files, the pages, and last the manifest that makes them count.
func (v *vchannelSink) run(ctx context.Context, a *attempt, rows []message.Message, cp message.Checkpoint, drop bool) error {
	err := v.store(ctx, a, rows, cp, drop)
	if err != nil {
		v.mu.Lock()
		v.strays = append(v.strays, a.keys...)
		v.mu.Unlock()
		return err
	}
	// All is durable, so a look that fails changes nothing: whoever owns the log
	// now has this manifest, or does not count it and the caller's term is over.
	if err := v.o.check(ctx); errors.Is(err, walimpls.ErrFenced) {
		return err
	}
	return nil
}

func (v *vchannelSink) store(ctx context.Context, a *attempt, rows []message.Message, cp message.Checkpoint, drop bool) error {
	l, s := v.o.l, v.o.s
	var entries []entry
	for n, part := range splitFiles(rows, s.opt.FileBytes) {
		e := entry{At: a.at, N: n, Rows: int64(len(part))}
		e.FirstTick, e.LastTick = tickRange(part)
		key := l.file(v.vchannel, e)
		a.keys = append(a.keys, key)
		var err error
		if e.Bytes, err = v.writeFile(ctx, key, part); err != nil {
			return err
		}
		entries = append(entries, e)
	}
	next, pages := a.base.next(a.at, entries, cp, drop, s.opt.fanout)
	if next.Swept.less(a.swept) {
		next.Swept = a.swept
	}
	for _, p := range pages {
		key := l.page(v.vchannel, p.ref)
		a.keys = append(a.keys, key)
		if err := s.putOnce(ctx, key, p.encode(l, v.vchannel)); err != nil {
			return err
		}
	}
	key := l.manifest(v.vchannel, next.Ref)
	a.keys = append(a.keys, key)
	if err := s.putOnce(ctx, key, next.encode(l)); err != nil {
		if errors.Is(err, errExists) { // a position belongs to one owner, and an owner uses it once
			err = walimpls.Errorf(walimpls.CodeFenced, v.o.pchannel, "sink: somebody else wrote this owner's manifest: %w", err)
		}
		return err
	}
	return v.adopt(a, next, entries)
}

// adopt makes the attempt count, unless it was given up or another sink of the
// vchannel was opened meanwhile.
func (v *vchannelSink) adopt(a *attempt, next *manifest, entries []entry) error {
	v.st.mu.Lock()
	defer v.st.mu.Unlock()
	if v.turn != v.st.turn {
		return v.superseded()
	}
	if a.givenUp {
		return walimpls.Errorf(walimpls.CodeTimeout, v.o.pchannel, "sink: the write was given up")
	}
	old := v.st.newest
	v.st.m, v.st.newest, a.adopted = next, next.Ref, true
	for _, e := range entries {
		a.files = append(a.files, v.file(e))
	}
	if !old.At.isZero() {
		v.o.doom(v.o.l.manifest(v.vchannel, old))
	}
	// What earlier attempts left can never count now that a higher manifest does.
	v.mu.Lock()
	v.o.doom(v.strays...)
	v.strays = nil
	v.mu.Unlock()
	return nil
}

func (v *vchannelSink) writeFile(ctx context.Context, key string, rows []message.Message) (size int64, err error) {
	s := v.o.s
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := s.st.create(ctx, key)
	if err != nil {
		return 0, err
	}
	count := &counter{w: out}
	meta := map[string]string{
		"walrig.pchannel": v.o.pchannel, "walrig.store_id": v.o.storeID, "walrig.vchannel": v.vchannel,
		"walrig.term": strconv.FormatInt(v.o.id.Term, 10),
	}
	if err := s.encode(ctx, count, rows, meta); err != nil {
		cancel() // so that Close leaves nothing behind
		_ = out.Close()
		return 0, err
	}
	return count.n, out.Close()
}

func (v *vchannelSink) file(e entry) flusher.File {
	return flusher.File{
		Path: v.o.s.location + v.o.l.file(v.vchannel, e), Rows: e.Rows, Bytes: e.Bytes,
		FirstTick: e.FirstTick, LastTick: e.LastTick, Term: e.At.Owner.Term,
	}
}

// Files reads the pages of the manifest as it is now, several at a time.
func (v *vchannelSink) Files(ctx context.Context) ([]flusher.File, error) {
	v.st.mu.Lock()
	m, mine := v.st.m, v.turn == v.st.turn
	v.st.mu.Unlock()
	if !mine {
		return nil, v.superseded()
	}
	entries, err := bounded(ctx, v.o.s, v.o.pchannel, "list files", func(ctx context.Context) ([]entry, error) {
		entries, _, err := v.o.walk(ctx, m, position{})
		return entries, err
	})
	if err != nil {
		return nil, err
	}
	files := make([]flusher.File, len(entries))
	for i, e := range entries {
		files[i] = v.file(e)
	}
	return files, nil
}

// pagesAtOnce is how many pages are read in parallel.
const pagesAtOnce = 8

// walk returns the files of a manifest, oldest first, and the keys of its pages.
// It leaves out pages at or below after, with all that is below them.
func (o *logOwner) walk(ctx context.Context, m *manifest, after position) (entries []entry, keys []string, err error) {
	var refs []pageRef
	for level := len(m.levels) - 1; level >= 0; level-- {
		refs = append(refs, m.levels[level]...)
		refs = slices.DeleteFunc(refs, func(r pageRef) bool { return !after.less(r.At) })
		pages := make([]page, len(refs))
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(pagesAtOnce)
		for i, r := range refs {
			keys = append(keys, o.l.page(m.VChannel, r))
			g.Go(func() (err error) {
				pages[i], err = o.readPage(ctx, m.VChannel, r)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, nil, err
		}
		refs = refs[:0:0]
		for _, p := range pages {
			refs = append(refs, p.pages...)
			entries = append(entries, p.files...)
		}
	}
	return append(entries, m.tail...), keys, nil
}

func (o *logOwner) readPage(ctx context.Context, vchannel string, r pageRef) (page, error) {
	key := o.l.page(vchannel, r)
	data, err := o.s.st.get(ctx, key, maxManifestBytes)
	if errors.Is(err, gcerrors.ErrNotFound) {
		return page{}, o.missing(ctx, key)
	}
	if err != nil {
		return page{}, err
	}
	p, err := decodePage(o.l, vchannel, r, data)
	if err != nil {
		return page{}, corrupt(o.pchannel, key, err)
	}
	return p, nil
}
