package flusher

import (
	"slices"
	"strings"

	"github.com/walrig/walrig/sdk/message"
)

// Counters count since the flusher was started.
type Counters struct {
	// Files, Rows and Bytes were flushed.
	Files, Rows, Bytes int64
	// Failures are failed calls of the sink.
	Failures int64
	// Detached, CatchUps and Rejoins count what became of services whose sink
	// did not work.
	Detached, CatchUps, Rejoins int64
	// LostPositions counts how often records were removed before they were flushed.
	LostPositions int64
	// Truncations counts those of the log.
	Truncations int64
}

// Status is what a Flusher tells about itself.
type Status struct {
	State State
	// Err is why it does not run.
	Err error
	// Checkpoint is the pchannel's, Saved the newest one in the catalog.
	Checkpoint message.Checkpoint
	Saved      Saved
	// SaveErr is why the last try to save it failed.
	SaveErr error
	// Truncated is the truncation point.
	Truncated Saved
	// LagTicks and LagMillis are how far the pchannel checkpoint is behind the
	// log's tick; LagBytes are rows that the scanner has met and that are not
	// flushed (at least: what detached services missed is counted once).
	LagTicks  uint64
	LagMillis int64
	LagBytes  int64
	// Memory is what the services hold, MemoryPeak the most they ever held.
	Memory, MemoryPeak int
	VChannels          []VChannelStatus
	Counters           Counters
}

// VChannelStatus is one service.
type VChannelStatus struct {
	Name string
	// State is idle, buffering, flushing, detached, joining or dropping.
	State      string
	Checkpoint message.Checkpoint
	// LagMillis is how far the checkpoint is behind the log's tick.
	LagMillis int64
	// Bytes wait or are on their way, or were skipped while detached.
	Bytes int64
	// Err is the sink's last failure, nil when it works.
	Err error
}

// Status returns the present state; with services it lists every vchannel.
func (f *Flusher) Status(services bool) Status {
	r, _, state, err := f.current()
	st := Status{State: state, Err: err}
	f.mu.Lock()
	st.Counters = f.counted
	f.mu.Unlock()
	if r == nil {
		return st
	}
	last := f.wal.LastTick()
	r.mu.Lock()
	defer r.mu.Unlock()
	st.Checkpoint, st.Saved, st.SaveErr, st.Truncated = r.cps.Minimum(r.pos), r.saved, r.saveErr, r.truncated
	st.Memory, st.MemoryPeak = r.used, r.peak
	if last > st.Checkpoint.Tick {
		st.LagTicks = uint64(last - st.Checkpoint.Tick)
		st.LagMillis = lagMillis(last, st.Checkpoint.Tick)
	}
	for _, s := range r.services {
		v := r.describe(s)
		st.LagBytes += v.Bytes
		if services {
			v.LagMillis = lagMillis(last, v.Checkpoint.Tick)
			st.VChannels = append(st.VChannels, v)
		}
	}
	slices.SortFunc(st.VChannels, func(a, b VChannelStatus) int { return strings.Compare(a.Name, b.Name) })
	return st
}

// lagMillis is how far a tick is behind another; 0 while nothing was met yet.
func lagMillis(last, at message.Tick) int64 {
	if at == 0 || at >= last {
		return 0
	}
	return last.Physical() - at.Physical()
}

// describe describes a service; r.mu is held.
func (r *run) describe(s *service) VChannelStatus {
	v := VChannelStatus{Name: s.name, Bytes: int64(s.bytes()) + s.skipped, Err: s.lastErr}
	v.Checkpoint, _ = r.cps.At(s.name, r.pos)
	switch {
	case s.closing != nil:
		v.State = "dropping"
	case s.mode == detached:
		v.State = "detached"
	case s.mode == joining:
		v.State = "joining"
	case s.flightBytes > 0:
		v.State = "flushing"
	case len(s.buf) > 0:
		v.State = "buffering"
	default:
		v.State = "idle"
	}
	return v
}

// flushedTo returns how far a vchannel is flushed, all of them for "", and what
// is closed at the next progress. known is false for one that is not there.
func (r *run) flushedTo(vchannel string) (at message.Checkpoint, change <-chan struct{}, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change = r.progress()
	if r.set == nil {
		return at, change, false
	}
	if vchannel == "" {
		return r.cps.Minimum(r.pos), change, true
	}
	if at, known = r.cps.At(vchannel, r.pos); !known {
		at = r.pos // not created yet, or dropped: the scanner finds out
	}
	return at, change, true
}

// failureOf returns why a vchannel's sink fails, or any one's for "".
func (r *run) failureOf(vchannel string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.services {
		if s.lastErr != nil && (vchannel == "" || vchannel == s.name) {
			return s.lastErr
		}
	}
	return nil
}

// sinkOf returns a vchannel's open output, nil if there is none, and whether it
// is being opened.
func (r *run) sinkOf(vchannel string) (sink VChannelSink, opening bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.services[vchannel]; s != nil {
		return s.sink, s.sink == nil
	}
	return nil, false
}

// closeSinks closes all outputs; no worker runs any more.
func (r *run) closeSinks() {
	for _, s := range r.services {
		if s.sink != nil {
			_ = s.sink.Close()
		}
	}
}

func (f *Flusher) countFiles(files []File) {
	f.count(func(c *Counters) {
		c.Files += int64(len(files))
		for i := range files {
			c.Rows += files[i].Rows
			c.Bytes += files[i].Bytes
		}
	})
}
