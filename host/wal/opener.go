package wal

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Backend is a configured backend as this package needs it; pluginhost.Plugin
// is one.
type Backend interface {
	// Open opens a log (walimpls.Opener).
	Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error)
	// Description says what the backend is; it waits for it to run.
	Description(ctx context.Context) (walimpls.Description, error)
}

// Options are the parameters of NewOpener. Zero values mean the defaults.
type Options struct {
	// Catalog holds the rows.
	Catalog catalog.Catalog
	// Backend returns the configured plugin of that name, or ErrNotFound.
	Backend func(plugin string) (Backend, error)
	// Log is the logger.
	Log *zap.Logger
	// Observer is told of appends; nil for nobody.
	Observer interceptors.Observer
	// Now is the wall clock that ticks follow.
	Now func() time.Time
	// OpenBudget bounds one Open (30 s), AttemptTimeout each call of the
	// backend's Open and of the catalog (20 s), ResolveTimeout one read-back of
	// unknown outcomes (2 min), LastTickTimeout the last time tick at Close (1 s).
	OpenBudget, AttemptTimeout, ResolveTimeout, LastTickTimeout time.Duration
	// TickInterval is how often time ticks are persisted while records come, and
	// how often the tick of an idle channel moves on (100 ms); TickBytes of new
	// records bring one at once (8 MiB).
	TickInterval time.Duration
	TickBytes    int
	// Window is how far ahead ticks are claimed in the catalog row (3 s). It
	// bounds how long an idle former owner lives on.
	Window time.Duration
	// MaxUnresolvedBytes bounds the appends of one pchannel that are accepted
	// and not resolved (64 MiB); more of them block. MaxSentBytes bounds what is
	// handed to a backend and not answered (16 MiB).
	MaxUnresolvedBytes, MaxSentBytes int
	// TxnKeepalive is the default (10 s); MaxTxnBytes bounds the records of one
	// transaction (256 MiB).
	TxnKeepalive time.Duration
	MaxTxnBytes  int
	// FlusherDrops says that a flusher turns dropped vchannels into tombstones,
	// when it has flushed what they hold; else the WAL does it at once.
	FlusherDrops bool
	// FlushedVChannels lists the vchannels of which something was flushed, for a
	// log whose row is lost; nil for none.
	FlushedVChannels func(ctx context.Context, channel, storeID string) ([]string, error)
	// WABBytes and WABAge bound the write-ahead buffer (32 MiB, 30 s).
	WABBytes int
	WABAge   time.Duration
}

func orDefault[T int | time.Duration](value *T, def T) {
	if *value <= 0 {
		*value = def
	}
}

