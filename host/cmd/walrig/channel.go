package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
)

func (a *app) channelCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "channel", Short: "Create, inspect and remove channels"}
	group(cmd)
	cmd.AddCommand(
		a.channelCreateCmd(), a.channelDescribeCmd(), a.channelListCmd(), a.channelOpenCmd(), a.channelCloseCmd(),
		a.channelTruncateCmd(), a.channelRemoveCmd(),
	)
	return cmd
}

func (a *app) channelCreateCmd() *cobra.Command {
	var opt client.CreateOptions
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a channel",
		Long: `Create a channel: a log of that name in a plugin's store.

In mode standalone the host opens it at once. In mode cluster it is opened with --term, or later by "channel open".
A log that is there already is refused without --adopt, which continues it above its highest term. Do not adopt a log
while the host that it belonged to still runs.`,
		Args: needs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, created, err := c.CreateChannel(ctx, args[0], opt)
				if err != nil {
					return err
				}
				verb := "created"
				if !created {
					verb = "exists already:"
				}
				return a.printChannel(verb, st)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&opt.Plugin, "plugin", "", "plugin that stores it (default: the host's default_plugin)")
	f.Int64Var(&opt.Term, "term", 0, "open it at this term (mode cluster)")
	f.BoolVar(&opt.Adopt, "adopt", false, "continue a log that is in the store already")
	_ = cmd.RegisterFlagCompletionFunc("plugin", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.completePluginName(cmd)
	})
	return cmd
}

func (a *app) channelDescribeCmd() *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show a channel", Args: needs("NAME"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.DescribeChannel(ctx, args[0])
				if err != nil {
					return err
				}
				return a.describeChannel(st)
			})
		},
	}
}

func (a *app) channelListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the channels", Args: needs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				channels, err := c.ListChannels(ctx)
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return jsonLines(a.out(), convert(channels, toChannelJSON))
				}
				return a.out().channels(channels)
			})
		},
	}
}

func (a *app) channelOpenCmd() *cobra.Command {
	var term int64
	var adopt bool
	cmd := &cobra.Command{
		Use:   "open NAME",
		Short: "Open a channel",
		Long: `Open a channel.

In mode cluster --term is required: it must be above every term that the channel had, and takes the channel from
whoever has it. In mode standalone the host picks the term, and open tries at once what the host would try later: after
the reason for an "unavailable" is gone. --adopt makes the log that is in the store now the channel's log.`,
		Args: needs("NAME"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.OpenChannel(ctx, args[0], term, adopt)
				if err != nil {
					return err
				}
				return a.printChannel("opened", st)
			})
		},
	}
	cmd.Flags().Int64Var(&term, "term", 0, "the term (mode cluster)")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "continue the log that is in the store now")
	return cmd
}

func (a *app) channelCloseCmd() *cobra.Command {
	var term int64
	cmd := &cobra.Command{
		Use: "close NAME --term T", Short: "Close a channel at its term (mode cluster)", Args: needs("NAME"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := c.CloseChannel(ctx, args[0], term); err != nil {
					return err
				}
				return a.printDone("closed", args[0])
			})
		},
	}
	cmd.Flags().Int64Var(&term, "term", 0, "the term that ends")
	return cmd
}

func (a *app) channelTruncateCmd() *cobra.Command {
	var before string
	cmd := &cobra.Command{
		Use: "truncate NAME --before ID", Short: "Remove the records before an id; the record at the id stays",
		Args: needs("NAME"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			if before == "" {
				return usageError(helpHint(cmd), "channel truncate needs --before ID")
			}
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.TruncateChannel(ctx, args[0], before)
				if err != nil {
					return err
				}
				return a.printChannel("truncated", st)
			})
		},
	}
	cmd.Flags().StringVar(&before, "before", "", "id of the first record to keep")
	return cmd
}

func (a *app) channelRemoveCmd() *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Forget a channel, and delete its log with --purge",
		Long: `Forget a channel. Its log stays in the store, and "channel create --adopt" brings it back.
With --purge the log is deleted too, for good.`,
		Args: needs("NAME"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := c.RemoveChannel(ctx, args[0], purge); err != nil {
					return err
				}
				if purge {
					return a.printDone("purged", args[0])
				}
				return a.printDone("removed", args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "delete the log too")
	return cmd
}

// printChannel reports what was done to a channel: one line, or the channel.
func (a *app) printChannel(verb string, st *walv1.ChannelStatus) error {
	if a.output == outputJSON {
		return a.out().json(toChannelJSON(st))
	}
	line := fmt.Sprintf("%s %s (plugin %s, %s", verb, st.GetName(), st.GetPlugin(), st.GetState())
	if st.GetTerm() > 0 {
		line += fmt.Sprintf(", term %d", st.GetTerm())
	}
	return a.out().printf("%s)\n", line)
}

// printDone is for calls that leave nothing to show.
func (a *app) printDone(verb, channel string) error {
	if a.output == outputJSON {
		return a.out().json(map[string]string{"name": channel, "done": verb})
	}
	return a.out().printf("%s %s\n", verb, channel)
}

func (a *app) describeChannel(st *walv1.ChannelStatus) error {
	if a.output == outputJSON {
		return a.out().json(toChannelJSON(st))
	}
	fields := [][]string{
		{"name", st.GetName()}, {"plugin", st.GetPlugin()}, {"backend", st.GetBackend()}, {"store", st.GetStoreId()},
		{"state", st.GetState()}, {"term", number(st.GetTerm())}, {"incarnation", number(st.GetIncarnation())},
		{"earliest id", st.GetEarliestId()}, {"latest id", st.GetLatestId()},
	}
	if e := channelError(st); e != "" {
		fields = append(fields, []string{"error", e}, []string{"hint", st.GetError().GetHint()})
	}
	for _, s := range st.GetScanners() {
		fields = append(fields, []string{"reader", s.GetName()})
	}
	return a.out().table(fields[0], fields[1:])
}

// jsonLines writes one object a line.
func jsonLines[T any](o out, objects []T) error {
	for _, v := range objects {
		if err := o.json(v); err != nil {
			return err
		}
	}
	return nil
}
