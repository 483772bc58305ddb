package main

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

const pluginPrefix = "walrig-plugin-"

func (a *app) pluginCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Inspect, check and start to write plugins",
		Long: `Inspect and check plugins.

A PLUGIN with a / in it is the path of a binary, which is started for the moment and needs no host. Any other is the
name of a plugin that the host has configured.`,
	}
	group(cmd)
	cmd.AddCommand(a.pluginListCmd(), a.pluginDescribeCmd(), a.pluginVerifyCmd(), a.pluginInitCmd())
	return cmd
}

func (a *app) pluginListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the configured plugins", Args: needs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				plugins, err := c.ListPlugins(ctx)
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return jsonLines(a.out(), convert(plugins, toPluginJSON))
				}
				return a.out().plugins(plugins)
			})
		},
	}
}

func (a *app) pluginDescribeCmd() *cobra.Command {
	var sets []string
	cmd := &cobra.Command{
		Use: "describe PLUGIN", Short: "Show what a plugin's backend is, can do, and takes as configuration", Args: needs("PLUGIN"),
		ValidArgsFunction: a.completePlugin,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isPath(args[0]) {
				st, desc, err := a.verifyBinary(cmd.Context(), args[0], sets)
				// A binary that was described but wants a configuration is good enough here.
				if err != nil && desc.Backend == "" {
					return err
				}
				return a.printDescription("", localPlugin(st), toDescription(desc))
			}
			if len(sets) > 0 {
				return setNeedsPath(args[0])
			}
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				resp, err := c.DescribePlugin(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printAnswer("", resp.GetStatus(), resp.GetDescriptionJson())
			})
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "configuration of a binary, as key=value; may be repeated")
	return cmd
}

func setNeedsPath(plugin string) error {
	return usageError("change the host's configuration, or give the path of a binary", "--set is for the path of a binary; %q is a configured plugin", plugin)
}

func (a *app) pluginVerifyCmd() *cobra.Command {
	var sets []string
	cmd := &cobra.Command{
		Use:   "verify PLUGIN",
		Short: "Start a plugin, check its description and configuration, and stop it",
		Long: `Start a plugin in a process of its own, shake hands, check its description and its configuration, and stop it. No
store is touched. A configured plugin is verified by the host, with its configuration there. For the path of a binary the
configuration is given with --set.`,
		Example: `  walrig plugin verify local
  walrig plugin verify ./walrig-plugin-rmq --set dir=/tmp/x`,
		Args: needs("PLUGIN"), ValidArgsFunction: a.completePlugin,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isPath(args[0]) {
				if len(sets) > 0 {
					return setNeedsPath(args[0])
				}
				return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
					resp, err := c.VerifyPlugin(ctx, args[0])
					if err != nil {
						return err
					}
					return a.printAnswer("verified", resp.GetStatus(), resp.GetDescriptionJson())
				})
			}
			st, desc, err := a.verifyBinary(cmd.Context(), args[0], sets)
			if err != nil {
				return err
			}
			return a.printDescription("verified", localPlugin(st), toDescription(desc))
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "configuration of a binary, as key=value; may be repeated")
	return cmd
}

func isPath(plugin string) bool { return strings.ContainsRune(plugin, '/') }

// verifyBinary starts the binary at path, looks at it and stops it.
func (a *app) verifyBinary(ctx context.Context, path string, sets []string) (pluginhost.Status, walimpls.Description, error) {
	backend, err := backendOf(path)
	if err != nil {
		return pluginhost.Status{}, walimpls.Description{}, err
	}
	values, err := config.ParseValues(sets, a.env)
	if err != nil {
		return pluginhost.Status{}, walimpls.Description{}, err
	}
	cfg := pluginhost.Config{Name: backend, Backend: backend, Path: path, StartTimeout: a.timeout, Config: values}
	return pluginhost.Verify(ctx, cfg, pluginhost.Options{Log: zap.NewNop()})
}

func localPlugin(st pluginhost.Status) pluginJSON {
	return pluginJSON{
		Name: st.Name, Backend: st.Backend, Version: optional(st.Version), State: st.State, Restarts: "0", LastExit: optional(st.LastExit),
		SHA256: optional(st.SHA256), Protocol: positive(int64(st.Protocol)), Path: optional(st.Path), Fencing: optional(st.Fencing),
	}
}

func (a *app) printAnswer(verb string, st *walv1.PluginStatus, descriptionJSON string) error {
	var desc description
	if err := json.Unmarshal([]byte(descriptionJSON), &desc); err != nil {
		return walimpls.Errorf(walimpls.CodeInternal, "", "the host's description of the plugin cannot be read: %w", err)
	}
	return a.printDescription(verb, toPluginJSON(st), desc)
}
