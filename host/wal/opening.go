package wal

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/wal/tso"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// opening is a term that was opened: its handle, its clock, and the time tick
// that stands at its beginning.
type opening struct {
	handle walimpls.WAL
	clock  *tso.Clock
	tick   message.Message
}

// openTerm opens a claimed term: the fence, the tail of the log, a tick window
// above everything that was ever given out, and the opening time tick. It tries
// transient failures again, with the next incarnation and a fresh tick, until
// ctx ends; others end it at once.
func (c *claim) openTerm(ctx context.Context, floor message.Tick, opt Options) (*opening, error) {
	pause := backoff{first: 50 * time.Millisecond, most: 5 * time.Second}
	clock := tso.New(opt.Now, floor)
	for {
		open, err := c.tryTerm(ctx, clock, opt)
		if err == nil {
			return open, nil
		}
		if !transient(err) || ctx.Err() != nil {
			return nil, err
		}
		c.log.Warn("open failed, trying again", zap.Int64("incarnation", c.incarnation), zap.Error(err))
		if !pause.wait(ctx) {
			return nil, err
		}
	}
}

func (c *claim) tryTerm(ctx context.Context, clock *tso.Clock, opt Options) (*opening, error) {
	handle, err := c.attempt(ctx)
	if err != nil {
		return nil, err
	}
	tick, err := c.beginTerm(ctx, handle, clock, opt.Window)
	if err != nil {
		closing, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
		defer cancel()
		closeBounded(closing, handle, c.log)
		return nil, err
	}
	return &opening{handle: handle, clock: clock, tick: tick}, nil
}

// beginTerm writes the opening time tick on a handle that was just opened. All
// records of older terms lie below it, also after a lost catalog or on a host
// whose clock is behind, because it is above every tick in the log.
func (c *claim) beginTerm(ctx context.Context, handle walimpls.WAL, clock *tso.Clock, window time.Duration) (message.Message, error) {
	bounds, err := handle.Bounds(ctx)
	if err != nil {
		return message.Message{}, retryOnFreshHandle(c.channel, err)
	}
	// Nothing but the handle's own fence record can be the newest one.
	fence := bounds.Latest
	highest, err := highestTick(ctx, handle, bounds, fence)
	if err != nil {
		return message.Message{}, retryOnFreshHandle(c.channel, err)
	}
	clock.Observe(highest)
	bound, _ := clock.Want(window, maxBatchRecords)
	if err := c.raiseBound(ctx, bound); err != nil {
		return message.Message{}, err
	}
	clock.Extend(bound)
	tick, ok := clock.Take(1)
	if !ok {
		return message.Message{}, walimpls.Errorf(walimpls.CodeUnavailable, c.channel, "the tick window was used up while the term was opened")
	}
	m := message.Message{Type: message.TypeTimeTick, TimeTick: tick, LastConfirmed: fence}
	ids, err := handle.Append(ctx, []message.Message{m})
	out := walimpls.Outcomes(c.channel, 1, ids, err)[0]
	if out.State != walimpls.Stored {
		return message.Message{}, retryOnFreshHandle(c.channel, out.Err)
	}
	pair := handle.Channel().Pair
	m.ID, m.Term, m.Incarnation = out.ID, pair.Term, pair.Incarnation
	return m, nil
}

// retryOnFreshHandle makes what ends a handle a failure that the next
// incarnation may mend; only an Open judges whether the term is over.
func retryOnFreshHandle(channel string, err error) error {
	if endsHandle(err) {
		return walimpls.Errorf(walimpls.CodeUnavailable, channel, "opening the term: %w", err)
	}
	return err
}

// highestTick reads the tail of the log up to the fence record: from the last
// confirmed id of the newest record that has one, everything that could have a
// higher tick is behind it.
func highestTick(ctx context.Context, handle walimpls.WAL, bounds walimpls.Bounds, fence message.ID) (message.Tick, error) {
	from := message.ID("")
	if !bounds.LatestRecord.IsZero() {
		newest, err := firstFrom(ctx, handle, bounds.LatestRecord)
		if err != nil {
			return 0, err
		}
		from = newest.LastConfirmed
		if from == "" {
			from = newest.ID
		}
	}
	s, err := readFrom(ctx, handle, from)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	highest := message.Tick(0)
	for {
		batch, err := s.Next(ctx)
		if err != nil {
			return 0, err
		}
		for i := range batch {
			highest = max(highest, batch[i].TimeTick)
			if batch[i].ID >= fence {
				return highest, nil
			}
		}
	}
}

// firstFrom returns the record at the id.
func firstFrom(ctx context.Context, handle walimpls.WAL, id message.ID) (message.Message, error) {
	s, err := readFrom(ctx, handle, id)
	if err != nil {
		return message.Message{}, err
	}
	defer s.Close()
	batch, err := s.Next(ctx)
	if err != nil {
		return message.Message{}, err
	}
	return batch[0], nil
}
