package flusher

import (
	"bytes"
	"time"

	"github.com/walrig/walrig/sdk/message"
)

// mode says who reads for a service.
type mode int

const (
	// attached: dispatch buffers its rows.
	attached mode = iota
	// detached: dispatch skips it; its worker reads the log itself.
	detached
	// joining: dispatch buffers what lies behind joinAt, its worker still reads
	// and flushes what lies at or below it.
	joining
)

// service is the data sync service of one vchannel. run.mu guards it, but for
// what its worker alone uses.
type service struct {
	name string
	// start: records at or below this tick are not the vchannel's.
	start message.Tick
	// sink is nil until it was opened.
	sink VChannelSink
	mode mode
	// at: everything up to it is flushed.
	at message.Checkpoint

	// buf are rows that wait: from is the position before the first of them, last
	// that behind the unit of the last.
	buf        []message.Message
	bufBytes   int
	from, last message.Checkpoint
	since      time.Time
	// wanted says that what waits is to be flushed now.
	wanted bool
	// closing is behind the record that drops the vchannel, nil before it.
	closing *message.Checkpoint

	// working says that its worker runs. flightBytes are in the sink's hands
	// since flightSince; failing says that the sink's last call failed.
	working     bool
	flightBytes int
	flightSince time.Time
	failing     bool
	lastErr     error
	// kick ends the worker's pause.
	kick chan struct{}
	// skipped counts the bytes that dispatch did not give it while it was detached.
	skipped int64
	// late says that its output did not open in time at the start.
	late bool
	// loss says that its own reader lost its position and begins at the earliest.
	loss bool
}

func newService(name string, start message.Tick) *service {
	return &service{name: name, start: start, mode: attached, kick: make(chan struct{}, 1)}
}

// own reports whether a unit holds rows of the service that are not flushed.
func (s *service) own(u *Unit) bool {
	return u.Tick > s.start && !s.at.Covers(u.Term, u.Tick)
}

// bytes is what the service holds in shared memory.
func (s *service) bytes() int { return s.bufBytes + s.flightBytes }

// free lets go of what waits, and returns how much that was.
func (s *service) free() int {
	n := s.bufBytes
	s.buf, s.bufBytes, s.wanted = nil, 0, false
	return n
}

// stalled reports whether the sink's present call fails or hangs.
func (s *service) stalled(now time.Time, after time.Duration) bool {
	return s.working && (s.failing || (!s.flightSince.IsZero() && now.Sub(s.flightSince) > after))
}

func (s *service) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// rowsOf returns the unit's rows of a vchannel, as copies that hold on to no
// memory of the reader's. The rows of a transaction get its commit's tick, with
// which readers meet them too.
func rowsOf(u *Unit, vchannel string) (rows []message.Message, size int) {
	for i := range u.Messages {
		m := &u.Messages[i]
		if m.Type != message.TypeData || m.VChannel != vchannel {
			continue
		}
		row := *m
		row.Payload = bytes.Clone(m.Payload)
		row.TimeTick = u.Tick
		rows = append(rows, row)
		size += m.Size() + rowOverhead
	}
	return rows, size
}
