package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// outcomeJSON is one line of `append -o json`.
type outcomeJSON struct {
	Line       int64      `json:"line"`
	Outcome    string     `json:"outcome"`
	ID         *string    `json:"id"`
	TimeTick   *string    `json:"time_tick"`
	Term       *int64     `json:"term"`
	Checkpoint *string    `json:"checkpoint"`
	Error      *errorJSON `json:"error"`
}

func outcomeLine(line int64, r client.Result) []byte {
	o := outcomeJSON{Line: line, Outcome: r.State.String(), ID: optional(r.ID), Checkpoint: optional(r.Checkpoint)}
	if r.TimeTick != 0 {
		o.TimeTick = optional(strconv.FormatUint(uint64(r.TimeTick), 10))
	}
	if r.Term != 0 {
		o.Term = &r.Term
	}
	if r.Err != nil {
		e := toErrorJSON(r.Err)
		o.Error = &e
	}
	// Nothing in it can fail to encode.
	b, _ := json.Marshal(o)
	return append(b, '\n')
}

// reportAppend sums up: one line on stdout if all went well, else the error
// with what became of which line and where to go on.
func (a *app) reportAppend(ctx context.Context, opt appendOptions, run *appendRun, inputErr error) error {
	t := &run.tally
	err := appendFailure(ctx, opt, t, inputErr)
	if err == nil && run.writeErr != nil && !errors.Is(run.writeErr, errStdoutClosed) {
		err = run.writeErr
	}
	if err == nil {
		if run.results != nil {
			return nil
		}
		return a.out().printf("%s\n", appendSummary(opt.channel, t, time.Since(run.start)))
	}
	exit := exitCode(ctx, err)
	if len(t.unknown) > 0 && exit != walimpls.ExitInterrupted {
		exit = walimpls.ExitUnknown
	}
	return &exitError{err: err, exit: exit, hint: appendHint(opt, t, err), resumeLine: t.resume()}
}

// appendFailure returns why the append did not store the whole input, nil if it did.
func appendFailure(ctx context.Context, opt appendOptions, t *tally, inputErr error) error {
	switch {
	case interrupted(ctx):
		return errInterrupted
	case t.firstErr != nil && opt.whole:
		return reason(opt, t)
	case t.firstErr != nil:
		return fmt.Errorf("line %d: %w", t.firstLine, reason(opt, t))
	case inputErr != nil:
		return inputErr
	}
	return endedBy(ctx, opt.channel)
}

// endedBy returns the error of an append whose context has ended, nil if it has not.
func endedBy(ctx context.Context, channel string) error {
	switch {
	case interrupted(ctx):
		return errInterrupted
	case ctx.Err() != nil:
		e := walimpls.Errorf(walimpls.CodeTimeout, channel, "append: the time was over before the input was")
		e.Hint = "give it more time with --timeout"
		return e
	}
	return nil
}

// reason is why the first record that failed did. One that was only refused
// because the stream had ended before takes the stream's reason; and a stream
// that was lost with nothing under way leaves nothing unknown.
func reason(opt appendOptions, t *tally) error {
	err := t.firstErr
	if errors.Is(err, walimpls.ErrClosed) && t.streamErr != nil {
		err = t.streamErr
	}
	if len(t.unknown) == 0 && errors.Is(err, walimpls.ErrUnknownOutcome) {
		e := walimpls.Errorf(walimpls.CodeUnreachable, opt.channel, "append: the connection to the host was lost with nothing under way")
		e.Hint = "append the rest when the host is back"
		return e
	}
	return err
}

func appendSummary(channel string, t *tally, elapsed time.Duration) string {
	return fmt.Sprintf("appended %s (%s) to %s in %s", countText(t.stored, "record"), bytesText(t.bytes), channel, durationText(elapsed)) + idsText(t, ", ", "")
}

// idsText names the first and the last id that were stored, nothing if none was.
func idsText(t *tally, before, behind string) string {
	switch t.stored {
	case 0:
		return ""
	case 1:
		return before + "id " + t.firstID + behind
	}
	return before + "ids " + t.firstID + " to " + t.lastID + behind
}

func durationText(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// appendHint says in one line what was stored, what was not, what may be, and
// how to append the rest.
func appendHint(opt appendOptions, t *tally, err error) string {
	if opt.whole {
		return walimpls.AsError(err).Hint
	}
	var parts []string
	if hint := walimpls.AsError(err).Hint; hint != "" {
		parts = append(parts, hint)
	}
	parts = append(parts, countText(t.stored, "record")+" stored"+idsText(t, " (", ")"))
	if lost := t.notStored.below(t.resume()); len(lost) > 0 {
		parts = append(parts, "not stored though later ones are: "+lost.String())
	}
	if len(t.unknown) > 0 {
		parts = append(parts, "stored or not, read the channel to see: "+t.unknown.String())
	}
	parts = append(parts, fmt.Sprintf("nothing from line %d on was appended, resume with `%s`", t.resume(), resumeCommand(opt, t.resume())))
	return strings.Join(parts, "; ")
}

func resumeCommand(opt appendOptions, line int64) string {
	cmd := fmt.Sprintf("tail -n +%d", line)
	flag := ""
	if opt.nul {
		cmd, flag = "tail -z -n +"+strconv.FormatInt(line, 10), " -0"
	}
	if opt.file != "-" {
		cmd += " " + shellQuote(opt.file)
	}
	return cmd + " | walrig append " + opt.channel + flag
}

func shellQuote(s string) string {
	for _, r := range s {
		safe := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@,", r)
		if !safe {
			return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return s
}
