package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/walrig/walrig/sdk/walimpls"
)

// rowFormat is the format that this build writes and the only one it reads.
// Any change of a row's fields is a new format: an old build that dropped a
// field it does not know would lose what the owner relies on.
const (
	rowFormat = 1
	rowReadBy = "walrig 0.1"
)

// header is what every format, also one to come, begins with.
type header struct {
	Format int    `json:"format"`
	ReadBy string `json:"read_by"`
}

type envelope struct {
	header
	CRC string          `json:"crc"`
	Row json.RawMessage `json:"row"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)) }

// encodeRow returns the stored form of a row that passed check.
func encodeRow(row *Row) ([]byte, error) {
	body, err := json.Marshal(row)
	if err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInternal, row.Channel, "encode the catalog row: %w", err)
	}
	value, err := json.Marshal(envelope{header: header{Format: rowFormat, ReadBy: rowReadBy}, CRC: checksum(body), Row: body})
	if err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInternal, row.Channel, "encode the catalog row: %w", err)
	}
	return value, nil
}

// decodeRow is the inverse of encodeRow for the row stored under channel. It
// never panics and keeps no part of value. Its errors are ErrCorrupt, and
// ErrUnsupported for a format that another release wrote.
func decodeRow(channel string, value []byte) (Row, error) {
	damaged := func(format string, args ...any) error {
		err := walimpls.Errorf(walimpls.CodeCorrupt, channel, "the catalog row is damaged: "+format, args...)
		err.Hint = "restore the catalog from a copy, or remove the row and create the channel with --adopt"
		return err
	}
	if err := checkFormat(channel, "catalog row", value); err != nil {
		return Row{}, err
	}
	var e envelope
	if err := strictJSON(value, &e); err != nil {
		return Row{}, damaged("%v", err)
	}
	if sum := checksum(e.Row); sum != e.CRC {
		return Row{}, damaged("its checksum is %s, stored is %.16q", sum, e.CRC)
	}
	var row Row
	if err := strictJSON(e.Row, &row); err != nil {
		return Row{}, damaged("%v", err)
	}
	if row.Channel != channel {
		return Row{}, damaged("it is the row of channel %.64q", row.Channel)
	}
	if err := row.check("read"); err != nil {
		return Row{}, damaged("%v", err)
	}
	return row, nil
}

// checkFormat reads the header that value begins with and refuses every format
// but rowFormat.
func checkFormat(channel, what string, value []byte) error {
	var h header
	if err := json.Unmarshal(value, &h); err != nil || h.Format < 1 {
		return walimpls.Errorf(walimpls.CodeCorrupt, channel, "the %s is damaged: no format version", what)
	}
	if h.Format == rowFormat {
		return nil
	}
	reader := "a newer release of walrig"
	if h.ReadBy != "" {
		reader = fmt.Sprintf("%.64s or later", h.ReadBy)
	}
	err := walimpls.Errorf(walimpls.CodeUnsupported, channel,
		"the %s has format %d, this build reads format %d; format %d is read by %s", what, h.Format, rowFormat, h.Format, reader)
	err.Hint = "start the release that wrote this catalog; a catalog cannot be opened by an older one"
	return err
}

// strictJSON decodes exactly one JSON value without unknown fields.
func strictJSON(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
