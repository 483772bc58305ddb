package server

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/walimpls"
)

// MetricsOptions are the parameters of NewMetrics.
type MetricsOptions struct {
	// Channels and Plugins are asked at each scrape and must not block; nil is
	// none. A channel that Channels does not know any more loses its counters; a
	// nil slice says that nothing is known now.
	Channels func() []walmanager.ChannelState
	Plugins  func() []pluginhost.Status
	// Flusher returns a channel's flusher, nil if it has none.
	Flusher func(channel string) *flusher.Flusher
	// Version is walrig's.
	Version string
	Log     *zap.Logger
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
}

// Metrics counts what happens and takes the rest from Options when it is
// scraped. It observes appends (interceptors.Observer), and catalogs and
// backends through the wrappers that it makes. It has a registry of its own. A
// nil *Metrics counts and serves nothing. It is safe for concurrent use.
type Metrics struct {
	opt      MetricsOptions
	registry *prometheus.Registry
	descs    [metricCount]*prometheus.Desc

	records, bytes, opens, catalogCalls *prometheus.CounterVec
	took                                *prometheus.HistogramVec

	mu       sync.RWMutex // guards channels
	channels map[string]*channelMetrics

	http metricsHTTP
}

// channelMetrics are the counters of one channel, by walimpls.State.
type channelMetrics struct {
	records, bytes [3]prometheus.Counter
	took           prometheus.Observer

	mu sync.Mutex // guards hadTerm
	// hadTerm is the last term that had the log open.
	hadTerm int64
}

// NewMetrics returns metrics that nobody can see before Start.
func NewMetrics(opt MetricsOptions) *Metrics {
	if opt.Channels == nil {
		opt.Channels = func() []walmanager.ChannelState { return nil }
	}
	if opt.Plugins == nil {
		opt.Plugins = func() []pluginhost.Status { return nil }
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	opt.Log = opt.Log.Named("metrics")
	m := &Metrics{
		opt: opt, registry: prometheus.NewRegistry(), channels: map[string]*channelMetrics{},
		records: counterVec(appendRecords), bytes: counterVec(appendBytes),
		opens: counterVec(backendOpens), catalogCalls: counterVec(catalogCalls),
	}
	for id, d := range metricTable {
		m.descs[id] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	took := metricTable[appendDuration]
	m.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: took.name, Help: took.help, Buckets: took.buckets}, took.labels)
	m.registry.MustRegister(collector{m}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func counterVec(id metricID) *prometheus.CounterVec {
	d := metricTable[id]
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.name, Help: d.help}, d.labels)
}

// channel returns the counters of a channel, new ones if there are none.
func (m *Metrics) channel(name string) *channelMetrics {
	m.mu.RLock()
	c := m.channels[name]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c = m.channels[name]; c != nil {
		return c
	}
	c = &channelMetrics{took: m.took.WithLabelValues(name)}
	for i := range c.records {
		outcome := walimpls.State(i).String()
		c.records[i] = m.records.WithLabelValues(name, outcome)
		c.bytes[i] = m.bytes.WithLabelValues(name, outcome)
	}
	m.channels[name] = c
	return c
}

// known returns the channels that have counters.
func (m *Metrics) known() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	names := make([]string, 0, len(m.channels))
	for name := range m.channels {
		names = append(names, name)
	}
	return names
}

// forget drops a channel's counters.
func (m *Metrics) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.channels, name)
	labels := prometheus.Labels{"channel": name}
	for _, vec := range []*prometheus.CounterVec{m.records, m.bytes, m.opens} {
		vec.DeletePartialMatch(labels)
	}
	m.took.DeletePartialMatch(labels)
}

// Observer returns what is to be told of appends.
func (m *Metrics) Observer() interceptors.Observer {
	if m == nil {
		return nil // not an Observer that holds a nil
	}
	return m
}

// Appended implements interceptors.Observer.
func (m *Metrics) Appended(channel string, stored, notStored, unknown, bytes int, took time.Duration) {
	c := m.channel(channel)
	n := [3]int{walimpls.Stored: stored, walimpls.NotStored: notStored, walimpls.Unknown: unknown}
	all := stored + notStored + unknown
	for state, k := range n {
		if k > 0 {
			c.records[state].Add(float64(k))
			c.bytes[state].Add(float64(bytes * k / all))
		}
	}
	c.took.Observe(took.Seconds())
}

// Backend returns b, the backend of the plugin of that name, with its opens counted.
func (m *Metrics) Backend(plugin string, b wal.Backend) wal.Backend {
	if m == nil {
		return b
	}
	return meteredBackend{Backend: b, plugin: plugin, m: m}
}

type meteredBackend struct {
	wal.Backend
	plugin string
	m      *Metrics
}

// Open counts the opens that fence; those for reading change nothing.
func (b meteredBackend) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	w, err := b.Backend.Open(ctx, opt)
	if opt.Access == walimpls.AccessReadWrite {
		kind, result := b.m.channel(opt.Channel).opened(opt.Term, err), "ok"
		if err != nil {
			result = "error"
		}
		b.m.opens.WithLabelValues(opt.Channel, b.plugin, kind, result).Inc()
	}
	return w, err
}

// opened notes the result of an open, and says whether the term had the log before.
func (c *channelMetrics) opened(term int64, err error) (kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term == c.hadTerm {
		return "reopen"
	}
	if err == nil {
		c.hadTerm = term
	}
	return "open"
}

// Catalog returns c with its calls counted.
func (m *Metrics) Catalog(c catalog.Catalog) catalog.Catalog {
	if m == nil {
		return c
	}
	return meteredCatalog{c, m}
}

type meteredCatalog struct {
	catalog.Catalog
	m *Metrics
}

func (c meteredCatalog) count(op string, err error) {
	code := "ok"
	if err != nil {
		code = string(walimpls.AsError(err).Code)
	}
	c.m.catalogCalls.WithLabelValues(op, code).Inc()
}

func (c meteredCatalog) Create(ctx context.Context, row catalog.Row) error {
	err := c.Catalog.Create(ctx, row)
	c.count("create", err)
	return err
}

func (c meteredCatalog) Get(ctx context.Context, channel string) (catalog.Row, error) {
	row, err := c.Catalog.Get(ctx, channel)
	c.count("get", err)
	return row, err
}

func (c meteredCatalog) List(ctx context.Context) ([]catalog.Row, error) {
	rows, err := c.Catalog.List(ctx)
	c.count("list", err)
	return rows, err
}

func (c meteredCatalog) Claim(ctx context.Context, channel string, term int64) (catalog.Row, error) {
	row, err := c.Catalog.Claim(ctx, channel, term)
	c.count("claim", err)
	return row, err
}

// Update does not count what change itself refused: the catalog did its part.
func (c meteredCatalog) Update(ctx context.Context, channel string, term int64, change func(*catalog.Row) error) (catalog.Row, error) {
	refused := false
	row, err := c.Catalog.Update(ctx, channel, term, func(r *catalog.Row) error {
		err := change(r)
		refused = err != nil
		return err
	})
	if !refused {
		c.count("update", err)
	}
	return row, err
}

func (c meteredCatalog) Delete(ctx context.Context, channel string, term int64) error {
	err := c.Catalog.Delete(ctx, channel, term)
	c.count("delete", err)
	return err
}
