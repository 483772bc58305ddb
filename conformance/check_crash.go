package conformance

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var restartChecks = []check{
	{Clause: "WAL-RST-001", Name: "records", Alone: true, Run: checkRecordsOutliveRestart},
	{Clause: "WAL-RST-002", Name: "starts", Alone: true, Run: checkStartsOutliveRestart},
	{Clause: "WAL-RST-003", Name: "ids", Alone: true, Run: checkIDsOutliveRestart},
}

func checkRecordsOutliveRestart(t *T) {
	c, d := t.channel(), t.channel()
	var want []message.Message
	var ids []message.ID
	for round := range 2 {
		h := t.open(c, int64(round+1), 1)
		for i := range 10 {
			m := message.Message{
				Type: message.TypeData, VChannel: "v", TimeTick: message.Tick(round*100 + i), TxnID: uint64(i),
				Properties: map[string]string{"i": fmt.Sprint(i), "empty": ""}, Payload: t.bytes(i * 100),
			}
			want = append(want, m)
			ids = append(ids, h.append(m)...)
		}
		if round == 1 {
			h.close() // the other handle is left to the stop
		}
		t.open(d, int64(round+1), 1).append(data(fmt.Sprint("d", round)))
		t.stop()
		t.restart()
		h = t.open(c, int64(round+1), 2)
		t.expectLog(h.messages(), want, ids, fmt.Sprintf("the log after restart %d", round+1))
		h.close()
	}
	t.expectLog(t.open(d, 9, 1).messages(), series2("d", 2), nil, "another channel's log")
}

// series2 is "prefix0", "prefix1", ….
func series2(prefix string, n int) []message.Message {
	out := make([]message.Message, n)
	for i := range out {
		out[i] = data(fmt.Sprint(prefix, i))
	}
	return out
}

func checkStartsOutliveRestart(t *T) {
	c := t.channel()
	layout := t.description().IDLayout
	h := t.open(c, 1, 1)
	want := series("m", 5)
	ids := h.append(want[:3]...)
	ids = append(ids, h.appendEach(want[3:]...)...)
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i], _ = layout.Format(id)
	}
	t.stop()
	t.restart()
	h = t.open(c, 2, 1)
	for i := range texts {
		id, err := layout.Parse(texts[i])
		t.expect(err == nil, "the text %q is an id; got %v", texts[i], err)
		s := h.read(walimpls.StartFrom(id))
		t.expectLog(s.take(5-i), want[i:], ids[i:], "after a restart, a start from "+texts[i])
		s.close()
		s = h.read(walimpls.StartAfter(id))
		t.expectLog(s.take(4-i), want[i+1:], ids[i+1:], "after a restart, a start after "+texts[i])
		s.close()
	}
	t.expectLog(h.read(walimpls.FromAll()).take(5), want, ids, "after a restart, a start from All")
	h.read(walimpls.FromLatest()).silent("a start from Latest after a restart lies behind everything")
}

func checkIDsOutliveRestart(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	store := h.ch.StoreID
	last := h.append(series("m", 3)...)[2]
	for round := range 2 {
		t.stop()
		t.restart()
		h = t.open(c, int64(round+2), 1)
		t.expect(h.ch.StoreID == store, "the store id is %s after a restart, too; got %s", store, h.ch.StoreID)
		id := h.append(data("next"))[0]
		t.expect(last.Less(id), "new ids lie above all old ones after a restart; %s is followed by %s", showID(last), showID(id))
		last = id
	}
}

var crashChecks = []check{
	{Clause: "WAL-CRASH-001", Name: "append", Alone: true, Kills: true, Bound: 5 * time.Minute, Run: checkKillDuringAppends},
	{Clause: "WAL-CRASH-001", Name: "at-once", Alone: true, Kills: true, Run: checkKillAfterAcknowledgement},
	{Clause: "WAL-CRASH-002", Name: "open", Alone: true, Kills: true, Bound: 5 * time.Minute, Run: checkKillDuringOpen},
	{Clause: "WAL-CRASH-003", Name: "truncate", Alone: true, Kills: true, Bound: 5 * time.Minute, Run: checkKillDuringTruncate},
	{Clause: "WAL-CRASH-004", Name: "scanner", Alone: true, Kills: true, Run: checkKillAfterRead},
	{Clause: "WAL-CRASH-005", Name: "drop", Alone: true, Kills: true, Run: checkKillDuringDrop},
}

// killWindow is the time within which a kill falls.
func (t *T) killWindow() time.Duration { return time.Millisecond + t.duration(t.quiet/2) }

func checkKillDuringAppends(t *T) {
	c := t.channel()
	o := newOracle(t)
	for round := range 3 {
		h := t.open(c, int64(round+1), 1)
		writing := t.start(func() {
			t.parallel(4, func(w int) {
				for i := 0; ; i++ {
					batch := make([]string, 1+i%3)
					for k := range batch {
						batch[k] = fmt.Sprintf("r%d-w%d-%d", round, w, 3*i+k)
					}
					for _, out := range o.appendBatch(t.ctx, h, batch...) {
						if out.State != walimpls.Stored {
							return
						}
					}
				}
			})
		})
		t.pause(t.killWindow())
		t.kill()
		writing.wait()
		next := t.open(c, int64(round+1), 2)
		log := next.messages()
		o.verify(log)
		o.verifyOrder(log)
	}
}

