package walmanager

import (
	"fmt"

	"github.com/walrig/walrig/host/wal"
)

// initialTerm is below every term that can be opened.
const initialTerm = -1

// state is the pair (term, available).
type state struct {
	term      int64
	available bool
}

// before reports whether s comes before t: of two terms the lower one, within
// a term "available". No state is before itself.
func (s state) before(t state) bool {
	if s.term != t.term {
		return s.term < t.term
	}
	return s.available && !t.available
}

// String returns "(3,true)".
func (s state) String() string { return fmt.Sprintf("(%d,%t)", s.term, s.available) }

// current is what a pchannel is. It is a value: reading it copies it.
type current struct {
	state
	wal wal.WAL // nil unless available
	err error   // why the term is not available, nil if it was removed
}

func availableAt(term int64, w wal.WAL) current {
	return current{state: state{term, true}, wal: w}
}

func unavailableAt(term int64, err error) current {
	return current{state: state{term, false}, err: err}
}
