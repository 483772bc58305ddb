package server

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/sdk/walimpls"
)

// closeChannel ends a term (cluster mode).
func (s *channels) closeChannel(ctx context.Context, name string, term int64) error {
	c, unlock, err := s.lockFound(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if s.opt.Mode == Standalone {
		e := walimpls.Errorf(walimpls.CodeUnsupported, name, "in standalone mode every channel is kept open")
		e.Hint = "forget the channel with `walrig channel remove`, or configure mode: cluster to give terms by hand"
		return e
	}
	if err := s.checkTerm(name, term, true); err != nil {
		return err
	}
	return c.closeTerm(ctx, term)
}

// remove forgets a channel and, with purge, deletes its log first: if the host
// dies in between, the row is still there and the call can be repeated.
func (s *channels) remove(ctx context.Context, name string, purge bool) error {
	c, unlock, err := s.lockFound(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	var plugin Plugin
	if purge {
		if plugin, err = c.purgeable(ctx); err != nil {
			return err
		}
	}
	c.halt()
	if err := s.take(ctx, c, plugin); err != nil {
		if s.opt.Mode == Standalone {
			c.setState(opening, nil)
			c.start()
		}
		return err
	}
	s.drop(c)
	// Whoever waits for the channel to open learns that it is gone.
	c.setState(unavailable, noChannel(name))
	return nil
}

// take closes the channel, drops its log if plugin is not nil, and deletes the row.
func (s *channels) take(ctx context.Context, c *channel, plugin Plugin) error {
	if err := s.opt.Manager.Forget(ctx, c.name); err != nil {
		return err
	}
	row, err := s.opt.Catalog.Get(ctx, c.name)
	if errors.Is(err, walimpls.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if plugin != nil {
		if err := plugin.Drop(ctx, c.name, max(row.Term, 1)); err != nil {
			return err
		}
		c.log.Info("the log was deleted", zap.String("store_id", row.StoreID))
	}
	return s.opt.Catalog.Delete(ctx, c.name, row.Term)
}

// purgeable returns the plugin whose log may be deleted, nil if there is no log,
// or why it may not be: a log that is not the channel's is somebody else's data.
func (c *channel) purgeable(ctx context.Context) (Plugin, error) {
	plugin, err := c.configured()
	if err != nil {
		return nil, err
	}
	desc, err := plugin.Description(ctx)
	if err != nil {
		return nil, err
	}
	if !desc.Capabilities.Drop {
		e := walimpls.Errorf(walimpls.CodeUnsupported, c.name, "backend %q does not delete logs", desc.Backend)
		e.Hint = "remove the channel without --purge; its log stays"
		return nil, e
	}
	row, err := c.set.opt.Catalog.Get(ctx, c.name)
	if err != nil {
		return nil, err
	}
	there, err := lookAt(ctx, plugin, desc, c.name)
	if err != nil {
		return nil, err
	}
	if !there.exists {
		return nil, nil
	}
	if !owns(row, desc.Backend, there) {
		e := walimpls.Errorf(walimpls.CodeForeignStore, c.name, "the log %s in plugin %q is not the channel's log: it is not deleted", there.storeID, c.plugin)
		e.Hint = "remove the channel without --purge"
		return nil, e
	}
	return plugin, nil
}

// owns reports whether the log is the row's. A row without a store id has at
// most begun its first open; what that left carries a term that the row claimed.
func owns(row catalog.Row, backend string, there storedLog) bool {
	if row.Backend != "" && row.Backend != backend {
		return false
	}
	if row.StoreID != "" {
		return row.StoreID == there.storeID
	}
	return there.highest.Term <= row.Term
}
