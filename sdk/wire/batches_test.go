package wire

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	typesv1 "github.com/walrig/walrig/sdk/proto/types/v1"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
)

// encoded returns the bytes of a message as gRPC would send them.
func encoded(t testing.TB, m Marshaler) []byte {
	data, err := Codec().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	return data.Materialize()
}

// decode receives bytes in pieces, as they come from the network.
func decode(t testing.TB, data []byte, into Unmarshaler) error {
	var pieces mem.BufferSlice
	for piece := range slices.Chunk(data, 7) {
		pieces = append(pieces, mem.SliceBuffer(piece))
	}
	return Codec().Unmarshal(pieces, into)
}

type rawAppend struct {
	buffers  Buffers
	sequence uint64
	batches  [][]message.Message
}

func (r *rawAppend) MarshalWire() (mem.BufferSlice, error) {
	return EncodeAppend(&r.buffers, r.sequence, r.batches...), nil
}

func TestRawMessagesAreThoseOfTheGeneratedCode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		batch := rapid.SliceOfN(rapid.Custom(genMessage), 0, 4).Draw(rt, "batch")
		var records []*typesv1.Record
		for i := range batch {
			if err := CheckRecord("orders", &batch[i]); err != nil {
				rt.Fatal(err)
			}
			records = append(records, toProto(&batch[i]))
		}
		same := func(what string, got []message.Message, err error) {
			if err != nil || !slices.EqualFunc(got, batch, equal) {
				rt.Fatalf("%s: %+v → %+v, %v", what, batch, got, err)
			}
		}
		var back []message.Message

		// Raw to generated.
		cut := rapid.IntRange(0, len(batch)).Draw(rt, "cut")
		sequence := rapid.Uint64().Draw(rt, "sequence")
		var request pluginv1.AppendRequest
		err := proto.Unmarshal(encoded(t, &rawAppend{sequence: sequence, batches: [][]message.Message{batch[:cut], batch[cut:]}}), &request)
		for _, r := range request.GetRecords() {
			back = append(back, fromProto(r))
		}
		if request.GetSequence() != sequence {
			rt.Fatalf("sequence %d → %d", sequence, request.GetSequence())
		}
		same("append request", back, err)
		var response pluginv1.ReadResponse
		err = proto.Unmarshal(encoded(t, EncodeRead(new(Buffers), batch)), &response)
		back = nil
		for _, r := range response.GetRecords() {
			back = append(back, fromProto(r))
		}
		same("read response", back, err)

		// Generated to raw.
		data, _ := proto.Marshal(&pluginv1.AppendRequest{Handle: 3, Sequence: sequence, Records: records})
		var in AppendBatch
		err = errors.Join(decode(t, data, &in), in.Err)
		same("append batch", in.Records, err)
		if in.Handle != 3 || in.Sequence != sequence {
			rt.Fatalf("%+v", in)
		}
		resolved := &pluginv1.Start{Policy: pluginv1.Start_POLICY_FROM, Id: []byte("x")}
		data, _ = proto.Marshal(&pluginv1.ReadResponse{Resolved: resolved, Records: records})
		var got ReadBatch
		err = errors.Join(decode(t, data, &got), got.Err)
		same("read batch", got.Records, err)
		if !proto.Equal(got.Resolved, resolved) {
			rt.Fatalf("resolved %v", got.Resolved)
		}
	})
}

