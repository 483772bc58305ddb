package wire

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

func genMessage(t *rapid.T) message.Message {
	id := rapid.SliceOfN(rapid.Byte(), 0, 20)
	return message.Message{
		ID:            message.ID(id.Draw(t, "id")),
		Type:          message.Type(rapid.Uint32().Draw(t, "type")),
		VChannel:      rapid.String().Draw(t, "vchannel"),
		Term:          rapid.Int64Range(0, math.MaxInt64).Draw(t, "term"),
		Incarnation:   rapid.Int64Range(0, math.MaxInt64).Draw(t, "incarnation"),
		TimeTick:      message.Tick(rapid.Uint64().Draw(t, "tick")),
		LastConfirmed: message.ID(id.Draw(t, "last confirmed")),
		TxnID:         rapid.Uint64().Draw(t, "txn"),
		Properties:    rapid.MapOfN(rapid.String(), rapid.String(), 0, 5).Draw(t, "properties"),
		Payload:       rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
	}
}

func equal(a, b message.Message) bool {
	return a.ID == b.ID && a.Type == b.Type && a.VChannel == b.VChannel && a.Term == b.Term &&
		a.Incarnation == b.Incarnation && a.TimeTick == b.TimeTick && a.LastConfirmed == b.LastConfirmed &&
		a.TxnID == b.TxnID && maps.Equal(a.Properties, b.Properties) && bytes.Equal(a.Payload, b.Payload)
}

func TestEveryRecordCrossesUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch := rapid.SliceOfN(rapid.Custom(genMessage), 0, 4).Draw(t, "batch")
		for i, r := range RecordsToProto(batch) {
			if err := CheckRecord("orders", &batch[i]); err != nil {
				t.Fatal(err)
			}
			b, err := proto.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var over typesv1.Record
			if err := proto.Unmarshal(b, &over); err != nil {
				t.Fatal(err)
			}
			got, err := RecordsFromProto([]*typesv1.Record{&over})
			if err != nil || !equal(got[0], batch[i]) {
				t.Fatalf("%+v → %+v, %v", batch[i], got, err)
			}
		}
	})
}

func TestPayloadIsSharedNotCopied(t *testing.T) {
	m := message.Message{Payload: []byte("payload")}
	r := RecordToProto(&m)
	got, err := RecordFromProto(r)
	if err != nil || &got.Payload[0] != &m.Payload[0] {
		t.Errorf("the payload was copied (%v)", err)
	}
}

func TestTextThatIsNotUTF8IsRefusedBeforeItIsSent(t *testing.T) {
	bad := "\xff\xfe"
	for name, m := range map[string]message.Message{
		"vchannel": {VChannel: bad},
		"key":      {Properties: map[string]string{"good": "x", bad: ""}},
		"value":    {Properties: map[string]string{"k": bad}},
	} {
		err := CheckRecord("orders", &m)
		if !errors.Is(err, walimpls.ErrInvalidArgument) || walimpls.AsError(err).Hint == "" || walimpls.AsError(err).Channel != "orders" {
			t.Errorf("%s: %v", name, err)
		}
		// The reason for the check: gRPC could not send the batch at all.
		if _, err := proto.Marshal(RecordToProto(&m)); err == nil {
			t.Errorf("%s: protobuf takes it after all", name)
		}
	}
	if err := CheckRecord("orders", &message.Message{Payload: []byte(bad), LastConfirmed: message.ID(bad)}); err != nil {
		t.Errorf("binary payload: %v", err)
	}
}

func TestRecordsThatCannotBeAreRefused(t *testing.T) {
	for name, r := range map[string]*typesv1.Record{"nil": nil, "term": {Term: -1}, "incarnation": {Incarnation: math.MinInt64}} {
		if m, err := RecordFromProto(r); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if _, err := RecordsFromProto([]*typesv1.Record{{}, nil}); !errors.Is(err, ErrBadRecord) || err.Error() != "record 2 of 2: bad record on the wire: missing" {
		t.Errorf("%v", err)
	}
}

func FuzzRecordFromProto(f *testing.F) {
	b, _ := proto.Marshal(RecordToProto(&message.Message{ID: "id", Type: message.TypeData, Term: 1, Properties: map[string]string{"k": "v"}, Payload: []byte("x")}))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r typesv1.Record
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		m, err := RecordFromProto(&r)
		if err != nil {
			if !errors.Is(err, ErrBadRecord) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if m.Term < 0 || m.Incarnation < 0 {
			t.Fatalf("%+v", m)
		}
		if err := CheckRecord("", &m); err != nil {
			t.Fatalf("protobuf let text through that it would not send: %v", err)
		}
		again, err := RecordFromProto(RecordToProto(&m))
		if err != nil || !equal(m, again) {
			t.Fatalf("%+v → %+v, %v", m, again, err)
		}
	})
}
