package plugin

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// What is printed to stdout is noise: it belongs to no log line, but it may help
// somebody. So much of it becomes log lines; the rest is counted.
const (
	noiseLineBytes = 4 << 10
	noiseLines     = 100 // lines a second
	noiseQueue     = 256
)

// ownStdio is set in a process that a host started (the cookie is there), before
// the author's main package is initialised, so that even a print of an init
// function cannot come before the handshake. Nil in every other program.
var ownStdio = takeStdio(os.Getenv(Handshake.MagicCookieKey) == Handshake.MagicCookieValue)

// stdio holds the process's real stdout and stderr while everybody else is given
// other ones.
type stdio struct {
	handshake *os.File      // the real stdout
	stderr    *os.File      // the real stderr
	out       *lockedWriter // onto stderr
	noise     *os.File      // what the process's stdout is from now on; never blocks
	log       *zap.Logger
}

// takeStdio points file descriptor 1 and os.Stdout at a pipe that this process
// drains itself, so that no print can ever block, reach the host's handshake
// reader or end the process. It returns nil if it is not wanted or not possible.
func takeStdio(wanted bool) *stdio {
	if !wanted {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	handshake, err := redirectStdout(w)
	if err != nil {
		return nil
	}
	s := &stdio{handshake: handshake, stderr: os.Stderr, noise: w, out: &lockedWriter{w: os.Stderr}}
	s.log = newLogger(s.out, logLevel())
	os.Stdout = s.noise
	lines := make(chan string, noiseQueue)
	// Both goroutines live as long as the process.
	go drainNoise(r, lines)
	go logNoise(lines, s.log.Named("stdout"), time.Second)
	return s
}

// lend gives os.Stdout to go-plugin, which prints the handshake next.
func (s *stdio) lend() { os.Stdout = s.handshake }

// restore is called when go-plugin has printed it and put pipes of its own into
// os.Stdout and os.Stderr: those block when the host does not read them.
func (s *stdio) restore() {
	os.Stdout = s.noise
	os.Stderr = s.stderr
}

// drainNoise reads r until it ends and never waits for anything else. Lines that
// find the queue full are dropped, and so is what is behind noiseLineBytes in a line.
func drainNoise(r io.Reader, lines chan<- string) {
	defer close(lines)
	in := bufio.NewReaderSize(r, noiseLineBytes)
	cut := false // inside a line whose beginning was passed on already
	for {
		part, err := in.ReadSlice('\n')
		if len(part) > 0 && !cut {
			line := strings.TrimRight(string(part), "\r\n")
			select {
			case lines <- line:
			default:
			}
		}
		cut = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !cut {
			return
		}
	}
}

// logNoise writes lines to log, at most noiseLines in each interval.
func logNoise(lines <-chan string, log *zap.Logger, interval time.Duration) {
	budget, since, dropped := noiseLines, time.Now(), 0
	for line := range lines {
		if now := time.Now(); now.Sub(since) >= interval {
			if dropped > 0 {
				log.Warn("lines were dropped: the plugin prints too much to stdout", zap.Int("lines", dropped))
			}
			budget, since, dropped = noiseLines, now, 0
		}
		if budget == 0 {
			dropped++
			continue
		}
		budget--
		log.Info(line)
	}
}

// lockedWriter makes each Write one piece, for several loggers on one file.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
