package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var testTag = storeTag{1, 2, 3, 4, 5, 6, 7, 8}

func drawMessage(t *rapid.T) message.Message {
	m := message.Message{
		Type: message.Type(rapid.Uint32Range(1, math.MaxUint32).Draw(t, "type")), VChannel: rapid.StringN(0, 30, 60).Draw(t, "vchannel"),
		Term: rapid.Int64Min(0).Draw(t, "term"), Incarnation: rapid.Int64Min(0).Draw(t, "incarnation"),
		TimeTick: message.Tick(rapid.Uint64().Draw(t, "tick")), TxnID: rapid.Uint64().Draw(t, "txn"),
		LastConfirmed: message.ID(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "confirmed")),
		Payload:       rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload"),
	}
	if m.Type == message.TypeFence {
		m.Type = message.TypeData
	}
	if p := rapid.MapOfN(rapid.String(), rapid.String(), 0, 5).Draw(t, "properties"); len(p) > 0 {
		m.Properties = p
	}
	return m
}

func encodeBatch(t testing.TB, codec compress.Compression, base int64, messages []message.Message) []byte {
	t.Helper()
	b := newBatch(producerID{pid: 7, epoch: 3}, 11, codec, 1700000000000, 0)
	for i := range messages {
		b.add(appendBody(nil, &messages[i], testTag, nil))
	}
	out, err := b.finish()
	if err != nil {
		t.Fatal(err)
	}
	setBase(out, base)
	return out
}

// setBase does what a broker does: the base offset is not under the checksum.
func setBase(b []byte, base int64) { binary.BigEndian.PutUint64(b, uint64(base)) }

// reseal sets the checksum anew after a change.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[batchCRCAt:], crc32.Checksum(b[batchAttrsAt:], castagnoli))
	return b
}

func TestABatchIsReadAsItWasWrittenWithEveryCodec(t *testing.T) {
	for _, codec := range []compress.Compression{compress.None, compress.Gzip, compress.Snappy, compress.Lz4, compress.Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				want := rapid.SliceOfN(rapid.Custom(drawMessage), 1, 20).Draw(rt, "messages")
				base := rapid.Int64Range(0, math.MaxInt64/2).Draw(rt, "base")
				raw := encodeBatch(t, codec, base, want)
				got, rest, ok, err := nextBatch(append(raw, 'x'), 0)
				if err != nil || !ok || string(rest) != "x" {
					rt.Fatalf("%t %q %v", ok, rest, err)
				}
				if got.base != base || got.next != base+int64(len(want)) || got.producer != (producerID{7, 3}) || len(got.records) != len(want) {
					rt.Fatalf("%+v", got)
				}
				for i, r := range got.records {
					w := &want[i]
					if r.offset != base+int64(i) || r.tag != testTag || r.msg.ID != message.Uint64ID(uint64(r.offset)) ||
						r.msg.Type != w.Type || r.msg.VChannel != w.VChannel || pairOf(&r.msg) != pairOf(w) || r.msg.TimeTick != w.TimeTick ||
						r.msg.TxnID != w.TxnID || r.msg.LastConfirmed != w.LastConfirmed || !bytes.Equal(r.msg.Payload, w.Payload) || !maps.Equal(r.msg.Properties, w.Properties) {
						rt.Fatalf("record %d: %+v, want %+v", i, r.msg, *w)
					}
				}
			})
		})
	}
}

func TestRecordsBelowTheAskedOffsetAreLeftOut(t *testing.T) {
	raw := encodeBatch(t, compress.None, 100, batchOf("a", "b", "c", "d"))
	for from, want := range map[int64]string{0: "abcd", 100: "abcd", 102: "cd", 103: "d", 104: "", 900: ""} {
		b, _, ok, err := nextBatch(raw, from)
		if err != nil || !ok || b.next != 104 {
			t.Fatalf("from %d: %+v %t %v", from, b, ok, err)
		}
		got := ""
		for _, r := range b.records {
			got += string(r.msg.Payload)
		}
		if got != want {
			t.Errorf("from %d: %q, want %q", from, got, want)
		}
	}
}

func TestABatchThatIsCutOffIsLeftForTheNextFetch(t *testing.T) {
	raw := encodeBatch(t, compress.None, 5, batchOf("a", "b"))
	for n := range raw {
		if _, _, ok, err := nextBatch(raw[:n], 0); ok || err != nil {
			t.Fatalf("%d of %d bytes: %t %v", n, len(raw), ok, err)
		}
	}
}

func TestDamageIsFound(t *testing.T) {
	clean := encodeBatch(t, compress.None, 5, batchOf("alpha", "beta"))
	for at := batchAttrsAt; at < len(clean); at++ {
		raw := bytes.Clone(clean)
		raw[at] ^= 0x10
		_, _, ok, err := nextBatch(raw, 0)
		var bad *badBatchError
		if ok || !errors.As(err, &bad) || bad.base != 5 {
			t.Fatalf("byte %d changed: %t %v", at, ok, err)
		}
		if e := typed("c", "read", err); e.Code != walimpls.CodeCorrupt || e.Retryable || e.Hint == "" {
			t.Fatalf("%+v", e)
		}
	}
	raw := bytes.Clone(clean)
	raw[batchMagicAt] = 3
	if _, _, _, err := nextBatch(raw, 0); err == nil || !strings.Contains(err.Error(), "format 3, this build reads format 2") {
		t.Fatalf("%v", err)
	}
}

