package wal

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func batchOf(sizes ...int) []message.Message {
	batch := make([]message.Message, len(sizes))
	for i, n := range sizes {
		batch[i].Payload = make([]byte, n)
	}
	return batch
}

func outcomes(states ...walimpls.State) []walimpls.Outcome {
	out := make([]walimpls.Outcome, len(states))
	for i, s := range states {
		out[i].State = s
		switch s {
		case walimpls.Unknown:
			out[i].Err = walimpls.ErrUnknownOutcome
		case walimpls.NotStored:
			out[i].Err = walimpls.ErrUnavailable
		}
	}
	return out
}

func TestQueueSendsInOrderUpToTheLimit(t *testing.T) {
	q := newQueue()
	a, b, c := &entry{batch: batchOf(60)}, &entry{batch: batchOf(60)}, &entry{batch: batchOf(60)}
	q.add(a)
	q.add(b)
	q.add(c)
	if q.take(100) != a || q.take(100) != b || q.take(100) != nil {
		t.Fatal("want the first two entries and then nothing: 120 bytes are under way, the limit is 100")
	}
	if v, ok := q.answer(a, outcomes(walimpls.Stored)); !ok || !v.finished || v.lost {
		t.Fatalf("answer = %+v %v", v, ok)
	}
	if q.take(100) != c || q.bytes != 120 || q.sentBytes != 120 {
		t.Fatalf("bytes %d, sent %d", q.bytes, q.sentBytes)
	}
}

func TestQueueSendsAgainWhatALostHandleNeverSaw(t *testing.T) {
	q := newQueue()
	a, b, c := &entry{batch: batchOf(1)}, &entry{batch: batchOf(1)}, &entry{batch: batchOf(1)}
	q.add(a)
	q.add(b)
	q.add(c)
	q.take(99)
	q.take(99)
	if v, _ := q.answer(b, outcomes(walimpls.NotStored)); v.finished || !v.lost {
		t.Fatalf("b: %+v", v)
	}
	if v, _ := q.answer(a, outcomes(walimpls.NotStored)); v.finished || !v.lost {
		t.Fatalf("a: %+v", v)
	}
	if refused := q.requeue(); len(refused) != 0 {
		t.Fatalf("refused %v", refused)
	}
	if q.take(99) != a || q.take(99) != b || q.take(99) != c {
		t.Fatal("the old order is lost")
	}
}

func TestQueueNeverSendsAnEntryBehindALaterStoredOne(t *testing.T) {
	q := newQueue()
	a, b := &entry{batch: batchOf(1)}, &entry{batch: batchOf(1)}
	q.add(a)
	q.add(b)
	q.take(99)
	q.take(99)
	q.answer(a, outcomes(walimpls.NotStored))
	q.answer(b, outcomes(walimpls.Stored))
	if refused := q.requeue(); len(refused) != 1 || refused[0] != a {
		t.Fatalf("refused %v, want a alone", refused)
	}
	if q.take(99) != nil || q.bytes != 0 {
		t.Fatalf("something is left: %d bytes", q.bytes)
	}
}

func TestQueueNeverSendsAnUnknownEntryAgain(t *testing.T) {
	q := newQueue()
	a, b := &entry{batch: batchOf(1, 1)}, &entry{batch: batchOf(1)}
	q.add(a)
	q.add(b)
	q.take(99)
	q.take(99)
	if v, _ := q.answer(a, outcomes(walimpls.NotStored, walimpls.Unknown)); !v.finished || !v.lost {
		t.Fatalf("a: %+v", v)
	}
	if silent := q.giveUp(); len(silent) != 1 || silent[0] != b {
		t.Fatalf("silent %v, want b", silent)
	}
	if _, ok := q.answer(b, outcomes(walimpls.Stored)); ok {
		t.Fatal("an answer after giving up must be ignored")
	}
	q.requeue()
	if q.take(99) != nil || q.bytes != 0 || q.sentBytes != 0 {
		t.Fatal("something is left")
	}
}

// TestQueueKeepsItsPromises drives the queue with random handles against the
// rules: each entry is answered once, nothing unknown is ever sent again, and
// every byte is counted.
func TestQueueKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue()
		var under []*entry
		answered := map[*entry]int{}
		sentUnknown := map[*entry]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { q.add(&entry{batch: batchOf(rapid.IntRange(0, 5).Draw(t, "size"))}) },
			"take": func(t *rapid.T) {
				if e := q.take(10); e != nil {
					if sentUnknown[e] {
						t.Fatalf("entry %d was unknown and is sent again", e.number)
					}
					under = append(under, e)
				}
			},
			"answer": func(t *rapid.T) {
				if len(under) == 0 {
					t.Skip("nothing under way")
				}
				i := rapid.IntRange(0, len(under)-1).Draw(t, "which")
				e := under[i]
				state := walimpls.State(rapid.IntRange(0, 2).Draw(t, "state"))
				v, ok := q.answer(e, outcomes(state))
				if !ok {
					t.Fatalf("entry %d: its only answer was refused", e.number)
				}
				under = append(under[:i], under[i+1:]...)
				sentUnknown[e] = state == walimpls.Unknown
				if v.finished {
					answered[e]++
				}
			},
			"lose": func(t *rapid.T) {
				for _, e := range q.giveUp() {
					answered[e]++
					sentUnknown[e] = true
				}
				under = nil
				for _, e := range q.requeue() {
					answered[e]++
				}
			},
			"cancel": func(t *rapid.T) {
				if len(q.waiting) > 0 && q.cancel(q.waiting[0]) != true {
					t.Fatal("a waiting entry can be cancelled")
				}
			},
			"": func(t *rapid.T) {
				for e, n := range answered {
					if n != 1 {
						t.Fatalf("entry %d was answered %d times", e.number, n)
					}
				}
				bytes := 0
				for _, e := range q.waiting {
					bytes += e.bytes
				}
				for _, e := range q.returned {
					bytes += e.bytes
				}
				for e := range q.sent {
					bytes += e.bytes
				}
				if bytes != q.bytes {
					t.Fatalf("the queue counts %d bytes and holds %d", q.bytes, bytes)
				}
			},
		})
	})
}
