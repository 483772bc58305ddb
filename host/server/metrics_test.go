package server

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

func TestDocsMatchTheMetrics(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		must(t, os.WriteFile(path, []byte(MetricsMarkdown()), 0o644))
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != MetricsMarkdown() {
		t.Fatalf("docs/metrics.md is not what the table says (%v): run `go test ./host/server -run TestDocs -update`", err)
	}
}

// The intro's expressions are written by hand; their names must exist.
func TestMetricTableIsWellFormed(t *testing.T) {
	good, seen, labels := regexp.MustCompile(`^walrig_[a-z_]+$`), map[string]bool{}, map[string]bool{}
	for _, l := range labelValues {
		for _, name := range strings.Split(l.label, ", ") {
			labels[name] = true
		}
	}
	for id, d := range metricTable {
		if !good.MatchString(d.name) || seen[d.name] || d.help == "" || strings.HasSuffix(d.help, ".") {
			t.Errorf("row %d: %+v", id, d)
		}
		seen[d.name] = true
		if (d.kind == counterKind) != strings.HasSuffix(d.name, "_total") || (d.kind == histogramKind) != (len(d.buckets) > 0) {
			t.Errorf("%s: not a %s by its name or buckets", d.name, d.kind)
		}
		for _, l := range d.labels {
			if !labels[l] {
				t.Errorf("%s: nothing says what label %s holds", d.name, l)
			}
		}
	}
	for _, name := range regexp.MustCompile(`walrig_[a-z_]+`).FindAllString(metricsIntro, -1) {
		if !seen[name] {
			t.Errorf("metrics_intro.md names %s, which there is not", name)
		}
	}
}

// meteredHost is a host as `walrig serve` wires it with metrics_listen.
type meteredHost struct {
	*host
	*scraper
	metrics *Metrics
}

func newMeteredHost(t *testing.T) *meteredHost {
	t.Helper()
	p := newPlugin(t, "local")
	h := &meteredHost{host: &host{t: t, plugins: fakePlugins{p}}}
	t.Cleanup(func() { must(t, h.flush.Close()) })
	h.metrics = NewMetrics(MetricsOptions{
		Channels: func() []walmanager.ChannelState { return h.manager.Status() },
		Plugins:  func() []pluginhost.Status { return []pluginhost.Status{p.Status()} },
		Flusher:  func(channel string) *flusher.Flusher { return h.flush.Flusher(channel) },
		Version:  "v1.2.3",
	})
	h.catalog = h.metrics.Catalog(catalog.NewMemory())
	h.flush = newFlush(t, t.TempDir(), h.catalog)
	h.manager = walmanager.New(h.flush.Opener(wal.NewOpener(h.flush.Options(wal.Options{
		Catalog: h.catalog, Observer: h.metrics.Observer(),
		Backend: func(name string) (wal.Backend, error) {
			p, err := h.plugins.Plugin(name)
			if err != nil {
				return nil, err
			}
			return h.metrics.Backend(name, p), nil
		},
	}))), nil)
	h.srv, h.served = New(Options{
		Catalog: h.catalog, Manager: h.manager, Plugins: h.plugins, DefaultPlugin: p.name,
		RetryMin: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond,
	}), make(chan error, 1)
	lis := loopback(t)
	h.addr = lis.Addr().String()
	srv, served := h.srv, h.served
	go func() { served <- srv.Serve(context.Background(), lis) }()
	t.Cleanup(h.stop)
	h.scraper = serveMetrics(t, h.metrics)
	return h
}

// scraper is Prometheus.
type scraper struct {
	t   testing.TB
	url string
	web *http.Client
}

// serveMetrics starts m until the test's end.
func serveMetrics(t *testing.T, m *Metrics) *scraper {
	t.Helper()
	lis := loopback(t)
	must(t, m.Start(lis, false))
	t.Cleanup(func() { m.Close(context.Background()) })
	return &scraper{t: t, url: "http://" + lis.Addr().String(), web: webClient()}
}

