package bench

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a log that takes so long for each batch, and stops for a while once.
type slow struct {
	takes   time.Duration
	stopAt  time.Duration // since the first batch
	stopFor time.Duration
	failAt  int64

	once  sync.Once
	began time.Time
	calls atomic.Int64
	under atomic.Int64
	most  atomic.Int64
}

var errBroken = errors.New("broken")

func (s *slow) Append(ctx context.Context, payloads [][]byte) error {
	s.once.Do(func() { s.began = time.Now() })
	under := s.under.Add(1)
	defer s.under.Add(-1)
	for most := s.most.Load(); under > most && !s.most.CompareAndSwap(most, under); most = s.most.Load() {
	}
	if n := s.calls.Add(1); s.failAt > 0 && n >= s.failAt {
		return errBroken
	}
	wait := s.takes
	if since := time.Since(s.began); s.stopFor > 0 && since >= s.stopAt && since < s.stopAt+s.stopFor {
		wait += s.stopAt + s.stopFor - since
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestAClosedLoopKeepsEveryAppenderBusyAndCountsTheMeasuredTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: 10 * time.Millisecond}
		r, err := Append(t.Context(), s, AppendOptions{Appenders: 8, Size: 100, Batch: 3, Duration: 10 * time.Second, Warmup: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		// 8 appenders × 100 batches a second × 3 records; the last batch of each ends
		// with the run.
		if want := int64(8 * 1000 * 3); r.Records > want || r.Records < want-8*3*2 || r.Bytes != 100*r.Records {
			t.Errorf("%+v, want about %d records", r, want)
		}
		if s.most.Load() != 8 || r.Latency.P50.Round(100*time.Microsecond) != 10*time.Millisecond || r.Latency.Max < 10*time.Millisecond {
			t.Errorf("%d under way, %+v", s.most.Load(), r.Latency)
		}
		if s.calls.Load() < 8*1490 {
			t.Errorf("%d batches: nothing was sent during the warm-up", s.calls.Load())
		}
	})
}

func TestAnOpenLoopKeepsItsRateAndCountsFromTheIntendedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A second's pause in ten, with one appender: everything that was to be sent in
		// the pause is late, although one batch alone was stuck.
		s := &slow{takes: 100 * time.Microsecond, stopAt: 5 * time.Second, stopFor: time.Second}
		r, err := Append(t.Context(), s, AppendOptions{Appenders: 1, Rate: 1000, Size: 1, Batch: 1, Duration: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if r.Records < 9990 || r.Records > 10000 {
			t.Errorf("%d records at 1000 a second for 10 s", r.Records)
		}
		if r.Latency.P50 > time.Millisecond || r.Latency.P99 < 500*time.Millisecond || r.Latency.Max < 900*time.Millisecond {
			t.Errorf("the pause is not in the latencies: %+v", r.Latency)
		}
	})
}

func TestAnOpenLoopThatCannotKeepUpEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r, err := Append(t.Context(), &slow{takes: 100 * time.Millisecond}, AppendOptions{Appenders: 1, Rate: 1000, Batch: 1, Duration: 2 * time.Second})
		if err != nil || r.Records > 20 || time.Since(start) > 3*time.Second {
			t.Errorf("%+v, %v after %s", r, err, time.Since(start))
		}
	})
}

func TestTheFirstFailureEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: time.Millisecond, failAt: 100}
		_, err := Append(t.Context(), s, AppendOptions{Appenders: 4, Batch: 1, Duration: time.Hour})
		if !errors.Is(err, errBroken) || s.calls.Load() > 104 {
			t.Errorf("%v after %d batches", err, s.calls.Load())
		}
	})
}

func TestAnInterruptedRunSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{0, 1} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := Append(ctx, &slow{takes: time.Millisecond}, AppendOptions{Appenders: 4, Rate: rate, Batch: 1, Duration: time.Hour})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("rate %g: %v", rate, err)
			}
			cancel()
		}
	})
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	good := AppendOptions{Appenders: 1, Batch: 1, Duration: time.Second}
	for _, change := range []func(*AppendOptions){
		func(o *AppendOptions) { o.Appenders = 0 }, func(o *AppendOptions) { o.Batch = 0 }, func(o *AppendOptions) { o.Size = -1 },
		func(o *AppendOptions) { o.Rate = -1 }, func(o *AppendOptions) { o.Duration = 0 }, func(o *AppendOptions) { o.Warmup = -1 },
	} {
		bad := good
		change(&bad)
		if _, err := Append(t.Context(), &slow{}, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

type pages struct {
	left   int
	closed bool
}

func (p *pages) Next(context.Context) (int, int64, error) {
	if p.left == 0 {
		return 0, 0, io.EOF
	}
	p.left--
	time.Sleep(time.Millisecond)
	return 10, 100, nil
}

func (p *pages) Close() error { p.closed = true; return nil }

func TestReadCountsEverythingToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pages{left: 50}
		r, err := Read(t.Context(), func(context.Context) (Source, error) { return p, nil })
		if err != nil || r.Records != 500 || r.Bytes != 5000 || r.Elapsed != 50*time.Millisecond || r.RecordsPerSecond() != 10000 || !p.closed {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