func TestPagesAreThoseOfTheGeneratedCode(t *testing.T) {
	text := rapid.String()
	rapid.Check(t, func(rt *rapid.T) {
		var writer PageWriter
		for page := range 3 {
			batch := rapid.SliceOfN(rapid.Custom(genMessage), 0, 4).Draw(rt, "batch")
			want := &walv1.ReadResponse{
				CaughtUp: rapid.Bool().Draw(rt, "caught up"), Resume: text.Draw(rt, "resume"),
				End: text.Draw(rt, "end"), Checkpoint: text.Draw(rt, "checkpoint"),
			}
			for i := range batch {
				r := &walv1.ReadRecord{Id: text.Draw(rt, "id"), Checkpoint: text.Draw(rt, "token"), UnitEnd: rapid.Bool().Draw(rt, "unit end")}
				tick := message.Tick(rapid.Uint64().Draw(rt, "tick"))
				writer.Add(&batch[i], tick, []byte(r.GetId()), []byte(r.GetCheckpoint()), r.GetUnitEnd())
				batch[i].TimeTick = tick
				r.Record = toProto(&batch[i])
				want.Records = append(want.Records, r)
			}
			if writer.Len() != len(batch) {
				rt.Fatalf("page %d: Len is %d", page, writer.Len())
			}
			data := encoded(t, writer.Finish(want.GetCaughtUp(), want.GetResume(), want.GetEnd(), want.GetCheckpoint()))
			var generated walv1.ReadResponse
			if err := proto.Unmarshal(data, &generated); err != nil || len(generated.GetRecords()) != len(batch) {
				rt.Fatalf("page %d: %d records, %v", page, len(generated.GetRecords()), err)
			}
			var raw Page
			data, _ = proto.Marshal(want)
			if err := decode(t, data, &raw); err != nil {
				rt.Fatal(err)
			}
			for i, r := range generated.GetRecords() {
				if !equal(fromProto(r.GetRecord()), batch[i]) || r.GetId() != want.GetRecords()[i].GetId() || r.GetCheckpoint() != want.GetRecords()[i].GetCheckpoint() || r.GetUnitEnd() != want.GetRecords()[i].GetUnitEnd() {
					rt.Fatalf("page %d, record %d: %+v", page, i, r)
				}
				d := &raw.Records[i]
				if !equal(d.Message, batch[i]) || d.ID != r.GetId() || d.Checkpoint != r.GetCheckpoint() || d.UnitEnd != r.GetUnitEnd() {
					rt.Fatalf("page %d, record %d: %+v", page, i, d)
				}
			}
			if raw.CaughtUp != want.GetCaughtUp() || raw.Resume != generated.GetResume() || raw.End != want.GetEnd() || raw.Checkpoint != generated.GetCheckpoint() {
				rt.Fatalf("page %d: %+v, %+v", page, raw, &generated)
			}
		}
	})
}

