package main

import (
	"fmt"
	"strings"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// tally adds up the outcomes of an append, in input order. It is pure.
type tally struct {
	stored, bytes   int64
	firstID, lastID string
	unknown         spans
	notStored       spans
	// taken is the last line that is stored or may be: from the next one on
	// nothing was appended.
	taken int64
	// firstLine and firstErr are the first line that was not stored, and why.
	firstLine int64
	firstErr  error
	// streamErr is why the append stream failed, nil if it did not.
	streamErr error
}

func (t *tally) add(line, size int64, r client.Result) {
	switch r.State {
	case walimpls.Stored:
		t.stored++
		t.bytes += size
		if t.firstID == "" {
			t.firstID = r.ID
		}
		t.lastID = r.ID
		t.taken = line
		return
	case walimpls.NotStored:
		t.notStored.add(line)
	default:
		t.unknown.add(line)
		t.taken = line
	}
	if t.firstErr == nil {
		t.firstLine, t.firstErr = line, r.Err
	}
}

// resume is the first line from which on nothing was appended.
func (t *tally) resume() int64 { return t.taken + 1 }

// spans are runs of line numbers, ascending.
type spans []span

type span struct{ from, to int64 }

func (s *spans) add(line int64) {
	if n := len(*s); n > 0 && (*s)[n-1].to == line-1 {
		(*s)[n-1].to = line
		return
	}
	*s = append(*s, span{line, line})
}

// below returns the part of the spans that lies below a line.
func (s spans) below(line int64) spans {
	var out spans
	for _, r := range s {
		if r.from < line {
			out = append(out, span{r.from, min(r.to, line-1)})
		}
	}
	return out
}

// String is "line 7" or "lines 7-9, 12"; many runs are cut short.
func (s spans) String() string {
	const most = 8
	var parts []string
	for i, r := range s {
		if i == most {
			parts = append(parts, fmt.Sprintf("… and %d more", len(s)-most))
			break
		}
		if r.from == r.to {
			parts = append(parts, fmt.Sprint(r.from))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", r.from, r.to))
		}
	}
	word := "lines "
	if len(s) == 1 && s[0].from == s[0].to {
		word = "line "
	}
	return word + strings.Join(parts, ", ")
}
