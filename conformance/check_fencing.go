package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var readOnlyChecks = []check{
	{Clause: "WAL-RO-001", Name: "missing", Run: checkReadOnlyMissing},
	{Clause: "WAL-RO-002", Name: "read", Run: checkReadOnlyReads},
	{Clause: "WAL-RO-003", Name: "write", Run: checkReadOnlyWrites},
	{Clause: "WAL-RO-004", Name: "harmless", Run: checkReadOnlyIsHarmless},
}

var fencingChecks = []check{
	{Clause: "WAL-FENCE-001", Name: "refused", Run: checkLowPairsAreRefused},
	{Clause: "WAL-FENCE-002", Name: "highest", Run: checkFencedCarriesHighest},
	{Clause: "WAL-FENCE-003", Name: "before-first-write", Run: func(t *T) { checkZombie(t, walimpls.Pair{Term: 2, Incarnation: 1}, false) }},
	{Clause: "WAL-FENCE-003", Name: "after-first-write", Run: func(t *T) { checkZombie(t, walimpls.Pair{Term: 2, Incarnation: 1}, true) }},
	{Clause: "WAL-FENCE-004", Name: "before-first-write", Run: func(t *T) { checkZombie(t, walimpls.Pair{Term: 1, Incarnation: 6}, false) }},
	{Clause: "WAL-FENCE-004", Name: "after-first-write", Run: func(t *T) { checkZombie(t, walimpls.Pair{Term: 1, Incarnation: 6}, true) }},
	{Clause: "WAL-FENCE-005", Name: "late-opens", Run: checkLateOpens},
	{Clause: "WAL-FENCE-006", Name: "storm", Run: checkFencingStorm},
	{Clause: "WAL-FENCE-007", Name: "one-winner", Run: checkOneWinner},
	{Clause: "WAL-FENCE-008", Name: "truncate", Run: checkFencedTruncate},
	{Clause: "WAL-FENCE-009", Name: "truncated-log", Run: checkPairOutlivesTruncation},
	{Clause: "WAL-FENCE-010", Name: "scanner", Run: checkScannerOfFencedHandle},
	{Clause: "WAL-FENCE-011", Name: "restart", Alone: true, Run: checkPairOutlivesRestart},
}

func checkReadOnlyMissing(t *T) {
	c := t.channel()
	for range 2 {
		_, err := t.tryOpenReadOnly(c)
		t.expect(errors.Is(err, walimpls.ErrNotFound), "a read-only Open of a log that does not exist is ErrNotFound; got %v", err)
	}
	h := t.open(c, 1, 1)
	t.expect(len(h.log()) == 1, "the log is new: it holds its first fence record alone")
}

func checkReadOnlyReads(t *T) {
	c := t.channel()
	owner := t.open(c, 3, 2)
	want := series("m", 5)
	ids := owner.append(want...)
	ro := t.openReadOnly(c)
	t.expect(ro.ch.Name == c && ro.ch.Access == walimpls.AccessReadOnly && ro.ch.StoreID == owner.ch.StoreID && ro.ch.Pair == owner.ch.Pair,
		"Channel of a read-only handle is %s read-only, store %s, pair %s; got %+v", c, owner.ch.StoreID, owner.ch.Pair, ro.ch)
	s := ro.read(walimpls.FromAll())
	t.expectLog(s.take(5), want, ids, "a scanner of a read-only handle")
	latest := ro.read(walimpls.FromLatest())
	more := series("n", 3)
	moreIDs := owner.append(more...)
	t.expectLog(s.take(3), more, moreIDs, "a scanner of a read-only handle, of what the owner appends later")
	t.expectLog(latest.take(3), more, moreIDs, "a scanner from Latest of a read-only handle")
	t.expectLog(ro.read(walimpls.StartAfter(ids[3])).take(4), append(want[4:5:5], more...), nil, "a scanner of a read-only handle behind an id")
	b, own := ro.bounds(), owner.bounds()
	t.expect(b == own, "the bounds are those that the owner sees, %+v; got %+v", own, b)
	owner.close()
	t.open(c, 4, 1)
	t.expect(t.openReadOnly(c).ch.Pair == walimpls.Pair{Term: 4, Incarnation: 1}, "a later read-only handle carries the new highest pair")
	ro.close()
}

