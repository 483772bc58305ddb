package server

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/flush"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testBound ends a test that hangs.
const testBound = 20 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testBound)
	t.Cleanup(cancel)
	return ctx
}

// fakePlugin is a configured plugin over a backend in process. Its failures are
// those of a process: it does not start, or it does not open.
type fakePlugin struct {
	walimpls.Opener
	name  string
	desc  walimpls.Description
	ctl   *faultbackend.Controller
	store *faultbackend.Store

	mu       sync.Mutex // guards all below
	startErr error
	started  chan struct{} // closed when the first start has ended
	noOpens  error
}

func newPlugin(t testing.TB, name string, opts ...faultbackend.Option) *fakePlugin {
	t.Helper()
	p := &fakePlugin{name: name, ctl: faultbackend.NewController(), store: faultbackend.NewStore(), started: make(chan struct{})}
	close(p.started)
	b := faultbackend.NewBuilder(append(opts, faultbackend.WithController(p.ctl), faultbackend.WithStore(p.store))...)
	p.desc = b.Describe()
	var err error
	p.Opener, err = b.Build(context.Background(), walimpls.Config{}, zap.NewNop())
	must(t, err)
	t.Cleanup(func() {
		must(t, p.ctl.SetRules(""))
		must(t, p.Close(context.Background()))
		must(t, p.store.Close())
	})
	return p
}

func (p *fakePlugin) Name() string    { return p.name }
func (p *fakePlugin) Backend() string { return p.desc.Backend }

func (p *fakePlugin) rules(t testing.TB, text string) {
	t.Helper()
	must(t, p.ctl.SetRules(text))
}

// breaks makes the plugin fail to start, or to open; nil mends it.
func (p *fakePlugin) breaks(start, open error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startErr, p.noOpens = start, open
}

func (p *fakePlugin) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	p.mu.Lock()
	err := errors.Join(p.startErr, p.noOpens)
	p.mu.Unlock()
	if err != nil {
		return nil, walimpls.AsError(err)
	}
	return p.Opener.Open(ctx, opt)
}

func (p *fakePlugin) Description(context.Context) (walimpls.Description, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desc, p.startErr
}

func (p *fakePlugin) Status() pluginhost.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := pluginhost.Status{Name: p.name, Backend: p.desc.Backend, State: "running", Version: p.desc.Version, PID: 1, Fencing: "strict"}
	if p.startErr != nil {
		st.State, st.LastExit, st.PID = "backoff", p.startErr.Error(), 0
	}
	return st
}

func (p *fakePlugin) WaitFirstStart(ctx context.Context) error {
	p.mu.Lock()
	started, err := p.started, p.startErr
	p.mu.Unlock()
	select {
	case <-started:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type fakePlugins []*fakePlugin

func (ps fakePlugins) Plugin(name string) (Plugin, error) {
	for _, p := range ps {
		if p.name == name {
			return p, nil
		}
	}
	return nil, walimpls.Errorf(walimpls.CodeNotFound, "", "no plugin %q is configured", name)
}

func (ps fakePlugins) Plugins() []Plugin {
	out := make([]Plugin, len(ps))
	for i, p := range ps {
		out[i] = p
	}
	return out
}

// host is a whole host but for plugin processes and the disk. It can be
// restarted over the same catalog and plugins.
type host struct {
	t       testing.TB
	opt     Options
	plugins fakePlugins
	catalog catalog.Catalog
	// bucket is a folder to flush to, "" for none.
	bucket string
	flush  *flush.Service

	srv     *Server
	manager *walmanager.Manager
	addr    string
	served  chan error
}

// newHost starts a host with the plugin "local" unless plugins are given.
func newHost(t testing.TB, opt Options, plugins ...*fakePlugin) *host {
	t.Helper()
	if len(plugins) == 0 {
		plugins = []*fakePlugin{newPlugin(t, "local")}
	}
	h := &host{t: t, opt: opt, plugins: plugins, catalog: catalog.NewMemory()}
	if h.opt.DefaultPlugin == "" {
		h.opt.DefaultPlugin = plugins[0].name
	}
	h.start("127.0.0.1:0")
	t.Cleanup(h.stop)
	return h
}

func (h *host) plugin() *fakePlugin { return h.plugins[0] }

func (h *host) start(addr string) {
	h.t.Helper()
	h.flush = newFlush(h.t, h.bucket, h.catalog)
	opener := wal.NewOpener(h.flush.Options(wal.Options{
		Catalog: h.catalog,
		Backend: func(name string) (wal.Backend, error) { return h.plugins.Plugin(name) },
	}))
	h.manager = walmanager.New(h.flush.Opener(opener), nil)
	opt := h.opt
	opt.Flush = h.flush
	opt.Catalog, opt.Manager, opt.Plugins = h.catalog, h.manager, h.plugins
	defaultTo(&opt.RetryMin, 5*time.Millisecond)
	defaultTo(&opt.RetryMax, 20*time.Millisecond)
	lis, err := net.Listen("tcp", addr)
	must(h.t, err)
	h.addr, h.srv, h.served = lis.Addr().String(), New(opt), make(chan error, 1)
	srv, served := h.srv, h.served
	go func() { served <- srv.Serve(context.Background(), lis) }()
}

// stop shuts the host down, and lets go of what hangs by its rules first if the
// test did not.
func (h *host) stop() {
	h.t.Helper()
	if h.srv == nil {
		return
	}
	srv, served := h.srv, h.served
	h.srv = nil
	srv.Shutdown(context.Background())
	must(h.t, <-served)
	_ = h.manager.Close(context.Background())
	must(h.t, h.flush.Close())
}

// newFlush returns what flushes to a folder, nil for none.
func newFlush(t testing.TB, bucket string, rows catalog.Catalog) *flush.Service {
	t.Helper()
	if bucket == "" {
		return nil
	}
	sink, err := parquet.Open(testContext(t), "file://"+bucket, parquet.Options{})
	must(t, err)
	return flush.New(sink, rows, flusher.Options{Log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)), MaxAge: 200 * time.Millisecond, SaveEvery: 50 * time.Millisecond})
}

