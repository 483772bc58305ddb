package parquet_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"go.uber.org/goleak"
	"gocloud.dev/blob/memblob"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/flusher/sinktest"
	"github.com/walrig/walrig/sdk/message"
)

func TestMain(m *testing.M) {
	// The cloud clients keep idle connections for their next use, also by others.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"), goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"))
}

// readRows decodes a file's bytes with parquet-go.
func readRows(t *testing.T, data []byte) []message.Message {
	t.Helper()
	rows, err := pq.Read[parquet.Row](bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]message.Message, len(rows))
	for i, r := range rows {
		typ := message.TypeInvalid
		for n := message.TypeInvalid; n <= message.TypeFlush; n++ {
			if n.String() == r.Type {
				typ = n
			}
		}
		out[i] = message.Message{
			ID: message.ID(r.MessageID), Type: typ, VChannel: r.VChannel, Term: r.Term, TimeTick: message.Tick(r.TimeTick),
			TxnID: r.TxnID, Properties: r.Properties, Payload: r.Payload,
		}
	}
	return out
}

func TestSuiteInMemory(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		// One bucket, as several processes would see it.
		bucket := memblob.OpenBucket(nil)
		t.Cleanup(func() { _ = bucket.Close() })
		return sinktest.Target{
			New: func(*testing.T) flusher.Sink { return parquet.New(bucket, "mem:///", parquet.Options{}) },
			ReadFile: func(t *testing.T, f flusher.File) []message.Message {
				data, err := bucket.ReadAll(context.Background(), strings.TrimPrefix(f.Path, "mem:///"))
				if err != nil {
					t.Fatal(err)
				}
				return readRows(t, data)
			},
		}
	})
}
