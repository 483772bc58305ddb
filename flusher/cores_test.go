package flusher

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func at(term int64, tick message.Tick) message.Checkpoint {
	return message.Checkpoint{StoreID: "store", ID: message.Uint64ID(uint64(tick)), Term: term, Tick: tick}
}

// TestMinimumIsThatOfANaiveModel plays add, update, idle and drop, also wrong
// ones, against a map.
func TestMinimumIsThatOfANaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCheckpoints("orders")
		model := map[string]*message.Checkpoint{} // nil: idle
		scan := at(1, 1)
		name := rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e"})
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			v := name.Draw(t, "vchannel")
			held, there := model[v]
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if err := c.Add(v); there != errors.Is(err, walimpls.ErrAlreadyExists) {
					t.Fatalf("add: %v", err)
				}
				if !there {
					model[v] = nil
				}
			case 1:
				if err := c.Drop(v); there == errors.Is(err, walimpls.ErrNotFound) {
					t.Fatalf("drop: %v", err)
				}
				delete(model, v)
			case 2, 3:
				next := at(int64(rapid.IntRange(1, 3).Draw(t, "term")), message.Tick(rapid.IntRange(1, 50).Draw(t, "tick")))
				err := c.Update(v, next)
				switch {
				case !there:
					if !errors.Is(err, walimpls.ErrNotFound) {
						t.Fatalf("update of a missing one: %v", err)
					}
				case held != nil && before(next, *held):
					if !errors.Is(err, walimpls.ErrInvalidArgument) {
						t.Fatalf("rollback: %v", err)
					}
				case err != nil:
					t.Fatal(err)
				default:
					model[v] = &next
				}
			case 4:
				if err := c.Idle(v); there == errors.Is(err, walimpls.ErrNotFound) {
					t.Fatalf("idle: %v", err)
				}
				if there {
					model[v] = nil
				}
			case 5:
				scan = later(scan, at(int64(rapid.IntRange(1, 3).Draw(t, "term")), message.Tick(rapid.IntRange(1, 50).Draw(t, "tick"))))
			}
			want, busy := scan, 0
			for _, cp := range model {
				if cp != nil {
					busy++
					if before(*cp, want) {
						want = *cp
					}
				}
			}
			if got := c.Minimum(scan); got != want || c.Len() != len(model) || c.Busy() != busy {
				t.Fatalf("minimum %+v of %d (%d busy), want %+v of %d (%d)", got, c.Len(), c.Busy(), want, len(model), busy)
			}
		}
	})
}

func TestThousandVChannelsNeverLowerTheMinimum(t *testing.T) {
	c := NewCheckpoints("orders")
	for i := range 1000 {
		v := fmt.Sprint(i)
		if err := errors.Join(c.Add(v), c.Update(v, at(1, message.Tick(i*7919%1000+1)))); err != nil {
			t.Fatal(err)
		}
	}
	scan, last := at(2, 1), c.Minimum(at(2, 1))
	if last.Tick != 1 {
		t.Fatalf("minimum %+v", last)
	}
	for i := range 5000 {
		v := fmt.Sprint(i * 31 % 1000)
		old, _ := c.At(v, scan)
		if err := c.Update(v, at(1, old.Tick+message.Tick(i%97))); err != nil {
			t.Fatal(err)
		}
		if now := c.Minimum(scan); before(now, last) {
			t.Fatalf("the minimum fell from %+v to %+v", last, now)
		} else {
			last = now
		}
	}
	for i := range 1000 {
		if err := c.Drop(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if c.Len() != 0 || c.Minimum(scan) != scan {
		t.Fatalf("%d are left, minimum %+v", c.Len(), c.Minimum(scan))
	}
}

// TestMarkKnowsTheLastUnitBeforeItsID compares with a list of all units: with
// transactions, whose first record lies far below their tick, and with scanners
// that meet the same units again.
func TestMarkKnowsTheLastUnitBeforeItsID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type unit struct {
			first message.ID
			tick  message.Tick
		}
		var all []unit
		m := NewMarks(Saved{})
		id, tick := uint64(0), message.Tick(0)
		var openTxns []uint64
		lastID := message.ID("")
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			id++
			tick++
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0: // a transaction begins
				openTxns = append(openTxns, id)
			case 1: // one commits
				if len(openTxns) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(openTxns)-1).Draw(t, "txn")
				u := unit{message.Uint64ID(openTxns[i]), tick}
				openTxns = slices.Delete(openTxns, i, i+1)
				all = append(all, u)
				m.Unit(u.first, 1, u.tick)
			case 2, 3:
				u := unit{message.Uint64ID(id), tick}
				all = append(all, u)
				m.Unit(u.first, 1, u.tick)
			case 4: // a scanner begins again and meets the newest units once more
				for _, u := range all[max(0, len(all)-rapid.IntRange(0, 10).Draw(t, "again")):] {
					m.Unit(u.first, 1, u.tick)
				}
			case 5: // a time tick: its last confirmed id is that of the oldest open transaction
				lc := message.Uint64ID(id)
				if len(openTxns) > 0 {
					lc = message.Uint64ID(openTxns[0])
				}
				if lc < lastID {
					t.Fatal("the test is wrong: last confirmed ids never go back")
				}
				lastID = lc
				m.Pass(message.Checkpoint{ID: lc, Term: 1, Tick: tick})
				got := m.marks[len(m.marks)-1]
				want := message.Tick(0)
				for _, u := range all {
					if u.first < got.ID {
						want = max(want, u.tick)
					}
				}
				if got.Tick != tick || got.LastUnitTick != want {
					t.Fatalf("mark %+v, want last unit %d", got, want)
				}
			}
		}
	})
}

