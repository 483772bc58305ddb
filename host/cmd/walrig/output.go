package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// The output formats.
const (
	outputText = "text"
	outputJSON = "json"
	outputRaw  = "raw"
)

// out is stdout: every failed write comes back as a typed error.
type out struct{ w io.Writer }

func (o out) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	return n, stdoutError(err)
}

// json writes one object as one line.
func (o out) json(v any) error {
	enc := json.NewEncoder(o)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (o out) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(o, format, args...)
	return err
}

// table writes rows in columns; empty cells are shown as "-".
func (o out) table(header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(o, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = oneLine(cell); cells[i] == "" {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(tw, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// bytesText shows a size for people.
func bytesText(n int64) string {
	const units = "KMGT"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// countText is "1 record" or "n records".
func countText(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