func checkReadOnlyWrites(t *T) {
	c := t.channel()
	owner := t.open(c, 1, 1)
	id := owner.append(series("m", 3)...)[1]
	ro := t.openReadOnly(c)
	_, err := ro.tryAppend(t.ctx, data("no"))
	t.expect(errors.Is(err, walimpls.ErrReadOnly), "Append on a read-only handle is ErrReadOnly; got %v", err)
	t.expectNotStored(err, 1, "Append on a read-only handle")
	if t.claimed(CapTruncation) {
		err = ro.tryTruncate(id)
		t.expect(errors.Is(err, walimpls.ErrReadOnly), "Truncate on a read-only handle is ErrReadOnly; got %v", err)
	}
	t.expectLog(owner.messages(), series("m", 3), nil, "the log")
}

func checkReadOnlyIsHarmless(t *T) {
	c := t.channel()
	owner := t.open(c, 1, 1)
	var want []message.Message
	for i := range 15 {
		ro := t.openReadOnly(c)
		m := data(fmt.Sprint("m", i))
		want = append(want, m)
		owner.append(m)
		if i%3 != 0 {
			ro.close()
		}
	}
	log := owner.log()
	t.expect(log[0].Type == message.TypeFence, "the log begins with the owner's fence record")
	t.expectLog(log[1:], want, nil, "the log, to which read-only opens added nothing")
}

func checkLowPairsAreRefused(t *T) {
	c := t.channel()
	h := t.open(c, 5, 3)
	h.append(data("one"))
	for _, p := range []walimpls.Pair{{Term: 5, Incarnation: 3}, {Term: 5, Incarnation: 2}, {Term: 5, Incarnation: 1}, {Term: 4, Incarnation: 1}, {Term: 4, Incarnation: 99}, {Term: 1, Incarnation: 1}, {Term: 4}} {
		_, err := t.tryOpen(c, p.Term, p.Incarnation)
		var fenced *walimpls.FencedError
		t.expect(errors.As(err, &fenced) && errors.Is(err, walimpls.ErrFenced), "Open with the pair %s, at or below 5.3, is FencedError; got %v", p, err)
	}
	h.append(data("two"))
	log := h.log()
	t.expectLog(log[1:], []message.Message{data("one"), data("two")}, nil, "the log, to which refused opens added nothing")
	for _, p := range []walimpls.Pair{{Term: 5, Incarnation: 4}, {Term: 6, Incarnation: 1}, {Term: 6, Incarnation: 900}, {Term: 7, Incarnation: 2}} {
		t.open(c, p.Term, p.Incarnation)
	}
}

func checkFencedCarriesHighest(t *T) {
	c := t.channel()
	for _, highest := range []walimpls.Pair{{Term: 2, Incarnation: 1}, {Term: 2, Incarnation: 4}, {Term: 9, Incarnation: 3}} {
		t.open(c, highest.Term, highest.Incarnation)
		for _, p := range []walimpls.Pair{highest, {Term: 1, Incarnation: 50}} {
			_, err := t.tryOpen(c, p.Term, p.Incarnation)
			var fenced *walimpls.FencedError
			t.expect(errors.As(err, &fenced), "Open with the pair %s is FencedError; got %v", p, err)
			t.expect(fenced.Highest == highest, "FencedError carries the highest pair %s; got %s", highest, fenced.Highest)
		}
	}
}

// checkZombie: a handle of 1.5 goes on while another takes over.
func checkZombie(t *T, next walimpls.Pair, written bool) {
	c := t.channel()
	o := newOracle(t)
	old := t.open(c, 1, 5)
	o.append(t.ctx, old, "old-1")
	owner := t.open(c, next.Term, next.Incarnation)
	if written {
		o.append(t.ctx, owner, "new-1")
	}
	for i := range 3 {
		p := fmt.Sprintf("zombie-%d", i)
		_, err := old.tryAppend(t.ctx, data(p))
		t.expect(err != nil, "an Append on the handle 1.5 after the Open of %s is not acknowledged; it was", next)
		t.expect(errors.Is(err, walimpls.ErrFenced), "an Append on the handle 1.5 after the Open of %s is ErrFenced; got %v", next, err)
		o.note([]string{p}, t.outcomes(c, 1, nil, err))
	}
	t.expect(o.append(t.ctx, owner, "new-2"), "the owner's append succeeds")
	t.pause(t.quiet / 3) // for what lands late
	log := owner.messages()
	o.verify(log)
	for i := range log {
		p := walimpls.Pair{Term: log[i].Term, Incarnation: log[i].Incarnation}
		first := string(log[i].Payload) == "old-1"
		t.expect(first || p == next, "after the Open of %s no record of 1.5 lands; the log holds %s", next, showBatch(log[i:i+1]))
	}
	old.close() // harms nobody
	t.expect(o.append(t.ctx, owner, "new-3"), "the owner's append succeeds after the old handle was closed")
}