func TestFloorIsAPlaceThatWasPassed(t *testing.T) {
	m := NewMarks(Saved{})
	for i := 1; i <= 10*maxMarks; i++ {
		m.Unit(message.Uint64ID(uint64(i)), 1, message.Tick(i))
		m.Pass(at(1, message.Tick(i)))
		if len(m.marks) > maxMarks+1 || len(m.units) > 1 {
			t.Fatalf("%d marks, %d units are remembered", len(m.marks), len(m.units))
		}
	}
	last := Saved{}
	for _, tick := range []message.Tick{5, 5000, 5001, 10 * maxMarks} {
		s := m.Floor(at(1, tick))
		if s.Tick > tick || s.Tick < last.Tick || s.ID != message.Uint64ID(uint64(s.Tick)) && s.ID != "" {
			t.Fatalf("floor of %d is %+v", tick, s)
		}
		if s.Tick > 0 && s.LastUnitTick != s.Tick-1 {
			t.Fatalf("%+v does not know its last unit", s)
		}
		last = s
	}
	if last.Tick != 10*maxMarks {
		t.Fatalf("the newest place is %+v", last)
	}
}

// TestManyOpenUnitsNeverHideARemovedOne: beyond the bound a mark may name too
// high a unit, never too low a one.
func TestManyOpenUnitsNeverHideARemovedOne(t *testing.T) {
	m := NewMarks(Saved{})
	n := 3 * maxUnits
	for i := 1; i <= n; i++ {
		m.Unit(message.Uint64ID(uint64(i)), 1, message.Tick(i))
	}
	if len(m.units) > maxUnits {
		t.Fatalf("%d units are remembered", len(m.units))
	}
	for id := n / 3; id <= n; id += n / 7 {
		m.Pass(message.Checkpoint{ID: message.Uint64ID(uint64(id)), Term: 1, Tick: message.Tick(n + id)})
		if got := m.marks[len(m.marks)-1].LastUnitTick; got < message.Tick(id-1) {
			t.Fatalf("mark at %d knows %d only", id, got)
		}
	}
}

func saved(second int) Saved {
	return Saved{ID: message.Uint64ID(uint64(second + 1)), Term: 1, Tick: message.NewTick(int64(second)*1000, 0)}
}

// TestTargetIsAlwaysOldEnoughAndNeverFarBehind remembers checkpoints for hours.
func TestTargetIsAlwaysOldEnoughAndNeverFarBehind(t *testing.T) {
	for _, age := range []time.Duration{0, 10 * time.Second, 10 * time.Minute} {
		var list []Saved
		for s := 1; s < 4000; s++ {
			now := time.UnixMilli(int64(s) * 1000)
			list = Remember(list, saved(s), now, age)
			if len(list) > maxRemembered || list[len(list)-1] != saved(s) {
				t.Fatalf("age %v: %d are remembered, the newest is %+v", age, len(list), list[len(list)-1])
			}
			got, ok := Target(list, "", now, age, nil)
			due := s - int(age.Seconds())
			if ok && int(got.Tick.Physical()/1000) > due {
				t.Fatalf("age %v: at %d the target is of %d", age, s, got.Tick.Physical()/1000)
			}
			slack := int(age.Seconds())/4 + 2
			if due > slack && (!ok || int(got.Tick.Physical()/1000) < due-slack) {
				t.Fatalf("age %v: at %d the target is %+v (%v), far behind %d", age, s, got, ok, due)
			}
		}
	}
}

