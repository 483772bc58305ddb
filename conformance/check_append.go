package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var appendChecks = []check{
	{Clause: "WAL-APP-001", Name: "one", Run: checkAppendOne},
	{Clause: "WAL-APP-002", Name: "batch", Run: checkAppendBatch},
	{Clause: "WAL-APP-003", Name: "payloads", Run: checkPayloads},
	{Clause: "WAL-APP-004", Name: "properties", Run: checkProperties},
	{Clause: "WAL-APP-005", Name: "fields", Run: checkFields},
	{Clause: "WAL-APP-006", Name: "pair", Run: checkStamp},
	{Clause: "WAL-APP-007", Name: "sequence", Run: checkSequence},
	{Clause: "WAL-APP-008", Name: "concurrent", Run: checkConcurrentAppends},
	{Clause: "WAL-APP-009", Name: "own-outcome", Run: checkOwnOutcome},
	{Clause: "WAL-APP-010", Name: "empty", Run: checkEmptyBatch},
	{Clause: "WAL-APP-011", Name: "ended-context", Run: checkAppendWithEndedContext},
	{Clause: "WAL-APP-012", Name: "context", Run: checkAppendContext},
	{Clause: "WAL-APP-013", Name: "buffers", Run: checkBuffers},
	{Clause: "WAL-APP-014", Name: "types", Run: checkRefusedTypes},
	{Clause: "WAL-APP-015", Name: "large-batch", Run: checkLargeBatch},
}

func checkAppendOne(t *T) {
	h := t.open(t.channel(), 1, 1)
	var ids []message.ID
	want := series("m", 3)
	for _, m := range want {
		ids = append(ids, h.append(m)...)
	}
	for i := range ids {
		t.expect(ids[i] != "", "Append returns an id that is not empty")
		t.expect(i == 0 || ids[i-1] != ids[i], "each record has an id of its own; %s came twice", showID(ids[i]))
	}
	t.expectLog(h.read(walimpls.FromAll()).take(3), want, ids, "the log")
}

func checkAppendBatch(t *T) {
	h := t.open(t.channel(), 1, 1)
	var want []message.Message
	var ids []message.ID
	for i, n := range []int{2, 1, 7, 64} {
		batch := series(fmt.Sprint("b", i), n)
		got := h.append(batch...)
		for k := 1; k < len(got); k++ {
			t.expect(got[k-1].Less(got[k]), "ids in a batch ascend; %s is followed by %s", showID(got[k-1]), showID(got[k]))
		}
		want, ids = append(want, batch...), append(ids, got...)
	}
	t.expectLog(h.messages(), want, ids, "the log of four batches")
}

func checkPayloads(t *T) {
	h := t.open(t.channel(), 1, 1)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	want := []message.Message{
		data("before"),
		{Type: message.TypeData},
		{Type: message.TypeData, Payload: []byte{}},
		{Type: message.TypeData, Payload: []byte{0}},
		{Type: message.TypeData, Payload: all},
		{Type: message.TypeData, Payload: []byte("\r\n\x00\xff\xfe")},
		{Type: message.TypeData, Payload: t.bytes(10_000)},
		{Type: message.TypeData, Payload: bytes.Repeat([]byte{0}, 1000)},
		data("after"),
	}
	ids := h.appendEach(want...)
	ids = append(ids, h.append(want...)...)
	t.expectLog(h.messages(), append(want, want...), ids, "the log of unusual payloads, one by one and as a batch")
}

func checkProperties(t *T) {
	h := t.open(t.channel(), 1, 1)
	many := map[string]string{}
	for i := range 200 {
		many[fmt.Sprintf("key-%03d", i)] = fmt.Sprint(i)
	}
	var want []message.Message
	for _, p := range []map[string]string{
		{"id": "1", "const": "t"},
		{"k": ""},
		{"a": "1", "A": "2", "a.b": "3", "_r": "4", "key with space": "5"},
		{"ключ": "значение", "emoji": "🪵", "control": "\x00\x01\n\r\t=;,"},
		{"long": strings.Repeat("x", 64<<10), strings.Repeat("k", 1000): "v"},
		many,
		nil,
	} {
		want = append(want, message.Message{Type: message.TypeData, Properties: p, Payload: []byte("p")})
	}
	t.fit(&want)
	ids := h.append(want...)
	t.expectLog(h.messages(), want, ids, "the log of records with properties")
}

// fit leaves out records that the declared limits do not allow.
func (t *T) fit(batch *[]message.Message) {
	var out []message.Message
	for _, m := range *batch {
		if m.Size() <= t.description().Limits.MaxMessageBytes {
			out = append(out, m)
		}
	}
	*batch = out
}

