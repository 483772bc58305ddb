package pulsar

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/walrig/walrig/sdk/walimpls"
)

// What another process does to a log shows here, too.

func TestTruncationByAnotherProcessEndsALaggingScanner(t *testing.T) {
	s := sharedStore(t)
	owner := mustOpen(t, s.opener(), rw("c", 1, 1))
	ids := mustAppend(t, owner, "a", "b", "c", "d")
	reader := mustOpen(t, s.opener(), ro("c"))
	sc, err := reader.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.StartFrom(ids[0]), BufferRecords: 1})
	must(t, err)
	defer sc.Close()
	records, err := sc.Next(testContext(t))
	must(t, err)
	wantPayloads(t, records, "a")
	must(t, owner.Truncate(testContext(t), ids[3]))
	until(t, "the other process knows the point", func() bool { return reader.log.truncated() == ids[3] })
	_, err = sc.Next(testContext(t))
	if lost := wantLost(t, err); lost.Earliest != ids[3] || lost.Latest != ids[3] {
		t.Errorf("bounds %s to %s", text(lost.Earliest), text(lost.Latest))
	}
	b, err := reader.Bounds(testContext(t))
	must(t, err)
	if b.Earliest != ids[3] {
		t.Errorf("earliest %s", text(b.Earliest))
	}
}

func TestDropByAnotherProcessEndsWhatWorksOnTheLog(t *testing.T) {
	s := sharedStore(t)
	owner := mustOpen(t, s.opener(), rw("c", 1, 1))
	mustAppend(t, owner, "a")
	reader := mustOpen(t, s.opener(), ro("c"))
	sc := mustRead(t, reader, walimpls.FromLatest())
	ended := make(chan error, 1)
	go func() {
		_, err := sc.Next(testContext(t))
		ended <- err
	}()
	other := s.opener()
	must(t, other.Drop(testContext(t), "c", 1))
	wantIs(t, <-ended, walimpls.ErrNotFound)
	_, err := reader.Bounds(testContext(t))
	wantIs(t, err, walimpls.ErrNotFound)
	_, err = reader.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.FromAll()})
	wantIs(t, err, walimpls.ErrNotFound)
	until(t, "the owner is fenced", func() bool { return owner.app.refusal("append") != nil })
	_, err = owner.Append(testContext(t), batchOf("late"))
	wantIs(t, err, walimpls.ErrFenced)

	// Neither of them has brought the topic back.
	_, err = s.opener().Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrNotFound)
	again := mustOpen(t, other, rw("c", 1, 1))
	if again.ch.StoreID == owner.ch.StoreID {
		t.Error("a log that was made again has the same store id")
	}
	wantPayloads(t, readAll(t, again))
}

func TestAnOwnerThatIsFencedWhileIdleKnowsIt(t *testing.T) {
	s := sharedStore(t)
	old := mustOpen(t, s.opener(), rw("c", 1, 1))
	ids := mustAppend(t, old, "a", "b")
	sc := mustRead(t, old, walimpls.FromLatest())
	owner := mustOpen(t, s.opener(), rw("c", 2, 1))
	wantIs(t, old.Truncate(testContext(t), ids[1]), walimpls.ErrFenced)
	_, err := old.Append(testContext(t), batchOf("late"))
	wantIs(t, err, walimpls.ErrFenced)
	mustAppend(t, owner, "c")
	// Its scanner goes on: the fence record, then what the owner writes.
	for range 2 {
		if _, err := sc.Next(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	wantPayloads(t, readAll(t, owner), "a", "b", "c")
}

func TestPoliciesAreSetAndMended(t *testing.T) {
	s := sharedStore(t)
	o := s.opener()
	mustAppend(t, mustOpen(t, o, rw("c", 1, 1)), "a")
	// Somebody makes a policy dangerous: the next open mends it.
	ctx := context.Background()
	_, err := o.admin.call(ctx, "POST", o.admin.namespacePath("messageTTL"), "", 1)
	must(t, err)
	_, err = o.admin.call(ctx, "POST", o.admin.namespacePath("retention"), "", map[string]int{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
	must(t, err)
	mustOpen(t, o, rw("c", 1, 2))
	for _, p := range policies {
		if have := namespacePolicies(t, o); !p.holds(have[p.field]) {
			t.Errorf("policy %s is %v, want %v", p.field, have[p.field], p.want)
		}
	}
}

func namespacePolicies(t testing.TB, o *opener) map[string]any {
	t.Helper()
	r, err := o.admin.call(testContext(t), "GET", o.admin.namespacePath(), "", nil)
	must(t, err)
	var have map[string]any
	must(t, json.Unmarshal(r.body, &have))
	return have
}
