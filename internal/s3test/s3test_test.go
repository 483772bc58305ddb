package s3test_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/walrig/walrig/internal/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerKeepsObjectsOverARestartAndRefusesASecondCreate(t *testing.T) {
	s := s3test.Start(t)
	s.CreateBucket(t, "bucket")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	put := func() error {
		_, err := s.Client().PutObject(ctx, &s3.PutObjectInput{
			Bucket: aws.String("bucket"), Key: aws.String("a/b/c"), Body: strings.NewReader("x"), IfNoneMatch: aws.String("*"),
		})
		return err
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr()
	s.Stop(t)
	s.Stop(t)
	s.Restart(t)
	if s.Addr() != addr {
		t.Fatalf("the address changed from %s to %s", addr, s.Addr())
	}
	if err := put(); err == nil || !strings.Contains(err.Error(), "PreconditionFailed") {
		t.Fatalf("a second create-only write: %v, want PreconditionFailed", err)
	}
}
