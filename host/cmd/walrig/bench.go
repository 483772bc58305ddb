package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/host/bench"
	"github.com/walrig/walrig/plugins/rmq"
)

// benchOptions are the flags that both benchmarks have.
type benchOptions struct {
	subject benchSubject
	append  bench.AppendOptions
	rounds  int
	records int64
}

// outputCSV is an output format of the benchmarks alone.
const outputCSV = "csv"

func (a *app) benchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast records are appended and read",
		Long: `Measure how fast records are appended and read: through a host, through a plugin without a host, or with the backend
in this very process. The differences are what each hop costs.

The log that is measured is made for it and removed afterwards, unless CHANNEL names one. Figures of a shared machine
move a lot: compare runs that were made in turns, and look at ratios.`,
	}
	group(cmd)
	cmd.AddCommand(a.benchAppendCmd(), a.benchReadCmd())
	return cmd
}

func (a *app) benchAppendCmd() *cobra.Command {
	var opt benchOptions
	cmd := &cobra.Command{
		Use:   "append [CHANNEL]",
		Short: "Measure appending: throughput, and latency percentiles",
		Long: `Measure appending.

Without --rate the loop is closed: each of the appenders waits for its answer and sends the next batch. With --rate it
is open: batches are sent when their time has come, and a batch's latency counts from that moment, whether or not an
appender was free for it. What is sent during the warm-up is not counted.`,
		Example: `  walrig bench append --appenders 128
  walrig bench append --through plugin --plugin rmq --appenders 1
  walrig bench append --rate 20000 --duration 30s -o json`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opt.append.Validate(); err != nil {
				return usageError("see `walrig bench append --help`", "%v", err)
			}
			return a.bench(cmd, args, opt, func(ctx context.Context, log benchLog) ([]bench.Result, error) {
				return rounds(opt.rounds, func() (bench.Result, error) { return bench.Append(ctx, log, opt.append) })
			})
		},
	}
	f := cmd.Flags()
	opt.subject.flags(cmd)
	f.IntVar(&opt.append.Appenders, "appenders", 128, "appenders: as many batches are under way at most")
	f.Float64Var(&opt.append.Rate, "rate", 0, "records a second of an open loop; 0 is a closed loop")
	f.IntVar(&opt.append.Size, "size", 1024, "bytes of a record")
	f.IntVar(&opt.append.Batch, "batch", 1, "records that an appender sends at once")
	f.DurationVar(&opt.append.Duration, "duration", 10*time.Second, "what is measured")
	f.DurationVar(&opt.append.Warmup, "warmup", 2*time.Second, "what passes before")
	f.IntVar(&opt.rounds, "rounds", 1, "how often; each round is a line of the output")
	return cmd
}

func (a *app) benchReadCmd() *cobra.Command {
	opt := benchOptions{append: bench.AppendOptions{Appenders: 64, Batch: 64}}
	cmd := &cobra.Command{
		Use:   "read [CHANNEL]",
		Short: "Measure reading a log from its beginning to its end",
		Long: `Measure one reader that reads a log from its beginning to its end, as fast as it can.

Without CHANNEL a log is filled first. The records of CHANNEL are read as they are.`,
		Example: `  walrig bench read --records 1000000 --size 1024 --rounds 3
  walrig bench read orders
  walrig bench read --through plugin -o csv`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeChannel,
		RunE: func(cmd *cobra.Command, args []string) error {
			if opt.records < 1 || opt.append.Size < 0 {
				return usageError("", "--records must be at least 1 and --size at least 0")
			}
			return a.bench(cmd, args, opt, func(ctx context.Context, log benchLog) ([]bench.Result, error) {
				if len(args) == 0 {
					if err := bench.Fill(ctx, log, opt.records, opt.append); err != nil {
						return nil, err
					}
				}
				return rounds(opt.rounds, func() (bench.Result, error) { return bench.Read(ctx, log.source) })
			})
		},
	}
	f := cmd.Flags()
	opt.subject.flags(cmd)
	f.Int64Var(&opt.records, "records", 200_000, "records to fill a log with")
	f.IntVar(&opt.append.Size, "size", 1024, "bytes of each of them")
	f.IntVar(&opt.rounds, "rounds", 3, "how often the log is read; each round is a line of the output")
	return cmd
}

