package bench

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/plugins/pulsar"
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

// peer is a producer of the Pulsar client on a topic of its own.
func peer(b *testing.B, at brokers.PulsarEndpoint, name string, opt pulsarclient.ProducerOptions) contender {
	b.Helper()
	c, err := pulsarclient.NewClient(pulsarclient.ClientOptions{URL: at.ServiceURL, Logger: plog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry()})
	fatal(b, err)
	opt.Topic = fmt.Sprintf("persistent://public/default/walrig-bench-%s-%d", name, time.Now().UnixNano())
	p, err := c.CreateProducer(opt)
	fatal(b, err)
	b.Cleanup(func() { p.Close(); c.Close() })
	return contender{name, func(ctx context.Context, payload []byte) error {
		// As many users wait as in the other contenders; Send would flush each batch.
		sent := make(chan error, 1)
		p.SendAsync(ctx, &pulsarclient.ProducerMessage{Payload: payload}, func(_ pulsarclient.MessageID, _ *pulsarclient.ProducerMessage, err error) { sent <- err })
		select {
		case err := <-sent:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// sender is peer with Send, which flushes at once.
func sender(b *testing.B, at brokers.PulsarEndpoint, name string, opt pulsarclient.ProducerOptions) contender {
	b.Helper()
	c, err := pulsarclient.NewClient(pulsarclient.ClientOptions{URL: at.ServiceURL, Logger: plog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry()})
	fatal(b, err)
	opt.Topic = fmt.Sprintf("persistent://public/default/walrig-bench-%s-%d", name, time.Now().UnixNano())
	p, err := c.CreateProducer(opt)
	fatal(b, err)
	b.Cleanup(func() { p.Close(); c.Close() })
	return contender{name, func(ctx context.Context, payload []byte) error {
		_, err := p.Send(ctx, &pulsarclient.ProducerMessage{Payload: payload})
		return err
	}}
}

// plugin is the backend, linked in.
func plugin(b *testing.B, cfg walimpls.Config) contender {
	b.Helper()
	o, err := pulsar.NewBuilder().Build(context.Background(), cfg, nil)
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

func config(at brokers.PulsarEndpoint) walimpls.Config {
	return walimpls.Config{"service_url": at.ServiceURL, "admin_url": at.AdminURL, "namespace": fmt.Sprintf("walrig-bench-%d", time.Now().UnixNano())}
}

func BenchmarkThroughput(b *testing.B) {
	at := endpoint(b)
	cfg := config(at)
	results := compete(b, []contender{
		peer(b, at, "peer-1ms", pulsarclient.ProducerOptions{BatchingMaxPublishDelay: time.Millisecond}),
		peer(b, at, "peer-10ms", pulsarclient.ProducerOptions{}),
		sender(b, at, "peer-send", pulsarclient.ProducerOptions{}),
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
		sender(b, at, "peer", pulsarclient.ProducerOptions{DisableBatching: true}),
		plugin(b, cfg),
		host(b, cfg),
	}, 1)
	own := median(results["peer"].p50s)
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
