package parquet

import (
	"context"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"
	pq "github.com/parquet-go/parquet-go"
	pqzstd "github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/walrig/walrig/sdk/message"
)

// Row is the schema of the files: one row a record. It is exported for those who
// read the files with parquet-go.
type Row struct {
	MessageID  []byte            `parquet:"message_id"`
	TimeTick   uint64            `parquet:"time_tick,delta"`
	Term       int64             `parquet:"term,delta"`
	Type       string            `parquet:"type,dict"`
	VChannel   string            `parquet:"vchannel,dict"`
	TxnID      uint64            `parquet:"txn_id,delta"`
	Properties map[string]string `parquet:"properties"`
	Payload    []byte            `parquet:"payload"`
}

// chunkRows is how many records are turned into rows at once.
const chunkRows = 256

// rowOverhead is what a row counts besides its payload, names and properties,
// when row groups and files are cut.
const rowOverhead = 48

// encodeFunc writes rows as one file.
type encodeFunc func(ctx context.Context, out io.Writer, rows []message.Message, meta map[string]string) error

// idleWriters is how many writers, with their buffers, are kept for the next file.
const idleWriters = 4

// newEncoder returns the encoder of Parquet files. It is safe for concurrent use.
func newEncoder(rowGroupBytes int64) encodeFunc {
	idle := make(chan *pq.GenericWriter[Row], idleWriters)
	return func(ctx context.Context, out io.Writer, rows []message.Message, meta map[string]string) error {
		var w *pq.GenericWriter[Row]
		select {
		case w = <-idle:
			w.Reset(out)
		default:
			w = newParquetWriter(out)
		}
		if err := writeParquet(ctx, w, rows, meta, rowGroupBytes); err != nil {
			return err // the writer's state is unknown
		}
		w.Reset(nil)
		select {
		case idle <- w:
		default:
		}
		return nil
	}
}

func newParquetWriter(out io.Writer) *pq.GenericWriter[Row] {
	return pq.NewGenericWriter[Row](out, writerOptions()...)
}

func writerOptions() []pq.WriterOption {
	return []pq.WriterOption{
		pq.Compression(&pqzstd.Codec{Level: zstd.SpeedFastest}),
		pq.DataPageStatistics(true),
		// The bounds of payloads are long and nobody searches by them.
		pq.SkipPageBounds("payload"),
		pq.CreatedBy("walrig", "1", ""),
	}
}

// splitFiles cuts rows into runs of at most limit bytes, at least one row each.
func splitFiles(rows []message.Message, limit int64) [][]message.Message {
	var out [][]message.Message
	start, size := 0, int64(0)
	for i := range rows {
		n := int64(rows[i].Size()) + rowOverhead
		if i > start && size+n > limit {
			out = append(out, rows[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(rows) {
		out = append(out, rows[start:])
	}
	return out
}

// tickRange returns the lowest and the highest tick. The rows of a transaction
// stand where it was committed, so the first row need not have the lowest.
func tickRange(rows []message.Message) (first, last message.Tick) {
	first = math.MaxUint64
	for i := range rows {
		first, last = min(first, rows[i].TimeTick), max(last, rows[i].TimeTick)
	}
	return first, last
}

// writeParquet streams rows as one file: what is in memory besides the rows is
// one row group, compressed.
func writeParquet(ctx context.Context, w *pq.GenericWriter[Row], rows []message.Message, meta map[string]string, rowGroupBytes int64) error {
	for k, v := range meta {
		w.SetKeyValueMetadata(k, v)
	}
	chunk := make([]Row, 0, chunkRows)
	group := int64(0)
	for len(rows) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk = chunk[:0]
		for len(rows) > 0 && len(chunk) < chunkRows && group < rowGroupBytes {
			m := &rows[0]
			chunk = append(chunk, Row{
				MessageID: []byte(m.ID), TimeTick: uint64(m.TimeTick), Term: m.Term, Type: m.Type.String(),
				VChannel: m.VChannel, TxnID: m.TxnID, Properties: m.Properties, Payload: m.Payload,
			})
			group += int64(m.Size()) + rowOverhead
			rows = rows[1:]
		}
		if _, err := w.Write(chunk); err != nil {
			return err
		}
		if group >= rowGroupBytes && len(rows) > 0 {
			if err := w.Flush(); err != nil {
				return err
			}
			group = 0
		}
	}
	return w.Close()
}

// counter counts what goes through it.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
