package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/wire"
)

func (a *app) flushCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flush",
		Short: "Show how far a channel is flushed, and flush it now",
		Long: `Show how far a channel is flushed, and flush it now.

A host with flusher.bucket in its configuration writes the records of every virtual channel to files, and removes from
the log what is in them.`,
		Example: `  walrig flush now orders --wait
  walrig flush status orders
  walrig files orders eu`,
	}
	group(cmd)
	cmd.AddCommand(a.flushStatusCmd(), a.flushNowCmd())
	return cmd
}

// flushJSON is the flush part of a channel. Ticks and counts of 64 bits are
// decimal strings.
type flushJSON struct {
	State           string     `json:"state"`
	Error           *errorJSON `json:"error"`
	Checkpoint      *string    `json:"checkpoint"`
	TimeTick        *string    `json:"time_tick"`
	SavedID         *string    `json:"saved_id"`
	SavedTick       *string    `json:"saved_tick"`
	TruncatedBefore *string    `json:"truncated_before"`
	LagTicks        string     `json:"lag_ticks"`
	LagMS           int64      `json:"lag_ms"`
	LagBytes        string     `json:"lag_bytes"`
	Files           string     `json:"files"`
	Rows            string     `json:"rows"`
	Bytes           string     `json:"bytes"`
	Failures        string     `json:"failures"`
	Detached        string     `json:"detached"`
	LostPositions   string     `json:"lost_positions"`
	Truncations     string     `json:"truncations"`
	MemoryBytes     string     `json:"memory_bytes"`
	MemoryPeak      string     `json:"memory_peak"`
}

// vchannelFlushJSON is how far one vchannel is flushed; "" is the records to all.
type vchannelFlushJSON struct {
	VChannel   string     `json:"vchannel"`
	State      string     `json:"state"`
	Checkpoint *string    `json:"checkpoint"`
	TimeTick   string     `json:"time_tick"`
	LagMS      int64      `json:"lag_ms"`
	LagBytes   string     `json:"lag_bytes"`
	Error      *errorJSON `json:"error"`
}

// flushStatusJSON is `flush status -o json`.
type flushStatusJSON struct {
	Channel   string              `json:"channel"`
	Flush     flushJSON           `json:"flush"`
	VChannels []vchannelFlushJSON `json:"vchannels"`
}

func toFlushJSON(f *walv1.FlushStatus) flushJSON {
	j := flushJSON{
		State: f.GetState(), Checkpoint: optional(f.GetCheckpoint()), SavedID: optional(f.GetSavedId()), TruncatedBefore: optional(f.GetTruncatedBefore()),
		LagTicks: strconv.FormatUint(f.GetLagTicks(), 10), LagMS: f.GetLagMs(), LagBytes: *decimal(f.GetLagBytes()),
		Files: *decimal(f.GetFiles()), Rows: *decimal(f.GetRows()), Bytes: *decimal(f.GetBytes()), Failures: *decimal(f.GetFailures()),
		Detached: *decimal(f.GetDetached()), LostPositions: *decimal(f.GetLostPositions()), Truncations: *decimal(f.GetTruncations()),
		MemoryBytes: *decimal(f.GetMemoryBytes()), MemoryPeak: *decimal(f.GetMemoryPeak()),
	}
	if t := f.GetTimeTick(); t > 0 {
		j.TimeTick = optional(strconv.FormatUint(t, 10))
	}
	if t := f.GetSavedTick(); t > 0 {
		j.SavedTick = optional(strconv.FormatUint(t, 10))
	}
	if f.GetError() != nil {
		e := toErrorJSON(wire.ErrorFromProto(f.GetError()))
		j.Error = &e
	}
	return j
}

func toVChannelFlushJSON(v *walv1.VChannelFlush) vchannelFlushJSON {
	j := vchannelFlushJSON{
		VChannel: v.GetVchannel(), State: v.GetState(), Checkpoint: optional(v.GetCheckpoint()),
		TimeTick: strconv.FormatUint(v.GetTimeTick(), 10), LagMS: v.GetLagMs(), LagBytes: *decimal(v.GetLagBytes()),
	}
	if v.GetError() != nil {
		e := toErrorJSON(wire.ErrorFromProto(v.GetError()))
		j.Error = &e
	}
	return j
}

func (a *app) flushStatusCmd() *cobra.Command {
	var vchannel string
	cmd := &cobra.Command{
		Use: "status CHANNEL", Short: "Show how far a channel is flushed", Args: needs("CHANNEL"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.FlushStatus(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printFlushStatus(args[0], vchannel, st)
			})
		},
	}
	cmd.Flags().StringVar(&vchannel, "vchannel", "", "only this virtual channel")
	return cmd
}