func checkFields(t *T) {
	h := t.open(t.channel(), 1, 1)
	var want []message.Message
	for _, typ := range []message.Type{
		message.TypeData, message.TypeTimeTick, message.TypeBeginTxn, message.TypeCommitTxn,
		message.TypeRollbackTxn, message.TypeCreateVChannel, message.TypeDropVChannel, message.TypeFlush,
	} {
		want = append(want,
			message.Message{Type: typ, Payload: []byte(typ.String())},
			message.Message{Type: typ, VChannel: "v1", TimeTick: 1, LastConfirmed: "\x00\x01", TxnID: 1},
			message.Message{
				Type: typ, VChannel: strings.Repeat("v", 200), TimeTick: math.MaxUint64, TxnID: math.MaxUint64,
				LastConfirmed: message.ID(t.bytes(20)), Properties: map[string]string{"k": "v"}, Payload: []byte("x"),
			})
	}
	ids := h.appendEach(want...)
	t.expectLog(h.messages(), want, ids, "the log of records of every type")
}

func checkStamp(t *T) {
	c := t.channel()
	lies := []message.Message{
		{Type: message.TypeData, Payload: []byte("a"), ID: "\xff\xff\xff\xff", Term: 99, Incarnation: 98},
		{Type: message.TypeData, Payload: []byte("b"), ID: "lie", Term: 0, Incarnation: 0},
		{Type: message.TypeData, Payload: []byte("c"), Term: math.MaxInt64, Incarnation: math.MaxInt64},
	}
	var ids []message.ID
	pairs := []walimpls.Pair{{Term: 3, Incarnation: 1}, {Term: 3, Incarnation: 5}, {Term: 8, Incarnation: 2}}
	for _, p := range pairs {
		h := t.open(c, p.Term, p.Incarnation)
		ids = append(ids, h.append(lies...)...)
		h.close()
	}
	h := t.open(c, 9, 1)
	got := h.messages()
	t.expect(len(got) == 9, "the log holds 9 messages; got %d", len(got))
	for i := range got {
		want := pairs[i/3]
		t.expect(got[i].Term == want.Term && got[i].Incarnation == want.Incarnation,
			"message %d carries the pair %s of its handle; got %d.%d", i, want, got[i].Term, got[i].Incarnation)
		t.expect(got[i].ID == ids[i], "message %d has the id %s that Append returned; got %s", i, showID(ids[i]), showID(got[i].ID))
	}
}

func checkSequence(t *T) {
	c := t.channel()
	var want []message.Message
	var ids []message.ID
	for round := range 5 {
		h := t.open(c, int64(round/2+1), int64(round%2+1))
		for i := range 14 {
			batch := series(fmt.Sprintf("r%d-%d", round, i), 1+i%3)
			want = append(want, batch...)
			ids = append(ids, h.append(batch...)...)
		}
		h.close()
	}
	for i := 1; i < len(ids); i++ {
		t.expect(ids[i-1].Less(ids[i]), "ids ascend over appends, handles and terms; %s is followed by %s", showID(ids[i-1]), showID(ids[i]))
	}
	t.expectLog(t.open(c, 9, 1).messages(), want, ids, "the log of 70 appends over five handles")
}

func checkConcurrentAppends(t *T) {
	h := t.open(t.channel(), 1, 1)
	o := newOracle(t)
	tail := h.read(walimpls.FromLatest())
	const writers, each = 12, 20
	t.parallel(writers, func(w int) {
		for i := range each {
			p := fmt.Sprintf("w%d-%d", w, i)
			t.expect(o.append(t.ctx, h, p), "the append of %q succeeds", p)
		}
	})
	log := h.messages()
	o.anyID = true // which caller got which id is another clause's
	o.verify(log)
	o.verifyOrder(log)
	// A reader that was there from the beginning met the same.
	t.expectLog(tail.take(writers*each), log, nil, "what a scanner met while the records were appended")
}

func checkOwnOutcome(t *T) {
	h := t.open(t.channel(), 1, 1)
	o := newOracle(t)
	limit := t.description().Limits.MaxMessageBytes
	var big []byte
	if limit <= 64<<20 {
		big = make([]byte, limit+1)
	}
	const writers, each = 16, 12
	t.parallel(writers, func(w int) {
		for i := range each {
			if big != nil && w%4 == 0 && i == each/2 {
				_, err := h.tryAppend(t.ctx, message.Message{Type: message.TypeData, Payload: big})
				t.expect(errors.Is(err, walimpls.ErrTooLarge), "the append of a record that is too large gets its own refusal, ErrTooLarge; got %v", err)
				continue
			}
			p := fmt.Sprintf("w%d-%d", w, i)
			t.expect(o.append(t.ctx, h, p), "the append of %q succeeds, whatever happens to others", p)
		}
	})
	o.verify(h.messages())
}

func checkEmptyBatch(t *T) {
	h := t.open(t.channel(), 1, 1)
	for _, batch := range [][]message.Message{nil, {}} {
		ids, err := h.tryAppend(t.ctx, batch...)
		t.expect(err == nil && len(ids) == 0, "Append of no records is a no-op; got %d ids and %v", len(ids), err)
	}
	h.append(data("only"))
	t.expectLog(h.messages(), []message.Message{data("only")}, nil, "the log")
}

