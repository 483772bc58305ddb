package rmq

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/walrig/walrig/sdk/message"
)

// The worked example of doc.go.
func TestKeysAreAsDocumented(t *testing.T) {
	fence := message.Message{Type: message.TypeFence, Term: 3, Incarnation: 1}
	hi := message.Message{Type: message.TypeData, Term: 3, Incarnation: 1, Payload: []byte("hi")}
	for _, c := range []struct {
		got  []byte
		want string
	}{
		{headerKey(), "00"},
		{encodeHeader(2), "010000000000000002"},
		{rowKey("orders"), "016f7264657273"},
		{row{num: 1, first: 1, storeID: "9f86"}.encode(), "010000000000000001" + "0000000000000001" + hex.EncodeToString([]byte("9f86"))},
		{recordKey(1, 1), "0200000000000000010000000000000001"},
		{recordKey(1, 2), "0200000000000000010000000000000002"},
		{message.AppendRecord(nil, &fence), "010203010000000000"},
		{message.AppendRecord(nil, &hi), "0101030100000000006869"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestRecordKeysSortAsTheLogDoes(t *testing.T) {
	keys := [][]byte{recordKey(1, 0), recordKey(1, 9), recordKey(1, 10), recordKey(1, 1<<40), recordKey(2, 0), recordKey(256, 1)}
	for i := 1; i < len(keys); i++ {
		if bytes.Compare(keys[i-1], keys[i]) >= 0 {
			t.Fatalf("key %x is not below %x", keys[i-1], keys[i])
		}
	}
}

func FuzzDecodeRow(f *testing.F) {
	f.Add(row{num: 7, first: 3, storeID: "id"}.encode())
	f.Add([]byte{})
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRow(b)
		if err != nil {
			if !errors.Is(err, errBadRow) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if again := r.encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, r, again)
		}
	})
}
