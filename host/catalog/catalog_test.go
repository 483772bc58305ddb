package catalog

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func mustCreate(t *testing.T, c Catalog, row Row) {
	t.Helper()
	if err := c.Create(t.Context(), row); err != nil {
		t.Fatal(err)
	}
}

func mustClaim(t *testing.T, c Catalog, channel string, term int64) Row {
	t.Helper()
	row, err := c.Claim(t.Context(), channel, term)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// wantError fails unless err is of the wanted kind and its text has every part.
func wantError(t *testing.T, err, want error, parts ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %q", err, part)
		}
	}
}

// full is a row with every field set.
func full(channel string) Row {
	return Row{
		Channel: channel, Plugin: "local", Backend: "rmq", StoreID: "store <&> 1", TickBound: 1<<64 - 1,
		Checkpoints: []Checkpoint{
			{ID: "\x00\xff<", Term: 1, Tick: 5, LastUnitTerm: 1, LastUnitTick: 4},
			{ID: message.Uint64ID(9), Term: 2, Tick: 1<<63 + 1},
		},
		TruncatedBefore: &Checkpoint{ID: message.Uint64ID(3), Term: 1, Tick: 2},
		VChannels:       []VChannel{{Name: "v1", StartTick: 7}, {Name: "", StartTick: 1, DroppedTick: 9}},
	}
}

func TestARowComesBackAsItWasWritten(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		want := full("orders")
		mustCreate(t, c, want)
		got, err := c.Get(t.Context(), "orders")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
		bare := Row{Channel: "bare"}
		mustCreate(t, c, bare)
		rows, err := c.List(t.Context())
		if err != nil || !reflect.DeepEqual(rows, []Row{bare, want}) {
			t.Fatalf("list is %+v, %v", rows, err)
		}
	})
}

func TestAMissingRowIsNotFound(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		ctx := t.Context()
		_, err := c.Get(ctx, "nobody")
		wantError(t, err, walimpls.ErrNotFound, "nobody")
		_, err = c.Claim(ctx, "nobody", 1)
		wantError(t, err, walimpls.ErrNotFound, "nobody")
		_, err = c.Update(ctx, "nobody", 1, func(*Row) error { t.Error("change was called"); return nil })
		wantError(t, err, walimpls.ErrNotFound, "nobody")
		wantError(t, c.Delete(ctx, "nobody", 0), walimpls.ErrNotFound, "nobody")
		_, err = c.Get(ctx, "")
		wantError(t, err, walimpls.ErrNotFound)
		rows, err := c.List(ctx)
		if err != nil || rows == nil || len(rows) != 0 {
			t.Errorf("the list of an empty catalog is %v, %v", rows, err)
		}
	})
}

func TestARowIsCreatedOnceWithTermZero(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders", StoreID: "first"})
		wantError(t, c.Create(t.Context(), Row{Channel: "orders", StoreID: "second"}), walimpls.ErrAlreadyExists, "orders")
		if row, _ := c.Get(t.Context(), "orders"); row.StoreID != "first" {
			t.Errorf("the second create changed the row to %+v", row)
		}
		wantError(t, c.Create(t.Context(), Row{Channel: "other", Term: 1}), walimpls.ErrInvalidArgument, "term")
	})
}

func TestWhatCannotBeReadBackIsRefused(t *testing.T) {
	bad := map[string]Row{
		"no name":         {},
		"name":            {Channel: "../orders"},
		"long name":       {Channel: strings.Repeat("x", 201)},
		"plugin":          {Channel: "c", Plugin: "a b"},
		"backend":         {Channel: "c", Backend: "\xff"},
		"store id":        {Channel: "c", StoreID: "ü"},
		"long store id":   {Channel: "c", StoreID: strings.Repeat("x", 201)},
		"vchannel":        {Channel: "c", VChannels: []VChannel{{Name: "\xff"}}},
		"vchannel, twice": {Channel: "c", VChannels: []VChannel{{Name: "v"}, {Name: "v", DroppedTick: 1}}},
	}
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		for name, row := range bad {
			if err := c.Create(t.Context(), row); !errors.Is(err, walimpls.ErrInvalidArgument) {
				t.Errorf("%s: create gives %v", name, err)
			}
			good := Row{Channel: "good" + strings.ReplaceAll(strings.ReplaceAll(name, " ", ""), ",", "")}
			mustCreate(t, c, good)
			_, err := c.Update(t.Context(), good.Channel, 0, func(r *Row) error {
				bad := row.Clone()
				if bad.Channel == "c" {
					bad.Channel = r.Channel
				}
				*r = bad
				return nil
			})
			if !errors.Is(err, walimpls.ErrInvalidArgument) {
				t.Errorf("%s: update gives %v", name, err)
			}
		}
	})
}

