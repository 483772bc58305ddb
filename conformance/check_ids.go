package conformance

import (
	"errors"
	"fmt"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var idChecks = []check{
	{Clause: "WAL-ID-001", Name: "layout", Run: checkIDLayout},
	{Clause: "WAL-ID-002", Name: "order", Run: checkIDOrder},
	{Clause: "WAL-ID-003", Name: "round-trip", Run: checkIDRoundTrip},
	{Clause: "WAL-ID-004", Name: "foreign", Run: checkForeignIDs},
}

func checkIDLayout(t *T) {
	c := t.channel()
	layout := t.description().IDLayout
	h := t.open(c, 1, 1)
	h.append(series("m", 10)...)
	h.close()
	h = t.open(c, 2, 1)
	h.append(data("last"))
	log := h.log()
	for i := range log {
		id := log[i].ID
		t.expect(len(id) == layout.Size(), "an id has the %d bytes of the layout %s; %s has %d", layout.Size(), layout, showID(id), len(id))
		text, err := layout.Format(id)
		t.expect(err == nil, "the id %s has a text; got %v", showID(id), err)
		back, err := layout.Parse(text)
		t.expect(err == nil && back == id, "the id %s round-trips through its text %q; got %s, %v", showID(id), text, showID(back), err)
		t.expect(i == 0 || !id.IsZero(), "no id but the first fence record's is all-zero")
	}
}

func checkIDOrder(t *T) {
	h := t.open(t.channel(), 1, 1)
	h.append(series("s", 10)...)
	last := h.append(series("b", 120)...)[119] // over the end of the lowest byte
	for i := range 40 {
		id := h.append(data(fmt.Sprint("s", i)))[0]
		t.expect(last.Less(id), "ids ascend bytewise; %s is followed by %s", showID(last), showID(id))
		last = id
	}
	t.parallel(10, func(w int) {
		var own message.ID
		for i := range 10 {
			ids := h.append(series(fmt.Sprintf("c%d-%d", w, i), 2)...)
			t.expect(own.Less(ids[0]) && ids[0].Less(ids[1]), "a caller's ids ascend; %s is followed by %s and %s", showID(own), showID(ids[0]), showID(ids[1]))
			own = ids[1]
		}
	})
	log := h.log()
	for i := 1; i < len(log); i++ {
		t.expect(log[i-1].ID.Less(log[i].ID), "the byte order of ids is the log order; %s lies before %s", showID(log[i-1].ID), showID(log[i].ID))
	}
}

func checkIDRoundTrip(t *T) {
	layout := t.description().IDLayout
	h := t.open(t.channel(), 1, 1)
	want := series("m", 24)
	ids := h.append(want[:8]...)
	t.parallel(4, func(w int) { h.append(data(fmt.Sprint("noise-", w))) })
	ids = append(ids, h.append(want[8:16]...)...)
	ids = append(ids, h.appendEach(want[16:]...)...)
	for i, id := range ids {
		text, err := layout.Format(id)
		t.expect(err == nil, "the id %s has a text; got %v", showID(id), err)
		back, err := layout.Parse(text)
		t.expect(err == nil, "the text %q is an id; got %v", text, err)
		s := h.readWith(walimpls.ReadOptions{Start: walimpls.StartFrom(back), BufferRecords: 4})
		t.expectLog(s.take(1), want[i:i+1], ids[i:i+1], "a scanner from the text "+text)
		s.close()
	}
}

func checkForeignIDs(t *T) {
	c := t.channel()
	h := t.open(c, 1, 1)
	h.append(series("m", 5)...)
	log := h.log()
	size := t.description().IDLayout.Size()
	foreign := []message.ID{"x", "\xff", message.ID(t.bytes(size - 1)), message.ID(t.bytes(size + 1)), message.ID(t.bytes(1 << 20))}
	for range 25 {
		foreign = append(foreign, message.ID(t.bytes(size)), message.ID(t.bytes(1+t.intn(40))))
	}
	for _, id := range foreign {
		if id.IsZero() {
			continue
		}
		for _, start := range []walimpls.Start{walimpls.StartFrom(id), walimpls.StartAfter(id)} {
			s, err := h.tryRead(walimpls.ReadOptions{Start: start})
			if err != nil {
				t.expect(errors.Is(err, walimpls.ErrInvalidArgument) || isLost(err), "a start that is not the log's is ErrInvalidArgument or PositionLostError; got %v", err)
				continue
			}
			// It may hit the log by chance, and is a start like any other then.
			inside := len(id) == size && !id.Less(log[0].ID) && id.Less(log[len(log)-1].ID)
			t.expect(inside, "%s, which is not in the log, is refused; it was taken", showStart(start))
			s.close()
		}
	}
	h.append(data("works"))
}

func isLost(err error) bool {
	var lost *walimpls.PositionLostError
	return errors.As(err, &lost)
}
