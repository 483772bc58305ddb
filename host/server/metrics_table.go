package server

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metricID names a row of the table.
type metricID int

const (
	appendRecords metricID = iota
	appendBytes
	appendDuration
	backendOpens
	channelAvailable
	channelTerm
	channelUnresolvedBytes
	channelOpenTxns
	channelTickAge
	wabRecords
	wabBytes
	scannerCount
	scannerLag
	scannerBufferedBytes
	scannerViolations
	flushLag
	flushLagBytes
	flushCheckpointAge
	flushTruncationAge
	flushMemory
	flushFiles
	flushRows
	flushBytes
	flushFailures
	flushDetached
	flushLost
	pluginInfo
	pluginState
	pluginRestarts
	catalogCalls
	buildInfo
	metricCount // how many there are
)

// metricKind is a metric's type as Prometheus calls it.
type metricKind string

const (
	counterKind   metricKind = "counter"
	gaugeKind     metricKind = "gauge"
	histogramKind metricKind = "histogram"
)

// metricDef is one row: everything that Prometheus and docs/metrics.md are told.
type metricDef struct {
	name   string
	kind   metricKind
	labels []string
	// help is one sentence without a full stop.
	help string
	// buckets are the upper bounds of a histogram, in seconds.
	buckets []float64
}

// metricTable is every metric of walrig itself. A label's values are names that
// the user configured or created, or words of a fixed list: never ids, names of
// readers or texts of errors.
var metricTable = [metricCount]metricDef{
	appendRecords: {"walrig_append_records_total", counterKind, []string{"channel", "outcome"},
		"Records whose append the channel answered, begins of transactions too; not those that were refused before, because the channel was not open or a record too large", nil},
	appendBytes: {"walrig_append_bytes_total", counterKind, []string{"channel", "outcome"},
		"Bytes of these records; a call whose records had different outcomes is split by their number", nil},
	appendDuration: {"walrig_append_duration_seconds", histogramKind, []string{"channel"},
		"Time from the call to the answer of one append, which may hold many records", prometheus.ExponentialBuckets(0.0005, 2, 16)},
	backendOpens: {"walrig_backend_opens_total", counterKind, []string{"channel", "plugin", "kind", "result"},
		"Times that a channel's log was opened for appending: `open` until a term has it for the first time, `reopen` after that, because the handle was lost", nil},
	channelAvailable: {"walrig_channel_available", gaugeKind, []string{"channel"},
		"1 while the channel takes appends, 0 while it is closed, being opened, or its backend is away", nil},
	channelTerm: {"walrig_channel_term", gaugeKind, []string{"channel"},
		"The highest term that the channel was opened or closed at on this host", nil},
	channelUnresolvedBytes: {"walrig_channel_unresolved_bytes", gaugeKind, []string{"channel"},
		"Bytes of records that were accepted and not answered yet", nil},
	channelOpenTxns: {"walrig_channel_open_transactions", gaugeKind, []string{"channel"},
		"Transactions that are open", nil},
	channelTickAge: {"walrig_channel_last_tick_age_seconds", gaugeKind, []string{"channel"},
		"How far the tick up to which everything is settled is behind the clock", nil},
	wabRecords: {"walrig_wab_records", gaugeKind, []string{"channel"},
		"Records in the write-ahead buffer, which readers at the end of the log read from", nil},
	wabBytes: {"walrig_wab_bytes", gaugeKind, []string{"channel"},
		"Bytes in the write-ahead buffer", nil},
	scannerCount: {"walrig_scanners", gaugeKind, []string{"channel", "mode"},
		"Running scanners, one for each reader: `catchup` reads from the backend, `tailing` from the write-ahead buffer", nil},
	scannerLag: {"walrig_scanner_lag_seconds", gaugeKind, []string{"channel", "mode"},
		"How far the slowest of these scanners is behind the last settled tick; one that has read nothing yet does not count", nil},
	scannerBufferedBytes: {"walrig_scanner_buffered_bytes", gaugeKind, []string{"channel", "mode"},
		"Bytes that the reorder and transaction buffers of these scanners hold", nil},
	scannerViolations: {"walrig_scanner_violations", gaugeKind, []string{"channel"},
		"Records out of tick order that scanners met since the term began; it must be 0", nil},
	flushLag: {"walrig_flush_lag_seconds", gaugeKind, []string{"channel"},
		"How far the channel's checkpoint, up to which everything is in files, is behind the last settled tick", nil},
	flushLagBytes: {"walrig_flush_lag_bytes", gaugeKind, []string{"channel"},
		"Bytes of records that were read to be flushed and are not in files, with those that detached virtual channels missed", nil},
	flushCheckpointAge: {"walrig_flush_checkpoint_age_seconds", gaugeKind, []string{"channel"},
		"How far the newest checkpoint in the catalog is behind the clock", nil},
	flushTruncationAge: {"walrig_flush_truncation_age_seconds", gaugeKind, []string{"channel"},
		"How far the truncation point is behind the clock: the log holds what is younger", nil},
	flushMemory: {"walrig_flush_memory_bytes", gaugeKind, []string{"channel"},
		"Bytes of records that wait in memory to be flushed, or are on their way", nil},
	flushFiles: {"walrig_flush_files_total", counterKind, []string{"channel"},
		"Files that were written since the channel was opened here", nil},
	flushRows: {"walrig_flush_rows_total", counterKind, []string{"channel"},
		"Records in these files", nil},
	flushBytes: {"walrig_flush_bytes_total", counterKind, []string{"channel"},
		"Bytes of these files", nil},
	flushFailures: {"walrig_flush_failures_total", counterKind, []string{"channel"},
		"Writes of files that failed and were tried again", nil},
	flushDetached: {"walrig_flush_detached_total", counterKind, []string{"channel"},
		"Times that a virtual channel whose files cannot be written was left behind, to catch up later", nil},
	flushLost: {"walrig_flush_lost_positions_total", counterKind, []string{"channel"},
		"Times that records were removed from the log before they were flushed; it must be 0", nil},
	pluginInfo: {"walrig_plugin_info", gaugeKind, []string{"plugin", "backend", "version", "fencing"},
		"Always 1; the labels say what the plugin is", nil},
	pluginState: {"walrig_plugin_state", gaugeKind, []string{"plugin", "state"},
		"1 for the state that the plugin's process is in, 0 for the others", nil},
	pluginRestarts: {"walrig_plugin_restarts_total", counterKind, []string{"plugin"},
		"Processes of the plugin that came up after the first one", nil},
	catalogCalls: {"walrig_catalog_calls_total", counterKind, []string{"op", "code"},
		"Calls of the catalog by result: `ok` or the code of the error; `not_found`, `already_exists` and `term_expired` are answers, the others failures", nil},
	buildInfo: {"walrig_build_info", gaugeKind, []string{"version"},
		"Always 1; the label is walrig's version", nil},
}

