package server

import (
	"context"
	"errors"

	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/walimpls"
)

// order carries out an open or a close of cluster mode. The caller waits until
// ctx ends; the order goes on, and the state follows it.
func (c *channel) order(ctx context.Context, do func(context.Context) error) error {
	result := make(chan error, 1)
	c.set.keepers.Add(1)
	go func() {
		defer c.set.keepers.Done()
		err := do(c.set.ctx)
		c.follow()
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return stillOpening(ctx, c.name)
	}
}

// openTerm opens the channel at the caller's term. A term that is refused as
// too old changes nothing.
func (c *channel) openTerm(ctx context.Context, term int64) error {
	if _, err := c.configured(); err != nil {
		return err
	}
	c.setState(opening, nil)
	return c.order(ctx, func(ctx context.Context) error {
		err := c.set.opt.Manager.Open(ctx, c.name, term)
		if err == nil {
			c.refresh(ctx)
		}
		return err
	})
}

// closeTerm ends the caller's term.
func (c *channel) closeTerm(ctx context.Context, term int64) error {
	return c.order(ctx, func(ctx context.Context) error {
		return c.set.opt.Manager.Remove(ctx, c.name, term)
	})
}

// follow takes the state from the manager. Orders may overtake each other; each
// follows when it has ended, and so the last one to end leaves what is.
func (c *channel) follow() {
	c.following.Lock()
	defer c.following.Unlock()
	switch st := c.set.managed(c.name); {
	case st.State == walmanager.Available:
		c.setState(available, nil)
	case st.State == walmanager.Opening:
		c.setState(opening, nil)
	case st.Err != nil:
		c.setState(unavailable, st.Err)
	default:
		c.setState(unavailable, c.notOpen())
	}
}

// clusterError is why Get gave no WAL of a channel that was opened.
func (c *channel) clusterError(err error) error {
	if errors.Is(err, walimpls.ErrNotFound) {
		return c.notOpen()
	}
	return err
}
