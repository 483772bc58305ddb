package walimpls

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/walrig/walrig/sdk/message"
)

func TestClaimTakesOnlyHigherPairs(t *testing.T) {
	highest := Pair{5, 3}
	for asked, want := range map[Pair]Pair{
		{5, 4}: {5, 4}, {5, 0}: {5, 4}, {6, 0}: {6, 1}, {6, 1}: {6, 1}, {7, 9}: {7, 9},
		{5, 3}: {}, {5, 2}: {}, {4, 9}: {}, {4, 0}: {},
	} {
		got, err := OpenOptions{Channel: "c", Term: asked.Term, Incarnation: asked.Incarnation}.Claim(highest)
		var fenced *FencedError
		switch {
		case want == Pair{}:
			if !errors.As(err, &fenced) || fenced.Highest != highest || fenced.Err.Channel != "c" {
				t.Errorf("%s: %v", asked, err)
			}
		case got != want || err != nil:
			t.Errorf("%s: got %s, %v, want %s", asked, got, err, want)
		}
	}
	if got, err := (OpenOptions{Term: 3}).Claim(Pair{}); got != (Pair{3, 1}) || err != nil {
		t.Errorf("a new log: %s, %v", got, err)
	}
}

func TestLimitsCheck(t *testing.T) {
	l := Limits{MaxMessageBytes: 10}
	for _, c := range []struct {
		m    message.Message
		want error
	}{
		{message.Message{Type: message.TypeData, Payload: make([]byte, 10)}, nil},
		{message.Message{Type: message.TypeTimeTick}, nil},
		{message.Message{Type: message.TypeData, Payload: make([]byte, 11)}, ErrTooLarge},
		{message.Message{Type: message.TypeData, Properties: map[string]string{"k": "1234567890"}}, ErrTooLarge},
		{message.Message{Type: message.TypeFence}, ErrInvalidArgument},
		{message.Message{}, ErrInvalidArgument},
	} {
		if err := l.Check("c", &c.m); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%v %d bytes: %v, want %v", c.m.Type, c.m.Size(), err, c.want)
		}
	}
}

func TestAppendEachTellsStoredFromRefused(t *testing.T) {
	n := uint64(0)
	refused := errors.New("no")
	store := func(m message.Message) (message.ID, error) {
		if len(m.Payload) == 0 {
			return "", refused
		}
		n++
		return message.Uint64ID(n), nil
	}
	full := message.Message{Payload: []byte("x")}
	ids, err := AppendEach("c", []message.Message{full, full}, store)
	if err != nil || len(ids) != 2 || ids[1] != message.Uint64ID(2) {
		t.Errorf("all stored: %v, %v", ids, err)
	}
	ids, err = AppendEach("c", []message.Message{full, {}, full}, store)
	var batch *BatchError
	if !errors.As(err, &batch) || ids != nil || !errors.Is(err, refused) {
		t.Fatalf("one refused: %v, %v", ids, err)
	}
	want := []Outcome{{Stored, message.Uint64ID(3), nil}, {NotStored, "", refused}, {Stored, message.Uint64ID(4), nil}}
	for i, o := range batch.Outcomes {
		if o != want[i] {
			t.Errorf("record %d: %+v, want %+v", i, o, want[i])
		}
	}
	if ids, err := AppendEach("c", nil, store); len(ids) != 0 || err != nil {
		t.Errorf("nothing: %v, %v", ids, err)
	}
}

func TestStartUint64(t *testing.T) {
	b := Bounds{Earliest: message.Uint64ID(3), Latest: message.Uint64ID(9)}
	at := message.Uint64ID
	for _, c := range []struct {
		start Start
		want  uint64
		code  Code
	}{
		{FromAll(), 3, ""}, {FromLatest(), 10, ""}, {StartFrom(at(3)), 3, ""}, {StartFrom(at(9)), 9, ""},
		{StartAfter(at(9)), 10, ""}, {StartAfter(at(3)), 4, ""},
		{StartFrom(at(10)), 0, CodePositionLost}, {StartAfter(at(10)), 0, CodePositionLost},
		{StartFrom(at(2)), 0, CodePositionLost}, {StartAfter(at(2)), 0, CodePositionLost},
		{StartFrom("abc"), 0, CodeInvalidArgument},
	} {
		got, err := c.start.Uint64("c", b)
		if c.code != "" {
			if AsError(err).Code != c.code {
				t.Errorf("%+v: %v, want %s", c.start, err, c.code)
			}
		} else if got != c.want || err != nil {
			t.Errorf("%+v: %d, %v, want %d", c.start, got, err, c.want)
		}
	}
}

func TestReadOptionsFit(t *testing.T) {
	records := []message.Message{{Payload: make([]byte, 4)}, {Payload: make([]byte, 4)}, {Payload: make([]byte, 100)}, {}}
	for _, c := range []struct{ records, bytes, want int }{
		{9, 1000, 4}, {2, 1000, 2}, {9, 1, 1}, {9, 4, 1}, {9, 5, 2}, {9, 9, 3}, {9, 108, 3}, {9, 109, 4},
	} {
		if got := (ReadOptions{BufferRecords: c.records, BufferBytes: c.bytes}).Fit(records); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestScannerWaitsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := make(chan []message.Message, 1)
		changed := make(chan struct{})
		broken := errors.New("broken")
		var fail error
		s := NewScanner("c", func() ([]message.Message, <-chan struct{}, error) {
			select {
			case r := <-records:
				return r, nil, nil
			default:
				return nil, changed, fail
			}
		})
		type answer struct {
			records []message.Message
			err     error
		}
		next := func(ctx context.Context) chan answer {
			out := make(chan answer, 1)
			go func() {
				r, err := s.Next(ctx)
				out <- answer{r, err}
			}()
			synctest.Wait()
			return out
		}
		waiting := next(t.Context())
		if len(waiting) != 0 {
			t.Fatal("Next returned although there was nothing")
		}
		records <- []message.Message{{ID: "1"}}
		close(changed)
		if a := <-waiting; len(a.records) != 1 || a.err != nil {
			t.Errorf("after a change: %+v", a)
		}
		changed = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		waiting = next(ctx)
		cancel()
		if a := <-waiting; !errors.Is(a.err, context.Canceled) {
			t.Errorf("after its context: %+v", a)
		}
		waiting = next(t.Context())
		_, _ = s.Close(), s.Close()
		if a := <-waiting; !errors.Is(a.err, ErrClosed) {
			t.Errorf("after Close: %+v", a)
		}
		fail = broken
		s = NewScanner("c", func() ([]message.Message, <-chan struct{}, error) { return nil, nil, fail })
		for range 2 {
			if _, err := s.Next(t.Context()); !errors.Is(err, broken) {
				t.Errorf("an error ends the scanner: %v", err)
			}
			fail = nil
		}
	})
}