func (o Options) withDefaults() Options {
	orDefault(&o.OpenBudget, 30*time.Second)
	orDefault(&o.AttemptTimeout, 20*time.Second)
	orDefault(&o.ResolveTimeout, 2*time.Minute)
	orDefault(&o.LastTickTimeout, time.Second)
	orDefault(&o.TickInterval, 100*time.Millisecond)
	orDefault(&o.TickBytes, 8<<20)
	orDefault(&o.Window, 3*time.Second)
	orDefault(&o.MaxUnresolvedBytes, 64<<20)
	orDefault(&o.MaxSentBytes, 16<<20)
	orDefault(&o.TxnKeepalive, 10*time.Second)
	orDefault(&o.MaxTxnBytes, 256<<20)
	orDefault(&o.WABBytes, 32<<20)
	orDefault(&o.WABAge, 30*time.Second)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// NewOpener returns the Opener of a host.
func NewOpener(opt Options) Opener { return &opener{opt: opt.withDefaults()} }

type opener struct{ opt Options }

// Open implements Opener.
func (o *opener) Open(ctx context.Context, channel string, term int64) (WAL, error) {
	ctx, cancel := context.WithTimeout(ctx, o.opt.OpenBudget)
	defer cancel()
	row, err := o.opt.Catalog.Get(ctx, channel)
	if err != nil {
		return nil, err
	}
	backend, err := o.opt.Backend(row.Plugin)
	if err != nil {
		return nil, err
	}
	desc, err := o.inspect(ctx, row, backend)
	if err != nil {
		return nil, err
	}
	if row, err = o.opt.Catalog.Claim(ctx, channel, term); err != nil {
		return nil, err
	}
	c := &claim{
		catalog: o.opt.Catalog, backend: backend, channel: channel, term: term, storeID: row.StoreID,
		limits: desc.Limits, attemptTimeout: o.opt.AttemptTimeout,
		log: o.opt.Log.With(zap.String("pchannel", channel), zap.Int64("term", term)),
	}
	open, err := c.openTerm(ctx, row.TickBound, o.opt)
	if err != nil {
		return nil, err
	}
	return newTermWAL(c, o.opt, row, open), nil
}

// Close implements Opener. The opener holds nothing of its own.
func (o *opener) Close(context.Context) error { return nil }

// inspect compares the row with the backend and its log, before anything is
// claimed or fenced. A row without a store id was made for a log that its
// creator has looked at, so whatever is there belongs to it.
func (o *opener) inspect(ctx context.Context, row catalog.Row, backend Backend) (walimpls.Description, error) {
	desc, err := backend.Description(ctx)
	if err != nil {
		return desc, err
	}
	if row.Backend != "" && row.Backend != desc.Backend {
		e := walimpls.Errorf(walimpls.CodeForeignStore, row.Channel,
			"the catalog says backend %q, plugin %q is %q now", row.Backend, row.Plugin, desc.Backend)
		e.Hint = "configure the plugin with its former backend, or remove the channel and create it again"
		return desc, e
	}
	if row.StoreID == "" || !desc.Capabilities.ReadOnly {
		return desc, nil
	}
	log, err := backend.Open(ctx, walimpls.OpenOptions{Channel: row.Channel, Access: walimpls.AccessReadOnly})
	if errors.Is(err, walimpls.ErrNotFound) {
		e := walimpls.Errorf(walimpls.CodeForeignStore, row.Channel,
			"the log %s that the catalog names is not in plugin %q", row.StoreID, row.Plugin)
		e.Hint = "point the plugin at the store that holds it, or remove the channel and create it again"
		return desc, e
	}
	if err != nil {
		return desc, err
	}
	defer func() { _ = log.Close(ctx) }()
	return desc, sameStore(row.Channel, row.StoreID, log.Channel().StoreID)
}

func sameStore(channel, want, got string) error {
	if want == got {
		return nil
	}
	e := walimpls.Errorf(walimpls.CodeForeignStore, channel, "the log is %s, the catalog names %s", got, want)
	e.Hint = "the log was made by another host or store: point the plugin at the right one, or remove the channel and create it with --adopt"
	return e
}

// claim is a claimed term and how its backend is opened, again and again.
type claim struct {
	catalog        catalog.Catalog
	backend        Backend
	channel        string
	term           int64
	incarnation    int64
	storeID        string
	limits         walimpls.Limits
	attemptTimeout time.Duration
	log            *zap.Logger
}

// attempt asks the row and opens the backend with the next incarnation. Each
// attempt takes an incarnation of its own, also after one that was given up: it
// may have happened all the same.
func (c *claim) attempt(ctx context.Context) (walimpls.WAL, error) {
	ctx, cancel := context.WithTimeout(ctx, c.attemptTimeout)
	defer cancel()
	row, err := c.catalog.Get(ctx, c.channel)
	if errors.Is(err, walimpls.ErrNotFound) {
		return nil, walimpls.Errorf(walimpls.CodeTermExpired, c.channel, "term %d ended: the channel was removed", c.term)
	}
	if err != nil {
		return nil, err
	}
	if row.Term != c.term {
		return nil, walimpls.Errorf(walimpls.CodeTermExpired, c.channel, "term %d ended: the catalog holds term %d", c.term, row.Term)
	}
	c.incarnation++
	handle, err := c.backend.Open(ctx, walimpls.OpenOptions{
		Channel: c.channel, Term: c.term, Incarnation: c.incarnation, Access: walimpls.AccessReadWrite,
	})
	if err != nil {
		return nil, err
	}
	if err := c.settle(ctx, handle.Channel().StoreID); err != nil {
		_ = handle.Close(ctx)
		return nil, err
	}
	return handle, nil
}

// settle compares the store id, and notes it in the row at the first open.
func (c *claim) settle(ctx context.Context, storeID string) error {
	if c.storeID != "" {
		return sameStore(c.channel, c.storeID, storeID)
	}
	_, err := c.catalog.Update(ctx, c.channel, c.term, func(row *catalog.Row) error {
		if row.StoreID != "" {
			return sameStore(c.channel, row.StoreID, storeID)
		}
		row.StoreID = storeID
		return nil
	})
	if err == nil {
		c.storeID = storeID
	}
	return err
}
