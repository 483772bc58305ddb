package wal

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/sdk/message"
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

// Options are the parameters of NewOpener.
type Options struct {
	// Catalog holds the rows.
	Catalog catalog.Catalog
	// Backend returns the configured plugin of that name, or ErrNotFound.
	Backend func(plugin string) (Backend, error)
	// Log is the logger.
	Log *zap.Logger
	// OpenBudget bounds one Open; 0 is 30 s.
	OpenBudget time.Duration
	// AttemptTimeout bounds each call of the backend's Open; 0 is 20 s.
	AttemptTimeout time.Duration
	// MaxWaitingBytes bounds what the appends of one pchannel may hold before
	// AppendAsync blocks; 0 is 64 MiB. A larger batch is taken when it is alone.
	MaxWaitingBytes int
	// MaxSentBytes bounds what is handed to a backend and not answered; 0 is 16 MiB.
	MaxSentBytes int
}

func (o Options) withDefaults() Options {
	if o.OpenBudget <= 0 {
		o.OpenBudget = 30 * time.Second
	}
	if o.AttemptTimeout <= 0 {
		o.AttemptTimeout = 20 * time.Second
	}
	if o.MaxWaitingBytes <= 0 {
		o.MaxWaitingBytes = 64 << 20
	}
	if o.MaxSentBytes <= 0 {
		o.MaxSentBytes = 16 << 20
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
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
	if err := o.inspect(ctx, row, backend); err != nil {
		return nil, err
	}
	if _, err := o.opt.Catalog.Claim(ctx, channel, term); err != nil {
		return nil, err
	}
	c := &claim{
		catalog: o.opt.Catalog, backend: backend, channel: channel, term: term, storeID: row.StoreID,
		attemptTimeout: o.opt.AttemptTimeout,
		log:            o.opt.Log.With(zap.String("pchannel", channel), zap.Int64("term", term)),
	}
	handle, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	return newAdaptor(c, handle, o.opt), nil
}

// Close implements Opener. The opener holds nothing of its own.
func (o *opener) Close(context.Context) error { return nil }

// inspect compares the row with the backend and its log, before anything is
// claimed or fenced. A row without a store id was made for a log that its
// creator has looked at, so whatever is there belongs to it.
func (o *opener) inspect(ctx context.Context, row catalog.Row, backend Backend) error {
	desc, err := backend.Description(ctx)
	if err != nil {
		return err
	}
	if row.Backend != "" && row.Backend != desc.Backend {
		e := walimpls.Errorf(walimpls.CodeForeignStore, row.Channel,
			"the catalog says backend %q, plugin %q is %q now", row.Backend, row.Plugin, desc.Backend)
		e.Hint = "configure the plugin with its former backend, or remove the channel and create it again"
		return e
	}
	if row.StoreID == "" || !desc.Capabilities.ReadOnly {
		return nil
	}
	log, err := backend.Open(ctx, walimpls.OpenOptions{Channel: row.Channel, Access: walimpls.AccessReadOnly})
	if errors.Is(err, walimpls.ErrNotFound) {
		e := walimpls.Errorf(walimpls.CodeForeignStore, row.Channel,
			"the log %s that the catalog names is not in plugin %q", row.StoreID, row.Plugin)
		e.Hint = "point the plugin at the store that holds it, or remove the channel and create it again"
		return e
	}
	if err != nil {
		return err
	}
	defer func() { _ = log.Close(ctx) }()
	return sameStore(row.Channel, row.StoreID, log.Channel().StoreID)
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
	attemptTimeout time.Duration
	log            *zap.Logger
}

// open asks the row and opens the backend with the next incarnation, until it
// works, fails for good, or ctx ends. Each attempt takes an incarnation of its
// own, also after one that was given up: it may have happened all the same.
func (c *claim) open(ctx context.Context) (walimpls.WAL, error) {
	pause := backoff{first: 50 * time.Millisecond, most: 5 * time.Second}
	for {
		handle, err := c.attempt(ctx)
		if err == nil {
			return handle, nil
		}
		if !transient(err) || ctx.Err() != nil {
			return nil, err
		}
		c.log.Warn("open failed, trying again", zap.Int64("incarnation", c.incarnation), zap.Error(err))
		if !pause.wait(ctx) {
			return nil, err
		}
	}
}

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

// latestStart turns "latest" into a start that can be used again.
func latestStart(ctx context.Context, handle walimpls.WAL) (walimpls.Start, error) {
	b, err := handle.Bounds(ctx)
	if err != nil {
		return walimpls.Start{}, err
	}
	return startBehind(b.Latest), nil
}

// startBehind is StartAfter, or All where id is the one position that no read
// may name: none, or the first fence record's all-zero id.
func startBehind(id message.ID) walimpls.Start {
	if id.IsZero() {
		return walimpls.FromAll()
	}
	return walimpls.StartAfter(id)
}