// labelValues says what stands in the labels, for the documentation.
var labelValues = []struct{ label, values string }{
	{"channel", "the channel's name; its series end when it is removed"},
	{"outcome", "`stored` `not_stored` `unknown`"},
	{"plugin", "the plugin's name in the configuration"},
	{"kind", "`open` `reopen`"},
	{"result", "`ok` `error`"},
	{"mode", "`catchup` `tailing`"},
	{"state", "`starting` `running` `backoff` `stopped`"},
	{"op", "`create` `get` `list` `claim` `update` `delete`"},
	{"code", "`ok`, or an error code of [cli.md](cli.md#error-codes)"},
	{"backend, version, fencing", "as in `walrig plugin list`"},
}

//go:embed metrics_intro.md
var metricsIntro string

// MetricsMarkdown returns docs/metrics.md: the introduction and the table. A
// test fails when the file in docs/ differs.
func MetricsMarkdown() string {
	var b strings.Builder
	b.WriteString(metricsIntro)
	b.WriteString("\n## Metrics\n\n<!-- Generated from the table in host/server/metrics_table.go: `go test ./host/server -run TestDocs -update`. -->\n\n")
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range metricTable {
		labels := strings.Join(d.labels, "` `")
		if labels != "" {
			labels = "`" + labels + "`"
		}
		help := d.help
		if n := len(d.buckets); n > 0 {
			help += fmt.Sprintf(" (%d buckets from %g s to %g s)", n, d.buckets[0], d.buckets[n-1])
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s. |\n", d.name, d.kind, labels, help)
	}
	b.WriteString("\n| label | values |\n|---|---|\n")
	for _, l := range labelValues {
		fmt.Fprintf(&b, "| %s | %s |\n", l.label, l.values)
	}
	return b.String()
}