func checkKillAfterAcknowledgement(t *T) {
	c := t.channel()
	o := newOracle(t)
	for round := range 2 {
		h := t.open(c, int64(round+1), 1)
		t.expect(o.append(t.ctx, h, fmt.Sprint("last-words-", round)), "the append succeeds")
		t.kill()
	}
	o.verify(t.open(c, 9, 1).messages())
}

func checkKillDuringOpen(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	want := series("m", 5)
	ids := h.append(want...)
	highest, term := h.ch.Pair, int64(1)
	t.kill()
	_, err := t.tryOpen(c, 1, 1)
	t.expect(!t.claimed(CapFencing) || errors.Is(err, walimpls.ErrFenced), "after a kill the pair 1.1, whose Open had returned, is refused; got %v", err)
	for range 3 {
		var killed atomic.Bool
		opening := t.start(func() {
			for !killed.Load() { // an Open may wait for the next process, and succeed
				term++
				h, err := t.tryOpen(c, term, 1)
				if err != nil {
					return
				}
				highest = h.ch.Pair
			}
		})
		t.pause(t.killWindow())
		t.kill()
		killed.Store(true)
		opening.wait()
		_, err := t.tryOpen(c, highest.Term, highest.Incarnation)
		t.expect(!t.claimed(CapFencing) || errors.Is(err, walimpls.ErrFenced), "after a kill the pair %s, whose Open had returned, is refused; got %v", highest, err)
		term++ // the last one may be in the log
		next := t.open(c, term, 1)
		highest = next.ch.Pair
		t.expectLog(next.messages(), want, ids, "the log after a kill during Open")
	}
}

func checkKillDuringTruncate(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	want := series("m", 20)
	ids := h.append(want...)
	at, done := 0, 0 // the last point that was tried, and the last that returned
	for round := range 3 {
		cutting := t.start(func() { // each round appends one and cuts one, so that it never ends before the kill
			for {
				m := data(fmt.Sprintf("m-%d", len(want)))
				id, err := h.tryAppend(t.ctx, m)
				if err != nil {
					return
				}
				want, ids = append(want, m), append(ids, id[0])
				at++
				if h.tryTruncate(ids[at]) != nil {
					return
				}
				done = at
			}
		})
		t.pause(t.killWindow())
		t.kill()
		cutting.wait()
		h = t.open(c, int64(round+2), 1)
		got := h.messages()
		t.expect(len(got) > 0, "the log after a kill during Truncate(%s) holds what lies behind that point; it is empty", showID(ids[at]))
		first := slices.Index(ids, got[0].ID)
		t.expect(first >= 0 && first <= at, "the log after a kill during Truncate(%s) begins at or before that point; it begins with %s", showID(ids[at]), showBatch(got[:1]))
		t.expect(first >= done, "Truncate(%s) had returned before the kill; the log begins at %s", showID(ids[done]), showBatch(got[:1]))
		// The append that the kill met may be there.
		if len(got) == len(want)-first+1 {
			m := data(fmt.Sprintf("m-%d", len(want)))
			want, ids = append(want, m), append(ids, got[len(got)-1].ID)
		}
		t.expectLog(got, want[first:], ids[first:], "the log after a kill during Truncate")
		at, done = first, first
	}
}

func checkKillAfterRead(t *T) {
	c := t.channel()
	o := newOracle(t)
	for round := range 3 {
		h := t.open(c, int64(round+1), 1)
		s := h.read(walimpls.FromLatest())
		var mu sync.Mutex
		var read []message.Message
		reading := t.start(func() {
			for {
				recs, err := s.next(t.ctx, t.run.opt.Bound)
				if err != nil {
					return
				}
				mu.Lock()
				read = append(read, withoutFences(recs)...)
				mu.Unlock()
			}
		})
		writing := t.start(func() {
			for i := 0; o.append(t.ctx, h, fmt.Sprintf("r%d-%d", round, i)); i++ {
			}
		})
		t.pause(t.killWindow())
		t.kill()
		writing.wait()
		reading.wait()
		log := t.open(c, int64(round+1), 2).messages()
		o.verify(log)
		there := map[message.ID]string{}
		for i := range log {
			there[log[i].ID] = string(log[i].Payload)
		}
		for i := range read {
			t.expect(there[read[i].ID] == string(read[i].Payload), "%s, which a scanner returned before the kill, is in the log after it; there is %q", showBatch(read[i:i+1]), there[read[i].ID])
		}
	}
}

func checkKillDuringDrop(t *T) {
	for round := range 2 {
		var names []string
		dropped := map[string]bool{}
		for range 6 {
			c := t.channel()
			names = append(names, c)
			h := t.open(c, 1, 1)
			h.append(series("m", 5)...)
			h.close()
		}
		dropping := t.start(func() {
			for _, c := range names {
				if t.tryDrop(c, 1) != nil {
					return
				}
				dropped[c] = true
			}
		})
		t.pause(t.killWindow() / time.Duration(2+2*round))
		t.kill()
		dropping.wait()
		for _, c := range names {
			got := withoutFences(t.open(c, 2, 1).log())
			t.expect(len(got) == 0 || !dropped[c] && len(got) == 5, "after a kill during Drop the log of %s is there whole or gone, and gone if Drop returned (%t); it holds %d of 5 messages", c, dropped[c], len(got))
		}
	}
}
