package parquet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gocloud.dev/blob"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/flusher/sinktest"
	"github.com/walrig/walrig/internal/s3test"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestSuiteOnS3(t *testing.T) {
	server := s3test.Start(t)
	server.SetEnv(t)
	buckets := 0
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		buckets++
		name := fmt.Sprintf("bucket-%d", buckets)
		url := server.CreateBucket(t, name)
		plain, err := blob.OpenBucket(context.Background(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = plain.Close() })
		return sinktest.Target{
			New: func(t *testing.T) flusher.Sink {
				return openSink(t, strings.Replace(url, name, name+"/some/prefix", 1), parquet.Options{})
			},
			ReadFile: func(t *testing.T, f flusher.File) []message.Message {
				key, ok := strings.CutPrefix(f.Path, "s3://"+name+"/")
				if !ok || !strings.HasPrefix(key, "some/prefix/") {
					t.Fatalf("path %q is not in the bucket", f.Path)
				}
				data, err := plain.ReadAll(context.Background(), key)
				if err != nil {
					t.Fatal(err)
				}
				return readRows(t, data)
			},
		}
	})
}

func TestS3ErrorsSayWhatToDo(t *testing.T) {
	server := s3test.Start(t)
	server.SetEnv(t)
	key := flusher.SinkKey{PChannel: "p", StoreID: "s", VChannel: "v", Term: 1}
	open := func(url string) error {
		s := openSink(t, url, parquet.Options{})
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := s.Open(ctx, key)
		return err
	}
	good := server.CreateBucket(t, "good")
	if err := open(good); err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error, code walimpls.Code, retryable bool) {
		t.Helper()
		var e *walimpls.Error
		if !errors.As(err, &e) || e.Code != code || e.Retryable != retryable || e.Hint == "" || e.Channel != "p" {
			t.Errorf("%s: %#v, want code %s, retryable %v, and a hint", what, err, code, retryable)
		}
	}
	check("missing bucket", open(server.URL("missing")), walimpls.CodeNotFound, false)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	check("wrong secret", open(good), walimpls.CodeUnauthenticated, false)
	t.Setenv("AWS_ACCESS_KEY_ID", "nobody")
	check("unknown key", open(good), walimpls.CodeUnauthenticated, false)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	check("no credentials", open(good), walimpls.CodeUnauthenticated, false)
	server.SetEnv(t)
	server.Stop(t)
	check("server gone", open(good), walimpls.CodeUnavailable, true)
}
