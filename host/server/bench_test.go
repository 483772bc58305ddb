package server

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/walrig/walrig/sdk/client"
)

// BenchmarkAppendStream pipes short lines through client and host into the
// memory of this process.
func BenchmarkAppendStream(b *testing.B) {
	h := newHost(b, Options{})
	c := h.create("orders")
	ctx := context.Background()
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(b, err)
	payload := []byte("a short line of text, as logs have them")
	b.ReportAllocs()
	for b.Loop() {
		a.Append(client.Record{Payload: payload})
	}
	must(b, a.Close(ctx))
}

// BenchmarkRead reads them back.
func BenchmarkRead(b *testing.B) {
	h := newHost(b, Options{})
	c := h.create("orders")
	ctx := context.Background()
	a, err := c.NewAppender(ctx, "orders", client.AppenderOptions{})
	must(b, err)
	const n = 100_000
	for range n {
		a.Append(client.Record{Payload: []byte("a short line of text, as logs have them")})
	}
	must(b, a.Close(ctx))
	b.ReportAllocs()
	left, r := 0, (*client.Reader)(nil)
	for b.Loop() {
		if left == 0 {
			if r != nil {
				if _, err := r.Next(ctx); !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
				must(b, r.Close())
			}
			r, err = c.NewReader(ctx, "orders", client.ReadOptions{})
			must(b, err)
			left = n
		}
		if _, err := r.Next(ctx); err != nil {
			b.Fatal(err)
		}
		left--
	}
	must(b, r.Close())
}
