package conformance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The bounds of what a store may take when everything but one batch of it was
// truncated. A reserve is legitimate: the segment that is written to, logs and
// buffers that are used again. It may be what one segment of the usual stores
// takes, however much is appended; and a small share of what was appended, for an
// index. What W-04 of the public reports asks for, twice what is retained and one
// segment, is the same where next to nothing is retained.
const (
	spaceReserve = 64 << 20
	spaceShare   = 32 // a 32nd of what was appended
	spaceBursts  = 9  // each of half the reserve: four and a half of it are written
)

// checkTruncateFreesSpace appends and truncates in bursts: after none of them the
// store takes more than its reserve, and it does not grow from burst to burst.
func checkTruncateFreesSpace(t *T) {
	h := t.open(t.channel(), 1, 1)
	reserve := t.run.opt.SpaceReserve
	burst, slack := reserve/2, reserve/32
	before, written := t.storeSize(), int64(0)
	sizes := make([]int64, spaceBursts)
	for i := range sizes {
		written += t.burst(h, burst)
		sizes[i] = t.settled(h, before+reserve+written/spaceShare, written)
	}
	t.notef("the store took %d bytes before and %v after bursts of %d bytes", before, sizes, burst)
	// The first bursts fill what the store keeps for itself.
	third := spaceBursts / 3
	filled, later := slices.Max(sizes[third:2*third]), slices.Min(sizes[2*third:])
	t.expect(later <= filled+slack, "the store does not grow with what was appended and truncated; after bursts of %d bytes each it took %v", burst, sizes)
}

// burst appends about n bytes in batches, and truncates up to the last record of each.
func (t *T) burst(h *handle, n int64) (written int64) {
	limits := t.description().Limits
	size := min(512<<10, limits.MaxMessageBytes)
	batch := make([]message.Message, max(1, min(8, limits.MaxBatchRecords, limits.MaxBatchBytes/size)))
	for written < n {
		for i := range batch {
			batch[i] = message.Message{Type: message.TypeData, Payload: t.bytes(size)}
		}
		ids := h.append(batch...)
		written += int64(size * len(batch))
		h.truncate(ids[len(ids)-1])
	}
	return written
}

// deferredTruncation is how long a backend that frees space later may take.
const deferredTruncation = 60 * time.Second

// settled waits until the store takes at most limit bytes, as long as the backend
// says that it may, and returns what it takes.
func (t *T) settled(h *handle, limit, written int64) int64 {
	deadline := time.Now().Add(2 * time.Second) // files are deleted beside the call
	if t.description().Capabilities.Truncation == walimpls.TruncationDeferred {
		deadline = time.Now().Add(deferredTruncation)
	}
	for {
		now := t.storeSize()
		if now <= limit {
			return now
		}
		t.expect(time.Now().Before(deadline), "truncation frees space (%s): of %d bytes that were appended one batch is left, and the store takes at most %d; it takes %d",
			t.description().Capabilities.Truncation, written, limit, now)
		h.append(data("tick"))
		t.pause(200 * time.Millisecond)
	}
}

func (t *T) storeSize() int64 {
	var n int64
	err := t.call(t.ctx, t.run.opt.Bound, "measure the store", func(ctx context.Context) (string, error) {
		var err error
		n, err = t.run.target.(Sizer).Size(ctx)
		return fmt.Sprint(n, " bytes"), err
	})
	t.expect(err == nil, "the store can be measured; got %v", err)
	return n
}
