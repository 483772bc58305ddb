package server

import (
	"context"
	"errors"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/sdk/walimpls"
)

// createRequest is what CreateChannel asks for.
type createRequest struct {
	name, plugin string
	adopt        bool
	term         int64
	ifNotExists  bool
}

// create makes a row and opens its channel. A channel that was made and could
// not be opened is an error that says so; it stays, and the keeper goes on.
func (s *channels) create(ctx context.Context, req createRequest) (*channel, bool, error) {
	if err := walimpls.ValidateName("channel", req.name); err != nil {
		return nil, false, err
	}
	if err := s.checkTerm(req.name, req.term, false); err != nil {
		return nil, false, err
	}
	unlock, err := s.admin.lock(ctx, req.name)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if c, err := s.find(req.name); err == nil {
		return c, false, c.exists(req)
	}
	row, highest, err := s.plan(ctx, req)
	if err != nil {
		return nil, false, err
	}
	if err := s.opt.Catalog.Create(ctx, row); err != nil {
		return nil, false, err
	}
	c := s.add(row)
	c.raise(highest)
	switch {
	case s.opt.Mode == Standalone:
		err = c.settled(ctx)
	case req.term > 0:
		err = c.openTerm(ctx, req.term)
	}
	if err != nil {
		return c, true, notOpened(c.name, err)
	}
	return c, true, nil
}

func (c *channel) exists(req createRequest) error {
	e := walimpls.Errorf(walimpls.CodeAlreadyExists, c.name, "the channel exists already, in plugin %q", c.plugin)
	if !req.ifNotExists {
		return e
	}
	if req.plugin != "" && req.plugin != c.plugin {
		e.Hint = "leave the plugin's name out, or use another channel name"
		return e
	}
	return nil
}

// plan looks at the plugin and at what its store holds, and returns the row to
// create and the highest term in a log that is adopted.
func (s *channels) plan(ctx context.Context, req createRequest) (catalog.Row, int64, error) {
	var none catalog.Row
	name := req.plugin
	if name == "" {
		name = s.opt.DefaultPlugin
	}
	if name == "" {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, req.name, "no plugin was named and there is no default one")
		e.Hint = "name one with --plugin, or configure default_plugin"
		return none, 0, e
	}
	plugin, err := s.opt.Plugins.Plugin(name)
	if err != nil {
		return none, 0, err
	}
	desc, err := plugin.Description(ctx)
	if err != nil {
		return none, 0, err
	}
	if s.opt.Mode == Cluster && desc.Capabilities.Fencing == walimpls.FencingNone {
		return none, 0, walimpls.Errorf(walimpls.CodeUnsupported, req.name,
			"backend %q does not fence former owners: it is for standalone mode only", desc.Backend)
	}
	row := catalog.Row{Channel: req.name, Plugin: name, Backend: desc.Backend}
	there, err := lookAt(ctx, plugin, desc, req.name)
	if err != nil {
		return none, 0, err
	}
	switch {
	case there.exists && !req.adopt:
		e := walimpls.Errorf(walimpls.CodeForeignStore, req.name,
			"plugin %q holds a log of this name already (%s, up to term %d), which the catalog does not know", name, there.storeID, there.highest.Term)
		e.Hint = "continue it with --adopt, if no host that knows it runs any more; or use another channel name"
		return none, 0, e
	case !there.exists && req.adopt:
		e := walimpls.Errorf(walimpls.CodeNotFound, req.name, "plugin %q holds no log of this name to adopt", name)
		e.Hint = "leave --adopt out to create a new log, or name another --plugin"
		return none, 0, e
	}
	// A log that is there already may have vchannels; its first open finds out.
	row.StoreID, row.VChannelsKnown = there.storeID, !there.exists
	return row, there.highest.Term, nil
}

// storedLog is what a store holds under a channel's name.
type storedLog struct {
	exists  bool
	storeID string
	highest walimpls.Pair
}

