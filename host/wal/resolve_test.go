package wal

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/walimpls"
)

// TestUnknownOutcomesAreSettled lets every kind of fault hit one append: its
// caller sees latency, and the record is there once.
func TestUnknownOutcomesAreSettled(t *testing.T) {
	for _, rule := range []string{
		"append fail-after-write unknown count=1 after=1",
		"append fail-before-write unknown count=1 after=1",
		"append fail-before-write not_stored count=1 after=1",
		"append late 1ms count=1 after=1",
		"append late 300ms count=1 after=1",
		"append lose-connection before count=1 after=1",
		"append lose-connection after count=1 after=1",
	} {
		t.Run(rule, func(t *testing.T) {
			f := newFixture(t)
			w := f.open(func(o *Options) { o.TickInterval = time.Hour })
			f.setRules(rule)
			for i := range 4 {
				mustAppend(t, w, fmt.Sprint(i))
			}
			f.setRules("")
			got := f.store.Records(testChannel)
			n := map[string]int{}
			for _, m := range got {
				n[string(m.Payload)]++
			}
			for i := range 4 {
				if n[fmt.Sprint(i)] != 1 {
					t.Errorf("record %d is stored %d times", i, n[fmt.Sprint(i)])
				}
			}
		})
	}
}

func TestNoTimeTickPassesAnUnresolvedRecord(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	f.setRules("append block-ack until released count=1")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if r := w.Append(ctx, data("stuck"))[0]; r.State != walimpls.Unknown {
		t.Fatalf("its caller got %v %v, want unknown at its deadline", r.State, r.Err)
	}
	stuck := w.Status().LastTick
	time.Sleep(50 * time.Millisecond) // many tick intervals
	if now := w.Status().LastTick; now != stuck {
		t.Fatalf("the tick went from %d to %d over an unresolved record", stuck, now)
	}
	f.setRules("")
	mustAppend(t, w, "next")
	if got := texts(readUntilCaughtUp(t, w, scanner.Options{})); fmt.Sprint(got) != "[stuck next]" {
		t.Fatalf("read %v", got)
	}
}

func TestDefiniteFailureReachesItsOwnCallerAlone(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	f.setRules("append permanent count=1 after=1")
	results := w.Append(within(t, 5*time.Second), data("a", "b", "c"))
	if results[1].State != walimpls.NotStored || results[0].State != walimpls.Stored || results[2].State != walimpls.Stored {
		t.Fatalf("%+v", results)
	}
	if got := texts(readUntilCaughtUp(t, w, scanner.Options{})); fmt.Sprint(got) != "[a c]" {
		t.Fatalf("read %v", got)
	}
}

func TestOversizedRecordIsRefusedAloneAndBeforeItsTick(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	limit := f.limits().MaxMessageBytes
	batch := data("small", "", "small too")
	batch[1].Payload = make([]byte, limit+1)
	results := w.Append(within(t, 10*time.Second), batch)
	if results[0].State != walimpls.Stored || results[2].State != walimpls.Stored {
		t.Fatalf("the neighbours: %v, %v", results[0].Err, results[2].Err)
	}
	if results[1].State != walimpls.NotStored || !errors.Is(results[1].Err, walimpls.ErrTooLarge) {
		t.Fatalf("the oversized record: %v %v", results[1].State, results[1].Err)
	}
}

func TestCallersWhoseDeadlinePassesBeforeATickAreNotStored(t *testing.T) {
	f := newFixture(t)
	w := f.open(func(o *Options) { o.MaxUnresolvedBytes = 1 })
	f.setRules("append block until released")
	go w.Append(context.Background(), data("in the way"))
	waitFor(t, func() bool { return w.Status().UnresolvedBytes > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if r := w.Append(ctx, data("late"))[0]; r.State != walimpls.NotStored || !errors.Is(r.Err, walimpls.ErrTimeout) {
		t.Fatalf("%v %v, want not stored and a timeout", r.State, r.Err)
	}
	f.setRules("")
	mustAppend(t, w, "after")
	if got := texts(readUntilCaughtUp(t, w, scanner.Options{})); fmt.Sprint(got) != "[in the way after]" {
		t.Fatalf("read %v", got)
	}
}

func TestCloseIsBoundedWithAHungBackend(t *testing.T) {
	f := newFixture(t)
	w := f.open(nil)
	f.setRules("append block until released\nclose hang 20s")
	go w.Append(context.Background(), data("hangs"))
	waitFor(t, func() bool { return w.Status().UnresolvedBytes > 0 })
	start := time.Now()
	_ = w.Close(context.Background())
	if took := time.Since(start); took > walimpls.GracePeriod+2*time.Second {
		t.Fatalf("close took %v", took)
	}
	f.setRules("")
}
