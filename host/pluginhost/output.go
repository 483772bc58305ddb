package pluginhost

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// output takes everything that one process writes and passes it to the host's
// log. It never blocks its callers, whatever the log does: what the limiter
// refuses, or the queue does not hold, is counted and dropped.
type output struct {
	log   *zap.Logger // names the plugin
	queue chan logLine
	drops chan struct{} // wakes the writer to report drops
	done  chan struct{}

	mu      sync.Mutex // guards what follows
	closed  bool
	tail    tail
	noise   []string // first lines of stdout before the handshake
	limiter limiter
	panics  bool
	dropped int
}

const (
	outputQueue   = 1024
	noiseLines    = 4
	noiseLineSize = 256
	// dropReport is how long drops are collected before a line counts them.
	dropReport = time.Second
	// outputGrace bounds the wait for a log that does not take its lines.
	outputGrace = time.Second
)

func newOutput(log *zap.Logger) *output {
	o := &output{
		log: log, queue: make(chan logLine, outputQueue), drops: make(chan struct{}, 1),
		done: make(chan struct{}), limiter: newLimiter(time.Now()),
	}
	go o.write()
	return o
}

// stderr takes one line of stderr. The slice stays the caller's.
func (o *output) stderr(line []byte, cut int) { o.take(line, cut, "stderr") }

// stdout takes one line of stdout that is not the handshake.
func (o *output) stdout(line []byte, cut int) { o.take(line, cut, "stdout") }

// beforeHandshake takes one line of stdout that came instead of the handshake.
func (o *output) beforeHandshake(line []byte, cut int) {
	o.mu.Lock()
	if text := printable(line[:min(len(line), noiseLineSize)]); len(o.noise) < noiseLines && text != "" {
		o.noise = append(o.noise, text)
	}
	o.mu.Unlock()
	o.stdout(line, cut)
}

func (o *output) take(line []byte, cut int, stream string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if stream == "stderr" {
		o.panics = o.panics || isPanic(line)
		o.tail.add(line, o.panics)
	}
	if o.closed || len(line) == 0 && cut == 0 {
		return
	}
	// A crash dump is logged whole, as far as the queue goes: it is the last
	// and most wanted thing that the process says.
	if (stream == "stderr" && o.panics) || o.limiter.allow(time.Now(), len(line)) {
		select {
		case o.queue <- logLine{text: bytes.Clone(line), cut: cut, stream: stream, panics: o.panics && stream == "stderr"}:
			return
		default:
		}
	}
	o.dropped++
	select {
	case o.drops <- struct{}{}:
	default:
	}
}

// traces returns the last lines of stderr and the noise on stdout.
func (o *output) traces() (stderr, noise []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.tail.lines), slices.Clone(o.noise)
}

// close ends the writer once the queue is empty, and waits for it, within bounds.
func (o *output) close() {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.queue)
	}
	o.mu.Unlock()
	select {
	case <-o.done:
	case <-time.After(outputGrace):
	}
}

func (o *output) write() {
	defer close(o.done)
	defer o.reportDrops()
	var report <-chan time.Time
	for {
		select {
		case line, ok := <-o.queue:
			if !ok {
				return
			}
			line.write(o.log)
		case <-o.drops:
			if report == nil {
				report = time.After(dropReport)
			}
		case <-report:
			report = nil
			o.reportDrops()
		}
	}
}

func (o *output) reportDrops() {
	o.mu.Lock()
	n := o.dropped
	o.dropped = 0
	o.mu.Unlock()
	if n > 0 {
		o.log.Warn("lines of this plugin were dropped, because it writes more than is logged", zap.Int("lines", n))
	}
}
