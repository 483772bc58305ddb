package wal

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestTermBeginsWithATimeTickAboveEverything(t *testing.T) {
	f := newFixture(t)
	first := mustAppend(t, f.open(nil), "a")[0]
	f.open(nil)
	records := f.store.Records(testChannel)
	newest := records[len(records)-1]
	if newest.Type != message.TypeTimeTick || newest.Term != 2 || newest.TimeTick <= first.Tick {
		t.Fatalf("the newest record is %v of term %d with tick %d, want a time tick of term 2 above %d", newest.Type, newest.Term, newest.TimeTick, first.Tick)
	}
	fence := records[len(records)-2]
	if fence.Type != message.TypeFence || newest.LastConfirmed != fence.ID {
		t.Fatalf("the opening tick's last confirmed id is %s, want its fence record's %s", newest.LastConfirmed, fence.ID)
	}
}

// TestHostWithAClockBehindAndAnEmptyCatalogContinuesAbove takes the channel over
// as a host would that lost its catalog and whose clock is an hour behind.
func TestHostWithAClockBehindAndAnEmptyCatalogContinuesAbove(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	first := mustAppend(t, w, "a", "b")[1]
	lost := f.opener(f.newCatalog(), func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(-time.Hour) }
	})
	adopted, err := lost.Open(within(t, 10*time.Second), testChannel, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Close(context.Background())
	if r := mustAppend(t, adopted, "c")[0]; r.Tick <= first.Tick {
		t.Fatalf("tick %d of the new owner is not above %d", r.Tick, first.Tick)
	}
	if got := texts(readUntilCaughtUp(t, adopted, scanner.Options{})); len(got) != 3 {
		t.Fatalf("read %v", got)
	}
	// The old owner finds out with its next append, and its readers with it.
	if r := w.Append(within(t, 10*time.Second), data("zombie"))[0]; r.State == walimpls.Stored {
		t.Fatal("the fenced owner's append was acknowledged")
	}
	<-w.Done()
	if !errors.Is(w.Err(), walimpls.ErrTermExpired) {
		t.Fatalf("the old owner ended with %v", w.Err())
	}
	if got := texts(readUntilCaughtUp(t, adopted, scanner.Options{})); len(got) != 3 {
		t.Fatalf("the zombie's record is read: %v", got)
	}
}

// TestPermanentErrorEndsAnOpenWithinItsBudget is M-04.
func TestPermanentErrorEndsAnOpenWithinItsBudget(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		ok    bool
	}{
		"fenced":        {"append error fenced \"no\"", false},
		"unrecoverable": {"append permanent", false},
		"transient":     {"append error unavailable count=5", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.setRules(c.rules)
			o := f.opener(f.catalog, func(o *Options) { o.OpenBudget = 3 * time.Second })
			start := time.Now()
			w, err := o.Open(context.Background(), testChannel, 1)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("open took %v, its budget is 3 s", took)
			}
			calls := 0
			for _, n := range f.rules.Stats().Calls {
				calls += int(n)
			}
			if calls > 50 {
				t.Errorf("%d calls of the backend", calls)
			}
			if (err == nil) != c.ok {
				t.Fatalf("open: %v", err)
			}
			if err == nil {
				_ = w.Close(context.Background())
			}
			f.setRules("")
			again, err := o.Open(context.Background(), testChannel, 2)
			if err != nil {
				t.Fatalf("on the healed backend: %v", err)
			}
			_ = again.Close(context.Background())
		})
	}
}

func TestOpenOfAnotherStoreIsRefusedAndTheCatalogUntouched(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	mustAppend(t, w, "a")
	_ = w.Close(context.Background())
	before, err := f.catalog.Get(context.Background(), testChannel)
	if err != nil {
		t.Fatal(err)
	}
	other := newFixture(t)
	other.open(nil)
	_, err = other.opener(f.catalog, nil).Open(within(t, 5*time.Second), testChannel, 2)
	if !errors.Is(err, walimpls.ErrForeignStore) {
		t.Fatalf("open: %v, want ErrForeignStore", err)
	}
	after, err := f.catalog.Get(context.Background(), testChannel)
	if err != nil || after.Term != before.Term || after.StoreID != before.StoreID {
		t.Fatalf("the row changed from %+v to %+v (%v)", before, after, err)
	}
}

func TestIdleFormerOwnerEndsWithinTheWindow(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.Window = 200 * time.Millisecond })
	if _, err := f.catalog.Claim(context.Background(), testChannel, 9); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the owner lives on although the row has another term")
	}
	if !errors.Is(w.Err(), walimpls.ErrTermExpired) {
		t.Fatalf("it ended with %v", w.Err())
	}
}
