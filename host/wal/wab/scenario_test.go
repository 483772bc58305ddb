package wab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
)

var update = flag.Bool("update", false, "write what the scenarios print into testdata")

// TestScenarios plays testdata/wab.txt; -update writes what is printed now.
func TestScenarios(t *testing.T) {
	const path = "testdata/wab.txt"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	var s *scenario
	for line := range strings.SplitSeq(strings.TrimRight(string(text), "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "  "):
			continue
		case strings.HasPrefix(line, "== "):
			s = newScenario()
		case line != "" && line[0] != '#':
			out = append(out, line)
			for _, printed := range s.play(t, line) {
				out = append(out, "  "+printed)
			}
			continue
		}
		out = append(out, line)
	}
	got := strings.Join(out, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != string(text) {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
}

type scenario struct {
	now     time.Time
	b       *Buffer
	readers map[string]*Reader
}

func newScenario() *scenario {
	s := &scenario{now: time.Unix(0, 0), readers: map[string]*Reader{}}
	s.b = New(Options{MaxBytes: 1000, MaxAge: 10 * time.Second, Now: func() time.Time { return s.now }}, persisted(1))
	return s
}

func (s *scenario) play(t *testing.T, event string) []string {
	words := strings.Fields(event)
	number := func(word string) int {
		n, err := strconv.Atoi(strings.TrimLeft(word, "Tt"))
		if err != nil {
			t.Fatalf("%q: %v", event, err)
		}
		return n
	}
	switch words[0] {
	case "put":
		var records []message.Message
		last := len(words) - 1
		for _, word := range words[1:last] {
			records = append(records, record(number(word)))
		}
		tick := memory(number(words[last]))
		if words[last][0] == 'T' {
			tick = persisted(number(words[last]))
			records = append(records, tick)
		}
		s.b.Append(records, tick)
	case "wait":
		s.now = s.now.Add(time.Duration(number(words[1])) * time.Second)
	case "read":
		r, err := s.b.ReadAfter(message.Tick(number(words[3])))
		if err != nil {
			return []string{err.Error()}
		}
		s.readers[words[1]] = r
	case "stats":
		st := s.b.Stats()
		return []string{fmt.Sprintf("%d records, boundary %d, horizon %d", st.Records, st.Boundary, st.Horizon)}
	case "close":
		s.b.Close(errors.New("closed"))
	default:
		if s.readers[words[0]] == nil {
			return []string{"no reader"}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		records, err := s.readers[words[0]].Next(ctx)
		switch {
		case errors.Is(err, context.Canceled):
			return []string{"waits"}
		case err != nil:
			return []string{err.Error()}
		}
		return []string{show(records)}
	}
	return nil
}
