package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/walrig/walrig/conformance"
	"github.com/walrig/walrig/sdk/walimpls"
)

// reportPaths are the files that a report goes to, "" for none.
type reportPaths struct{ json, junit, html string }

// reportFile is a report that is not there yet: it is written beside its place,
// so that a run that does not come to its end leaves an older report as it is.
type reportFile struct {
	path string
	tmp  *os.File
	form func(conformance.Report, io.Writer) error
}

type reportFiles []*reportFile

// create makes sure, before the run, that the reports can be written after it.
func (p reportPaths) create() (files reportFiles, err error) {
	for _, want := range []struct {
		flag, path string
		form       func(conformance.Report, io.Writer) error
	}{
		{"--json", p.json, conformance.Report.WriteJSON},
		{"--junit", p.junit, conformance.Report.WriteJUnit},
		{"--html", p.html, conformance.Report.WriteHTML},
	} {
		if want.path == "" {
			continue
		}
		if info, err := os.Stat(want.path); err == nil && info.IsDir() {
			return nil, errors.Join(usageError("", "%s: %s is a folder", want.flag, want.path), files.discard())
		}
		tmp, err := os.CreateTemp(filepath.Dir(want.path), ".walrig-report-*")
		if err != nil {
			return nil, errors.Join(usageError("name a file in a folder that is there and can be written to", "%s: %v", want.flag, err), files.discard())
		}
		files = append(files, &reportFile{want.path, tmp, want.form})
	}
	return files, nil
}

func (files reportFiles) write(r conformance.Report) error {
	for _, f := range files {
		err := errors.Join(f.form(r, f.tmp), f.tmp.Chmod(0o644), f.tmp.Close())
		if err == nil {
			err = os.Rename(f.tmp.Name(), f.path)
		}
		if err != nil {
			return walimpls.Errorf(walimpls.CodeInternal, "", "the report %s cannot be written: %w", f.path, err)
		}
		f.tmp = nil
	}
	return nil
}

// discard removes what was not written.
func (files reportFiles) discard() error {
	var errs []error
	for _, f := range files {
		if f.tmp != nil {
			_ = f.tmp.Close()
			errs = append(errs, os.Remove(f.tmp.Name()))
		}
	}
	return errors.Join(errs...)
}

// conformProgress shows on stderr which checks have ended: on a terminal one
// line that changes and one for each failure, elsewhere a line for each check.
type conformProgress struct {
	w      io.Writer // nil shows nothing
	width  func() int
	live   bool
	drawn  bool
	failed int
}

func (a *app) newConformProgress() *conformProgress {
	if a.quiet || a.output == outputJSON {
		return &conformProgress{}
	}
	p := &conformProgress{w: a.stderr}
	screen, ok := terminal(a.stderr)
	if !ok {
		return p
	}
	p.live = true
	p.width = func() int {
		if w, _, err := term.GetSize(int(screen.Fd())); err == nil && w > 0 {
			return w
		}
		return 80
	}
	return p
}

// show is called by the runner, one call at a time.
func (p *conformProgress) show(s conformance.Progress) {
	c := s.Check
	if p.w == nil || c.Verdict == conformance.NotRun { // those that an interruption leaves
		return
	}
	line := fmt.Sprintf("%*d/%d  %-7s  %s  %d ms", len(fmt.Sprint(s.Total)), s.Done, s.Total, c.Verdict, c.ID, c.Millis)
	if c.Failure != nil {
		p.failed++
		first, _, _ := strings.Cut(c.Failure.Message, "\n")
		line += "  " + oneLine(first)
	}
	if !p.live {
		fmt.Fprintln(p.w, line)
		return
	}
	if c.Failure != nil {
		fmt.Fprintf(p.w, "\r%s\x1b[K\n", line)
	}
	now := fmt.Sprintf("%d/%d", s.Done, s.Total)
	if p.failed > 0 {
		now += fmt.Sprintf("  %d failed", p.failed)
	}
	now += "  " + c.ID
	width := p.width() - 1
	if room := width - len(now) - 3; s.Total > 0 {
		now = bar(float64(s.Done)/float64(s.Total), room) + now
	}
	if len(now) > width {
		now = now[:max(width, 0)]
	}
	fmt.Fprintf(p.w, "\r%s\x1b[K", now)
	p.drawn = true
}

// stop removes the line that changes.
func (p *conformProgress) stop() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (a *app) conformDiffCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two conformance reports, the older one first",
		Long: `Compare two reports that "walrig conform --json" wrote, the older one first: what differs about plugin and host, about
the verdicts (those that got worse have a !), and about the levels. The exit code is 1 if a clause got worse: it fails
now, or it passed and does not any more.`,
		Example: `  walrig conform diff old.json new.json`,
		Args:    needs("A", "B"),
		RunE: func(_ *cobra.Command, args []string) error {
			var reports [2]conformance.Report
			for i, path := range args {
				r, err := readReport(path)
				if err != nil {
					return err
				}
				reports[i] = r
			}
			d := conformance.Diff(reports[0], reports[1])
			var err error
			if a.output == outputJSON {
				err = a.out().json(d)
			} else {
				err = d.Write(a.out())
			}
			if err != nil && !errors.Is(err, errStdoutClosed) {
				return err
			}
			if !d.Worse() {
				return nil
			}
			worse := 0
			for _, c := range d.Changes {
				if c.Worse {
					worse++
				}
			}
			return walimpls.Errorf(walimpls.CodeNotConforming, "", "%s got worse from %s to %s", countText(int64(worse), "clause"), args[0], args[1])
		},
	}
}

func readReport(path string) (conformance.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return conformance.Report{}, usageError("", "%v", err)
	}
	defer f.Close()
	r, err := conformance.ReadJSON(f)
	if err != nil {
		return r, usageError("give it files that `walrig conform --json` wrote", "%s: %v", path, err)
	}
	return r, nil
}