// lookAt opens the log read-only: nobody is disturbed, and nothing is created.
func lookAt(ctx context.Context, plugin Plugin, desc walimpls.Description, channel string) (storedLog, error) {
	if !desc.Capabilities.ReadOnly {
		e := walimpls.Errorf(walimpls.CodeUnsupported, channel, "backend %q cannot tell whether it holds a log, since it does not open read-only", desc.Backend)
		e.Hint = "use a backend with read-only opens"
		return storedLog{}, e
	}
	w, err := plugin.Open(ctx, walimpls.OpenOptions{Channel: channel, Access: walimpls.AccessReadOnly})
	if errors.Is(err, walimpls.ErrNotFound) {
		return storedLog{}, nil
	}
	if err != nil {
		return storedLog{}, err
	}
	ch := w.Channel()
	_ = w.Close(ctx)
	return storedLog{exists: true, storeID: ch.StoreID, highest: ch.Pair}, nil
}

// notOpened says that a channel was made all the same.
func notOpened(name string, err error) error {
	inner := walimpls.AsError(err)
	e := walimpls.Errorf(inner.Code, name, "the channel was created and is not open yet: %w", err)
	e.Message = "the channel was created and is not open yet: " + inner.Message
	e.Retryable = inner.Retryable
	e.Hint = inner.Hint
	if e.Hint == "" {
		e.Hint = "`walrig channel describe " + name + "` shows how it goes on"
	}
	return e
}

// checkTerm refuses a term where none is taken, and asks for one where it must
// be given.
func (s *channels) checkTerm(name string, term int64, required bool) error {
	switch {
	case s.opt.Mode == Standalone && term != 0:
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, name, "in standalone mode the host picks the terms itself")
		e.Hint = "leave --term out, or configure mode: cluster"
		return e
	case term < 0, s.opt.Mode == Cluster && required && term == 0:
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, name, "term %d: in cluster mode give a term of 1 or more", term)
		e.Hint = "give one above the channel's with --term"
		return e
	}
	return nil
}

func (c *channel) raise(highest int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.terms.Raise(highest)
}

// open opens a channel at the caller's term (cluster), or tries at once to open
// one that is unavailable (standalone).
func (s *channels) open(ctx context.Context, name string, term int64, adopt bool) (*channel, error) {
	c, unlock, err := s.lockFound(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.checkTerm(name, term, true); err != nil {
		return nil, err
	}
	if st, _, _ := c.now(); adopt && st != available {
		if err := c.adoptStopped(ctx); err != nil {
			return nil, err
		}
	}
	if s.opt.Mode == Standalone {
		return c, c.retry(ctx)
	}
	return c, c.openTerm(ctx, term)
}

// adoptStopped is adopt without the keeper, which may be about to fail because
// of what the row says now.
func (c *channel) adoptStopped(ctx context.Context) error {
	if c.set.opt.Mode == Cluster {
		return c.adopt(ctx)
	}
	c.halt()
	defer c.start()
	err := c.adopt(ctx)
	c.setState(opening, nil)
	return err
}

// lockFound finds a channel and keeps other admin calls away from it.
func (s *channels) lockFound(ctx context.Context, name string) (*channel, func(), error) {
	if _, err := s.find(name); err != nil {
		return nil, nil, err
	}
	unlock, err := s.admin.lock(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.find(name)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return c, unlock, nil
}

// adopt makes the log that is in the plugin's store now the channel's log.
// Positions of another log mean nothing in it and are dropped.
func (c *channel) adopt(ctx context.Context) error {
	plugin, err := c.configured()
	if err != nil {
		return err
	}
	desc, err := plugin.Description(ctx)
	if err != nil {
		return err
	}
	there, err := lookAt(ctx, plugin, desc, c.name)
	if err != nil {
		return err
	}
	if !there.exists {
		e := walimpls.Errorf(walimpls.CodeNotFound, c.name, "plugin %q holds no log of this name to adopt", c.plugin)
		e.Hint = "remove the channel and create it again to begin a new log"
		return e
	}
	row, err := c.set.opt.Catalog.Get(ctx, c.name)
	if err != nil {
		return err
	}
	_, err = c.set.opt.Catalog.Update(ctx, c.name, row.Term, func(row *catalog.Row) error {
		if row.StoreID != there.storeID {
			row.Checkpoints, row.TruncatedBefore = nil, nil
			row.VChannels, row.VChannelsKnown = nil, false
		}
		row.Backend, row.StoreID = desc.Backend, there.storeID
		return nil
	})
	if err == nil {
		c.raise(there.highest.Term)
	}
	return err
}
