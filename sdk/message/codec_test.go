package message

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func genMessage(t *rapid.T) Message {
	m := Message{
		Type:          Type(rapid.Uint32().Draw(t, "type")),
		VChannel:      rapid.String().Draw(t, "vchannel"),
		Term:          rapid.Int64Range(0, math.MaxInt64).Draw(t, "term"),
		Incarnation:   rapid.Int64Range(0, math.MaxInt64).Draw(t, "incarnation"),
		TimeTick:      Tick(rapid.Uint64().Draw(t, "tick")),
		LastConfirmed: ID(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "last confirmed")),
		TxnID:         rapid.Uint64().Draw(t, "txn"),
		Payload:       rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
	}
	if p := rapid.MapOfN(rapid.String(), rapid.String(), 0, 5).Draw(t, "properties"); len(p) > 0 {
		m.Properties = p
	}
	return m
}

func equal(a, b Message) bool {
	return a.ID == b.ID && a.Type == b.Type && a.VChannel == b.VChannel && a.Term == b.Term &&
		a.Incarnation == b.Incarnation && a.TimeTick == b.TimeTick && a.LastConfirmed == b.LastConfirmed &&
		a.TxnID == b.TxnID && maps.Equal(a.Properties, b.Properties) && bytes.Equal(a.Payload, b.Payload)
}

func TestEveryRecordRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMessage(t)
		prefix := rapid.SliceOf(rapid.Byte()).Draw(t, "prefix")
		enc := AppendRecord(bytes.Clone(prefix), &m)
		if !bytes.HasPrefix(enc, prefix) {
			t.Fatal("AppendRecord changed what was there")
		}
		got, err := DecodeRecord(enc[len(prefix):])
		if err != nil || !equal(got, m) {
			t.Fatalf("%+v → %+v, %v", m, got, err)
		}
		if again := AppendRecord(nil, &got); !bytes.Equal(again, enc[len(prefix):]) {
			t.Fatal("equal records have different encodings")
		}
	})
}

// The bytes of doc comment of AppendRecord; they are on disks, so they may not change.
func TestStoredBytesDoNotChange(t *testing.T) {
	got := AppendRecord(nil, &Message{Type: TypeData, Term: 3, Incarnation: 1, Payload: []byte("hi")})
	if want := []byte{1, 1, 3, 1, 0, 0, 0, 0, 0, 'h', 'i'}; !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	got = AppendRecord(nil, &Message{
		ID: "ignored", Type: TypeFlush, Term: 1, Incarnation: 2, TimeTick: 300, TxnID: 4,
		LastConfirmed: "id", VChannel: "v", Properties: map[string]string{"b": "2", "a": ""},
	})
	if want := []byte("\x01\x0a\x01\x02\xac\x02\x04\x02id\x01v\x02\x01a\x00\x01b\x012"); !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRecordTornInItsHeaderIsAnError(t *testing.T) {
	m := Message{Type: TypeData, Term: 3, Incarnation: 1, LastConfirmed: "12345678", VChannel: "v", Properties: map[string]string{"k": "v"}, Payload: []byte("payload")}
	enc := AppendRecord(nil, &m)
	for n := range len(enc) - len(m.Payload) {
		if got, err := DecodeRecord(enc[:n]); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%d of %d bytes: %+v, %v; want ErrBadRecord", n, len(enc), got, err)
		}
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	cases := map[string][]byte{
		"empty":                 {},
		"newer version":         {2, 1, 1, 1, 0, 0, 0, 0, 0},
		"type above 32 bits":    {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, 1, 0, 0, 0, 0, 0},
		"term above 63 bits":    {1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, 0, 0, 0, 0, 0},
		"endless varint":        {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"string longer":         {1, 1, 1, 1, 0, 0, 200, 'x'},
		"million properties":    {1, 1, 1, 1, 0, 0, 0, 0, 0xc0, 0x84, 0x3d, 'x'},
		"property key repeated": {1, 1, 1, 1, 0, 0, 0, 0, 2, 1, 'k', 0, 1, 'k', 0},
	}
	for name, b := range cases {
		if got, err := DecodeRecord(b); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s: %+v, %v; want ErrBadRecord", name, got, err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte{1, 1, 3, 1, 0, 0, 0, 0, 0, 'h', 'i'})
	f.Add([]byte("\x01\x0a\x01\x02\xac\x02\x04\x02id\x01v\x02\x01a\x00\x01b\x012"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeRecord(b)
		if err != nil {
			if !errors.Is(err, ErrBadRecord) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		again, err := DecodeRecord(AppendRecord(nil, &m))
		if err != nil || !equal(m, again) {
			t.Fatalf("%+v decodes as %+v, %v", m, again, err)
		}
	})
}