func TestAnUnknownFormatVersionIsRefusedByName(t *testing.T) {
	m := data("x")
	body := appendBody(nil, &m, testTag, nil)
	at := bytes.Index(body, []byte(metaHeader)) + len(metaHeader) + 1
	body[at] = 9
	b := newBatch(producerID{}, 0, 0, 0, 0)
	b.add(body)
	raw, _ := b.finish()
	_, _, _, err := nextBatch(raw, 0)
	if !errors.Is(err, errMeta) || !strings.Contains(err.Error(), "format version 9, this build reads version 1") {
		t.Fatalf("%v", err)
	}
}

func TestARecordOfAnotherProgramIsRefused(t *testing.T) {
	b := newBatch(producerID{}, 0, 0, 0, 0)
	b.add([]byte{1, 2, 'x', 0}) // no key, one byte, no header
	raw, _ := b.finish()
	_, _, _, err := nextBatch(raw, 0)
	if !errors.Is(err, errForeign) || !errors.Is(typed("c", "read", err), walimpls.ErrCorrupt) {
		t.Fatalf("%v", err)
	}
}

func TestControlBatchesAreSteppedOver(t *testing.T) {
	raw := encodeBatch(t, compress.None, 40, batchOf("marker"))
	raw[batchAttrsAt+1] |= attrControl
	b, _, ok, err := nextBatch(reseal(raw), 0)
	if err != nil || !ok || !b.control || len(b.records) != 0 || b.next != 41 {
		t.Fatalf("%+v %t %v", b, ok, err)
	}
}

func TestAnInflatedBatchIsBounded(t *testing.T) {
	raw := encodeBatch(t, compress.Zstd, 0, []message.Message{{Type: message.TypeData, Payload: make([]byte, maxInflated+1)}})
	if _, _, _, err := nextBatch(raw, 0); err == nil || !strings.Contains(err.Error(), "becomes more than") {
		t.Fatalf("%v", err)
	}
}

func FuzzNextBatch(f *testing.F) {
	for _, codec := range []compress.Compression{compress.None, compress.Gzip, compress.Snappy, compress.Lz4} {
		f.Add(encodeBatch(f, codec, 3, batchOf("a", "bb")), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) > batchHeader {
			b = reseal(bytes.Clone(b))
		}
		out, rest, ok, err := nextBatch(b, 0)
		if ok && (err != nil || len(rest) >= len(b) || out.next <= out.base) {
			t.Fatalf("%+v %d %v", out, len(rest), err)
		}
	})
}

func FuzzRecordBody(f *testing.F) {
	m := message.Message{Type: message.TypeData, VChannel: "v", Properties: map[string]string{"a": "b"}, Payload: []byte("x")}
	f.Add(appendBody(nil, &m, testTag, nil))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := newBatch(producerID{}, 0, 0, 0, 0)
		b.add(body)
		raw, _ := b.finish()
		got, _, ok, err := nextBatch(raw, 0)
		if err != nil || !ok {
			return
		}
		r := got.records[0]
		var nonce *openNonce
		if r.msg.Type == message.TypeFence {
			nonce = &r.nonce
		}
		b2 := newBatch(producerID{}, 0, 0, 0, 0)
		b2.add(appendBody(nil, &r.msg, r.tag, nonce))
		raw2, _ := b2.finish()
		again, _, ok, err := nextBatch(raw2, 0)
		if err != nil || !ok || !maps.Equal(again.records[0].msg.Properties, r.msg.Properties) || !bytes.Equal(again.records[0].msg.Payload, r.msg.Payload) {
			t.Fatalf("%+v became %+v: %v", r.msg, again, err)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0})
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeMetadata(b)
		_, _ = decodeFetch(b)
		_, _ = decodeProduce(b)
		_, _, _ = decodeVersions(b)
		if frame, err := readFrame(bytes.NewReader(b)); err == nil && len(frame) > len(b) {
			t.Fatal("a frame longer than its bytes")
		}
	})
}

func TestTopicNamesAreValidAndNeverCollide(t *testing.T) {
	for channel, want := range map[string]string{"orders": "p-orders", "a_b": "p-a_b", "a-b": "p-a-b", "orders.eu": "p--orders.eu", "a.b_c-d": "p--a.b-_c--d"} {
		if got := topicName("p-", channel); got != want {
			t.Errorf("%s: %s, want %s", channel, got, want)
		}
	}
	longest := strings.Repeat("p", maxPrefix)
	name := rapid.StringMatching(`[a-c][a-c._-]{0,199}`)
	small := rapid.StringMatching(`[ab][a._-]{0,5}`)
	collide := func(topic string) string { return strings.ReplaceAll(topic, ".", "_") }
	rapid.Check(t, func(rt *rapid.T) {
		gen := rapid.OneOf(name, small)
		a, b := gen.Draw(rt, "a"), gen.Draw(rt, "b")
		ta, tb := topicName(longest, a), topicName(longest, b)
		if len(ta) > maxTopicName {
			rt.Fatalf("%q becomes %d bytes", a, len(ta))
		}
		if a != b && collide(ta) == collide(tb) {
			rt.Fatalf("%q and %q become %q and %q, which Kafka takes for one", a, b, ta, tb)
		}
	})
}
