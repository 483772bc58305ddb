package parquet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"gocloud.dev/blob"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Options are the sink's bounds. The zero value is a good choice.
type Options struct {
	// FileBytes bounds a file, in bytes before compression: a flush of more is
	// several files. A single larger row gets a file of its own. Default 256 MiB.
	FileBytes int64
	// RowGroupBytes bounds a row group, in bytes before compression, and with it
	// what one flush holds besides the rows that it was given. Default 32 MiB.
	RowGroupBytes int64
	// GarbageAge is how old a file that no manifest lists must be before it is
	// removed, so that who reads by an older manifest is not disturbed. Default 1 h.
	GarbageAge time.Duration
	// CollectEvery is how often superseded manifests are removed. Default 10 s.
	CollectEvery time.Duration
	// Log gets what the background work has to say. Default: nothing.
	Log *zap.Logger

	fanout int // tests make the tree of pages grow sooner
}

func (o Options) withDefaults() Options {
	if o.FileBytes <= 0 {
		o.FileBytes = 256 << 20
	}
	if o.RowGroupBytes <= 0 {
		o.RowGroupBytes = 32 << 20
	}
	if o.GarbageAge <= 0 {
		o.GarbageAge = time.Hour
	}
	if o.CollectEvery <= 0 {
		o.CollectEvery = 10 * time.Second
	}
	if o.fanout <= 0 {
		o.fanout = defaultFanout
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// Sink is a flusher.Sink that writes Parquet files and manifests into a bucket.
// It is safe for concurrent use.
type Sink struct {
	st       store
	location string // what a key is appended to for a file's path
	opt      Options
	encode   encodeFunc // tests put a cheaper one here

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // every goroutine of the sink

	mu     sync.Mutex
	logs   map[string]*log // by layout root; guarded by mu
	closed bool            // guarded by mu
}

// log is one log's place in the sink. gate is held while its owner changes.
type log struct {
	gate  chan struct{}
	owner *logOwner // guarded by gate, and by Sink.mu
}

var _ flusher.Sink = (*Sink)(nil)

// New returns a sink over an open bucket, which stays the caller's to close.
// location is put before a key to make a File's Path, such as "s3://bucket/".
// The bucket must be durable when a writer is closed, and keep create-only writes
// apart between processes; the blob library's own file driver does neither.
func New(bucket *blob.Bucket, location string, opt Options) *Sink {
	return newSink(&bucketStore{bucket: bucket}, location, opt)
}

func newSink(st store, location string, opt Options) *Sink {
	s := &Sink{st: st, location: location, opt: opt.withDefaults(), logs: map[string]*log{}, encode: newEncoder(opt.withDefaults().RowGroupBytes)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.work.Go(s.collectLoop)
	return s
}

// Open takes over a vchannel. The first Open of a term takes over the whole log:
// it costs a listing of the log's manifests, later ones one read each. A term
// below one that opened before is ErrFenced. An Open of a key that is open
// already makes the earlier VChannelSink ErrFenced.
func (s *Sink) Open(ctx context.Context, key flusher.SinkKey) (flusher.VChannelSink, error) {
	l, err := newLayout(key.PChannel, key.StoreID)
	if err != nil {
		return nil, err
	}
	if key.Term < 1 {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, key.PChannel, "sink: term %d, want 1 or more", key.Term)
	}
	if n := len(escapeName(key.VChannel)); n > maxNameBytes {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, key.PChannel, "sink: the vchannel's name is too long: %d bytes escaped, at most %d", n, maxNameBytes)
	}
	return bounded(ctx, s, key.PChannel, "open", func(ctx context.Context) (flusher.VChannelSink, error) {
		o, err := s.ownerOf(ctx, l, key)
		if err != nil {
			return nil, err
		}
		v, err := o.open(ctx, key.VChannel)
		if err != nil {
			return nil, err
		}
		return v, nil
	})
}

// VChannels lists, sorted, the vchannels that have a manifest and are not
// dropped. The broadcast output "" is not a vchannel and is not listed.
func (s *Sink) VChannels(ctx context.Context, pchannel, storeID string) ([]string, error) {
	l, err := newLayout(pchannel, storeID)
	if err != nil {
		return nil, err
	}
	return bounded(ctx, s, pchannel, "list vchannels", func(ctx context.Context) ([]string, error) {
		_, last, err := s.readOwners(ctx, l, owner{})
		if err != nil {
			return nil, err
		}
		newest, _, err := s.readManifests(ctx, l, last)
		if err != nil {
			return nil, err
		}
		var names []string
		for v, r := range newest {
			if !r.Dropped && v != "" {
				names = append(names, v)
			}
		}
		slices.Sort(names)
		return names, nil
	})
}

// Close ends every call, waits for the background work, at most
// walimpls.GracePeriod, and closes the bucket. It is idempotent.
func (s *Sink) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	s.cancel(walimpls.Errorf(walimpls.CodeClosed, "", "sink: closed"))
	done := make(chan struct{})
	go func() { // ends with the last goroutine of the sink, which a hung store may delay
		s.work.Wait()
		close(done)
	}()
	timer := time.NewTimer(walimpls.GracePeriod)
	defer timer.Stop()
	select {
	case <-done:
		return s.st.close()
	case <-timer.C:
		return walimpls.Errorf(walimpls.CodeTimeout, "", "sink: a call to the bucket still hangs %s after it was cancelled", walimpls.GracePeriod)
	}
}