func TestAClaimNeedsAStrictlyHigherTerm(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, full("orders"))
		row := mustClaim(t, c, "orders", 3)
		want := full("orders")
		want.Term = 3
		if !reflect.DeepEqual(row, want) {
			t.Fatalf("the claimed row is %+v", row)
		}
		for _, term := range []int64{3, 2, 1} {
			_, err := c.Claim(t.Context(), "orders", term)
			wantError(t, err, walimpls.ErrTermExpired, "orders", "3")
		}
		for _, term := range []int64{0, -1} {
			_, err := c.Claim(t.Context(), "orders", term)
			wantError(t, err, walimpls.ErrInvalidArgument, "orders")
		}
		mustClaim(t, c, "orders", 4)
		mustClaim(t, c, "orders", 1<<62)
	})
}

func TestOnlyTheOwnersTermWrites(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		ctx := t.Context()
		mustCreate(t, c, Row{Channel: "orders"})
		if _, err := c.Update(ctx, "orders", 0, func(r *Row) error { r.StoreID = "s"; return nil }); err != nil {
			t.Fatalf("a row that nobody owns takes writes of term 0: %v", err)
		}
		mustClaim(t, c, "orders", 2)
		for _, term := range []int64{0, 1, 3} {
			_, err := c.Update(ctx, "orders", term, func(*Row) error { t.Error("change was called"); return nil })
			wantError(t, err, walimpls.ErrTermExpired, "orders", "2")
			wantError(t, c.Delete(ctx, "orders", term), walimpls.ErrTermExpired, "orders", "2")
		}
		row, err := c.Update(ctx, "orders", 2, func(r *Row) error { r.TickBound = 5; return nil })
		if err != nil || row.TickBound != 5 || row.Term != 2 || row.StoreID != "s" {
			t.Fatalf("update gives %+v, %v", row, err)
		}
		if err := c.Delete(ctx, "orders", 2); err != nil {
			t.Fatal(err)
		}
		_, err = c.Get(ctx, "orders")
		wantError(t, err, walimpls.ErrNotFound)
	})
}

func TestAnUpdateNeverGoesBack(t *testing.T) {
	at := func(n uint64) *Checkpoint { return &Checkpoint{ID: message.Uint64ID(n)} }
	steps := []struct {
		name   string
		change func(*Row)
		ok     bool
	}{
		{"first bound and point", func(r *Row) { r.StoreID, r.TickBound, r.TruncatedBefore = "log1", 10, at(5) }, true},
		{"the same again", func(r *Row) { r.TickBound, r.TruncatedBefore = 10, at(5) }, true},
		{"bound back", func(r *Row) { r.TickBound = 9 }, false},
		{"point back", func(r *Row) { r.TruncatedBefore = at(4) }, false},
		{"point to an all-zero id", func(r *Row) { r.TruncatedBefore = at(0) }, false},
		{"point forgotten", func(r *Row) { r.TruncatedBefore = nil }, false},
		{"point back in place", func(r *Row) { r.TruncatedBefore.ID = message.Uint64ID(1) }, false},
		{"point forward, across a byte", func(r *Row) { r.TruncatedBefore = at(256) }, true},
		{"point back, across a byte", func(r *Row) { r.TruncatedBefore = at(255) }, false},
		{"another name", func(r *Row) { r.Channel = "other" }, false},
		{"higher term", func(r *Row) { r.Term++ }, false},
		{"lower term", func(r *Row) { r.Term-- }, false},
		{"checkpoints may go", func(r *Row) { r.Checkpoints, r.VChannels = nil, []VChannel{{Name: "v"}} }, true},
		{"another log, no point", func(r *Row) { r.StoreID, r.TruncatedBefore = "log2", nil }, true},
		{"another log, bound back", func(r *Row) { r.StoreID, r.TickBound = "log3", 1 }, false},
	}
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders"})
		want := mustClaim(t, c, "orders", 7)
		for _, s := range steps {
			expect := want.Clone()
			s.change(&expect)
			got, err := c.Update(t.Context(), "orders", 7, func(r *Row) error { s.change(r); return nil })
			switch {
			case s.ok && err != nil:
				t.Fatalf("%s: %v", s.name, err)
			case s.ok:
				want = expect
			default:
				if !errors.Is(err, walimpls.ErrInvalidArgument) {
					t.Errorf("%s: error is %v", s.name, err)
				}
				got = want
			}
			if stored, err := c.Get(t.Context(), "orders"); err != nil || !reflect.DeepEqual(stored, want) || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: stored %+v, %v; returned %+v; want %+v", s.name, stored, err, got, want)
			}
		}
	})
}

