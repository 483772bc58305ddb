package bench

import (
	"context"
	"errors"
	"io"
	"time"
)

// Source is a log that is read from its beginning. Next returns the number of the
// next records and their payload's bytes, and io.EOF behind the last one.
type Source interface {
	Next(ctx context.Context) (records int, bytes int64, err error)
	Close() error
}

// Read reads a log to its end, once, as fast as one reader can. The time counts
// from the call of open.
func Read(ctx context.Context, open func(context.Context) (Source, error)) (r Result, err error) {
	start := time.Now()
	source, err := open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	for {
		records, bytes, err := source.Next(ctx)
		if errors.Is(err, io.EOF) {
			r.Elapsed = time.Since(start)
			return r, nil
		}
		if err != nil {
			return Result{}, err
		}
		r.Records += int64(records)
		r.Bytes += bytes
	}
}
