package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// channels is what the host knows about its channels beside the catalog: how
// far each one is open, and in standalone mode who keeps it open.
type channels struct {
	opt Options
	log *zap.Logger
	// admin serialises create, open, close and remove of one name.
	admin keyLock

	// ctx ends with close; keepers counts the goroutines that run under it.
	ctx     context.Context
	cancel  context.CancelFunc
	keepers sync.WaitGroup

	mu     sync.Mutex // guards all below
	byName map[string]*channel
	slots  map[string]chan struct{} // by plugin: how many opens run
}

func newChannels(opt Options) *channels {
	s := &channels{opt: opt, log: opt.Log.Named("channels"), byName: map[string]*channel{}, slots: map[string]chan struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// load takes in all rows and, in standalone mode, starts to open them.
func (s *channels) load(ctx context.Context) error {
	rows, err := s.opt.Catalog.List(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		s.add(row)
	}
	return nil
}

// close stops the keepers and waits for them. What is open stays the manager's.
func (s *channels) close() {
	s.cancel()
	s.keepers.Wait()
}

// add takes in a row; in standalone mode its keeper starts.
func (s *channels) add(row catalog.Row) *channel {
	c := newChannel(s, row)
	s.mu.Lock()
	s.byName[c.name] = c
	s.mu.Unlock()
	if s.opt.Mode == Standalone {
		c.start()
	}
	return c
}

func (s *channels) drop(c *channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[c.name] == c {
		delete(s.byName, c.name)
	}
}

// find returns a channel, or ErrInvalidArgument for a name that cannot be one,
// or ErrNotFound.
func (s *channels) find(name string) (*channel, error) {
	if err := walimpls.ValidateName("channel", name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.byName[name]; c != nil {
		return c, nil
	}
	return nil, noChannel(name)
}

func noChannel(name string) error {
	e := walimpls.Errorf(walimpls.CodeNotFound, name, "no such channel")
	e.Hint = "create it with `walrig channel create " + name + "`"
	return e
}

// all returns the channels, sorted by name.
func (s *channels) all() []*channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*channel, 0, len(s.byName))
	for _, c := range s.byName {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *channel) int { return cmp.Compare(a.name, b.name) })
	return out
}