func (a *app) printFlushStatus(channel, only string, st *walv1.FlushStatusResponse) error {
	var list []*walv1.VChannelFlush
	for _, v := range st.GetVchannels() {
		if only == "" || v.GetVchannel() == only {
			list = append(list, v)
		}
	}
	f := st.GetFlush()
	if a.output == outputJSON {
		return a.out().json(flushStatusJSON{Channel: channel, Flush: toFlushJSON(f), VChannels: convert(list, toVChannelFlushJSON)})
	}
	fields := [][]string{
		{"flush", f.GetState()}, {"lag", strconv.FormatInt(f.GetLagMs(), 10) + " ms, " + bytesText(f.GetLagBytes())},
		{"files", strconv.FormatInt(f.GetFiles(), 10)}, {"rows", strconv.FormatInt(f.GetRows(), 10)},
		{"saved at", f.GetSavedId()}, {"truncated before", f.GetTruncatedBefore()},
	}
	if e := f.GetError(); e != nil {
		fields = append(fields, []string{"error", e.GetMessage()}, []string{"hint", e.GetHint()})
	}
	if err := a.out().table(fields[0], fields[1:]); err != nil || len(list) == 0 {
		return err
	}
	if err := a.out().printf("\n"); err != nil {
		return err
	}
	return a.out().table([]string{"VCHANNEL", "STATE", "LAG MS", "LAG BYTES", "ERROR"}, convert(list, func(v *walv1.VChannelFlush) []string {
		name := v.GetVchannel()
		if name == "" {
			name = "(all)"
		}
		return []string{name, v.GetState(), strconv.FormatInt(v.GetLagMs(), 10), strconv.FormatInt(v.GetLagBytes(), 10), v.GetError().GetMessage()}
	}))
}

func (a *app) flushNowCmd() *cobra.Command {
	var vchannel string
	var wait bool
	cmd := &cobra.Command{
		Use:   "now CHANNEL",
		Short: "Flush a channel now",
		Long: `Flush a channel now, or one of its virtual channels: what was stored before goes to files without waiting for size or
age. With --wait the command ends when it is there.`,
		Args: needs("CHANNEL"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.FlushNow(ctx, args[0], vchannel, wait)
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return a.out().json(flushNowJSON{
						Channel: args[0], VChannel: vchannel, Term: r.GetTerm(), TimeTick: strconv.FormatUint(r.GetTimeTick(), 10), Flushed: wait,
					})
				}
				done := "asked for a flush of"
				if wait {
					done = "flushed"
				}
				return a.out().printf("%s %s\n", done, args[0])
			})
		},
	}
	cmd.Flags().StringVar(&vchannel, "vchannel", "", "only this virtual channel")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is flushed")
	return cmd
}

// flushNowJSON is `flush now -o json`; flushed says that it was waited for.
type flushNowJSON struct {
	Channel  string `json:"channel"`
	VChannel string `json:"vchannel"`
	Term     int64  `json:"term"`
	TimeTick string `json:"time_tick"`
	Flushed  bool   `json:"flushed"`
}

// fileJSON is `files -o json`. Counts and ticks are decimal strings.
type fileJSON struct {
	Channel   string `json:"channel"`
	VChannel  string `json:"vchannel"`
	Path      string `json:"path"`
	Rows      string `json:"rows"`
	Bytes     string `json:"bytes"`
	FirstTick string `json:"first_tick"`
	LastTick  string `json:"last_tick"`
	Term      int64  `json:"term"`
}

func (a *app) filesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "files CHANNEL V",
		Short: "List the files that a virtual channel was flushed to",
		Long: `List the files that a virtual channel was flushed to, oldest first; "" is for the records to all. Only the files that
are listed count: others in the folder may be left over from a crash.`,
		Args: needs("CHANNEL", "V"), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				files, err := c.ListFiles(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				if a.output == outputJSON {
					return jsonLines(a.out(), convert(files, func(f *walv1.File) fileJSON {
						return fileJSON{
							Channel: args[0], VChannel: args[1], Path: f.GetPath(), Rows: *decimal(f.GetRows()), Bytes: *decimal(f.GetBytes()),
							FirstTick: strconv.FormatUint(f.GetFirstTick(), 10), LastTick: strconv.FormatUint(f.GetLastTick(), 10), Term: f.GetTerm(),
						}
					}))
				}
				return a.out().table([]string{"PATH", "ROWS", "BYTES", "TERM"}, convert(files, func(f *walv1.File) []string {
					return []string{f.GetPath(), strconv.FormatInt(f.GetRows(), 10), strconv.FormatInt(f.GetBytes(), 10), strconv.FormatInt(f.GetTerm(), 10)}
				}))
			})
		},
	}
}