func checkAppendWithEndedContext(t *T) {
	h := t.open(t.channel(), 1, 1)
	canceled, cancel := context.WithCancel(t.ctx)
	cancel()
	expired, cancel := context.WithDeadline(t.ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{canceled, expired} {
		_, err := h.tryAppend(ctx, data("never"))
		t.expect(err != nil && isContext(err), "Append with an ended context is the context's error; got %v", err)
		t.expectNotStored(err, 1, "Append with an ended context")
	}
	h.append(data("works"))
	t.expectLog(h.messages(), []message.Message{data("works")}, nil, "the log")
}

func checkAppendContext(t *T) {
	c := t.channel()
	o := newOracle(t)
	const records = 20 // which takes long enough for a context to end under way
	batch := func(prefix string, i int) []string {
		out := make([]string, records)
		for k := range out {
			out[k] = fmt.Sprintf("%s-%d", prefix, i*records+k)
		}
		return out
	}
	h := t.open(c, 1, 1)
	most := o.appendTime(h, func(i int) []string { return batch("plain", i) }) + time.Millisecond/4
	incarnation := int64(1)
	var under atomic.Int64
	// A few rounds, and more of them while all contexts end too early or too late.
	const enough, rounds = 4, 40
	for round := 0; round < enough || (round < rounds && under.Load() == 0); round++ {
		unknown := o.unknown
		t.parallel(4, func(w int) {
			for i := range 20 {
				ctx, cancel := context.WithTimeout(t.ctx, 1+t.someTime(most))
				alive := ctx.Err() == nil
				o.appendBatch(ctx, h, batch(fmt.Sprintf("%d-%d", round, w), i)...)
				if alive && ctx.Err() != nil {
					under.Add(1)
				}
				cancel()
			}
		})
		if o.unknown > unknown { // which has ended the handle
			h.close()
			incarnation++
			h = t.open(c, 1, incarnation)
		}
	}
	h.close()
	o.verify(t.open(c, 2, 1).messages())
	if under.Load() == 0 {
		t.notRun("no context ended under way in %d appends: each took less time than a context can be given", rounds*4*20)
	}
	t.notef("%d contexts ended under way", under.Load())
}

func checkBuffers(t *T) {
	h := t.open(t.channel(), 1, 1)
	batch := make([]message.Message, 8)
	var want []message.Message
	for i := range batch {
		payload := []byte(fmt.Sprintf("payload-%d", i))
		batch[i] = message.Message{Type: message.TypeData, Payload: payload, Properties: map[string]string{"k": fmt.Sprint(i)}}
		want = append(want, message.Message{Type: message.TypeData, Payload: bytes.Clone(payload), Properties: maps.Clone(batch[i].Properties)})
	}
	ids := h.append(batch...)
	for i := range batch {
		diff := same(&want[i], &batch[i])
		t.expect(diff == "" && batch[i].ID == "" && batch[i].Term == 0, "the backend does not write to the batch; record %d changed: %s", i, diff)
	}
	for i := range batch {
		for k := range batch[i].Payload {
			batch[i].Payload[k] = 'X'
		}
		batch[i].Properties["k"] = "changed"
		batch[i].Properties["new"] = "x"
		batch[i] = message.Message{}
	}
	t.expectLog(h.messages(), want, ids, "the log after the appender changed its batch")
}

func checkRefusedTypes(t *T) {
	h := t.open(t.channel(), 1, 1)
	for _, typ := range []message.Type{message.TypeInvalid, message.TypeFence} {
		_, err := h.tryAppend(t.ctx, message.Message{Type: typ, Payload: []byte("no")})
		t.expect(errors.Is(err, walimpls.ErrInvalidArgument), "Append of a record of type %s is ErrInvalidArgument; got %v", typ, err)
		t.expectNotStored(err, 1, "Append of a record of type "+typ.String())
	}
	h.append(data("ok"))
	for _, m := range h.log() {
		ok := m.Type == message.TypeFence && len(m.Payload) == 0 || m.Type == message.TypeData
		t.expect(ok, "the log holds the fence record and the message; got %s", showBatch([]message.Message{m}))
	}
}

func checkLargeBatch(t *T) {
	h := t.open(t.channel(), 1, 1)
	limits := t.description().Limits
	many := series("many", min(limits.MaxBatchRecords, 5000))
	size := min(10<<10, limits.MaxMessageBytes)
	bytesEach := make([]message.Message, 0, 1000)
	for i := 0; i < 1000 && (i+1)*size <= min(limits.MaxBatchBytes, 10<<20) && i < limits.MaxBatchRecords; i++ {
		payload := t.bytes(size)
		copy(payload, fmt.Sprintf("big-%d-", i))
		bytesEach = append(bytesEach, message.Message{Type: message.TypeData, Payload: payload})
	}
	ids := h.append(many...)
	ids = append(ids, h.append(bytesEach...)...)
	t.expectLog(h.messages(), append(many, bytesEach...), ids, fmt.Sprintf("the log of a batch of %d records and one of %d bytes", len(many), size*len(bytesEach)))
}
