package wal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// TestTruncationRefusesExactlyTheCheckpointsThatMissedAUnit truncates random
// logs of two terms, again and again, and resumes at every checkpoint that was
// ever handed out. One that lies below the truncation point starts there if no
// unit behind it lost a record, and is a lost position otherwise.
func TestTruncationRefusesExactlyTheCheckpointsThatMissedAUnit(t *testing.T) {
	n := 12
	if testing.Short() {
		n = 3
	}
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 3))
			f := newFixture(t)
			var w WAL
			for range 2 {
				w = f.open(nil)
				writeMixed(t, w, rng)
			}
			records := f.store.Records(testChannel)
			truth := readUntilCaughtUp(t, w, scanner.Options{Start: scanner.All})
			first := map[uint64]message.ID{} // of transactions
			at := map[message.Tick]message.ID{}
			for _, m := range records {
				if m.Type == message.TypeBeginTxn {
					first[m.TxnID] = m.ID
				}
				at[m.TimeTick] = m.ID
			}
			cps := []message.Checkpoint{}
			for _, u := range truth {
				cps = append(cps, u.Before, u.Checkpoint)
			}
			before := message.ID("")
			for range 4 {
				if cut := records[rng.IntN(len(records))].ID; cut > before {
					if err := w.Truncate(within(t, 5*time.Second), cut); err != nil {
						t.Fatal(err)
					}
					before = max(before, f.store.Records(testChannel)[0].ID)
				}
				for _, c := range cps {
					missed := false
					for _, u := range truth {
						begin := at[u.Tick]
						if u.TxnID != 0 {
							begin = first[u.TxnID]
						}
						missed = missed || (!c.Covers(u.Term, u.Tick) && begin < before)
					}
					s, err := w.Read(within(t, 5*time.Second), scanner.Options{Start: scanner.Checkpoint, Checkpoint: c})
					lost := new(walimpls.PositionLostError)
					if missed != errors.As(err, &lost) {
						id, _ := before.Uint64()
						t.Fatalf("truncated before %d: resume at (%d, %d, %s): missed a unit: %v, %v", id, c.Term, c.Tick, c.ID, missed, err)
					}
					if err == nil {
						_ = s.Close()
					}
				}
			}
		})
	}
}

// writeMixed writes plain records and transactions that interleave, and waits
// for a time tick in the log.
func writeMixed(t *testing.T, w WAL, rng *rand.Rand) {
	t.Helper()
	ctx := within(t, 10*time.Second)
	var open []uint64
	for range 15 {
		switch n := rng.IntN(6); {
		case n == 0 && len(open) < 3:
			open = append(open, begin(t, w))
			w.Append(ctx, body(open[len(open)-1], "b"))
		case n == 1 && len(open) > 0:
			i := rng.IntN(len(open))
			w.Append(ctx, body(open[i], "b"))
			if rng.IntN(3) == 0 {
				w.Rollback(ctx, open[i])
			} else {
				w.Commit(ctx, open[i])
			}
			open = append(open[:i], open[i+1:]...)
		case n == 2:
			time.Sleep(6 * time.Millisecond)
		default:
			mustAppend(t, w, "p")
		}
	}
	for _, id := range open {
		w.Commit(context.Background(), id)
	}
	last := mustAppend(t, w, "end")[0]
	waitFor(t, func() bool { return w.Status().LastConfirmed > last.ID })
}