func TestPinHoldsForAWhileOnly(t *testing.T) {
	var p Pins
	readers := []ReaderPosition{{1, message.Uint64ID(5)}, {2, message.Uint64ID(50)}}
	start := time.Unix(0, 0)
	held := p.Held(readers, message.Uint64ID(40), start, time.Minute)
	if len(held) != 1 || held[0] != message.Uint64ID(5) {
		t.Fatalf("held by %v", held)
	}
	list := []Saved{saved(2), saved(4), saved(39)}
	if s, ok := Target(list, "", start.Add(time.Hour), 0, held); !ok || s.ID != message.Uint64ID(5) {
		t.Fatalf("target %+v: the position itself may become the first that is left", s)
	}
	if held = p.Held(readers, message.Uint64ID(40), start.Add(2*time.Minute), time.Minute); len(held) != 0 {
		t.Fatalf("still held by %v", held)
	}
	// One that moved out of the way holds again when it is in the way again.
	if held = p.Held(nil, message.Uint64ID(40), start.Add(2*time.Minute), time.Minute); len(held) != 0 {
		t.Fatal(held)
	}
	if held = p.Held(readers, message.Uint64ID(60), start.Add(3*time.Minute), time.Minute); len(held) != 2 {
		t.Fatalf("held by %v", held)
	}
}

func TestTombstonesCoverWhatLiesAtOrBelowThem(t *testing.T) {
	s := NewSet([]VChannel{{Name: "live", Start: 10}, {Name: "gone", Start: 10, Dropped: 20}, {Name: "again", Start: 25, Dropped: 20}})
	for _, c := range []struct {
		t    message.Type
		v    string
		tick message.Tick
		want Verdict
	}{
		{message.TypeData, "", 1, Deliver},
		{message.TypeData, "live", 11, Deliver}, {message.TypeData, "live", 10, Unknown},
		{message.TypeData, "gone", 20, Ignore}, {message.TypeData, "gone", 21, Unknown},
		{message.TypeData, "again", 20, Ignore}, {message.TypeData, "again", 22, Unknown}, {message.TypeData, "again", 26, Deliver},
		{message.TypeData, "never", 1, Unknown},
		{message.TypeCreateVChannel, "live", 11, Ignore}, {message.TypeCreateVChannel, "gone", 11, Ignore},
		{message.TypeCreateVChannel, "gone", 21, Create}, {message.TypeCreateVChannel, "never", 1, Create},
		{message.TypeDropVChannel, "live", 30, DropIt}, {message.TypeDropVChannel, "gone", 20, Ignore},
		{message.TypeDropVChannel, "gone", 30, Ignore}, {message.TypeDropVChannel, "again", 20, Ignore}, {message.TypeDropVChannel, "again", 30, DropIt},
		{message.TypeFlush, "live", 30, Deliver}, {message.TypeFlush, "gone", 30, Ignore},
	} {
		if got := s.Judge(c.t, c.v, c.tick); got != c.want {
			t.Errorf("%s of %q at %d: %d, want %d", c.t, c.v, c.tick, got, c.want)
		}
	}
	s.Forget(20)
	if got := s.Judge(message.TypeData, "gone", 20); got != Unknown {
		t.Errorf("a forgotten tombstone covers: %d", got)
	}
	list := prune([]VChannel{{Name: "live"}, {Name: "gone", Dropped: 20}, {Name: "later", Dropped: 30}, {Name: "again", Start: 25, Dropped: 20}}, 20)
	if want := []VChannel{{Name: "live"}, {Name: "later", Dropped: 30}, {Name: "again", Start: 25}}; !slices.Equal(list, want) {
		t.Errorf("pruned to %+v, want %+v", list, want)
	}
}
