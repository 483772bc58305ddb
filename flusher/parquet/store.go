package parquet

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"cloud.google.com/go/storage"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/walrig/walrig/sdk/walimpls"
)

// store is all that the sink asks of a bucket. The tests put faults in here.
type store interface {
	// create starts a new object, which appears, durable, when the writer is closed.
	// Ending ctx before that leaves nothing behind.
	create(ctx context.Context, key string) (io.WriteCloser, error)
	// put writes a small object that must not be there yet; else errExists.
	put(ctx context.Context, key string, data []byte) error
	get(ctx context.Context, key string, limit int64) ([]byte, error)
	// list gives the objects below prefix with a key above after ("" is all), in order.
	list(ctx context.Context, prefix, after string, each func(object) error) error
	// remove deletes an object; a missing one is success.
	remove(ctx context.Context, key string) error
	close() error
}

type object struct {
	key string
	// modUnix is the time of the last write in Unix seconds, by the store's clock.
	modUnix int64
}

// errExists is the outcome of a create-only write that came second.
var errExists = errors.New("the object is there already")

// partBytes and partsAtOnce bound what one upload to a cloud store buffers.
const (
	partBytes   = 5 << 20
	partsAtOnce = 2
)

// bucketStore is the store over the blob library.
type bucketStore struct {
	bucket *blob.Bucket
	prefix string // "" or ends with a slash
	owned  bool   // closed with the store
}

func (s *bucketStore) create(ctx context.Context, key string) (io.WriteCloser, error) {
	return s.bucket.NewWriter(ctx, s.prefix+key, &blob.WriterOptions{
		ContentType: "application/vnd.apache.parquet", BufferSize: partBytes, MaxConcurrency: partsAtOnce,
	})
}

func (s *bucketStore) put(ctx context.Context, key string, data []byte) error {
	err := s.bucket.WriteAll(ctx, s.prefix+key, data, &blob.WriterOptions{ContentType: "application/json", IfNotExist: true})
	if gcerrors.Code(err) == gcerrors.FailedPrecondition || gcerrors.Code(err) == gcerrors.AlreadyExists {
		return errExists
	}
	return err
}

func (s *bucketStore) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	r, err := s.bucket.NewReader(ctx, s.prefix+key, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = walimpls.Errorf(walimpls.CodeCorrupt, "", "object %q is larger than %d bytes", key, limit)
	}
	return data, err
}

func (s *bucketStore) list(ctx context.Context, prefix, after string, each func(object) error) error {
	if after != "" {
		after = s.prefix + after
	}
	it := s.bucket.List(&blob.ListOptions{Prefix: s.prefix + prefix, BeforeList: func(as func(any) bool) error {
		if after != "" {
			startAfter(as, after)
		}
		return nil
	}})
	for {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if o.Key <= after { // not every driver can start in the middle
			continue
		}
		if err := each(object{key: strings.TrimPrefix(o.Key, s.prefix), modUnix: o.ModTime.Unix()}); err != nil {
			return err
		}
	}
}

// startAfter hands the start to those drivers that can begin a listing in the
// middle; with the others the caller skips.
func startAfter(as func(any) bool, after string) {
	var in *s3.ListObjectsV2Input
	var query *storage.Query
	var local *string
	switch {
	case as(&in):
		in.StartAfter = &after
	case as(&query):
		query.StartOffset = after
	case as(&local):
		*local = after
	}
}

func (s *bucketStore) remove(ctx context.Context, key string) error {
	err := s.bucket.Delete(ctx, s.prefix+key)
	if errors.Is(err, gcerrors.ErrNotFound) {
		return nil
	}
	return err
}

func (s *bucketStore) close() error {
	if !s.owned {
		return nil
	}
	return s.bucket.Close()
}

// storeError types an error of the store: what the caller may do, and what a
// person should do.
func storeError(ctx context.Context, pchannel, what string, err error) error {
	var typed *walimpls.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	if ctx.Err() != nil {
		e := walimpls.ContextError(ctx, pchannel, "sink: "+what)
		if e.Code == walimpls.CodeTimeout {
			e.Hint = "the bucket did not answer in time; look at its endpoint, the network, and the load on the store"
		}
		return e
	}
	code, hint := classify(err)
	e := walimpls.Errorf(code, pchannel, "sink: %s: %w", what, err)
	e.Hint = hint
	return e
}

func classify(err error) (walimpls.Code, string) {
	const (
		denied   = "give walrig's credentials list, read, write and delete rights below flusher.bucket"
		login    = "give walrig credentials for flusher.bucket; the cloud's usual environment variables and files are read"
		noBucket = "create the bucket or folder that flusher.bucket names, or correct the name"
		full     = "free space in the bucket, or raise its quota; flushing goes on by itself"
		away     = "look at the endpoint and the network; flushing goes on by itself when the store answers"
	)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return walimpls.CodeNoSpace, full
	case errors.Is(err, syscall.EROFS):
		return walimpls.CodePermissionDenied, "the file system is mounted read-only"
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EXDEV):
		return walimpls.CodeUnsupported, "a local bucket needs one file system with hard links; use another folder"
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode() {
		case "InvalidAccessKeyId", "XAdminUserNotFound", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed":
			return walimpls.CodeUnauthenticated, login
		case "QuotaExceeded":
			return walimpls.CodeNoSpace, full
		}
	}
	if strings.Contains(err.Error(), "failed to retrieve credentials") || strings.Contains(err.Error(), "no EC2 IMDS role found") {
		return walimpls.CodeUnauthenticated, login
	}
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		return walimpls.CodeNotFound, noBucket
	case gcerrors.PermissionDenied:
		return walimpls.CodePermissionDenied, denied
	case gcerrors.InvalidArgument:
		return walimpls.CodeConfig, "correct flusher.bucket"
	case gcerrors.Unimplemented:
		return walimpls.CodeUnsupported, "this store does not offer what the sink needs (create-only writes, ordered lists)"
	}
	var network net.Error
	if errors.As(err, &network) {
		return walimpls.CodeUnavailable, away
	}
	return walimpls.CodeUnavailable, "the store failed; flushing is tried again by itself: " + away
}
