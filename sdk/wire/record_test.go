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

// toProto is a record in the generated type, as another implementation has it.
func toProto(m *message.Message) *typesv1.Record {
	return &typesv1.Record{
		Id: []byte(m.ID), Type: uint32(m.Type), Vchannel: m.VChannel, Term: m.Term, Incarnation: m.Incarnation,
		TimeTick: uint64(m.TimeTick), LastConfirmed: []byte(m.LastConfirmed), TxnId: m.TxnID,
		Properties: m.Properties, Payload: m.Payload,
	}
}

// fromProto is the inverse.
func fromProto(r *typesv1.Record) message.Message {
	return message.Message{
		ID: message.ID(r.GetId()), Type: message.Type(r.GetType()), VChannel: r.GetVchannel(), Term: r.GetTerm(), Incarnation: r.GetIncarnation(),
		TimeTick: message.Tick(r.GetTimeTick()), LastConfirmed: message.ID(r.GetLastConfirmed()), TxnID: r.GetTxnId(),
		Properties: r.GetProperties(), Payload: r.GetPayload(),
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
		if _, err := proto.Marshal(toProto(&m)); err == nil {
			t.Errorf("%s: protobuf takes it after all", name)
		}
	}
	if err := CheckRecord("orders", &message.Message{Payload: []byte(bad), LastConfirmed: message.ID(bad)}); err != nil {
		t.Errorf("binary payload: %v", err)
	}
}
