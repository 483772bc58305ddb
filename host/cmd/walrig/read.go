package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

const readBuffer = 256 << 10

type readOptions struct {
	channel, from, vchannel, delimiter string
	follow, system                     bool
	count                              int64
}

func (a *app) readCmd() *cobra.Command {
	opt := readOptions{}
	cmd := &cobra.Command{
		Use:   "read CHANNEL",
		Short: "Read records",
		Long: `Read records, in the order of their time ticks, each once. The records of a transaction come together, where it was
committed; they have its txn_id and the time tick of the commit.

Without --follow reading stops at the end of the log as it was at the start. With --follow it waits for more, and when
the host goes away it waits for the host to come back and goes on behind the last record.
--timeout bounds the whole read: one that was asked for -n records, or for all there are, and did not get them exits
with 4; one that only follows ends with 0.

Output formats:
  text  one record a line: the payload, with control characters and bytes that are no UTF-8 shown as \n, \x00 and the
        like, so that nothing can disturb a terminal
  raw   the payload as it is, and the delimiter: what "append" has split comes out again byte for byte
  json  one object a line: channel, id, time_tick, time, term, type, vchannel, txn_id, properties, payload (base64),
        text (only if the payload is valid UTF-8), checkpoint (the parts of a transaction but the last have that of what
        comes before it, so that it is read whole or not at all)`,
		Example: `  walrig read orders
  walrig read orders --from after:42 -o json
  walrig read orders --from cp:ASA3YTFk…
  walrig read orders --from latest --follow -n 1 --timeout 30s
  walrig read paths -o raw --delimiter '\0' | xargs -0 ls -l`,
		Args:              needs("CHANNEL"),
		ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			opt.channel = args[0]
			if cmd.Flags().Changed("number") && opt.count < 0 {
				return usageError("", "-n must not be negative")
			}
			if cmd.Flags().Changed("delimiter") && a.output != outputRaw {
				return usageError("add -o raw", "--delimiter is for -o raw only")
			}
			return a.runRead(cmd.Context(), opt)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opt.from, "from", "all", "where to start: all, latest, ID, after:ID, or cp:TOKEN (a checkpoint)")
	f.BoolVarP(&opt.follow, "follow", "F", false, "wait for more at the end of the log")
	f.Int64VarP(&opt.count, "number", "n", -1, "stop after this many records (default: no limit)")
	f.StringVar(&opt.vchannel, "vchannel", "", "only records of this virtual channel, and those for all")
	f.BoolVar(&opt.system, "system", false, "system records too")
	f.StringVar(&opt.delimiter, "delimiter", `\n`, `what follows each record with -o raw; \n \t \r \0 \\ \xHH are understood`)
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress bar")
	return cmd
}

func (a *app) runRead(ctx context.Context, opt readOptions) error {
	format, err := a.recordFormat(opt)
	if err != nil {
		return err
	}
	if a.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	reader, err := c.NewReader(ctx, opt.channel, client.ReadOptions{From: opt.from, Follow: opt.follow, VChannel: opt.vchannel, System: opt.system})
	if err != nil {
		return a.readError(ctx, opt, 0, err)
	}
	defer reader.Close()
	progress := a.startProgress(0, true)
	defer progress.stop()
	n, err := copyRecords(ctx, reader, a.out(), format, opt.count, progress)
	return a.readError(ctx, opt, n, err)
}

// recordReader is the part of client.Reader that copying needs.
type recordReader interface {
	Next(ctx context.Context) (*client.Message, error)
	Buffered() int
}

// copyRecords writes at most limit records (any number if it is negative), and
// whatever is written is visible before it waits for more.
func copyRecords(ctx context.Context, r recordReader, w io.Writer, format recordFormat, limit int64, p *progress) (int64, error) {
	buffered := bufio.NewWriterSize(w, readBuffer)
	var line []byte
	for n := int64(0); ; n++ {
		if n == limit {
			return n, buffered.Flush()
		}
		if r.Buffered() == 0 {
			if err := buffered.Flush(); err != nil {
				return n, err
			}
		}
		m, err := r.Next(ctx)
		if err != nil {
			if flushErr := buffered.Flush(); flushErr != nil {
				return n, flushErr
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		line = format(line[:0], m)
		if _, err := buffered.Write(line); err != nil {
			return n, err
		}
		p.add(1, int64(len(m.Payload)))
	}
}

// readError turns the end of a read into what the command returns.
func (a *app) readError(ctx context.Context, opt readOptions, n int64, err error) error {
	switch {
	case err == nil, errors.Is(err, errStdoutClosed):
		return err
	case interrupted(ctx):
		return errInterrupted
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return err
	case opt.follow && opt.count < 0:
		return nil
	}
	what := countText(n, "record")
	if opt.count >= 0 {
		what = fmt.Sprintf("%d of %s", n, countText(opt.count, "record"))
	}
	e := walimpls.Errorf(walimpls.CodeTimeout, opt.channel, "read: got %s in %s", what, a.timeout)
	e.Hint = "give it more time with --timeout"
	return e
}
