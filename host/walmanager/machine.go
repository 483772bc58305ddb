package walmanager

import (
	"fmt"

	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/walimpls"
)

// machine is one pchannel as plain values: what shall be, what is, and the
// rules between them. It knows no goroutine, clock or lock; lifetime drives it.
type machine struct {
	channel  string
	expected state
	current  current
	// ended says that current's WAL ended by itself: it has still to be closed.
	ended error
	// stopped, once set, ends everything; it is the answer to every call.
	stopped error
}

func newMachine(channel string) machine {
	initial := state{term: initialTerm}
	return machine{channel: channel, expected: initial, current: current{state: initial}}
}

// request makes s what shall be. It returns true if that is news, false if it
// is so already, and an error if it would be a step back.
func (m *machine) request(op string, s state) (bool, error) {
	switch {
	case m.stopped != nil:
		return false, m.stopped
	case m.expected.before(s):
		m.expected = s
		return true, nil
	case m.expected == s:
		return false, nil
	}
	return false, expired(m.channel, op, s, m.expected)
}

// openOutcome is the answer to a waiting Open(term); done is false while there is none.
func (m *machine) openOutcome(term int64) (done bool, err error) {
	s := state{term, true}
	switch {
	case m.stopped != nil:
		return true, m.stopped
	case s.before(m.expected):
		// Overtaken: whatever becomes of it, the term will not stay open.
		return true, expired(m.channel, "open", s, m.expected)
	case m.current.before(s):
		return false, nil
	case m.ended != nil:
		return true, m.ended
	}
	return true, m.current.err
}

// removeOutcome is the answer to a waiting Remove(term). It looks at the state
// alone: an error in there belongs to some Open.
func (m *machine) removeOutcome(term int64) (done bool, err error) {
	if !m.current.before(state{term, false}) {
		return true, nil
	}
	return m.stopped != nil, m.stopped
}

// stepKind is what the goroutine has to do next.
type stepKind int

const (
	stepIdle  stepKind = iota // nothing, the goroutine may end
	stepWatch                 // nothing but to watch the open WAL
	stepClose                 // close the open WAL, then report closed
	stepOpen                  // open the term, then report opened or openFailed
)

type step struct {
	kind stepKind
	term int64
	wal  wal.WAL
}

// next returns the next step. Moves that need no work are made on the spot.
func (m *machine) next() step {
	if w := m.current.wal; w != nil {
		kind := stepWatch
		if m.stopped != nil || m.ended != nil || m.current.before(m.expected) {
			kind = stepClose
		}
		return step{kind: kind, term: m.current.term, wal: w}
	}
	if m.stopped != nil || !m.current.before(m.expected) {
		return step{}
	}
	if !m.expected.available {
		m.current = unavailableAt(m.expected.term, nil)
		return step{}
	}
	return step{kind: stepOpen, term: m.expected.term}
}

// opened reports that the step to open term gave w.
func (m *machine) opened(term int64, w wal.WAL) { m.current = availableAt(term, w) }

// openFailed reports that the step to open term failed. The failure of an open
// that was overtaken is nobody's: it was canceled for that.
func (m *machine) openFailed(term int64, err error) {
	if (state{term, true}).before(m.expected) {
		err = nil
	}
	m.current = unavailableAt(term, err)
}

// walEnded reports that the open WAL can never append again.
func (m *machine) walEnded(err error) {
	if m.current.wal != nil && m.ended == nil {
		m.ended = err
	}
}

// closed reports that the WAL of the step to close is closed.
func (m *machine) closed() {
	m.current = unavailableAt(m.current.term, m.ended)
	m.ended = nil
}

// stop ends everything; why is the answer to every call from now on.
func (m *machine) stop(why error) {
	if m.stopped == nil {
		m.stopped = why
	}
}

// get returns the WAL that is and shall be.
func (m *machine) get(term int64) (wal.WAL, error) {
	other := m.expected.available && term != 0 && term != m.expected.term
	switch {
	case m.stopped != nil:
		return nil, m.stopped
	case !m.expected.available:
		err := walimpls.Errorf(walimpls.CodeNotFound, m.channel, "it is not open: term %d was removed", m.expected.term)
		err.Hint = "open it with a higher term"
		return nil, err
	case m.current.before(m.expected) && other:
		return nil, unmatched(m.channel, term, m.expected.term)
	case m.current.before(m.expected):
		err := walimpls.Errorf(walimpls.CodeUnavailable, m.channel, "term %d is being opened", m.expected.term)
		err.Hint = "try again soon"
		return nil, err
	case m.ended != nil:
		return nil, m.failed(m.ended)
	case m.current.wal == nil:
		return nil, m.failed(m.current.err)
	case other:
		return nil, unmatched(m.channel, term, m.current.term)
	}
	return m.current.wal, nil
}

// failed is the answer to Get for a term that failed to open, or ended.
func (m *machine) failed(cause error) error {
	code := walimpls.CodeUnavailable
	switch walimpls.AsError(cause).Code {
	case walimpls.CodeTermExpired, walimpls.CodeFenced:
		code = walimpls.CodeTermExpired
	}
	return because(code, m.channel, fmt.Sprintf("term %d is not open", m.expected.term), cause)
}

// status describes the channel; name, pair, error and WAL fit together.
func (m *machine) status() ChannelState {
	s := ChannelState{Channel: m.channel, Term: m.expected.term, State: Unavailable}
	if m.current.term == m.expected.term {
		s.Err = m.current.err
	}
	switch {
	case m.stopped != nil || !m.expected.available:
	case m.current.before(m.expected):
		s.State = Opening
	case m.ended != nil:
		s.Err = m.ended
	case m.current.wal != nil:
		s.State, s.WAL = Available, m.current.wal
	}
	return s
}
