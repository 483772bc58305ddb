package plugin

import (
	"context"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestCreditIsOverdrawnByTheLastRecordOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &credit{change: make(chan struct{}, 1)}
		if err := c.add(rapid.Int64Range(1, 20).Draw(t, "records"), rapid.Int64Range(1, 50).Draw(t, "bytes")); err != nil {
			t.Fatal(err)
		}
		records := make([]message.Message, rapid.IntRange(1, 30).Draw(t, "n"))
		for i := range records {
			records[i] = sized(rapid.IntRange(0, 30).Draw(t, "size"))
		}
		before := struct{ records, bytes int64 }{c.records, c.bytes}
		n, err := c.take(context.Background(), records)
		if err != nil || n < 1 || int64(n) > before.records {
			t.Fatalf("%d records with credit for %d, %v", n, before.records, err)
		}
		butLast := int64(0)
		for _, m := range records[:n-1] {
			butLast += int64(m.Size())
		}
		if butLast >= before.bytes {
			t.Fatalf("%d bytes before the last record with credit for %d", butLast, before.bytes)
		}
		if c.bytes != before.bytes-butLast-int64(records[n-1].Size()) || c.records != before.records-int64(n) {
			t.Fatalf("%d, %d are left of %d, %d", c.records, c.bytes, before.records, before.bytes)
		}
		if c.records <= 0 || c.bytes <= 0 {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			if _, err := c.take(ended, records); !errors.Is(err, context.Canceled) {
				t.Fatalf("sent without credit: %v", err)
			}
		}
	})
}

func TestImpossibleCreditIsRefused(t *testing.T) {
	c := &credit{change: make(chan struct{}, 1)}
	for _, bad := range [][2]int64{{-1, 1}, {1, -1}, {math.MaxInt64, 1}, {1, math.MaxInt64}} {
		if err := c.add(bad[0], bad[1]); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	for range 100 {
		if err := c.add(math.MaxInt64/4, math.MaxInt64/4); err != nil || c.records < 0 || c.bytes < 0 {
			t.Fatalf("%d %d %v", c.records, c.bytes, err)
		}
	}
}

func TestLatestIsResolvedAgainWhenATruncationPassesIt(t *testing.T) {
	ctx := context.Background()
	b := &membackend.Backend{}
	a, _ := committer(t, b)
	w := a.h.wal
	if _, err := w.Append(ctx, []message.Message{sized(1)}); err != nil {
		t.Fatal(err)
	}
	tries := 0
	b.BeforeRead = func(ctx context.Context, opt walimpls.ReadOptions) error {
		if tries++; tries > 3 {
			return nil
		}
		ids, err := w.Append(ctx, []message.Message{sized(1), sized(1)})
		if err != nil {
			return err
		}
		return w.Truncate(ctx, ids[1])
	}
	scanner, resolved, err := a.h.start(ctx, walimpls.ReadOptions{Start: walimpls.FromLatest()})
	if err != nil {
		t.Fatal(err)
	}
	defer scanner.Close()
	bounds, _ := w.Bounds(ctx)
	if tries != 4 || resolved != walimpls.StartAfter(bounds.Latest) {
		t.Errorf("%d tries, resolved %+v, latest %s", tries, resolved, bounds.Latest)
	}
	tries = -1 << 30 // for ever
	if _, _, err := a.h.start(ctx, walimpls.ReadOptions{Start: walimpls.FromLatest()}); !errors.As(err, new(*walimpls.PositionLostError)) {
		t.Errorf("a log that is truncated all the time: %v", err)
	}
}

// emptyLog is a WAL of a read-only handle whose log has no record, or only the
// first fence record with the all-zero id.
type emptyLog struct {
	walimpls.WAL
	bounds walimpls.Bounds
	start  walimpls.Start
}

func (l *emptyLog) Channel() walimpls.Channel                       { return walimpls.Channel{Name: "orders"} }
func (l *emptyLog) Bounds(context.Context) (walimpls.Bounds, error) { return l.bounds, nil }
func (l *emptyLog) Read(_ context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	l.start = opt.Start
	return nil, nil
}

func TestLatestOfAnEmptyLogIsAll(t *testing.T) {
	for _, b := range []walimpls.Bounds{{Empty: true}, {Earliest: message.Uint64ID(0), Latest: message.Uint64ID(0)}} {
		l := &emptyLog{bounds: b}
		_, resolved, err := newHandle(l, walimpls.Limits{}).start(context.Background(), walimpls.ReadOptions{Start: walimpls.FromLatest()})
		if err != nil || resolved != walimpls.FromAll() || l.start != resolved {
			t.Errorf("%+v: resolved %+v, read from %+v, %v", b, resolved, l.start, err)
		}
	}
}
