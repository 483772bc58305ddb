// Command bench compares the embedded log with its peers: durable appends of
// one size, each acknowledged after it is on the disk, in interleaved rounds of
// one run. It prints every value, the medians, and the ratios to a bare
// segment file.
//
//	go run . -rounds 5 -time 10s -appenders 1,128,1024
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/plugin"
)

// store is one peer. Append returns when the payload is durable; it is called
// by any number of appenders, each with its own number.
type store interface {
	Append(appender int, payload []byte) error
	Close() error
}

// peer makes a store in an empty folder for a number of appenders.
type peer struct {
	name string
	open func(dir string, appenders int) (store, error)
}

// serveEnv makes the program the plugin that it measures.
const serveEnv = "WALRIG_BENCH_SERVE"

type options struct {
	dir       string
	rounds    int
	time      time.Duration
	warm      time.Duration
	size      int
	appenders []int
	only      string
}

func main() {
	if os.Getenv(serveEnv) != "" {
		plugin.Serve(rmq.NewBuilder())
		return
	}
	var opt options
	var counts string
	flag.StringVar(&opt.dir, "dir", "", "folder on the disk to measure (default: a temporary one here)")
	flag.IntVar(&opt.rounds, "rounds", 5, "rounds, interleaved over the peers")
	flag.DurationVar(&opt.time, "time", 10*time.Second, "length of one measurement")
	flag.DurationVar(&opt.warm, "warm", time.Second, "time before it that is not counted")
	flag.IntVar(&opt.size, "size", 1024, "payload bytes")
	flag.StringVar(&counts, "appenders", "1,128,1024", "numbers of appenders")
	flag.StringVar(&opt.only, "only", "", "measure only peers whose name has one of these comma-separated texts")
	flag.Parse()
	for _, text := range strings.Split(counts, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "bench: -appenders: %q is no number of appenders\n", text)
			os.Exit(2)
		}
		opt.appenders = append(opt.appenders, n)
	}
	if err := run(opt); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// sample is one measurement.
type sample struct {
	perSecond float64
	p50, p99  time.Duration
}

func run(opt options) error {
	base, err := os.MkdirTemp(opt.dir, "rmq-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	var peers []peer
	for _, p := range allPeers() {
		chosen := opt.only == ""
		for _, text := range strings.Split(opt.only, ",") {
			chosen = chosen || text != "" && strings.Contains(p.name, text)
		}
		if chosen {
			peers = append(peers, p)
		}
	}
	fmt.Printf("%s %s/%s, %d cores; %d B payloads, %d rounds of %s, every append durable before it is acknowledged\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), opt.size, opt.rounds, opt.time)
	for _, n := range opt.appenders {
		results := make([][]sample, len(peers))
		for round := range opt.rounds {
			for i, p := range peers {
				dir := filepath.Join(base, "store")
				s, err := measure(opt, p, dir, n)
				if err != nil {
					return fmt.Errorf("%s with %d appenders, round %d: %w", p.name, n, round+1, err)
				}
				if err := os.RemoveAll(dir); err != nil {
					return err
				}
				results[i] = append(results[i], s)
			}
		}
		report(n, peers, results)
	}
	return nil
}

func measure(opt options, p peer, dir string, appenders int) (sample, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sample{}, err
	}
	s, err := p.open(dir, appenders)
	if err != nil {
		return sample{}, err
	}
	var counting, stop atomic.Bool
	var failure atomic.Value
	latencies := make([][]time.Duration, appenders)
	var running sync.WaitGroup
	for a := range appenders {
		running.Go(func() {
			payload := make([]byte, opt.size)
			rng := rand.NewChaCha8([32]byte{byte(a), byte(a >> 8)})
			_, _ = rng.Read(payload) // never fails
			for !stop.Load() {
				began := time.Now()
				if err := s.Append(a, payload); err != nil {
					failure.CompareAndSwap(nil, fmt.Errorf("append: %w", err))
					return
				}
				if counting.Load() {
					latencies[a] = append(latencies[a], time.Since(began))
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), opt.warm)
	<-ctx.Done()
	cancel()
	counting.Store(true)
	began := time.Now()
	ctx, cancel = context.WithTimeout(context.Background(), opt.time)
	<-ctx.Done()
	cancel()
	counting.Store(false)
	took := time.Since(began)
	stop.Store(true)
	running.Wait()
	err, _ = failure.Load().(error)
	if closeErr := s.Close(); err == nil {
		err = closeErr
	}
	all := slices.Concat(latencies...)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("nothing was appended in %s", took)
	}
	if err != nil {
		return sample{}, err
	}
	slices.Sort(all)
	return sample{perSecond: float64(len(all)) / took.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100]}, nil
}

func report(appenders int, peers []peer, results [][]sample) {
	fmt.Printf("\n%d appenders\n%-28s %12s %8s %10s %10s  all (records/s)\n", appenders, "", "records/s", "ratio", "p50", "p99")
	bare := 0.0
	for i, p := range peers {
		var rates, p50s, p99s []float64
		for _, s := range results[i] {
			rates = append(rates, s.perSecond)
			p50s = append(p50s, float64(s.p50))
			p99s = append(p99s, float64(s.p99))
		}
		if p.name == bareName {
			bare = median(rates)
		}
		ratio := "-"
		if bare > 0 {
			ratio = fmt.Sprintf("%.2f", median(rates)/bare)
		}
		all := make([]string, len(rates))
		for k, v := range rates {
			all[k] = fmt.Sprintf("%.0f", v)
		}
		fmt.Printf("%-28s %12.0f %8s %10s %10s  %s\n", p.name, median(rates), ratio,
			time.Duration(median(p50s)).Round(time.Microsecond), time.Duration(median(p99s)).Round(time.Microsecond), strings.Join(all, " "))
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
