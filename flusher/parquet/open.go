package parquet

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/gcsblob"   // gs://
	"gocloud.dev/blob/memblob"
	_ "gocloud.dev/blob/s3blob" // s3://

	"github.com/walrig/walrig/sdk/walimpls"
)

// Open returns a sink for a bucket's URL:
//
//	file:///data/walrig          a folder, made when it is missing
//	s3://bucket/prefix?region=…  Amazon S3 and whatever speaks its protocol
//	gs://bucket/prefix           Google Cloud Storage
//	azblob://container/prefix    Azure Blob Storage
//	mem://                       memory, for tests
//
// What is behind the bucket's name is a prefix for all keys. The query is the
// blob library's, such as endpoint, region and use_path_style for S3. Open reads
// no object: a bucket that is missing or denied is found by the first Sink.Open.
// A URL that cannot work is ErrConfig.
func Open(ctx context.Context, rawURL string, opt Options) (*Sink, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, configError(rawURL, err)
	}
	if u.Scheme == "file" {
		return openFolder(u, opt)
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		prefix += "/"
	}
	query := u.Query()
	prefix += query.Get("prefix")
	query.Del("prefix")
	location := u.Scheme + "://" + u.Host + "/"
	bare := url.URL{Scheme: u.Scheme, Host: u.Host, RawQuery: query.Encode()}
	var bucket *blob.Bucket
	switch u.Scheme {
	case "mem":
		bucket = memblob.OpenBucket(nil)
	case "s3", "gs", "azblob":
		if u.Host == "" {
			return nil, configError(rawURL, errors.New("it names no bucket"))
		}
		if bucket, err = blob.OpenBucket(ctx, bare.String()); err != nil {
			return nil, configError(rawURL, err)
		}
	default:
		return nil, configError(rawURL, errors.New("its scheme is not file, s3, gs or azblob"))
	}
	return newSink(&bucketStore{bucket: bucket, prefix: prefix, owned: true}, location+prefix, opt), nil
}

func openFolder(u *url.URL, opt Options) (*Sink, error) {
	dir := u.Path
	switch {
	case u.RawQuery != "":
		return nil, configError(u.String(), errors.New("a file URL takes no query"))
	case u.Host == ".":
		dir = strings.TrimPrefix(dir, "/")
	case u.Host != "" && u.Host != "localhost":
		return nil, configError(u.String(), errors.New("a file URL has three slashes before an absolute path"))
	}
	if dir == "" || dir == "/" {
		return nil, configError(u.String(), errors.New("it names no folder"))
	}
	dir, err := filepath.Abs(filepath.FromSlash(dir))
	if err != nil {
		return nil, configError(u.String(), err)
	}
	return newSink(&bucketStore{bucket: blob.NewBucket(newLocalBucket(dir)), owned: true}, dir+string(filepath.Separator), opt), nil
}

func configError(rawURL string, err error) error {
	if u, parseErr := url.Parse(rawURL); parseErr == nil {
		rawURL = u.Redacted()
	}
	e := walimpls.Errorf(walimpls.CodeConfig, "", "bucket %q: %w", rawURL, err)
	e.Hint = "flusher.bucket is file:///folder, s3://bucket/prefix?region=…, gs://bucket/prefix or azblob://container/prefix"
	return e
}