// newFlushingHost is newHost with a folder to flush to.
func newFlushingHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, plugins: []*fakePlugin{newPlugin(t, "local")}, catalog: catalog.NewMemory(), bucket: t.TempDir()}
	h.opt.DefaultPlugin = "local"
	h.start("127.0.0.1:0")
	t.Cleanup(h.stop)
	return h
}

func (h *host) restart() {
	h.t.Helper()
	addr := h.addr
	h.stop()
	h.start(addr)
}

func (h *host) awaitReady() {
	h.t.Helper()
	select {
	case <-h.srv.Ready():
	case <-time.After(testBound):
		h.t.Fatal("the host does not become ready")
	}
}

func (h *host) client(opts ...client.Option) *client.Client { return dial(h.t, h.addr, opts...) }

func dial(t testing.TB, addr string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(testContext(t), addr, opts...)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// create makes a channel in the default plugin and returns a client.
func (h *host) create(name string) *client.Client {
	h.t.Helper()
	c := h.client()
	_, created, err := c.CreateChannel(testContext(h.t), name, client.CreateOptions{})
	must(h.t, err)
	if !created {
		h.t.Fatalf("channel %s was there already", name)
	}
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func hint(err error) string { return walimpls.AsError(err).Hint }

func texts(payloads ...string) []client.Record {
	out := make([]client.Record, len(payloads))
	for i, p := range payloads {
		out[i] = client.Record{Payload: []byte(p)}
	}
	return out
}

// appendAll stores payloads one after the other and returns their ids.
func appendAll(t testing.TB, c *client.Client, channel string, payloads ...string) []string {
	t.Helper()
	results, err := c.Append(testContext(t), channel, texts(payloads...)...)
	must(t, err)
	ids := make([]string, len(results))
	for i, r := range results {
		ids[i] = r.ID
	}
	return ids
}

// readAll reads until the end and returns the payloads.
func readAll(t testing.TB, c *client.Client, channel string, opt client.ReadOptions) []string {
	t.Helper()
	msgs, err := tryRead(t, c, channel, opt)
	must(t, err)
	return payloads(msgs)
}

func payloads(msgs []*client.Message) []string {
	out := []string{}
	for _, m := range msgs {
		out = append(out, string(m.Payload))
	}
	return out
}

func tryRead(t testing.TB, c *client.Client, channel string, opt client.ReadOptions) ([]*client.Message, error) {
	t.Helper()
	ctx := testContext(t)
	r, err := c.NewReader(ctx, channel, opt)
	if err != nil {
		return nil, err
	}
	defer func() { must(t, r.Close()) }()
	var msgs []*client.Message
	for {
		m, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return msgs, nil
		}
		if err != nil {
			return msgs, err
		}
		msgs = append(msgs, m)
	}
}

// take reads n records of a running reader.
func take(t testing.TB, r *client.Reader, n int) []string {
	t.Helper()
	ctx := testContext(t)
	var msgs []*client.Message
	for range n {
		m, err := r.Next(ctx)
		must(t, err)
		msgs = append(msgs, m)
	}
	return payloads(msgs)
}

// until polls a condition; it is for what only the outside can see.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(testBound)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// declare creates vchannels.
func declare(t testing.TB, c *client.Client, channel string, names ...string) {
	t.Helper()
	created, err := c.CreateVChannels(testContext(t), channel, names, false)
	must(t, err)
	if len(created) != len(names) {
		t.Fatalf("created %q of %q", created, names)
	}
}