func checkLateOpens(t *T) {
	c := t.channel()
	owner := t.open(c, 10, 2)
	o := newOracle(t)
	stop := make(chan struct{})
	busy := t.start(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				p := fmt.Sprintf("busy-%d", i)
				t.expect(o.append(t.ctx, owner, p), "the owner's append of %q succeeds while others open with lower pairs", p)
			}
		}
	})
	fail := guard(func() {
		t.parallel(4, func(w int) {
			for i := range 25 {
				p := walimpls.Pair{Term: int64(1 + (w+i)%10), Incarnation: 1}
				_, err := t.tryOpen(c, p.Term, p.Incarnation)
				t.expect(errors.Is(err, walimpls.ErrFenced), "a late Open with the pair %s is refused with ErrFenced; got %v", p, err)
			}
		})
	})
	close(stop)
	busy.wait()
	if fail != nil {
		panic(*fail)
	}
	t.expect(o.append(t.ctx, owner, "after"), "the owner's append succeeds after all late opens")
	o.verify(owner.messages())
}

func checkFencingStorm(t *T) {
	c := t.channel()
	o := newOracle(t)
	var writers []*task
	pairs := []walimpls.Pair{{Term: 1, Incarnation: 1}, {Term: 1, Incarnation: 2}, {Term: 1, Incarnation: 3}, {Term: 2, Incarnation: 1}, {Term: 2, Incarnation: 2}, {Term: 5, Incarnation: 1}, {Term: 6, Incarnation: 4}, {Term: 7, Incarnation: 1}}
	for _, p := range pairs {
		h := t.open(c, p.Term, p.Incarnation)
		for w := range 2 {
			writers = append(writers, t.start(func() {
				for i, refused := 0, 0; refused < 3; i++ {
					if !o.append(t.ctx, h, fmt.Sprintf("%s/%d-%d", p, w, i)) {
						refused++
					}
				}
			}))
		}
		t.pause(t.duration(t.quiet / 8))
	}
	last := t.open(c, 9, 1)
	for _, w := range writers {
		w.wait()
	}
	log := last.log()
	o.verify(withoutFences(log))
	o.verifyOrder(withoutFences(log))
	var highest walimpls.Pair
	for i := range log {
		p := walimpls.Pair{Term: log[i].Term, Incarnation: log[i].Incarnation}
		t.expect(p.Compare(highest) >= 0, "pairs never decrease along the log; %s lies behind a record of %s", showBatch(log[i:i+1]), highest)
		if log[i].Type != message.TypeFence {
			by, _, _ := strings.Cut(string(log[i].Payload), "/")
			t.expect(by == p.String(), "a record that a handle was asked to store carries its pair and lies before the fence record of the next; %s is of %s", showBatch(log[i:i+1]), by)
		}
		t.expect(p == highest || log[i].Type == message.TypeFence, "a handle's first record is its fence record; %s is the first of %s", showBatch(log[i:i+1]), p)
		highest = p
	}
}