// slot waits until the plugin may open one more channel. A plugin that hangs
// keeps its own channels waiting, and no others.
func (s *channels) slot(ctx context.Context, plugin string) (release func(), err error) {
	s.mu.Lock()
	slots := s.slots[plugin]
	if slots == nil {
		slots = make(chan struct{}, s.opt.ParallelOpens)
		s.slots[plugin] = slots
	}
	s.mu.Unlock()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// managed returns what the manager knows about a channel; the zero value if nothing.
func (s *channels) managed(name string) walmanager.ChannelState {
	for _, st := range s.opt.Manager.Status() {
		if st.Channel == name {
			return st
		}
	}
	return walmanager.ChannelState{}
}

// state is how far a channel is open.
type state string

const (
	opening     state = "opening"
	available   state = "available"
	unavailable state = "unavailable"
)

// channel is one row's channel.
type channel struct {
	set  *channels
	name string
	log  *zap.Logger
	// plugin is the row's; it never changes.
	plugin string
	// first is closed when the channel is open or has reported an error.
	first chan struct{}
	// kick asks the keeper to try again at once.
	kick chan struct{}
	// following is held while the state is taken from the manager (cluster mode).
	following sync.Mutex

	mu       sync.Mutex // guards all below
	terms    Terms
	reported bool // first is closed
	state    state
	err      error         // why it is unavailable
	changed  chan struct{} // closed and replaced whenever state changes
	desc     *walimpls.Description
	stop     context.CancelFunc // of the keeper; nil while none runs
	stopped  chan struct{}      // closed when the keeper has ended
}

func newChannel(set *channels, row catalog.Row) *channel {
	c := &channel{
		set: set, name: row.Channel, plugin: row.Plugin, log: set.log.With(zap.String("pchannel", row.Channel)),
		first: make(chan struct{}), kick: make(chan struct{}, 1), changed: make(chan struct{}), state: opening,
	}
	if set.opt.Mode == Cluster {
		c.state, c.err = unavailable, c.notOpen()
		c.report()
	}
	return c
}

func (c *channel) notOpen() error {
	e := walimpls.Errorf(walimpls.CodeUnavailable, c.name, "the channel is not open on this host")
	e.Hint = "open it with `walrig channel open " + c.name + " --term T`"
	return e
}

// setState changes the state. A state with a result counts as the first report.
func (c *channel) setState(st state, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.err = st, err
	close(c.changed)
	c.changed = make(chan struct{})
	if st != opening {
		c.report()
	}
}

// report closes first; c.mu is held, or c is not shared yet.
func (c *channel) report() {
	if !c.reported {
		c.reported = true
		close(c.first)
	}
}

// now returns the state, its error, and what is closed when they change.
func (c *channel) now() (state, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.changed, c.err
}

// settled waits until the channel is not being opened, and returns its error.
func (c *channel) settled(ctx context.Context) error {
	for {
		st, changed, err := c.now()
		switch st {
		case available:
			return nil
		case unavailable:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return stillOpening(ctx, c.name)
		}
	}
}

func stillOpening(ctx context.Context, name string) error {
	e := walimpls.ContextError(ctx, name, "the channel is still being opened")
	if e.Code == walimpls.CodeTimeout {
		e.Hint = "`walrig status` shows whether its plugin runs; give the call more time with --timeout"
	}
	return e
}

// wal returns the open WAL, after waiting until the channel is open. A channel
// that could not be opened is its error at once.
func (c *channel) wal(ctx context.Context) (wal.WAL, error) {
	for {
		if err := c.settled(ctx); err != nil {
			return nil, err
		}
		w, err := c.set.opt.Manager.Get(c.name, 0)
		if err == nil {
			return w, nil
		}
		// The WAL has just ended. In standalone mode the keeper is about to say
		// what comes next; in cluster mode the owner has to.
		if c.set.opt.Mode == Cluster {
			return nil, c.clusterError(err)
		}
		if err := c.afterEnd(ctx); err != nil {
			return nil, err
		}
	}
}

// openWAL returns the open WAL, as wal does, with its backend's description.
func (c *channel) openWAL(ctx context.Context) (wal.WAL, walimpls.Description, error) {
	w, err := c.wal(ctx)
	if err != nil {
		return nil, walimpls.Description{}, err
	}
	desc, err := c.description(ctx)
	return w, desc, err
}

// afterEnd waits until the keeper has noticed that the WAL has ended, if it has.
func (c *channel) afterEnd(ctx context.Context) error {
	st, changed, _ := c.now()
	if st != available {
		return nil
	}
	if _, err := c.set.opt.Manager.Get(c.name, 0); err == nil {
		return nil
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return stillOpening(ctx, c.name)
	}
}

// description returns the backend's description as of the last open, or asks
// the plugin when there was none.
func (c *channel) description(ctx context.Context) (walimpls.Description, error) {
	c.mu.Lock()
	desc := c.desc
	c.mu.Unlock()
	if desc != nil {
		return *desc, nil
	}
	return c.describe(ctx)
}

// describe asks the plugin and keeps the answer.
func (c *channel) describe(ctx context.Context) (walimpls.Description, error) {
	plugin, err := c.configured()
	if err != nil {
		return walimpls.Description{}, err
	}
	desc, err := plugin.Description(ctx)
	if err != nil {
		return walimpls.Description{}, err
	}
	c.mu.Lock()
	c.desc = &desc
	c.mu.Unlock()
	return desc, nil
}

// configured returns the channel's plugin; one that is not configured any more
// is ErrConfig, not a channel that does not exist.
func (c *channel) configured() (Plugin, error) {
	plugin, err := c.set.opt.Plugins.Plugin(c.plugin)
	if errors.Is(err, walimpls.ErrNotFound) {
		e := walimpls.Errorf(walimpls.CodeConfig, c.name, "the channel is in plugin %q, which is not configured: %w", c.plugin, err)
		e.Hint = "configure the plugin again, or remove the channel"
		return nil, e
	}
	return plugin, err
}

// parseID turns an id's text into the id.
func (c *channel) parseID(desc walimpls.Description, text string) (message.ID, error) {
	id, err := desc.IDLayout.Parse(text)
	if err != nil {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "%w", err)
		e.Hint = "an id is what `walrig append -o json` and `walrig read -o json` print, such as 42 or 12:3:0"
		return "", e
	}
	return id, nil
}
