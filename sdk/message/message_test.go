package message

import (
	"testing"
	"time"
)

func TestSizeCountsPayloadVChannelAndProperties(t *testing.T) {
	m := Message{VChannel: "v1", Payload: make([]byte, 10), Properties: map[string]string{"key": "value"}, LastConfirmed: "not counted"}
	if m.Size() != 10+2+3+5 {
		t.Errorf("Size = %d, want 20", m.Size())
	}
	if (&Message{}).Size() != 0 {
		t.Error("an empty record has a size")
	}
}

func TestReservedKeyIsFoundInByteOrder(t *testing.T) {
	m := Message{Properties: map[string]string{"a": "", "_z": "", "_b": ""}}
	if k := m.ReservedKey(); k != "_b" {
		t.Errorf("ReservedKey = %q, want _b", k)
	}
	if k := (&Message{Properties: map[string]string{"a_": ""}}).ReservedKey(); k != "" {
		t.Errorf("ReservedKey = %q, want none", k)
	}
}

func TestTickHoldsMillisecondsAboveACounter(t *testing.T) {
	at := time.Date(2026, 5, 17, 12, 0, 0, 123e6, time.UTC)
	tick := NewTick(at.UnixMilli(), 7)
	if tick.Physical() != at.UnixMilli() || tick.Logical() != 7 || !tick.Time().Equal(at) {
		t.Errorf("tick %d: %d ms, %d, %s", tick, tick.Physical(), tick.Logical(), tick.Time())
	}
	if next := NewTick(at.UnixMilli()+1, 0); next <= NewTick(at.UnixMilli(), 1<<LogicalBits-1) {
		t.Error("a later millisecond is not above the last tick of the one before it")
	}
	if NewTick(1, 1<<LogicalBits).Logical() != 0 {
		t.Error("a counter that does not fit reaches the milliseconds")
	}
}

func TestTypeNamesAreStable(t *testing.T) {
	want := []string{"invalid", "data", "fence", "time_tick", "barrier", "begin_txn", "commit_txn", "rollback_txn", "create_vchannel", "drop_vchannel", "flush", "type(11)"}
	for i, name := range want {
		if got := Type(i).String(); got != name {
			t.Errorf("Type(%d) = %q, want %q", i, got, name)
		}
		if Type(i).IsSystem() != (Type(i) != TypeData) {
			t.Errorf("Type(%d).IsSystem is wrong", i)
		}
	}
}
