package bench

import (
	"math"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what was measured.
type Result struct {
	// Records and Bytes (of payload) were acknowledged or read within Elapsed.
	Records int64
	Bytes   int64
	Elapsed time.Duration
	// Latency is of appended batches.
	Latency Latency
}

// Latency holds percentiles with three significant digits.
type Latency struct {
	Mean, P50, P90, P99, P999, Max time.Duration
}

// RecordsPerSecond is the throughput.
func (r Result) RecordsPerSecond() float64 { return float64(r.Records) / r.Elapsed.Seconds() }

// MiBPerSecond is the throughput in payload.
func (r Result) MiBPerSecond() float64 { return float64(r.Bytes) / (1 << 20) / r.Elapsed.Seconds() }

// maxLatency bounds what a histogram can hold; longer ones count as this long.
const maxLatency = 10 * time.Minute

// maxRecorders bounds the memory: a histogram takes about 160 KiB.
const maxRecorders = 16

// recorder is what some of the appenders have measured.
type recorder struct {
	mu      sync.Mutex
	latency *hdrhistogram.Histogram
	records int64
}

func newRecorder() *recorder {
	return &recorder{latency: hdrhistogram.New(1, maxLatency.Microseconds(), 3)}
}

func (r *recorder) add(latency time.Duration, records int) {
	us := min(max(latency.Microseconds(), 1), maxLatency.Microseconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.latency.RecordValue(us) // it is within the bounds
	r.records += int64(records)
}

func merge(parts []*recorder, elapsed time.Duration, size int) Result {
	all := newRecorder()
	for _, p := range parts {
		all.latency.Merge(p.latency)
		all.records += p.records
	}
	at := func(percent float64) time.Duration {
		return time.Duration(all.latency.ValueAtPercentile(percent)) * time.Microsecond
	}
	mean := time.Duration(math.Round(all.latency.Mean())) * time.Microsecond
	return Result{
		Records: all.records, Bytes: all.records * int64(size), Elapsed: elapsed,
		Latency: Latency{Mean: mean, P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: time.Duration(all.latency.Max()) * time.Microsecond},
	}
}
