package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/plugins/kafka"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Payload as value, vchannel as key, properties as headers behind _walrig.
func TestFranzReadsTheRecords(t *testing.T) {
	at := brokers.Kafka(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	prefix := fmt.Sprintf("read-%d-", time.Now().UnixNano())
	o, err := kafka.NewBuilder().Build(ctx, walimpls.Config{"brokers": at.Addrs, "topic_prefix": prefix, "compression": "lz4"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close(ctx)
	w, err := o.Open(ctx, walimpls.OpenOptions{Channel: "c", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	var want []message.Message
	for i := range 50 {
		want = append(want, message.Message{Type: message.TypeData, VChannel: "v", Payload: []byte(fmt.Sprint("record ", i)), Properties: map[string]string{"n": fmt.Sprint(i)}})
	}
	ids, err := w.Append(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(at.Addrs...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{prefix + "c": {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for got := 0; got < len(want); {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range f.Records() {
			if r.Key == nil {
				continue // the fence record
			}
			id, _ := ids[got].Uint64()
			if r.Offset != int64(id) || string(r.Value) != string(want[got].Payload) || string(r.Key) != "v" || len(r.Headers) != 2 ||
				r.Headers[0].Key != "_walrig" || r.Headers[1].Key != "n" || string(r.Headers[1].Value) != want[got].Properties["n"] {
				t.Fatalf("record %d: %+v", got, r)
			}
			got++
		}
	}
}