// webClient keeps no connection, which would have goroutines of its own.
func webClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testBound}
}

func loopback(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return lis
}

// series is a scrape: `name{label="value"}` to its value.
type series map[string]float64

func (p *scraper) scrape() series {
	p.t.Helper()
	resp, err := p.web.Get(p.url + metricsPath)
	must(p.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		p.t.Fatalf("%s: %s", resp.Status, text)
	}
	out := series{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); i > 0 && !strings.HasPrefix(line, "#") {
			out[line[:i]], err = strconv.ParseFloat(line[i+1:], 64)
			must(p.t, err)
		}
	}
	return out
}

// want compares some series with what they must be.
func (s series) want(t *testing.T, want series) {
	t.Helper()
	for name, v := range want {
		if got, there := s[name]; !there || got != v {
			t.Errorf("%s = %v (there: %v), want %v", name, got, there, v)
		}
	}
}

// of returns the names of the series that hold text.
func (s series) of(text string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(name string) bool { return !strings.Contains(name, text) })
}

func TestScrapesFollowWhatHappensInAHost(t *testing.T) {
	h := newMeteredHost(t)
	c := h.create("orders")
	h.scrape().want(t, series{
		`walrig_build_info{version="v1.2.3"}`:                                                                           1,
		`walrig_channel_available{channel="orders"}`:                                                                    1,
		`walrig_channel_term{channel="orders"}`:                                                                         1,
		`walrig_backend_opens_total{channel="orders",kind="open",plugin="local",result="ok"}`:                           1,
		`walrig_append_records_total{channel="orders",outcome="stored"}`:                                                0,
		`walrig_append_duration_seconds_count{channel="orders"}`:                                                        0,
		`walrig_channel_unresolved_bytes{channel="orders"}`:                                                             0,
		`walrig_channel_open_transactions{channel="orders"}`:                                                            0,
		`walrig_scanners{channel="orders",mode="tailing"}`:                                                              0,
		`walrig_scanner_violations{channel="orders"}`:                                                                   0,
		`walrig_plugin_state{plugin="local",state="running"}`:                                                           1,
		`walrig_plugin_state{plugin="local",state="backoff"}`:                                                           0,
		`walrig_plugin_restarts_total{plugin="local"}`:                                                                  0,
		`walrig_plugin_info{backend="fault",fencing="strict",plugin="local",version="` + h.plugin().desc.Version + `"}`: 1,
		`walrig_catalog_calls_total{code="ok",op="create"}`:                                                             1,
	})

	// Appends: stored ones, one that is refused, an open transaction.
	appendAll(t, c, "orders", "one", "two", "three")
	h.plugin().rules(t, `append permanent "not this one"`)
	if _, err := c.Append(testContext(t), "orders", texts("refused")...); err == nil {
		t.Fatal("the rule did not refuse the record")
	}
	h.plugin().rules(t, "")
	txn, err := c.BeginTxn(testContext(t), "orders", client.TxnOptions{})
	must(t, err)
	s := h.scrape()
	s.want(t, series{
		`walrig_append_records_total{channel="orders",outcome="stored"}`:     4, // with the begin
		`walrig_append_records_total{channel="orders",outcome="not_stored"}`: 1,
		`walrig_append_records_total{channel="orders",outcome="unknown"}`:    0,
		`walrig_append_bytes_total{channel="orders",outcome="not_stored"}`:   float64(len("refused")),
		`walrig_append_duration_seconds_count{channel="orders"}`:             3,
		`walrig_append_duration_seconds_bucket{channel="orders",le="+Inf"}`:  3,
		`walrig_channel_open_transactions{channel="orders"}`:                 1,
	})
	if s[`walrig_append_bytes_total{channel="orders",outcome="stored"}`] < float64(len("onetwothree")) ||
		s[`walrig_append_duration_seconds_sum{channel="orders"}`] <= 0 {
		t.Errorf("bytes or time are missing: %v", s.of("append"))
	}
	_, err = txn.Rollback(testContext(t))
	must(t, err)

	// The buffer fills, and a reader at the end is counted.
	r, err := c.NewReader(testContext(t), "orders", client.ReadOptions{Follow: true})
	must(t, err)
	defer r.Close()
	take(t, r, 3)
	until(t, "the reader tails", func() bool { return h.scrape()[`walrig_scanners{channel="orders",mode="tailing"}`] == 1 })
	s = h.scrape()
	if s[`walrig_wab_records{channel="orders"}`] == 0 || s[`walrig_wab_bytes{channel="orders"}`] == 0 {
		t.Errorf("the write-ahead buffer is empty: %v", s.of("wab"))
	}
	if age := s[`walrig_channel_last_tick_age_seconds{channel="orders"}`]; age > testBound.Seconds() {
		t.Errorf("tick age %v s", age)
	}
	if lag := s[`walrig_scanner_lag_seconds{channel="orders",mode="tailing"}`]; lag < 0 || lag > testBound.Seconds() {
		t.Errorf("lag %v s", lag)
	}

	// What is under way shows, and then that the handle was lost.
	h.plugin().rules(t, `append block until released`)
	answered := make(chan error, 1)
	go func() {
		_, err := c.Append(testContext(t), "orders", texts("blocked")...)
		answered <- err
	}()
	until(t, "a record is unresolved", func() bool { return h.scrape()[`walrig_channel_unresolved_bytes{channel="orders"}`] > 0 })
	h.plugin().rules(t, "append lose-connection count=1\nopen error unavailable")
	until(t, "opens fail", func() bool {
		s = h.scrape()
		return s[`walrig_backend_opens_total{channel="orders",kind="reopen",plugin="local",result="error"}`] > 0
	})
	if got := s[`walrig_channel_available{channel="orders"}`]; got != 0 {
		t.Errorf("available %v while its backend is away", got)
	}
	h.plugin().rules(t, "")
	must(t, <-answered)
	until(t, "the log is open again", func() bool {
		s = h.scrape()
		return s[`walrig_channel_available{channel="orders"}`] == 1
	})
	s.want(t, series{
		`walrig_backend_opens_total{channel="orders",kind="open",plugin="local",result="ok"}`: 1,
		`walrig_append_records_total{channel="orders",outcome="unknown"}`:                     0,
	})
	if s[`walrig_backend_opens_total{channel="orders",kind="reopen",plugin="local",result="ok"}`] == 0 {
		t.Errorf("no reopen was counted: %v", s.of("opens"))
	}

	h.plugin().breaks(errors.New("it does not start"), nil)
	h.scrape().want(t, series{
		`walrig_plugin_state{plugin="local",state="running"}`: 0,
		`walrig_plugin_state{plugin="local",state="backoff"}`: 1,
	})
	h.plugin().breaks(nil, nil)
}