func TestRecordsThatCannotBeAreRefused(t *testing.T) {
	for name, r := range map[string]*typesv1.Record{"term": {Term: -1}, "incarnation": {Incarnation: math.MinInt64}} {
		data, _ := proto.Marshal(&pluginv1.ReadResponse{Records: []*typesv1.Record{{}, r}})
		var got ReadBatch
		if err := decode(t, data, &got); err != nil || !errors.Is(got.Err, ErrBadRecord) || !strings.Contains(got.Err.Error(), "record 2 of 2") || got.Records != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestDecodedRecordsOutliveTheBufferTheyCameIn(t *testing.T) {
	data, _ := proto.Marshal(&pluginv1.ReadResponse{Records: []*typesv1.Record{
		{Id: []byte("id"), Vchannel: "v", LastConfirmed: []byte("lc"), Properties: map[string]string{"k": "v"}, Payload: []byte("payload")},
	}})
	var got ReadBatch
	if err := got.UnmarshalWire(data); err != nil || got.Err != nil {
		t.Fatal(err, got.Err)
	}
	clear(data)
	m := got.Records[0]
	if m.ID != "id" || m.VChannel != "v" || m.LastConfirmed != "lc" || m.Properties["k"] != "v" || string(m.Payload) != "payload" {
		t.Errorf("%+v", m)
	}
	if cap(m.Payload) != len(m.Payload) {
		t.Error("an append to the payload would write over its neighbour")
	}
}

func TestBuffersAreUsedAgainAndBounded(t *testing.T) {
	var p Buffers
	data := encoded(t, EncodeRead(&p, []message.Message{{Payload: make([]byte, 2000)}}))
	if len(p.free) != 1 || cap(p.free[0]) < len(data) {
		t.Fatalf("%d buffers wait", len(p.free))
	}
	kept := &p.free[0][:1][0]
	if b := p.Lend(100); &b[:1][0] != kept || len(b) != 0 {
		t.Error("the buffer was not lent again")
	}
	for range 2 * maxFreeBuffers {
		data, _ := p.Raw(make([]byte, 0, 1500)).MarshalWire()
		data.Free()
	}
	large, _ := p.Raw(make([]byte, 0, maxFreeBytes+1)).MarshalWire()
	large.Free()
	if len(p.free) != maxFreeBuffers {
		t.Errorf("%d buffers wait", len(p.free))
	}
	useful, _ := p.Raw(make([]byte, 0, 3000)).MarshalWire()
	useful.Free()
	if b := p.Lend(3000); cap(b) != 3000 {
		t.Error("small buffers kept a larger one out")
	}
}

// The generated code is the oracle: both take the same bytes and see the same.
func FuzzRawDecoders(f *testing.F) {
	record := toProto(&message.Message{ID: "id", Type: message.TypeData, Term: 1, VChannel: "v", LastConfirmed: "l", Properties: map[string]string{"k": "v"}, Payload: []byte("x")})
	for _, m := range []proto.Message{
		&pluginv1.ReadResponse{Resolved: &pluginv1.Start{Id: []byte("s")}, Records: []*typesv1.Record{record, record}},
		&pluginv1.AppendRequest{Handle: 1, Sequence: 2, Records: []*typesv1.Record{record}},
		&walv1.ReadResponse{Records: []*walv1.ReadRecord{{Id: "1", Checkpoint: "t", Record: record, UnitEnd: true}}, CaughtUp: true, Resume: "r", End: "e", Checkpoint: "c"},
	} {
		b, _ := proto.Marshal(m)
		f.Add(b)
		f.Add(append(b, b...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		bad := func(records []*typesv1.Record) bool {
			return slices.ContainsFunc(records, func(r *typesv1.Record) bool { return r.GetTerm() < 0 || r.GetIncarnation() < 0 })
		}
		sameRecords := func(got []message.Message, want []*typesv1.Record) {
			if !slices.EqualFunc(got, want, func(m message.Message, r *typesv1.Record) bool { return equal(m, fromProto(r)) }) {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
		var read ReadBatch
		var response pluginv1.ReadResponse
		err := proto.Unmarshal(data, &response)
		if _ = read.UnmarshalWire(data); (read.Err == nil) != (err == nil && !bad(response.GetRecords())) {
			t.Fatalf("read batch: %v, generated: %v", read.Err, err)
		}
		if read.Err == nil {
			sameRecords(read.Records, response.GetRecords())
		}
		var request pluginv1.AppendRequest
		var in AppendBatch
		err = proto.Unmarshal(data, &request)
		if _ = in.UnmarshalWire(data); (in.Err == nil) != (err == nil && !bad(request.GetRecords())) {
			t.Fatalf("append batch: %v, generated: %v", in.Err, err)
		}
		if in.Err == nil {
			sameRecords(in.Records, request.GetRecords())
			if in.Sequence != request.GetSequence() || in.Handle != request.GetHandle() {
				t.Fatalf("%+v", in)
			}
		}
		var page Page
		var generated walv1.ReadResponse
		err = proto.Unmarshal(data, &generated)
		var records []*typesv1.Record
		for _, r := range generated.GetRecords() {
			records = append(records, r.GetRecord())
		}
		if got := page.UnmarshalWire(data); (got == nil) != (err == nil && !bad(records)) {
			t.Fatalf("page: %v, generated: %v", got, err)
		} else if got == nil {
			for i := range page.Records {
				d, want := &page.Records[i], generated.GetRecords()[i]
				if !equal(d.Message, fromProto(want.GetRecord())) || d.ID != want.GetId() || d.Checkpoint != want.GetCheckpoint() || d.UnitEnd != want.GetUnitEnd() {
					t.Fatalf("%+v, want %+v", d, want)
				}
			}
		}
	})
}
