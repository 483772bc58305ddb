package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

const (
	// pendingRecords bounds the records without an outcome; the Appender bounds
	// their bytes.
	pendingRecords = 16 << 10
	// answerGrace is how long an interrupted append waits for the outcomes of
	// what is under way.
	answerGrace = 2 * time.Second
)

type appendOptions struct {
	channel, file, vchannel, txn string
	properties                   []string
	create, nul, whole           bool
}

func (a *app) appendCmd() *cobra.Command {
	var opt appendOptions
	cmd := &cobra.Command{
		Use:   "append CHANNEL",
		Short: "Append records from a file or stdin",
		Long: `Append records from a file or stdin, one a line.

The input is split at \n only; an empty line is an empty record, and a last line without \n counts. There is no limit
on the length of a line but the backend's. Records are sent as they come in, many at a time, and stored in their order.

On success one line sums up what was stored. On the first record that is not stored, or whose outcome is unknown,
append stops reading, waits for what is under way, and says what became of it and which line to go on with. The exit
code is 3 if the outcome of any record is unknown, else that of the error. Nothing is ever sent twice.

With -o json every record gets a line, in input order and as soon as its outcome is known:
  {"line":1,"outcome":"stored","id":"42","time_tick":"…","term":3,"checkpoint":"…","error":null}
The outcome is stored, not_stored or unknown; a checkpoint is where "read --from cp:TOKEN" goes on behind the record.`,
		Example: `  walrig append orders --create -f orders.txt
  printf 'one\ntwo\n' | walrig append orders -p source=billing
  walrig append blobs --whole -f picture.png
  find . -print0 | walrig append paths -0`,
		Args:              needs("CHANNEL"),
		ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			opt.channel = args[0]
			if opt.nul && opt.whole {
				return usageError(helpHint(cmd), "--null and --whole exclude each other")
			}
			if cmd.Flags().Changed("txn") && opt.txn == "" {
				return usageError("did \"walrig txn begin\" fail?", "--txn is given and empty")
			}
			return a.runAppend(cmd.Context(), opt)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&opt.file, "file", "f", "-", "file to read, - for stdin")
	f.StringVar(&opt.vchannel, "vchannel", "", "virtual channel of the records (default: to every one)")
	f.StringArrayVarP(&opt.properties, "property", "p", nil, "key=value that each record gets; may be repeated")
	f.BoolVar(&opt.create, "create", false, "create the channel, and the --vchannel, if they do not exist")
	f.StringVar(&opt.txn, "txn", "", "make the records a part of this open transaction (see \"walrig txn\")")
	f.BoolVarP(&opt.nul, "null", "0", false, "split the input at NUL bytes instead of line ends")
	f.BoolVar(&opt.whole, "whole", false, "make one record of the entire input")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress bar")
	return cmd
}

func (a *app) runAppend(ctx context.Context, opt appendOptions) error {
	properties, err := parseProperties(opt.properties)
	if err != nil {
		return err
	}
	var txn uint64
	if opt.txn != "" {
		if txn, err = parseTxn(opt.txn); err != nil {
			return err
		}
	}
	input, size, err := a.openInput(opt.file)
	if err != nil {
		return err
	}
	defer input.Close()
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
	if opt.create {
		if err := createIfMissing(ctx, c, opt.channel, opt.vchannel); err != nil {
			return err
		}
	}
	// An interrupt must not cut the stream at once: what is under way would
	// become unknown although its answer is a moment away.
	streamCtx, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	stopCut := context.AfterFunc(ctx, func() {
		if interrupted(ctx) {
			time.AfterFunc(answerGrace, cut)
			return
		}
		cut()
	})
	defer stopCut()
	appender, err := c.NewAppender(streamCtx, opt.channel, client.AppenderOptions{TxnID: txn})
	if err != nil {
		if ended := endedBy(ctx, opt.channel); ended != nil {
			return ended
		}
		return err
	}
	delim := byte('\n')
	if opt.nul {
		delim = 0
	}
	split := newSplitter(input, delim, opt.whole, opt.channel, func() int64 { return maxRecord(ctx, c, opt.channel) })
	run := &appendRun{
		appender: appender, record: client.Record{VChannel: opt.vchannel, Properties: properties},
		pending: make(chan sentRecord, pendingRecords), stop: make(chan struct{}), done: make(chan struct{}),
		progress: a.startProgress(size, false), start: time.Now(),
	}
	if a.output == outputJSON {
		run.results = a.stdout
	}
	go run.collect()
	inputErr := run.feed(ctx, readInput(split, run.done))
	close(run.pending)
	streamErr := appender.Close(streamCtx)
	<-run.done
	run.tally.streamErr = streamErr
	if txn != 0 && run.refused {
		// The host never saw the record that is too large, and must not let the
		// rest of the transaction commit without it.
		_, _ = c.Txn(opt.channel, txn).Rollback(streamCtx)
	}
	run.progress.stop()
	return a.reportAppend(ctx, opt, run, inputErr)
}

