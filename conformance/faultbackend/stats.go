package faultbackend

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"
)

// Stats is what happened in a backend since its Controller was made. The stats
// file holds the same as JSON.
type Stats struct {
	// Calls counts the calls that came in, refused ones too.
	Calls map[Op]int64 `json:"calls"`
	// Records counts the records of the appends that came in.
	Records int64 `json:"records"`
	// Faults counts how often each rule fired, under its name= or, without one,
	// its canonical text. Rules that are gone keep their counts.
	Faults map[string]int64 `json:"faults"`
	// Waiting counts the calls that a rule holds at this moment.
	Waiting map[Op]int64 `json:"waiting"`
	// Handles counts the open read-write handles of each channel, MaxHandles
	// the most that were open at one time, ReadOnly the open read-only ones.
	Handles    map[string]int64 `json:"handles"`
	MaxHandles map[string]int64 `json:"max_handles"`
	ReadOnly   int64            `json:"read_only"`
	// Scanners counts the open scanners.
	Scanners int64 `json:"scanners"`
	// RulesError is what is wrong with the rules file, "" for nothing. The rules
	// that it held before stay in force meanwhile.
	RulesError string `json:"rules_error"`
}

// statsData is the state behind Stats; Controller.mu guards it.
type statsData struct {
	calls      map[Op]int64
	records    int64
	faults     map[string]int64
	waiting    map[Op]int64
	handles    map[string]int64
	maxHandles map[string]int64
	readOnly   int64
	scanners   int64
	rulesError string
}

func newStatsData() statsData {
	return statsData{
		calls: map[Op]int64{}, faults: map[string]int64{}, waiting: map[Op]int64{},
		handles: map[string]int64{}, maxHandles: map[string]int64{},
	}
}

func (s *statsData) fault(r *liveRule) { s.faults[r.label()]++ }

// snapshot copies the state. mu is held.
func (c *Controller) snapshot() Stats {
	s := &c.stats
	return Stats{
		Calls: maps.Clone(s.calls), Records: s.records, Faults: maps.Clone(s.faults), Waiting: maps.Clone(s.waiting),
		Handles: maps.Clone(s.handles), MaxHandles: maps.Clone(s.maxHandles), ReadOnly: s.readOnly,
		Scanners: s.scanners, RulesError: s.rulesError,
	}
}

// Stats returns the counters as they are now.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot()
}

// WaitFor returns nil as soon as ok accepts the counters, and an error that
// shows them when ctx ends first. Tests use it instead of sleeping.
func (c *Controller) WaitFor(ctx context.Context, ok func(Stats) bool) error {
	for {
		s, changed := c.watch()
		if ok(s) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: the counters stand at %+v", ctx.Err(), s)
		}
	}
}

// watch returns the counters and a channel that is closed when they change.
func (c *Controller) watch() (Stats, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.snapshot(), c.changed
}

// touch wakes those who watch. mu is held.
func (c *Controller) touch() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// count changes the counters.
func (c *Controller) count(change func(*statsData)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
	c.touch()
}

func (c *Controller) called(op Op, records int) {
	c.count(func(s *statsData) {
		s.calls[op]++
		s.records += int64(records)
	})
}

// handle counts a handle that opened (+1) or closed (-1).
func (c *Controller) handle(channel string, readOnly bool, delta int64) {
	c.count(func(s *statsData) {
		if readOnly {
			s.readOnly += delta
			return
		}
		s.handles[channel] += delta
		s.maxHandles[channel] = max(s.maxHandles[channel], s.handles[channel])
	})
}

// statsWriter keeps a file up to date with the counters. The goroutine belongs
// to the opener, which stops it and waits for it.
type statsWriter struct {
	ctl  *Controller
	path string
	log  *zap.Logger
	stop chan struct{}
	done chan struct{}
}

// statsInterval is the least time between two writes of the file.
const statsInterval = 20 * time.Millisecond

func startStatsWriter(ctl *Controller, path string, log *zap.Logger) *statsWriter {
	w := &statsWriter{ctl: ctl, path: path, log: log, stop: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *statsWriter) run() {
	defer close(w.done)
	for {
		s, changed := w.ctl.watch()
		w.write(s)
		select {
		case <-changed:
		case <-w.stop:
			w.write(w.ctl.Stats())
			return
		}
		pause := time.NewTimer(statsInterval)
		select {
		case <-pause.C:
		case <-w.stop:
			pause.Stop()
			w.write(w.ctl.Stats())
			return
		}
	}
}

func (w *statsWriter) write(s Stats) {
	data, err := json.Marshal(s)
	if err == nil {
		err = writeFile(w.path, append(data, '\n'))
	}
	if err != nil {
		w.log.Warn("cannot write the stats file", zap.String("path", w.path), zap.Error(err))
	}
}

// flush writes at once: the process is about to leave.
func (w *statsWriter) flush() {
	if w != nil {
		w.write(w.ctl.Stats())
	}
}

func (w *statsWriter) close() {
	if w != nil {
		close(w.stop)
		<-w.done
	}
}
