package wal

import (
	"context"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// store makes the opener of a backend for a benchmark.
type store func(b *testing.B) (walimpls.Opener, walimpls.Description)

func build(b *testing.B, builder walimpls.Builder, cfg walimpls.Config) (walimpls.Opener, walimpls.Description) {
	b.Helper()
	o, err := builder.Build(context.Background(), cfg, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = o.Close(context.Background()) })
	return o, builder.Describe()
}

// memory is a store in memory: what the host adds is all that is measured.
func memory(b *testing.B) (walimpls.Opener, walimpls.Description) {
	return build(b, faultbackend.NewBuilder(), nil)
}

// durable is rmq in process, which syncs before it acknowledges.
func durable(b *testing.B) (walimpls.Opener, walimpls.Description) {
	return build(b, rmq.NewBuilder(), walimpls.Config{"dir": filepath.Join(b.TempDir(), "rmq")})
}

func benchWAL(b *testing.B, s store) WAL {
	b.Helper()
	o, desc := s(b)
	c, err := catalog.OpenBolt(filepath.Join(b.TempDir(), "catalog"), catalog.BoltOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	if err := c.Create(context.Background(), catalog.Row{Channel: testChannel, Plugin: "bench"}); err != nil {
		b.Fatal(err)
	}
	w, err := NewOpener(Options{
		Catalog: c, Backend: func(string) (Backend, error) { return backend{o, desc}, nil },
	}).Open(context.Background(), testChannel, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close(context.Background()) })
	return w
}

const benchAppenders = 128

// parallel runs n appends by 128 appenders, one record each.
func parallel(b *testing.B, appendOne func(m message.Message)) {
	payload := make([]byte, 1024)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range benchAppenders {
		wg.Go(func() {
			for n := i; n < b.N; n += benchAppenders {
				appendOne(message.Message{Type: message.TypeData, Payload: payload})
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkAppend compares the owner's path (ticks, tracking, write-ahead
// buffer) with the same hand-over without it, on a store that is durable and on
// one that costs nothing.
func BenchmarkAppend(b *testing.B) {
	// As the host does: both paths pay for collecting what they allocate.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, c := range []struct {
		name  string
		store store
	}{{"durable", durable}, {"memory", memory}} {
		b.Run(c.name+"/ticks", func(b *testing.B) {
			w := benchWAL(b, c.store)
			parallel(b, func(m message.Message) {
				if r := w.Append(context.Background(), []message.Message{m}); r[0].State != walimpls.Stored {
					b.Error(r[0].Err)
				}
			})
		})
		b.Run(c.name+"/plain", func(b *testing.B) {
			o, _ := c.store(b)
			handle, err := o.Open(context.Background(), walimpls.OpenOptions{Channel: testChannel, Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
			if err != nil {
				b.Fatal(err)
			}
			h := async(handle)
			b.Cleanup(func() { _ = h.Close(context.Background()) })
			parallel(b, func(m message.Message) {
				out := make(chan []walimpls.Outcome, 1)
				h.AppendAsync([]message.Message{m}, func(o []walimpls.Outcome) { out <- o })
				if o := <-out; o[0].State != walimpls.Stored {
					b.Error(o[0].Err)
				}
			})
		})
	}
}

// fill appends n records of 1 KiB in batches.
func fill(b *testing.B, w WAL, n int) {
	b.Helper()
	payload := make([]byte, 1024)
	var wg sync.WaitGroup
	for n > 0 {
		batch := make([]message.Message, min(n, 512))
		for i := range batch {
			batch[i] = message.Message{Type: message.TypeData, Payload: payload}
		}
		n -= len(batch)
		wg.Add(1)
		w.AppendAsync(context.Background(), batch, func([]Result) { wg.Done() })
	}
	wg.Wait()
}

func scan(b *testing.B, s *scanner.Scanner, n int) {
	b.Helper()
	for n > 0 {
		units, err := s.Next(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		for _, u := range units {
			n -= len(u.Messages)
		}
	}
}

// BenchmarkCatchUp reads from the backend, BenchmarkTailing from the
// write-ahead buffer; allocations are per record.
func BenchmarkCatchUp(b *testing.B) {
	w := benchWAL(b, memory)
	const records = 20000
	fill(b, w, records)
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += records {
		s, err := w.Read(context.Background(), scanner.Options{Start: scanner.All})
		if err != nil {
			b.Fatal(err)
		}
		scan(b, s, min(records, b.N-n))
		_ = s.Close()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkTailing(b *testing.B) {
	w := benchWAL(b, memory)
	s, err := w.Read(context.Background(), scanner.Options{Start: scanner.Latest})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += 8192 {
		b.StopTimer()
		fill(b, w, min(8192, b.N-n))
		b.StartTimer()
		scan(b, s, min(8192, b.N-n))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
