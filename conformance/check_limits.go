package conformance

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var limitChecks = []check{
	{Clause: "WAL-LIM-001", Name: "sizes", Alone: true, Run: checkSizes},
	{Clause: "WAL-LIM-002", Name: "too-large", Alone: true, Run: checkTooLarge},
	{Clause: "WAL-LIM-003", Name: "band", Alone: true, Run: checkBand},
	{Clause: "WAL-LIM-004", Name: "neighbours", Run: checkNeighbours},
}

// most is the largest record that the suite makes: more would prove the machine,
// not the backend.
const most = 64 << 20

// largeLimit is a limit at which a record more or less is felt in the suite's time.
const largeLimit = 8 << 20

// sized makes a record of exactly n bytes, by message.Message.Size.
func (t *T) sized(n int) message.Message {
	return message.Message{Type: message.TypeData, Payload: t.bytes(n)}
}

// storeAndRead appends records of the sizes and reads each back by its id.
func (t *T) storeAndRead(h *handle, sizes ...int) {
	for _, n := range sizes {
		m := t.sized(n)
		want := sha256.Sum256(m.Payload)
		ids, err := h.tryAppend(t.ctx, m)
		t.expect(err == nil, "a record of %d bytes, which the limit of %d allows, is stored; got %v", n, t.description().Limits.MaxMessageBytes, err)
		s := h.readWith(walimpls.ReadOptions{Start: walimpls.StartFrom(ids[0]), BufferRecords: 1})
		got := s.take(1)[0]
		t.expect(sha256.Sum256(got.Payload) == want, "a record of %d bytes is returned as it was; got %d bytes", n, len(got.Payload))
		s.close()
	}
}

func checkSizes(t *T) {
	h := t.open(t.channel(), 1, 1)
	limit := t.description().Limits.MaxMessageBytes
	for _, n := range []int{0, 1, 100, 64 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 4 << 20, 4<<20 + 1000} {
		if n <= limit && n <= most {
			t.storeAndRead(h, n)
		}
	}
	if limit > most {
		t.notRun("the limit is %d bytes, and records above %d were not tried", limit, most)
	}
	if limit <= largeLimit { // a larger one is for WAL-LIM-003 to try: it is the suite's time that runs out
		t.storeAndRead(h, limit)
	}
	// The limit counts properties and vchannel, too.
	m := t.sized(limit / 2)
	m.VChannel = "v1"
	m.Properties = map[string]string{"k": string(make([]byte, limit-limit/2-3))}
	ids, err := h.tryAppend(t.ctx, m)
	t.expect(err == nil, "a record of %d bytes, half of them in a property, is stored; got %v", m.Size(), err)
	t.expectLog(h.readWith(walimpls.ReadOptions{Start: walimpls.StartFrom(ids[0]), BufferRecords: 1}).take(1), []message.Message{m}, ids, "a record at the limit")
}

func (t *T) expectTooLarge(h *handle, m message.Message) {
	began := time.Now()
	_, err := h.tryAppend(t.ctx, m)
	took := time.Since(began)
	limit := t.description().Limits.MaxMessageBytes
	t.expect(errors.Is(err, walimpls.ErrTooLarge), "a record of %d bytes, above the limit of %d, is ErrTooLarge; got %v", m.Size(), limit, err)
	t.expectNotStored(err, 1, "a record that is too large")
	t.expect(!walimpls.AsError(err).Retryable, "ErrTooLarge says that no retry can help; got a retryable %v", err)
	t.expect(took < t.run.opt.Bound/2, "a record that is too large is refused at once; it took %s", took)
}

func checkTooLarge(t *T) {
	h := t.open(t.channel(), 1, 1)
	limit := t.description().Limits.MaxMessageBytes
	if limit > most {
		t.notRun("a limit of %d bytes is above what the suite tries, %d", limit, most)
	}
	var want []message.Message
	ok := func() {
		m := data(fmt.Sprint("ok-", len(want)))
		want = append(want, m)
		h.append(m)
	}
	for _, n := range []int{limit + 1, limit + 200, max(limit+300, min(8*limit, most))} {
		t.expectTooLarge(h, message.Message{Type: message.TypeData, Payload: make([]byte, n)})
		ok()
	}
	t.expectTooLarge(h, message.Message{Type: message.TypeData, Payload: make([]byte, limit), VChannel: "v"})
	ok()
	t.expectTooLarge(h, message.Message{Type: message.TypeData, Payload: []byte("x"), Properties: map[string]string{"k": string(make([]byte, limit))}})
	ok()
	t.expectLog(h.messages(), want, nil, "the log, which holds no record that is too large")
}

func checkBand(t *T) {
	h := t.open(t.channel(), 1, 1)
	limit := t.description().Limits.MaxMessageBytes
	if limit > most {
		t.notRun("a limit of %d bytes is above what the suite tries, %d", limit, most)
	}
	offsets := []int{-200, -180, -160, -140, -120, -100, -80, -60, -40, -20, -1, 0, 1, 20, 100, 200}
	if limit > largeLimit {
		offsets = []int{-60, 0, 1, 100}
	}
	for _, d := range offsets {
		n := limit + d
		if n <= 0 {
			continue
		}
		if d <= 0 {
			t.storeAndRead(h, n)
		} else {
			t.expectTooLarge(h, message.Message{Type: message.TypeData, Payload: make([]byte, n)})
		}
		h.append(data(fmt.Sprint("ok", d)))
	}
}

func checkNeighbours(t *T) {
	h := t.open(t.channel(), 1, 1)
	limits := t.description().Limits
	if limits.MaxMessageBytes > most {
		t.notRun("a limit of %d bytes is above what the suite tries, %d", limits.MaxMessageBytes, most)
	}
	o := newOracle(t)
	huge := make([]byte, limits.MaxMessageBytes+1)
	for at := range 4 {
		var batch []message.Message
		var payloads []string
		for i := range 4 {
			if i == at {
				batch = append(batch, message.Message{Type: message.TypeData, Payload: huge})
			} else {
				payloads = append(payloads, fmt.Sprintf("%d-%d", at, i))
				batch = append(batch, data(payloads[len(payloads)-1]))
			}
		}
		ids, err := h.tryAppend(t.ctx, batch...)
		var each *walimpls.BatchError
		t.expect(errors.As(err, &each), "a batch with one record that is too large is a BatchError with an outcome for each; got %v", err)
		outcomes := t.outcomes(h.ch.Name, 4, ids, err)
		var neighbours []walimpls.Outcome
		for i, out := range outcomes {
			if i != at {
				t.expect(out.State == walimpls.Stored, "record %d is stored, its neighbour %d alone is too large; got %s: %v", i, at, out.State, out.Err)
				neighbours = append(neighbours, out)
				continue
			}
			t.expect(out.State == walimpls.NotStored && errors.Is(out.Err, walimpls.ErrTooLarge), "record %d is not stored because it is too large; got %s: %v", i, out.State, out.Err)
		}
		o.note(payloads, neighbours)
	}
	log := h.messages()
	o.verify(log)
	o.verifyOrder(log)
}
