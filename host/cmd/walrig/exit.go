package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// errInterrupted is the cause of a context that a signal ended.
var errInterrupted = &walimpls.Error{Code: walimpls.CodeCanceled, Message: "interrupted"}

// errStdoutClosed says that nobody reads stdout any more.
var errStdoutClosed = errors.New("stdout is closed")

// usageError returns the error of a command line that makes no sense.
func usageError(hint, format string, args ...any) error {
	e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", format, args...)
	e.Hint = hint
	return e
}

// exitError overrides what the error's code says: an append that leaves
// unknown outcomes exits with 3 whatever the first error was.
type exitError struct {
	err  error
	exit int
	// hint replaces the error's own one; resumeLine is shown in JSON, 0 for none.
	hint       string
	resumeLine int64
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// exitCode returns the exit code of what a command returned.
func exitCode(ctx context.Context, err error) int {
	var override *exitError
	switch {
	case err == nil, errors.Is(err, errStdoutClosed):
		return walimpls.ExitOK
	case errors.As(err, &override):
		return override.exit
	case errors.Is(err, errInterrupted), interrupted(ctx) && walimpls.AsError(err).Code == walimpls.CodeCanceled:
		return walimpls.ExitInterrupted
	case errors.Is(err, walimpls.ErrUnknownOutcome):
		return walimpls.ExitUnknown
	}
	return walimpls.AsError(err).Code.Info().Exit
}

func interrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errInterrupted) }

// errorJSON is what -o json prints for an error. Fields are only ever added.
type errorJSON struct {
	Code      walimpls.Code `json:"code"`
	Message   string        `json:"message"`
	Hint      *string       `json:"hint"`
	Retryable bool          `json:"retryable"`
	Channel   *string       `json:"channel"`
	// Earliest and Latest are in position_lost errors: where a read can start.
	Earliest *string `json:"earliest,omitempty"`
	Latest   *string `json:"latest,omitempty"`
	// Problems are in config errors, one line each.
	Problems []string `json:"problems,omitempty"`
	// ResumeLine is in errors of append: the first line to append again.
	ResumeLine int64 `json:"resume_line,omitempty"`
}

func toErrorJSON(err error) errorJSON {
	e := walimpls.AsError(err)
	// The code and the channel have fields of their own.
	message := strings.Replace(err.Error(), e.Error(), bareMessage(e), 1)
	out := errorJSON{Code: e.Code, Message: message, Hint: optional(e.Hint), Retryable: e.Retryable, Channel: optional(e.Channel)}
	var lost *client.PositionLostError
	if errors.As(err, &lost) {
		out.Earliest, out.Latest = &lost.EarliestText, &lost.LatestText
	}
	var bad *config.Error
	if errors.As(err, &bad) {
		for _, p := range bad.Problems {
			out.Problems = append(out.Problems, p.String())
		}
	}
	var override *exitError
	if errors.As(err, &override) {
		out.ResumeLine = override.resumeLine
		if override.hint != "" {
			out.Hint = &override.hint
		}
	}
	return out
}

func bareMessage(e *walimpls.Error) string {
	if e.Message == "" {
		return e.Code.Info().Doc
	}
	return e.Message
}

// optional returns nil for "", which JSON shows as null.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// printError writes an error in the form that was asked for: one line of JSON,
// or an error line (one for each problem of a configuration) and a hint line.
func printError(w io.Writer, asJSON bool, err error) {
	shown := toErrorJSON(err)
	if asJSON {
		line, _ := json.Marshal(map[string]errorJSON{"error": shown})
		fmt.Fprintf(w, "%s\n", line)
		return
	}
	lines := shown.Problems
	if len(lines) == 0 {
		lines = []string{err.Error()}
	}
	for _, l := range lines {
		fmt.Fprintf(w, "error: %s\n", oneLine(l))
	}
	if shown.Hint != nil {
		fmt.Fprintf(w, "hint: %s\n", oneLine(*shown.Hint))
	}
}

// oneLine keeps an error on its line, and control characters that came in with
// a plugin's output away from the terminal.
func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", " | ")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

// stdoutError turns the failure of a write to stdout into errStdoutClosed or a
// definite failure.
func stdoutError(err error) error {
	switch {
	case err == nil, errors.Is(err, errStdoutClosed):
		return err
	case errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
		return errStdoutClosed
	}
	e := walimpls.Errorf(walimpls.CodeInternal, "", "cannot write to stdout: %w", err)
	if errors.Is(err, syscall.ENOSPC) {
		e.Code = walimpls.CodeNoSpace
	}
	return e
}