func rounds(n int, run func() (bench.Result, error)) ([]bench.Result, error) {
	if n < 1 {
		return nil, usageError("", "--rounds must be at least 1")
	}
	var out []bench.Result
	for range n {
		r, err := run()
		if err != nil {
			return out, err
		}
		out = append(out, r)
	}
	return out, nil
}

// bench opens the log, measures, prints and cleans up.
func (a *app) bench(cmd *cobra.Command, args []string, opt benchOptions, measure func(context.Context, benchLog) ([]bench.Result, error)) error {
	ctx := cmd.Context()
	if opt.subject.plugin == "" && opt.subject.through != throughHost {
		opt.subject.plugin = rmq.Builder{}.Name()
	}
	log, err := a.openBench(cmd, opt.subject, args)
	if err != nil {
		return err
	}
	results, err := measure(ctx, log)
	if failed := log.close(ctx); err == nil {
		err = failed
	}
	if interrupted(ctx) {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	return a.printBench(cmd.Name(), opt, results)
}

// benchJSON is one round.
type benchJSON struct {
	Bench            string   `json:"bench"`
	Through          string   `json:"through"`
	Plugin           string   `json:"plugin"`
	Appenders        int      `json:"appenders,omitempty"`
	Rate             float64  `json:"rate,omitempty"`
	Batch            int      `json:"batch,omitempty"`
	Size             int64    `json:"size"`
	Round            int      `json:"round"`
	Records          string   `json:"records"`
	Seconds          float64  `json:"seconds"`
	RecordsPerSecond float64  `json:"records_per_second"`
	MiBPerSecond     float64  `json:"mib_per_second"`
	Latency          *latency `json:"latency_us,omitempty"`
}

// latency is in microseconds.
type latency struct {
	Mean int64 `json:"mean"`
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p999"`
	Max  int64 `json:"max"`
}

func toBenchJSON(what string, opt benchOptions, round int, r bench.Result) benchJSON {
	j := benchJSON{
		Bench: what, Through: opt.subject.through, Plugin: opt.subject.plugin, Round: round, Records: strconv.FormatInt(r.Records, 10),
		Seconds: r.Elapsed.Seconds(), RecordsPerSecond: r.RecordsPerSecond(), MiBPerSecond: r.MiBPerSecond(),
	}
	if r.Records > 0 {
		j.Size = r.Bytes / r.Records
	}
	if what == "append" {
		j.Appenders, j.Rate, j.Batch = opt.append.Appenders, opt.append.Rate, opt.append.Batch
		l := r.Latency
		j.Latency = &latency{l.Mean.Microseconds(), l.P50.Microseconds(), l.P90.Microseconds(), l.P99.Microseconds(), l.P999.Microseconds(), l.Max.Microseconds()}
	}
	return j
}

func (a *app) printBench(what string, opt benchOptions, results []bench.Result) error {
	lines := make([]benchJSON, len(results))
	for i, r := range results {
		lines[i] = toBenchJSON(what, opt, i+1, r)
	}
	if a.output == outputJSON {
		return jsonLines(a.out(), lines)
	}
	header := []string{"round", "records", "seconds", "records_per_second", "mib_per_second"}
	if what == "append" {
		header = append(header, "p50_us", "p90_us", "p99_us", "p999_us", "max_us")
	}
	rows := convert(lines, func(j benchJSON) []string {
		row := []string{strconv.Itoa(j.Round), j.Records, fmt.Sprintf("%.2f", j.Seconds), fmt.Sprintf("%.0f", j.RecordsPerSecond), fmt.Sprintf("%.1f", j.MiBPerSecond)}
		if l := j.Latency; l != nil {
			for _, v := range []int64{l.P50, l.P90, l.P99, l.P999, l.Max} {
				row = append(row, strconv.FormatInt(v, 10))
			}
		}
		return row
	})
	if a.output == outputCSV {
		w := csv.NewWriter(a.out())
		return w.WriteAll(append([][]string{header}, rows...))
	}
	return a.out().table(convert(header, strings.ToUpper), rows)
}
