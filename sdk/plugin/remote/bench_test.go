package remote_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/walimpls"
)

// BenchmarkAppendRemote measures the hop alone: the backend acknowledges at once.
func BenchmarkAppendRemote(b *testing.B) {
	for _, callers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			back := &membackend.Backend{Null: true}
			w := open(b, configured(b, back).Client, "bench", 1, 1)
			ctx := context.Background()
			batch := []message.Message{{Type: message.TypeData, Payload: make([]byte, 1024)}}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.SetBytes(1024)
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := w.Append(ctx, batch); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/float64(back.Appends.Load()), "records/commit")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkReadRemote reads records of 1 KiB that are all there already.
func BenchmarkReadRemote(b *testing.B) {
	w := open(b, configured(b, &membackend.Backend{}).Client, "bench", 1, 1)
	ctx := context.Background()
	batch := make([]message.Message, 512)
	for i := range batch {
		batch[i] = message.Message{Type: message.TypeData, Payload: make([]byte, 1024)}
	}
	const stored = 64 * 512
	for range stored / len(batch) {
		if _, err := w.Append(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		s, err := w.Read(ctx, walimpls.ReadOptions{Start: walimpls.FromAll()})
		if err != nil {
			b.Fatal(err)
		}
		for n := 0; n < stored && done < b.N; {
			got, err := s.Next(ctx)
			if err != nil {
				b.Fatal(err)
			}
			n += len(got)
			done += len(got)
		}
		_ = s.Close()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
