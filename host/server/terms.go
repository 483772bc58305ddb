package server

import (
	"errors"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Terms picks the terms of one channel in standalone mode: always one above the
// highest that the catalog, the manager or the log has been seen with. The log
// itself is not asked beforehand: it refuses a term that is too low and names
// its highest, without harm to anybody.
type Terms struct {
	floor int64
}

// maxTermTries bounds how often one open may take a higher term.
const maxTermTries = 8

// Next returns the term to open with; row is the catalog's term and known the
// manager's.
func (t *Terms) Next(row, known int64) int64 {
	t.floor = max(t.floor, row, known) + 1
	return t.floor
}

// Raise notes the highest term of a log.
func (t *Terms) Raise(highest int64) { t.floor = max(t.floor, highest) }

// Learn takes the error of an open and reports whether a higher term may do:
// the log holds a higher pair, or the row or the manager has moved on.
func (t *Terms) Learn(err error) bool {
	var fenced *walimpls.FencedError
	if errors.As(err, &fenced) {
		t.Raise(fenced.Highest.Term)
		return true
	}
	return errors.Is(err, walimpls.ErrTermExpired)
}
