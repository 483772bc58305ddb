package parquet_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	pq "github.com/parquet-go/parquet-go"
	pqzstd "github.com/parquet-go/parquet-go/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/sdk/message"
)

// benchRows makes rows of 1 KiB that compress to about a half, as text does.
func benchRows(n int) []message.Message {
	rng := rand.New(rand.NewPCG(1, 2))
	rows := make([]message.Message, n)
	for i := range rows {
		payload := make([]byte, 1024)
		for j := range payload {
			payload[j] = 'a' + byte(rng.IntN(16))
		}
		rows[i] = message.Message{
			ID: message.Uint64ID(uint64(i + 1)), Type: message.TypeData, VChannel: "v1", Term: 1, TimeTick: message.Tick(1<<40 + i*1000),
			Properties: map[string]string{"source": "bench", "n": fmt.Sprint(i)}, Payload: payload,
		}
	}
	return rows
}

// plainFile writes the rows with the Parquet library alone: the same schema and
// compression, no row group bound, no manifest. synced adds the one fsync that
// makes the file's content durable.
func plainFile(b *testing.B, path string, rows []message.Message, synced bool) {
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	w := pq.NewGenericWriter[parquet.Row](f, pq.Compression(&pqzstd.Codec{Level: zstd.SpeedFastest}))
	chunk := make([]parquet.Row, 0, 256)
	for len(rows) > 0 {
		chunk = chunk[:0]
		for len(rows) > 0 && len(chunk) < cap(chunk) {
			m := rows[0]
			rows = rows[1:]
			chunk = append(chunk, parquet.Row{
				MessageID: []byte(m.ID), TimeTick: uint64(m.TimeTick), Term: m.Term, Type: m.Type.String(),
				VChannel: m.VChannel, TxnID: m.TxnID, Properties: m.Properties, Payload: m.Payload,
			})
		}
		if _, err := w.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	if synced {
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkFlush flushes the same rows with the sink and with the Parquet library
// alone into the same folder, in turns, and reports the ratio of their times
// (library ÷ sink; 1 is as fast).
func BenchmarkFlush(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 60_000} {
		for _, synced := range []bool{true, false} {
			b.Run(fmt.Sprintf("rows=%d/peer_fsync=%v", n, synced), func(b *testing.B) {
				rows := benchRows(n)
				dir := b.TempDir()
				s := openSink(b, "file://"+filepath.Join(dir, "sink"), parquet.Options{})
				defer func() { _ = s.Close() }()
				ctx := context.Background()
				v, err := s.Open(ctx, flusher.SinkKey{PChannel: "p", StoreID: "s", VChannel: "v1", Term: 1})
				if err != nil {
					b.Fatal(err)
				}
				var sink, plain time.Duration
				tick := message.Tick(1)
				for i := range b.N {
					start := time.Now()
					tick++
					if _, err := v.Flush(ctx, rows, message.Checkpoint{StoreID: "s", ID: "x", Term: 1, Tick: tick}); err != nil {
						b.Fatal(err)
					}
					sink += time.Since(start)
					start = time.Now()
					plainFile(b, filepath.Join(dir, fmt.Sprint(i, ".parquet")), rows, synced)
					plain += time.Since(start)
				}
				total := float64(b.N * n)
				b.ReportMetric(total/sink.Seconds(), "sink-rows/s")
				b.ReportMetric(total/plain.Seconds(), "library-rows/s")
				b.ReportMetric(plain.Seconds()/sink.Seconds(), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkOpen opens 10,000 vchannels that a former owner left behind, 32 at a
// time, as a host does after a restart. s/op is all of them, with the listing.
func BenchmarkOpen(b *testing.B) {
	const vchannels, files = 10_000, 1
	url := "file://" + b.TempDir()
	ctx := context.Background()
	all := func(s *parquet.Sink, term int64, each func(v flusher.VChannelSink) error) {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(32)
		for i := range vchannels {
			g.Go(func() error {
				v, err := s.Open(ctx, flusher.SinkKey{PChannel: "p", StoreID: "s", VChannel: fmt.Sprintf("vchannel-%05d", i), Term: term})
				if err != nil {
					return err
				}
				return each(v)
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	s := openSink(b, url, parquet.Options{})
	all(s, 1, func(v flusher.VChannelSink) error {
		for i := range files {
			cp := message.Checkpoint{StoreID: "s", ID: "x", Term: 1, Tick: message.Tick(i + 2)}
			if _, err := v.Flush(ctx, []message.Message{{ID: "x", Type: message.TypeData, Term: 1, TimeTick: message.Tick(i + 1)}}, cp); err != nil {
				return err
			}
		}
		return nil
	})
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for i := range b.N {
		s := openSink(b, url, parquet.Options{})
		names, err := s.VChannels(ctx, "p", "s")
		if err != nil || len(names) != vchannels {
			b.Fatalf("%d vchannels: %v", len(names), err)
		}
		all(s, int64(i+2), func(flusher.VChannelSink) error { return nil })
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
