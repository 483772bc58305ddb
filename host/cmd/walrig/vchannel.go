package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
)

func (a *app) vchannelCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vchannel",
		Short: "Create, drop and list the virtual channels of a channel",
		Long: `Create, drop and list the virtual channels of a channel.

A virtual channel is a stream of its own inside a channel's log ("append --vchannel V"), and is flushed to files of its
own. Records go only to one that was created; those without --vchannel are for all, and need none.`,
		Example: `  walrig vchannel create orders eu us
  echo hello | walrig append orders --vchannel eu
  walrig vchannel list orders`,
	}
	group(cmd)
	cmd.AddCommand(a.vchannelCreateCmd(), a.vchannelDropCmd(), a.vchannelListCmd())
	return cmd
}

func (a *app) vchannelCreateCmd() *cobra.Command {
	var ifNotExists bool
	cmd := &cobra.Command{
		Use: "create CHANNEL V...", Short: "Create virtual channels", ValidArgsFunction: a.completeChannel,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return needs("CHANNEL", "V")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				created, err := c.CreateVChannels(ctx, args[0], args[1:], ifNotExists)
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return a.out().json(vchannelsCreatedJSON{Channel: args[0], Created: convert(created, func(s string) string { return s })})
				}
				if len(created) == 0 {
					return a.out().printf("exist already: %s of %s\n", strings.Join(args[1:], " "), args[0])
				}
				return a.out().printf("created %s of %s\n", strings.Join(created, " "), args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&ifNotExists, "if-not-exists", false, "succeed if all of them exist already")
	return cmd
}

type vchannelsCreatedJSON struct {
	Channel string   `json:"channel"`
	Created []string `json:"created"`
}

func (a *app) vchannelDropCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "drop CHANNEL V",
		Short: "Drop a virtual channel",
		Long: `Drop a virtual channel: it takes no more records from now on. What it holds is flushed, and its files stay. It can be
created again when that is done.`,
		Args: needs("CHANNEL", "V"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := c.DropVChannel(ctx, args[0], args[1]); err != nil {
					return err
				}
				if a.output == outputJSON {
					return a.out().json(map[string]string{"channel": args[0], "name": args[1], "done": "dropped"})
				}
				return a.out().printf("dropped %s of %s\n", args[1], args[0])
			})
		},
	}
}

// vchannelJSON is `vchannel list -o json`. Ticks and counts are decimal strings.
type vchannelJSON struct {
	Channel     string             `json:"channel"`
	Name        string             `json:"name"`
	State       string             `json:"state"`
	StartTick   string             `json:"start_tick"`
	DroppedTick *string            `json:"dropped_tick"`
	Flush       *vchannelFlushJSON `json:"flush"`
}

func (a *app) vchannelListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list CHANNEL", Short: "List the virtual channels of a channel", Args: needs("CHANNEL"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.ListVChannels(ctx, args[0])
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return jsonLines(a.out(), convert(list, func(v *walv1.VChannelStatus) vchannelJSON { return toVChannelJSON(args[0], v) }))
				}
				rows := convert(list, func(v *walv1.VChannelStatus) []string {
					f := v.GetFlush()
					row := []string{v.GetName(), v.GetState(), "", "", ""}
					if f != nil {
						row[2], row[3], row[4] = f.GetState(), strconv.FormatInt(f.GetLagMs(), 10), f.GetError().GetMessage()
					}
					return row
				})
				return a.out().table([]string{"VCHANNEL", "STATE", "FLUSH", "LAG MS", "ERROR"}, rows)
			})
		},
	}
}

func toVChannelJSON(channel string, v *walv1.VChannelStatus) vchannelJSON {
	j := vchannelJSON{Channel: channel, Name: v.GetName(), State: v.GetState(), StartTick: strconv.FormatUint(v.GetStartTick(), 10)}
	if t := v.GetDroppedTick(); t > 0 {
		j.DroppedTick = optional(strconv.FormatUint(t, 10))
	}
	if v.GetFlush() != nil {
		f := toVChannelFlushJSON(v.GetFlush())
		j.Flush = &f
	}
	return j
}
