package rmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/plugintest"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The same backend behind the real protocol: what it promises crosses it.
func TestPromisesCrossTheProcessBoundary(t *testing.T) {
	s := newDiskStore(t)
	client := plugintest.Serve(t, NewBuilder())
	must(t, client.Configure(testContext(t), walimpls.Config{"dir": s.dir}))
	first := mustOpen(t, client, rw("c", 1, 1))

	var appends sync.WaitGroup
	var mu sync.Mutex
	want := map[message.ID]string{}
	for g := range 8 {
		appends.Go(func() {
			for i := range 50 {
				text := fmt.Sprintf("%d-%d", g, i)
				id := mustAppend(t, first, text)[0]
				mu.Lock()
				want[id] = text
				mu.Unlock()
			}
		})
	}
	appends.Wait()
	for _, m := range readAll(t, first)[1:] {
		if want[m.ID] != string(m.Payload) {
			t.Fatalf("record %s is %q, acknowledged as %q", m.ID, m.Payload, want[m.ID])
		}
		delete(want, m.ID)
	}
	if len(want) > 0 {
		t.Fatalf("%d acknowledged records are missing", len(want))
	}

	owner := mustOpen(t, client, rw("c", 2, 1))
	_, err := first.Append(testContext(t), batchOf("x"))
	wantIs(t, err, walimpls.ErrFenced)
	_, err = client.Open(testContext(t), rw("c", 1, 9))
	var fenced *walimpls.FencedError
	if !errors.As(err, &fenced) || fenced.Highest != (walimpls.Pair{Term: 2, Incarnation: 1}) {
		t.Fatalf("got %v", err)
	}
	big := make([]byte, 16<<20)
	ids, err := owner.Append(testContext(t), []message.Message{{Type: message.TypeData, Payload: big}, data("behind it")})
	must(t, err)
	must(t, owner.Truncate(testContext(t), ids[0]))
	_, err = owner.Read(testContext(t), walimpls.ReadOptions{Start: walimpls.StartFrom(message.Uint64ID(1))})
	var lost *walimpls.PositionLostError
	if !errors.As(err, &lost) || lost.Earliest != ids[0] || lost.Latest != ids[1] {
		t.Fatalf("got %v", err)
	}
	got := readAll(t, owner)
	if len(got) != 2 || len(got[0].Payload) != len(big) || string(got[1].Payload) != "behind it" {
		t.Fatalf("got %d records", len(got))
	}
	must(t, client.Drop(testContext(t), "c", 2))
	_, err = client.Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrNotFound)
	must(t, client.Close(context.Background()))
}
