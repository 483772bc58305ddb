package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

const (
	progressDelay    = 700 * time.Millisecond
	progressInterval = 150 * time.Millisecond
)

// progress shows on a terminal how far a long append or read has got. A nil
// *progress shows nothing.
type progress struct {
	w     io.Writer
	width func() int
	// total is the input's size in bytes, 0 if it is not known.
	total          int64
	records, bytes atomic.Int64
	start          time.Time
	stopping, done chan struct{}
}

// startProgress draws on stderr from a moment on, so that short commands show
// nothing. It returns nil where nobody would see it: stderr is no terminal, or
// stdout is the same screen and gets output.
func (a *app) startProgress(total int64, stdoutBusy bool) *progress {
	screen, ok := terminal(a.stderr)
	if !ok || a.quiet || a.output == outputJSON {
		return nil
	}
	if _, same := terminal(a.stdout); same && stdoutBusy {
		return nil
	}
	p := &progress{
		w: a.stderr, total: total, start: time.Now(), stopping: make(chan struct{}), done: make(chan struct{}),
		width: func() int {
			if w, _, err := term.GetSize(int(screen.Fd())); err == nil && w > 0 {
				return w
			}
			return 80
		},
	}
	go p.run()
	return p
}

// terminal returns v as a file if it is a terminal.
func terminal(v any) (*os.File, bool) {
	f, ok := v.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

func (p *progress) add(records, bytes int64) {
	if p != nil {
		p.records.Add(records)
		p.bytes.Add(bytes)
	}
}

// stop removes the line and waits for the goroutine that draws it.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.stopping)
	<-p.done
}

func (p *progress) run() {
	defer close(p.done)
	wait := time.NewTimer(progressDelay)
	defer wait.Stop()
	drawn := false
	for {
		select {
		case <-p.stopping:
			if drawn {
				fmt.Fprint(p.w, "\r\x1b[K")
			}
			return
		case <-wait.C:
			drawn = true
			line := progressLine(time.Since(p.start), p.records.Load(), p.bytes.Load(), p.total, p.width()-1)
			fmt.Fprintf(p.w, "\r%s\x1b[K", line)
			wait.Reset(progressInterval)
		}
	}
}

// progressLine is the line itself, at most width characters long: with a known
// total a bar and the time that is left, else what there is so far.
func progressLine(elapsed time.Duration, records, bytes, total int64, width int) string {
	seconds := max(elapsed.Seconds(), 0.001)
	rate := float64(bytes) / seconds
	text := fmt.Sprintf("%s  %s  %s/s  %.0f records/s",
		countText(records, "record"), bytesText(bytes), bytesText(int64(rate)), float64(records)/seconds)
	if total > 0 {
		done := min(float64(bytes)/float64(total), 1)
		if rate > 0 && bytes < total {
			left := time.Duration(float64(total-bytes) / rate * float64(time.Second))
			text += "  ETA " + left.Round(time.Second).String()
		}
		text = fmt.Sprintf("%3.0f%% ", done*100) + bar(done, width-len(text)-8) + text
	}
	if len(text) > width {
		text = text[:max(width, 0)]
	}
	return text
}

// bar draws at most 30 characters, and nothing where there is no room.
func bar(done float64, room int) string {
	n := min(room, 30)
	if n < 8 {
		return ""
	}
	full := int(done * float64(n))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", n-full) + "] "
}