func createIfMissing(ctx context.Context, c *client.Client, channel, vchannel string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, _, err := c.CreateChannel(ctx, channel, client.CreateOptions{IfNotExists: true}); err != nil || vchannel == "" {
		return err
	}
	_, err := c.CreateVChannels(ctx, channel, []string{vchannel}, true)
	return err
}

// appendRun is an append under way: feed hands records over, collect takes
// their outcomes in the same order.
type appendRun struct {
	appender *client.Appender
	record   client.Record // what all records have in common
	pending  chan sentRecord
	stop     chan struct{} // closed by collect at the first failure
	done     chan struct{} // closed when collect has ended
	results  io.Writer     // for -o json, else nil
	progress *progress
	start    time.Time

	refused bool // by feed: a record that was never sent
	// Of collect until done is closed.
	tally    tally
	writeErr error
}

type sentRecord struct {
	line, size int64
	future     *client.Future
	// refused is the outcome of a record that was not handed over.
	refused *client.Result
}

// feed hands the input over until it ends, a record fails, or ctx ends. It
// returns what was wrong with the input.
func (r *appendRun) feed(ctx context.Context, batches <-chan inputBatch) error {
	for {
		var b inputBatch
		select {
		case <-r.stop:
			return nil
		case <-ctx.Done():
			return nil
		case b = <-batches:
		}
		for i, payload := range b.records {
			rec := r.record
			rec.Payload = payload
			r.pending <- sentRecord{line: b.first + int64(i), size: int64(len(payload)), future: r.appender.Append(rec)}
			if r.stopped(ctx) {
				return nil
			}
		}
		switch {
		case b.err == nil:
		case errors.Is(b.err, io.EOF):
			return nil
		case errors.Is(b.err, walimpls.ErrTooLarge):
			r.refused = true
			r.pending <- sentRecord{line: b.first + int64(len(b.records)), refused: &client.Result{State: walimpls.NotStored, Err: b.err}}
			return nil
		default:
			return inputError(b.err)
		}
	}
}

func (r *appendRun) stopped(ctx context.Context) bool {
	select {
	case <-r.stop:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// collect waits for each outcome in turn, prints it, and adds it up.
func (r *appendRun) collect() {
	defer close(r.done)
	failed := false
	fail := func() {
		if !failed {
			failed = true
			close(r.stop)
		}
	}
	for s := range r.pending {
		var result client.Result
		if s.refused != nil {
			result = *s.refused
		} else {
			result = s.future.Result()
		}
		r.tally.add(s.line, s.size, result)
		r.progress.add(1, s.size+1)
		if result.State != walimpls.Stored {
			fail()
		}
		if r.results == nil || r.writeErr != nil {
			continue
		}
		if _, err := r.results.Write(outcomeLine(s.line, result)); err != nil {
			// A reader of the results that went away does not stop the append; a
			// full disk under them does, since outcomes would be lost.
			if r.writeErr = stdoutError(err); !errors.Is(r.writeErr, errStdoutClosed) {
				fail()
			}
		}
	}
}