// What the table promises is there in a busy host, and nothing else is.
func TestEveryRowOfTheTableIsScraped(t *testing.T) {
	h := newMeteredHost(t)
	appendAll(t, h.create("orders"), "orders", "one")
	until(t, "the checkpoint is saved and the log cut", func() bool {
		st := h.flush.Flusher("orders").Status(false)
		return st.Saved.Tick > 0 && st.Truncated.Tick > 0
	})
	scraped := map[string]bool{}
	for name := range h.scrape() {
		name, _, _ = strings.Cut(name, "{")
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, part); cut && base == metricTable[appendDuration].name {
				name = base
			}
		}
		if scraped[name] = true; strings.HasPrefix(name, "walrig_") {
			if !slices.ContainsFunc(metricTable[:], func(d metricDef) bool { return d.name == name }) {
				t.Errorf("%s is not in the table", name)
			}
		}
	}
	for _, d := range metricTable {
		if !scraped[d.name] {
			t.Errorf("%s is not scraped", d.name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if !scraped[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestRemovedChannelsLeaveNoSeriesBehind(t *testing.T) {
	h := newMeteredHost(t)
	c := h.create("stays")
	h.scrape()
	for _, name := range []string{"goes1", "goes2"} {
		_, _, err := c.CreateChannel(testContext(t), name, client.CreateOptions{})
		must(t, err)
		appendAll(t, c, name, "x")
		// Some begin when the first checkpoint was saved.
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			now, kept := h.scrape().of(`"`+name+`"`), h.scrape().of(`"stays"`)
			if len(now) == len(kept) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("series of %s: %v\nof one that stays: %v", name, now, kept)
			}
		}
		must(t, c.RemoveChannel(testContext(t), name, true))
		if left := h.scrape().of(name); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	// A name that comes again begins anew, with its first open too.
	_, _, err := c.CreateChannel(testContext(t), "goes1", client.CreateOptions{})
	must(t, err)
	h.scrape().want(t, series{
		`walrig_append_records_total{channel="goes1",outcome="stored"}`:                      0,
		`walrig_backend_opens_total{channel="goes1",kind="open",plugin="local",result="ok"}`: 1,
	})
	if len(h.scrape().of("stays")) == 0 {
		t.Error("the channel that stays has no series")
	}
}

// Readers, whose names clients choose, and their number do not make series.
func TestReadersAddNoSeries(t *testing.T) {
	h := newMeteredHost(t)
	c := h.create("orders")
	appendAll(t, c, "orders", "one")
	count := func(s series) float64 {
		return s[`walrig_scanners{channel="orders",mode="tailing"}`] + s[`walrig_scanners{channel="orders",mode="catchup"}`]
	}
	// The flusher's come when it has saved something.
	all := func(s series) []string {
		return slices.DeleteFunc(s.of("walrig_"), func(name string) bool { return strings.HasPrefix(name, "walrig_flush_") })
	}
	first := h.scrape()
	for end := time.Now().Add(20 * time.Second); count(first) == 0 && time.Now().Before(end); first = h.scrape() {
		time.Sleep(10 * time.Millisecond) // the flusher's own reader is about to begin
	}
	before := all(first)
	for range 5 {
		r, err := c.NewReader(testContext(t), "orders", client.ReadOptions{Follow: true})
		must(t, err)
		defer r.Close()
		take(t, r, 1)
	}
	s := h.scrape()
	if n := count(s) - count(first); n != 5 {
		t.Errorf("%v scanners more, want 5", n)
	}
	if after := all(s); !slices.Equal(before, after) {
		t.Errorf("series before %v\nafter %v", before, after)
	}
}

func TestBytesOfAMixedBatchAreSplitByItsRecords(t *testing.T) {
	m := NewMetrics(MetricsOptions{Channels: func() []walmanager.ChannelState { return []walmanager.ChannelState{{Channel: "c"}} }})
	m.Appended("c", 3, 1, 0, 400, time.Millisecond)
	m.Appended("c", 0, 0, 2, 50, time.Millisecond)
	h := serveMetrics(t, m)
	h.scrape().want(t, series{
		`walrig_append_records_total{channel="c",outcome="stored"}`:      3,
		`walrig_append_bytes_total{channel="c",outcome="stored"}`:        300,
		`walrig_append_bytes_total{channel="c",outcome="not_stored"}`:    100,
		`walrig_append_bytes_total{channel="c",outcome="unknown"}`:       50,
		`walrig_append_duration_seconds_bucket{channel="c",le="0.001"}`:  2,
		`walrig_append_duration_seconds_bucket{channel="c",le="0.0005"}`: 0,
		`walrig_channel_available{channel="c"}`:                          0,
	})
}

// A value that cannot be taken neither ends the host nor hides the others.
func TestAPanicInAScrapeIsContained(t *testing.T) {
	m := NewMetrics(MetricsOptions{Channels: func() []walmanager.ChannelState { panic("boom") }})
	h := serveMetrics(t, m)
	if h.scrape()["go_goroutines"] == 0 {
		t.Error("the other metrics are gone")
	}
}

func TestCatalogCallsAreCountedByTheirCode(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	c := m.Catalog(catalog.NewMemory())
	ctx := testContext(t)
	must(t, c.Create(ctx, catalog.Row{Channel: "a", Plugin: "p"}))
	mustBe(t, c.Create(ctx, catalog.Row{Channel: "a", Plugin: "p"}), walimpls.ErrAlreadyExists)
	_, err := c.Claim(ctx, "a", 1)
	must(t, err)
	_, err = c.Update(ctx, "a", 2, func(*catalog.Row) error { return nil })
	mustBe(t, err, walimpls.ErrTermExpired)
	refusal := errors.New("not like this")
	_, err = c.Update(ctx, "a", 1, func(*catalog.Row) error { return refusal })
	mustBe(t, err, refusal)
	_, err = c.Get(ctx, "b")
	mustBe(t, err, walimpls.ErrNotFound)
	_, err = c.List(ctx)
	must(t, err)
	must(t, c.Delete(ctx, "a", 1))
	must(t, c.Close())
	_, err = c.List(ctx)
	if err == nil {
		t.Fatal("a closed catalog answers")
	}
	failed := string(walimpls.AsError(err).Code)
	h := serveMetrics(t, m)
	s := h.scrape()
	s.want(t, series{
		`walrig_catalog_calls_total{code="ok",op="create"}`:             1,
		`walrig_catalog_calls_total{code="already_exists",op="create"}`: 1,
		`walrig_catalog_calls_total{code="ok",op="claim"}`:              1,
		`walrig_catalog_calls_total{code="term_expired",op="update"}`:   1,
		`walrig_catalog_calls_total{code="not_found",op="get"}`:         1,
		`walrig_catalog_calls_total{code="ok",op="list"}`:               1,
		`walrig_catalog_calls_total{code="` + failed + `",op="list"}`:   1,
		`walrig_catalog_calls_total{code="ok",op="delete"}`:             1,
	})
	if n := len(s.of("walrig_catalog")); n != 8 {
		t.Errorf("%d series: %v", n, s.of("walrig_catalog"))
	}
}

func TestMetricsAreServedOnLoopbackAlone(t *testing.T) {
	open, err := net.Listen("tcp", "0.0.0.0:0")
	must(t, err)
	mustBe(t, NewMetrics(MetricsOptions{}).Start(open, false), walimpls.ErrConfig)
	if _, err := open.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the refused listener is left open: %v", err)
	}
}

func TestTheMetricsServerAnswersNothingElseAndEnds(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	lis := loopback(t)
	must(t, m.Start(lis, false))
	mustBe(t, m.Start(loopback(t), false), walimpls.ErrInternal)
	web := webClient()
	base := "http://" + lis.Addr().String()
	for path, want := range map[string]int{"/metrics": 200, "/": 404, "/debug/pprof/": 404} {
		resp, err := web.Get(base + path)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
	resp, err := web.Post(base+"/metrics", "text/plain", strings.NewReader("x"))
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", resp.Status)
	}
	// A scraper that sends half a request and stays keeps nobody waiting.
	slow, err := net.Dial("tcp", lis.Addr().String())
	must(t, err)
	defer slow.Close()
	_, err = io.WriteString(slow, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
	must(t, err)
	start := time.Now()
	m.Close(context.Background())
	m.Close(context.Background())
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	if _, err := net.Dial("tcp", lis.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
	mustBe(t, m.Start(loopback(t), false), walimpls.ErrShutdown)
}

func TestNoMetricsCountNothing(t *testing.T) {
	var m *Metrics
	c, p := catalog.NewMemory(), newPlugin(t, "local")
	if m.Observer() != nil || m.Catalog(c) != c || m.Backend("local", p) != wal.Backend(p) {
		t.Error("a nil Metrics stands in the way")
	}
	m.Close(context.Background())
}
