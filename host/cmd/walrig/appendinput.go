package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

// A batch of input goes on when it has this much, or when reading more would
// have to wait.
const (
	batchRecords = 256
	batchBytes   = 256 << 10
)

// openInput opens the file; size is 0 if it is not known.
func (a *app) openInput(name string) (input io.ReadCloser, size int64, err error) {
	if name == "-" {
		input = io.NopCloser(a.stdin)
		if f, ok := a.stdin.(*os.File); ok {
			size = regularSize(f)
		}
		return input, size, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, inputError(err)
	}
	if st, err := f.Stat(); err == nil && st.IsDir() {
		f.Close()
		return nil, 0, inputError(fmt.Errorf("%s is a folder", name))
	}
	return f, regularSize(f), nil
}

func regularSize(f *os.File) int64 {
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		return st.Size()
	}
	return 0
}

func inputError(err error) error {
	e := walimpls.Errorf(walimpls.CodeInvalidArgument, "", "cannot read the input: %w", err)
	e.Hint = "name a readable file with -f, or - for stdin"
	return e
}

// maxRecord asks for the backend's limit of the channel.
func maxRecord(ctx context.Context, c *client.Client, channel string) int64 {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	st, err := c.DescribeChannel(ctx, channel)
	if err != nil {
		return fallbackLimit
	}
	resp, err := c.DescribePlugin(ctx, st.GetPlugin())
	if err != nil {
		return fallbackLimit
	}
	var desc description
	if err := json.Unmarshal([]byte(resp.GetDescriptionJson()), &desc); err != nil || desc.Limits.MaxMessageBytes <= 0 {
		return fallbackLimit
	}
	return desc.Limits.MaxMessageBytes
}

// inputBatch is records that were read, and how the input ended behind them.
type inputBatch struct {
	first   int64
	records [][]byte
	err     error
}

// readInput reads in a goroutine of its own, because a read from a pipe cannot
// be interrupted. It ends with the input, or when quit is closed and the read
// that it is in returns; the process does not wait for it.
func readInput(split *splitter, quit <-chan struct{}) <-chan inputBatch {
	batches := make(chan inputBatch, 4)
	go func() {
		for {
			b := nextBatch(split)
			select {
			case batches <- b:
			case <-quit:
				return
			}
			if b.err != nil {
				return
			}
		}
	}()
	return batches
}

func nextBatch(split *splitter) inputBatch {
	b := inputBatch{first: split.line + 1}
	bytes := 0
	for {
		rec, err := split.next()
		if err != nil {
			b.err = err
			return b
		}
		b.records = append(b.records, rec)
		bytes += len(rec)
		if len(b.records) >= batchRecords || bytes >= batchBytes || split.waits() {
			return b
		}
	}
}
