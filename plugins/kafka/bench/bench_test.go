package bench

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/plugins/kafka"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

var (
	roundsFlag = flag.Int("rounds", 5, "rounds, each of which runs every contender once")
	lengthFlag = flag.Duration("length", 3*time.Second, "how long each contender runs in a round")
)

const (
	appenders = 128
	size      = 1 << 10
)

// contender appends one record and waits until it is durable.
type contender struct {
	name   string
	append func(ctx context.Context, payload []byte) error
}

// measured is what a contender did in all rounds.
type measured struct {
	rates []float64       // records a second
	p50s  []time.Duration // of one append
}

// run lets n goroutines append for d.
func run(b *testing.B, c contender, n int, d time.Duration) (rate float64, p50 time.Duration) {
	b.Helper()
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d+time.Minute)
	defer cancel()
	var done atomic.Int64
	var mu sync.Mutex
	var all []time.Duration
	began := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var mine []time.Duration
			for time.Since(began) < d {
				t := time.Now()
				if err := c.append(ctx, payload); err != nil {
					b.Errorf("%s: %v", c.name, err)
					return
				}
				mine = append(mine, time.Since(t))
				done.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	took := time.Since(began)
	slices.Sort(all)
	if len(all) == 0 {
		b.Fatalf("%s: nothing was appended", c.name)
	}
	return float64(done.Load()) / took.Seconds(), all[len(all)/2]
}

// compete runs the contenders in turns, the order changing from round to round.
func compete(b *testing.B, cs []contender, n int) map[string]*measured {
	b.Helper()
	out := map[string]*measured{}
	for _, c := range cs {
		out[c.name] = &measured{}
		run(b, c, n, *lengthFlag/3) // warm up: the JVM compiles, connections open
	}
	for round := range *roundsFlag {
		for i := range cs {
			c := cs[(i+round)%len(cs)]
			rate, p50 := run(b, c, n, *lengthFlag)
			out[c.name].rates = append(out[c.name].rates, rate)
			out[c.name].p50s = append(out[c.name].p50s, p50)
		}
	}
	return out
}

func median[T int64 | float64 | time.Duration](v []T) T {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}

func fatal(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func topicOf(name string) string { return fmt.Sprintf("bench-%s-%d", name, time.Now().UnixNano()) }

// franz is franz-go's idempotent producer with acks=all.
func franz(b *testing.B, at brokers.KafkaEndpoint) contender {
	b.Helper()
	topic := topicOf("franz")
	create(b, at, topic)
	c, err := kgo.NewClient(kgo.SeedBrokers(at.Addrs...), kgo.DefaultProduceTopic(topic), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(1<<16))
	fatal(b, err)
	b.Cleanup(c.Close)
	return contender{"franz-go", func(ctx context.Context, payload []byte) error {
		return c.ProduceSync(ctx, &kgo.Record{Value: payload}).FirstErr()
	}}
}

// raw is kafka-go's Client.Produce of one record at a time: no writer, no linger.
func raw(b *testing.B, at brokers.KafkaEndpoint) contender {
	b.Helper()
	topic := topicOf("raw")
	create(b, at, topic)
	transport := &kafkago.Transport{}
	c := &kafkago.Client{Addr: kafkago.TCP(at.Addr), Transport: transport}
	b.Cleanup(transport.CloseIdleConnections)
	return contender{"kafka-go", func(ctx context.Context, payload []byte) error {
		r, err := c.Produce(ctx, &kafkago.ProduceRequest{Topic: topic, RequiredAcks: kafkago.RequireAll,
			Records: kafkago.NewRecordReader(kafkago.Record{Value: kafkago.NewBytes(payload)})})
		if err == nil {
			err = r.Error
		}
		return err
	}}
}

func create(b *testing.B, at brokers.KafkaEndpoint, topic string) {
	b.Helper()
	transport := &kafkago.Transport{}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &kafkago.Client{Addr: kafkago.TCP(at.Addr), Transport: transport}
	r, err := c.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}})
	fatal(b, err)
	fatal(b, r.Errors[topic])
}

// plugin is the backend, linked in.
func plugin(b *testing.B, cfg walimpls.Config) contender {
	b.Helper()
	o, err := kafka.NewBuilder().Build(context.Background(), cfg, nil)
	fatal(b, err)
	b.Cleanup(func() { _ = o.Close(context.Background()) })
	w, err := o.Open(context.Background(), walimpls.OpenOptions{Channel: "plugin", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	fatal(b, err)
	return contender{"plugin", func(ctx context.Context, payload []byte) error {
		_, err := w.Append(ctx, []message.Message{{Type: message.TypeData, Payload: payload}})
		return err
	}}
}

// host is everything: client, host, plugin process.
func host(b *testing.B, cfg walimpls.Config) contender {
	b.Helper()
	c, err := client.Dial(context.Background(), startHost(b, cfg))
	fatal(b, err)
	b.Cleanup(func() { _ = c.Close() })
	a, err := c.NewAppender(context.Background(), "bench", client.AppenderOptions{})
	fatal(b, err)
	b.Cleanup(func() { _ = a.Close(context.Background()) })
	return contender{"host", func(ctx context.Context, payload []byte) error {
		_, err := a.Append(client.Record{Payload: payload}).Wait(ctx)
		return err
	}}
}

func config(at brokers.KafkaEndpoint) walimpls.Config {
	return walimpls.Config{"brokers": strings.Join(at.Addrs, ","), "topic_prefix": fmt.Sprintf("bench-%d-", time.Now().UnixNano())}
}

func BenchmarkThroughput(b *testing.B) {
	at := endpoint(b)
	cfg := config(at)
	results := compete(b, []contender{
		franz(b, at),
		plugin(b, cfg),
		host(b, cfg),
	}, appenders)
	best := 0.0
	for name, m := range results {
		b.Logf("%-10s %8.0f records/s (rounds %.0f), p50 %s", name, median(m.rates), m.rates, median(m.p50s))
		if name != "plugin" && name != "host" {
			best = max(best, median(m.rates))
		}
	}
	for _, name := range []string{"plugin", "host"} {
		ratio := median(results[name].rates) / best
		b.Logf("%s / best peer: %.2f", name, ratio)
		b.ReportMetric(ratio, name+"/peer")
	}
	b.ReportMetric(0, "ns/op")
}

func BenchmarkOneAtATime(b *testing.B) {
	at := endpoint(b)
	cfg := config(at)
	results := compete(b, []contender{
		raw(b, at),
		plugin(b, cfg),
		host(b, cfg),
	}, 1)
	own := median(results["kafka-go"].p50s)
	for name, m := range results {
		b.Logf("%-10s p50 %s (rounds %v)", name, median(m.p50s), m.p50s)
	}
	for _, name := range []string{"plugin", "host"} {
		more := median(results[name].p50s) - own
		b.Logf("%s: %s more than the peer's %s", name, more, own)
		b.ReportMetric(float64(more.Microseconds()), name+"-µs-more")
	}
	b.ReportMetric(0, "ns/op")
}
