package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
)

func (a *app) statusCmd() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the host, its plugins and its channels",
		Long: `Show the host, its plugins and its channels.

A host is ready when each plugin is configured or has failed, and each channel is open or has reported its first error.
With --wait status waits for that, also for a host that cannot be reached yet, and exits with 4 if it does not come.`,
		Args: needs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return usageError("", "--wait must not be negative")
			}
			if wait > 0 {
				return a.waitStatus(cmd.Context(), wait)
			}
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				return a.printStatus(st)
			})
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait this long for the host to be ready")
	return cmd
}

func (a *app) waitStatus(ctx context.Context, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	opts, err := a.dialOptions()
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, a.addr, append(opts, client.WithLazyConnect())...)
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.WaitReady(ctx)
	if err != nil {
		return err
	}
	return a.printStatus(st)
}

func (a *app) printStatus(st *walv1.StatusResponse) error {
	o := a.out()
	if a.output == outputJSON {
		return o.json(toStatusJSON(st))
	}
	ready := "ready"
	if !st.GetReady() {
		ready = "not ready"
	}
	if err := o.printf("walrig %s, %s, %s, pid %d, mode %s\ndata in %s\n\n",
		st.GetVersion(), st.GetAddr(), ready, st.GetPid(), st.GetMode(), st.GetDataDir()); err != nil {
		return err
	}
	if err := o.plugins(st.GetPlugins()); err != nil {
		return err
	}
	if len(st.GetChannels()) == 0 {
		return o.printf("\nno channels yet: `walrig channel create NAME` makes one\n")
	}
	if err := o.printf("\n"); err != nil {
		return err
	}
	return o.channels(st.GetChannels())
}

func (o out) plugins(plugins []*walv1.PluginStatus) error {
	rows := convert(plugins, func(p *walv1.PluginStatus) []string {
		backend := p.GetBackend()
		if p.GetFencing() == "none" {
			backend += " (no fencing)"
		}
		return []string{p.GetName(), backend, p.GetVersion(), p.GetState(), number(p.GetPid()), strconv.FormatInt(p.GetRestarts(), 10), p.GetLastExit()}
	})
	return o.table([]string{"PLUGIN", "BACKEND", "VERSION", "STATE", "PID", "RESTARTS", "LAST EXIT"}, rows)
}

func (o out) channels(channels []*walv1.ChannelStatus) error {
	rows := convert(channels, func(c *walv1.ChannelStatus) []string {
		return []string{c.GetName(), c.GetPlugin(), number(c.GetTerm()), c.GetState(), c.GetEarliestId(), c.GetLatestId(), channelError(c)}
	})
	return o.table([]string{"CHANNEL", "PLUGIN", "TERM", "STATE", "EARLIEST", "LATEST", "ERROR"}, rows)
}

func channelError(c *walv1.ChannelStatus) string {
	e := c.GetError()
	if e == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", e.GetMessage(), e.GetCode())
}

// number is "" for 0, which tables show as "-".
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