func TestAFailedChangeWritesNothingAndKeepsItsError(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, full("orders"))
		own := errors.New("the caller's own")
		_, err := c.Update(t.Context(), "orders", 0, func(r *Row) error {
			r.TickBound, r.Checkpoints[0].Tick, r.TruncatedBefore.Tick = 99, 99, 99
			return own
		})
		if err != own { //nolint:errorlint // the very error, not a wrapper, is promised
			t.Errorf("error is %v", err)
		}
		if row, _ := c.Get(t.Context(), "orders"); !reflect.DeepEqual(row, full("orders")) {
			t.Errorf("the row changed to %+v", row)
		}
	})
}

func TestAPanickingChangeHurtsItsCallerAlone(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders"})
		func() {
			defer func() {
				if recover() != "mine" {
					t.Error("the caller's own panic was swallowed")
				}
			}()
			_, _ = c.Update(t.Context(), "orders", 0, func(*Row) error { panic("mine") })
		}()
		mustClaim(t, c, "orders", 1)
	})
}

func TestCopiesShareNoMemory(t *testing.T) {
	spoil := func(r *Row) {
		r.Checkpoints[0].Tick = 12345
		r.TruncatedBefore.Tick = 12345
		r.VChannels[0].Name = "spoiled"
	}
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		ctx := t.Context()
		given := full("orders")
		mustCreate(t, c, given)
		spoil(&given)
		got, _ := c.Get(ctx, "orders")
		spoil(&got)
		rows, _ := c.List(ctx)
		spoil(&rows[0])
		var kept *Row
		updated, err := c.Update(ctx, "orders", 0, func(r *Row) error { kept = r; return nil })
		if err != nil {
			t.Fatal(err)
		}
		spoil(kept)
		if updated.Checkpoints[0].Tick == 12345 {
			t.Error("the result of an update shares memory with change's row")
		}
		spoil(&updated)
		claimed := mustClaim(t, c, "orders", 1)
		spoil(&claimed)
		want := full("orders")
		want.Term = 1
		if stored, _ := c.Get(ctx, "orders"); !reflect.DeepEqual(stored, want) {
			t.Errorf("a caller changed the stored row to %+v", stored)
		}
	})
}

func TestAnEndedContextAndAClosedCatalogDoNothing(t *testing.T) {
	calls := map[string]func(context.Context, Catalog) error{
		"create": func(ctx context.Context, c Catalog) error { return c.Create(ctx, Row{Channel: "new"}) },
		"get":    func(ctx context.Context, c Catalog) error { _, err := c.Get(ctx, "orders"); return err },
		"list":   func(ctx context.Context, c Catalog) error { _, err := c.List(ctx); return err },
		"claim":  func(ctx context.Context, c Catalog) error { _, err := c.Claim(ctx, "orders", 1); return err },
		"update": func(ctx context.Context, c Catalog) error {
			_, err := c.Update(ctx, "orders", 0, func(*Row) error { return nil })
			return err
		},
		"delete": func(ctx context.Context, c Catalog) error { return c.Delete(ctx, "orders", 0) },
	}
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders"})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, call := range calls {
			if err := call(ended, c); !errors.Is(err, context.Canceled) {
				t.Errorf("%s with an ended context: %v", name, err)
			}
		}
		if rows, err := c.List(t.Context()); err != nil || !reflect.DeepEqual(rows, []Row{{Channel: "orders"}}) {
			t.Fatalf("rows are %+v, %v", rows, err)
		}
		for range 2 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for name, call := range calls {
			if err := call(t.Context(), c); !errors.Is(err, walimpls.ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
	})
}

