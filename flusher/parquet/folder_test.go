package parquet_test

import (
	"context"
	"os"
	"testing"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/flusher/sinktest"
	"github.com/walrig/walrig/sdk/message"
)

func TestSuiteInAFolder(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		dir := t.TempDir()
		return sinktest.Target{
			New: func(t *testing.T) flusher.Sink { return openSink(t, "file://"+dir, parquet.Options{}) },
			ReadFile: func(t *testing.T, f flusher.File) []message.Message {
				data, err := os.ReadFile(f.Path)
				if err != nil {
					t.Fatal(err)
				}
				return readRows(t, data)
			},
		}
	})
}

func openSink(t testing.TB, url string, opt parquet.Options) *parquet.Sink {
	t.Helper()
	s, err := parquet.Open(context.Background(), url, opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