// begin registers a goroutine of the sink, unless the sink is closed.
func (s *Sink) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return walimpls.Errorf(walimpls.CodeClosed, "", "sink: closed")
	}
	s.work.Add(1)
	return nil
}

// hangGrace is how long a call may outlive its context before it is given up.
const hangGrace = time.Second

// bounded runs a call that changes nothing but the log's own bookkeeping in a
// goroutine of the sink, so that a store that ignores its context holds up
// nobody. A result that comes too late is thrown away.
func bounded[T any](ctx context.Context, s *Sink, pchannel, what string, call func(context.Context) (T, error)) (T, error) {
	var none T
	if err := s.begin(); err != nil {
		return none, err
	}
	ctx, cancel := s.joined(ctx)
	type result struct {
		value T
		err   error
	}
	out := make(chan result, 1)
	go func() {
		defer s.work.Done()
		defer cancel(nil)
		value, err := call(ctx)
		out <- result{value, storeError(ctx, pchannel, what, err)}
	}()
	select {
	case r := <-out:
		return r.value, r.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(hangGrace)
	defer timer.Stop()
	select {
	case r := <-out:
		return r.value, r.err
	case <-timer.C:
		return none, storeError(ctx, pchannel, what, ctx.Err())
	}
}

// joined returns a context that ends with ctx and with the sink.
func (s *Sink) joined(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// ownerOf returns the log's owner for the key's term, and takes the log over if
// this sink does not own it.
func (s *Sink) ownerOf(ctx context.Context, l layout, key flusher.SinkKey) (*logOwner, error) {
	s.mu.Lock()
	g := s.logs[l.root]
	if g == nil {
		g = &log{gate: make(chan struct{}, 1)}
		s.logs[l.root] = g
	}
	s.mu.Unlock()
	select {
	case g.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-g.gate }()
	if o := g.owner; o != nil {
		if key.Term < o.id.Term {
			return nil, fencedError(key.PChannel, owner{Term: key.Term}, o.id)
		}
		if key.Term == o.id.Term && o.fencedBy() == nil {
			return o, nil
		}
	}
	o, err := s.takeOver(ctx, l, key)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	old := g.owner
	g.owner = o
	s.mu.Unlock()
	if old != nil {
		old.fence(o.id)
	}
	return o, nil
}

// owners returns the owners that this sink has now.
func (s *Sink) owners() []*logOwner {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*logOwner
	for _, g := range s.logs {
		if g.owner != nil {
			out = append(out, g.owner)
		}
	}
	return out
}

func fencedError(pchannel string, mine, highest owner) error {
	e := walimpls.Errorf(walimpls.CodeFenced, pchannel, "sink: term %d (open %d) has taken over from term %d", highest.Term, highest.Open, mine.Term)
	e.Hint = "the pchannel has a newer owner, which goes on from the newest manifest; nothing has to be done"
	return e
}

func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

var errMissing = errors.New("an object that a manifest or claim names is not there")
