package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/conformance"
	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/sdk/walimpls"
)

// conformOptions are the flags of `walrig conform`.
type conformOptions struct {
	in       config.Input // --config
	sets     []string
	run      string
	list     bool
	levels   []string
	seed     uint64
	shuffle  bool
	parallel int
	soak     time.Duration
	waivers  string
	reports  reportPaths
	log      string
}

func (a *app) conformCmd() *cobra.Command {
	var opt conformOptions
	cmd := &cobra.Command{
		Use:   "conform PLUGIN",
		Short: "Check that a backend keeps its contract, clause by clause",
		Long: `Check that a plugin's backend keeps its contract, clause by clause. The plugin is started as a host starts it; no host
has to run. The exit code is 0 if every clause that could be checked was kept, and the levels asked for with --level
are reached; a run that executed nothing fails.

A PLUGIN with a / in it is the path of a binary. Any other is the name of a plugin in the configuration (--config, or
the variables that "serve" reads too), else a backend whose walrig-plugin-NAME lies beside this program.

A backend that takes the key "dir" works in a temporary folder, which is removed at the end, unless --set or the
configuration says where. What the checks make in the store they drop again; it need not be empty.

Progress goes to stderr, the table (or with -o json the report as one line) to stdout. --run takes the name of a group,
such as fencing, or a regular expression for ids, such as WAL-FENCE-003. A failed check shows the clause, what was
expected, each call with its result, and the command that repeats it. docs/conformance.md tells more.`,
		Example: `  walrig conform rmq
  walrig conform ./walrig-plugin-mylog --set dir=/tmp/x --level core --level durable
  walrig conform ./walrig-plugin-mylog --run '^WAL-SCAN-005' --seed 7
  walrig conform rmq --json new.json && walrig conform diff old.json new.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if opt.list && len(args) == 0 {
				return nil
			}
			return needs("PLUGIN")(cmd, args)
		},
		ValidArgsFunction: a.completePlugin,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := opt.options()
			if err != nil {
				return err
			}
			if opt.list {
				return a.conformList(run)
			}
			return a.conform(cmd, args[0], opt, run)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opt.in.File, "config", "", "configuration file (YAML) with the plugin's entry")
	f.StringArrayVar(&opt.sets, "set", nil, "configuration of the backend, as key=value; may be repeated")
	f.StringVar(&opt.run, "run", "", "run these checks only: a group, or a regular expression for ids")
	f.BoolVar(&opt.list, "list", false, "list the checks (that --run and --level select) and run none")
	f.StringArrayVar(&opt.levels, "level", nil, "run the checks of this level, and fail unless it is reached; may be repeated")
	f.Uint64Var(&opt.seed, "seed", 0, "repeat the order and the draws of the run with this seed (default: a new one)")
	f.BoolVar(&opt.shuffle, "shuffle", true, "shuffle the checks, as the seed says; --shuffle=false keeps the order of the specification")
	f.IntVar(&opt.parallel, "parallel", conformance.DefaultParallel, "this many checks run side by side")
	f.DurationVar(&opt.soak, "soak", conformance.DefaultSoak, "how long each soak check works; 0 leaves them out")
	f.StringVar(&opt.waivers, "waivers", "", "file of clauses that may fail for a while (YAML: clause, reason, owner, expires)")
	f.StringVar(&opt.reports.junit, "junit", "", "write the report to this file as JUnit XML")
	f.StringVar(&opt.reports.json, "json", "", "write the report to this file as JSON")
	f.StringVar(&opt.reports.html, "html", "", "write the report to this file as one HTML page")
	f.StringVar(&opt.log, "plugin-log", "", "write what the plugin logs and prints to this file")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress")
	cmd.AddCommand(a.conformDiffCmd())
	return cmd
}

// options turns the flags into the runner's options.
func (o *conformOptions) options() (conformance.Options, error) {
	opt := conformance.Options{Run: o.run, Seed: o.seed, Parallel: o.parallel, Soak: o.soak, InOrder: !o.shuffle}
	switch {
	case o.parallel < 1:
		return opt, usageError("", "--parallel must be at least 1")
	case o.soak < 0:
		return opt, usageError("", "--soak must not be negative")
	case o.soak == 0:
		opt.Soak = -1
	}
	for _, text := range o.levels {
		for name := range strings.SplitSeq(text, ",") {
			level, err := conformance.ParseLevel(name)
			if err != nil {
				return opt, err
			}
			opt.Levels = append(opt.Levels, level)
		}
	}
	selected, err := conformance.Select(opt)
	if err != nil {
		return opt, err
	}
	if len(selected) == 0 {
		return opt, usageError("`walrig conform --list` shows every check with its group and level", "no check matches --run %q%s", o.run, levelsText(o.levels))
	}
	if o.waivers != "" {
		f, err := os.Open(o.waivers)
		if err != nil {
			return opt, usageError("", "--waivers: %v", err)
		}
		defer f.Close()
		if opt.Waivers, err = conformance.ReadWaivers(f); err != nil {
			return opt, err
		}
	}
	return opt, nil
}

func levelsText(levels []string) string {
	if len(levels) == 0 {
		return ""
	}
	return " within the levels " + strings.Join(levels, ", ")
}

func (a *app) conformList(opt conformance.Options) error {
	checks, err := conformance.Select(opt)
	if err != nil {
		return err
	}
	if a.output == outputJSON {
		return jsonLines(a.out(), checks)
	}
	return a.out().table([]string{"CHECK", "LEVEL", "GROUP", "CLAUSE"}, convert(checks, func(c conformance.CheckInfo) []string {
		return []string{c.ID, string(c.Level), c.Group, c.Text}
	}))
}

// conform runs the suite and shows what it found.
func (a *app) conform(cmd *cobra.Command, plugin string, o conformOptions, opt conformance.Options) (err error) {
	ctx := cmd.Context()
	if a.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	files, err := o.reports.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.discard()) }()
	subject, err := a.conformSubject(ctx, cmd, plugin, o)
	if err != nil {
		return a.conformEnded(ctx, err)
	}
	defer func() { err = errors.Join(err, subject.cleanup()) }()

	if opt.Host, err = hostInfo(); err != nil {
		return err
	}
	bar := a.newConformProgress()
	opt.Progress = bar.show
	report, err := conformance.Run(ctx, subject.target, opt)
	bar.stop()
	if err != nil {
		return a.conformEnded(ctx, err)
	}
	if err := files.write(report); err != nil {
		return err
	}
	if a.output == outputJSON {
		err = a.out().json(report)
	} else {
		err = report.WriteTable(a.out())
	}
	if err != nil && !errors.Is(err, errStdoutClosed) {
		return err
	}
	return conformVerdict(report)
}

// conformEnded is the error of a run that did not come to its end.
func (a *app) conformEnded(ctx context.Context, err error) error {
	if interrupted(ctx) {
		return errInterrupted
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e := walimpls.Errorf(walimpls.CodeTimeout, "", "the run did not end within %s", a.timeout)
		e.Hint = "give it more time with --timeout, or select checks with --run or --level"
		return e
	}
	return err
}

// conformVerdict is nil if nothing speaks against the backend.
func conformVerdict(r conformance.Report) error {
	if r.OK() {
		return nil
	}
	e := walimpls.Errorf(walimpls.CodeNotConforming, "", "%s: %s", r.Target.Name, strings.Join(r.Reasons, "; "))
	switch failed, first := r.Failed(), firstFailed(r); {
	case len(first) < len(failed):
		e.Hint = "begin with what no other failed clause comes before: " + strings.Join(first, ", ")
	case len(failed) > 0:
		e.Hint = "the report shows the events of each failed check, and the command that repeats it"
	case r.Counts[conformance.Pass]+r.Counts[conformance.Waived] == 0:
		e.Hint = "`walrig conform --list` shows the checks and `walrig plugin describe` what the backend claims: select others with --run and --level"
	}
	return e
}

// firstFailed are the failed clauses that depend on no other failed one.
func firstFailed(r conformance.Report) []string {
	var out []string
	for _, id := range r.Failed() {
		if c, _ := r.Clause(id); len(c.After) == 0 {
			out = append(out, id)
		}
	}
	return out
}
