package rmq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// randomPayload does not compress, like what most applications append.
func randomPayload(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(b)
	return b
}

// BenchmarkAppend: durable appends of 1 KiB, one record a call.
func BenchmarkAppend(b *testing.B) {
	for _, appenders := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			s := newDiskStore(b)
			s.cfg = walimpls.Config{"segment_size": "16MiB"}
			w := mustOpen(b, s.opener(), rw("c", 1, 1))
			batch := []message.Message{{Type: message.TypeData, Payload: randomPayload(1024)}}
			b.SetBytes(1024)
			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var running sync.WaitGroup
			for range appenders {
				running.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := w.Append(context.Background(), batch); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			running.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkScan: one scanner reads records of 1 KiB from the start.
func BenchmarkScan(b *testing.B) {
	s := newDiskStore(b)
	s.cfg = walimpls.Config{"segment_size": "16MiB"}
	w := mustOpen(b, s.opener(), rw("c", 1, 1))
	batch := make([]message.Message, 1000)
	for i := range batch {
		batch[i] = message.Message{Type: message.TypeData, Payload: randomPayload(1024)}
	}
	const records = 200_000
	for range records / len(batch) {
		if _, err := w.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		sc := mustRead(b, w, walimpls.FromAll())
		for at := 0; at < records && n < b.N; {
			got, err := sc.Next(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			at += len(got)
			n += len(got)
		}
		must(b, sc.Close())
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