func checkOneWinner(t *T) {
	for round := range 3 {
		c := t.channel()
		t.open(c, 1, 1)
		var mu sync.Mutex
		var winners []*handle
		t.parallel(6, func(int) {
			h, err := t.tryOpen(c, 2, int64(round+1))
			if err != nil {
				t.expect(errors.Is(err, walimpls.ErrFenced), "an Open that loses to another with its pair is ErrFenced; got %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			winners = append(winners, h)
		})
		t.expect(len(winners) == 1, "of 6 Opens with one pair one returns a handle; %d did", len(winners))
		winners[0].append(data("won"))
	}
}

func checkFencedTruncate(t *T) {
	c := t.channel()
	old := t.open(c, 1, 1)
	ids := old.append(series("m", 5)...)
	owner := t.open(c, 1, 2)
	err := old.tryTruncate(ids[4])
	t.expect(errors.Is(err, walimpls.ErrFenced), "Truncate on a fenced handle is ErrFenced; got %v", err)
	t.expectLog(owner.messages(), series("m", 5), ids, "the log")
}

func checkPairOutlivesTruncation(t *T) {
	c := t.channel()
	h := t.open(c, 5, 2)
	ids := h.append(series("m", 10)...)
	h.truncate(ids[9])
	h.close()
	for _, p := range []walimpls.Pair{{Term: 5, Incarnation: 2}, {Term: 5, Incarnation: 1}, {Term: 4, Incarnation: 7}} {
		_, err := t.tryOpen(c, p.Term, p.Incarnation)
		t.expect(errors.Is(err, walimpls.ErrFenced), "after a truncation up to the newest record the pair %s is refused; got %v", p, err)
	}
	next := t.open(c, 5, 0)
	t.expect(next.ch.Pair == walimpls.Pair{Term: 5, Incarnation: 3}, "the next incarnation of term 5 is 3; got %s", next.ch.Pair)
}

func checkScannerOfFencedHandle(t *T) {
	c := t.channel()
	old := t.open(c, 1, 1)
	want := series("m", 5)
	old.append(want...)
	s := old.read(walimpls.FromAll())
	s.take(2)
	blocked := old.read(walimpls.FromLatest())
	owner := t.open(c, 2, 1)
	more := series("n", 5)
	owner.append(more...)
	for _, k := range []struct {
		s    *scan
		want []message.Message
	}{{s, append(want[2:5:5], more...)}, {blocked, more}} {
		got := 0
		for got < len(k.want) {
			m, err := k.s.tryTake()
			if err != nil {
				t.expect(!isContext(err), "a scanner of a fenced handle goes on or ends with an error; it hangs: %v", err)
				break
			}
			if m.Type == message.TypeFence {
				continue
			}
			diff := same(&k.want[got], &m)
			t.expect(diff == "", "a scanner of a fenced handle goes on with %s; got %s", showBatch(k.want[got:got+1]), showBatch([]message.Message{m}))
			got++
		}
	}
}

func checkPairOutlivesRestart(t *T) {
	c := t.channel()
	h := t.open(c, 5, 2)
	h.append(series("m", 3)...)
	idle := t.channel()
	t.open(idle, 8, 1) // its fence record is all that says so
	t.stop()
	t.restart()
	for _, k := range []struct {
		channel string
		pair    walimpls.Pair
	}{{c, walimpls.Pair{Term: 5, Incarnation: 2}}, {c, walimpls.Pair{Term: 4, Incarnation: 9}}, {idle, walimpls.Pair{Term: 8, Incarnation: 1}}, {idle, walimpls.Pair{Term: 7, Incarnation: 1}}} {
		_, err := t.tryOpen(k.channel, k.pair.Term, k.pair.Incarnation)
		t.expect(errors.Is(err, walimpls.ErrFenced), "after a restart the pair %s of %s is refused; got %v", k.pair, k.channel, err)
	}
	t.expect(t.open(c, 5, 0).ch.Pair == walimpls.Pair{Term: 5, Incarnation: 3}, "after a restart the next incarnation of term 5 is 3")
	t.open(idle, 8, 2)
}

var sharedChecks = []check{
	{Clause: "WAL-SHARE-001", Name: "fencing", Run: checkFencingOverProcesses},
}

func checkFencingOverProcesses(t *T) {
	var second Instance
	err := t.call(t.ctx, t.run.opt.Bound, "start a second process on the store", func(ctx context.Context) (string, error) {
		var err error
		second, err = t.run.target.Start(ctx)
		return "up", err
	})
	t.expect(err == nil, "a second process starts on a store that is not exclusive; got %v", err)
	defer func() { _ = second.Close(t.ctx) }()
	c := t.channel()
	o := newOracle(t)
	old := t.open(c, 1, 1)
	for i := range 20 {
		o.append(t.ctx, old, fmt.Sprint("first-", i))
	}
	owner, err := t.tryOpenOn(t.ctx, second, walimpls.OpenOptions{Channel: c, Term: 2, Incarnation: 1, Access: walimpls.AccessReadWrite})
	t.expect(err == nil, "the second process opens with a higher term; got %v", err)
	_, err = old.tryAppend(t.ctx, data("zombie"))
	t.expect(errors.Is(err, walimpls.ErrFenced), "the first process's handle is fenced; got %v", err)
	o.note([]string{"zombie"}, t.outcomes(c, 1, nil, err))
	o.append(t.ctx, owner, "second")
	t.pause(10 * time.Millisecond)
	o.verify(owner.messages())
	owner.close()
}
