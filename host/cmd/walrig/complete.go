package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
)

// completeTimeout keeps completion from making the shell wait.
const completeTimeout = 800 * time.Millisecond

func (a *app) completeChannel(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		channels, err := c.ListChannels(ctx)
		return convert(channels, (*walv1.ChannelStatus).GetName), err
	})
}

func (a *app) completePlugin(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	if isPath(typed) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completePluginName(cmd)
}

func (a *app) completePluginName(cmd *cobra.Command) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		plugins, err := c.ListPlugins(ctx)
		return convert(plugins, (*walv1.PluginStatus).GetName), err
	})
}

func (a *app) complete(cmd *cobra.Command, list func(context.Context, *client.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	if err := a.checkGlobals(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.dial(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	names, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