// Of all who claim a term exactly one wins, and the row's term only grows.
func TestEachTermHasOneWinner(t *testing.T) {
	const claimers, terms = 8, 40
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders"})
		var winners [terms + 1]atomic.Int64
		var attempts atomic.Int64
		var wg sync.WaitGroup
		for range claimers {
			wg.Go(func() {
				for term := int64(1); term <= terms; term++ {
					attempts.Add(1)
					row, err := c.Claim(t.Context(), "orders", term)
					switch {
					case err == nil && row.Term == term:
						winners[term].Add(1)
					case !errors.Is(err, walimpls.ErrTermExpired):
						t.Errorf("claim of term %d gives %+v, %v", term, row, err)
					}
				}
			})
		}
		stop := make(chan struct{})
		var watcher sync.WaitGroup
		watcher.Go(func() {
			for last := int64(0); ; {
				row, err := c.Get(t.Context(), "orders")
				if err != nil || row.Term < last {
					t.Errorf("term %d after %d, %v", row.Term, last, err)
				}
				last = row.Term
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		wg.Wait()
		close(stop)
		watcher.Wait()
		won := int64(0)
		for term := 1; term <= terms; term++ {
			if n := winners[term].Load(); n > 1 {
				t.Errorf("term %d has %d owners", term, n)
			} else {
				won += n
			}
		}
		if winners[terms].Load() != 1 {
			t.Error("the highest term has no owner")
		}
		t.Logf("%d claims, %d terms won", attempts.Load(), won)
	})
}

// Two writers of one term lose no update: change runs again on what the other wrote.
func TestConcurrentUpdatesOfOneTermAllCount(t *testing.T) {
	const writers, each = 4, 25
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders"})
		mustClaim(t, c, "orders", 1)
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for range each {
					if _, err := c.Update(t.Context(), "orders", 1, func(r *Row) error { r.TickBound++; return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if row, _ := c.Get(t.Context(), "orders"); row.TickBound != writers*each {
			t.Errorf("%d updates count for %d", writers*each, row.TickBound)
		}
	})
}

// A claim that comes while change runs makes the old owner's update fail.
func TestAnUpdateIsRefusedIfTheTermEndsMeanwhile(t *testing.T) {
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		mustCreate(t, c, Row{Channel: "orders"})
		mustClaim(t, c, "orders", 1)
		_, err := c.Update(t.Context(), "orders", 1, func(r *Row) error {
			mustClaim(t, c, "orders", 2)
			r.TickBound = 100
			return nil
		})
		wantError(t, err, walimpls.ErrTermExpired)
		if row, _ := c.Get(t.Context(), "orders"); row.TickBound != 0 || row.Term != 2 {
			t.Errorf("the row is %+v", row)
		}
	})
}

// M-22: an id is bytes. Whatever a backend makes of them, the catalog gives back
// what it was given, and judges nothing.
func TestAnyIDIsStoredAsItIs(t *testing.T) {
	ids := []message.ID{"", "\x00", "\xff", "not an id", message.ID(strings.Repeat("\xfe\x00", 1<<19))}
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a repeatable test
	for range 1000 {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		ids = append(ids, message.ID(b))
	}
	forEachCatalog(t, func(t *testing.T, c Catalog) {
		want := Row{Channel: "orders", StoreID: "log"}
		for _, id := range ids {
			want.Checkpoints = append(want.Checkpoints, Checkpoint{ID: id, Term: 1, Tick: 2})
		}
		mustCreate(t, c, want)
		if got, err := c.Get(t.Context(), "orders"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the ids changed, %v", err)
		}
	})
}
