package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// metricsPath is where the metrics are.
const metricsPath = "/metrics"

// Bounds of what a scraper can hold: it sends a short request and takes the
// answer, or is cut off.
const (
	maxScrapes          = 4
	scrapeHeaderTimeout = 5 * time.Second
	scrapeWriteTimeout  = 20 * time.Second
	scrapeIdleTimeout   = 2 * time.Minute
	// scrapeGrace is how long Close lets a scrape end.
	scrapeGrace = 300 * time.Millisecond
)

// metricsHTTP serves the metrics; Metrics owns it.
type metricsHTTP struct {
	mu     sync.Mutex // guards all below
	closed bool
	server *http.Server
	ended  chan struct{} // closed when the server's goroutine has ended
}

// Handler returns what Start serves at /metrics.
func (m *Metrics) Handler() http.Handler {
	log, err := zap.NewStdLogAt(m.opt.Log, zap.WarnLevel)
	if err != nil {
		log = zap.NewStdLog(m.opt.Log)
	}
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// What can be told is told: one broken value must not hide the others.
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: log, MaxRequestsInFlight: maxScrapes,
	})
}

// Start serves /metrics on lis until Close, once. It takes lis over. Errors:
// ErrConfig for a listener that others can reach, unless insecure accepts it;
// ErrShutdown after Close.
func (m *Metrics) Start(lis net.Listener, insecure bool) error {
	err := CheckListen(lis.Addr().String(), false, false, insecure)
	m.http.mu.Lock()
	defer m.http.mu.Unlock()
	switch {
	case err != nil:
	case m.http.closed:
		err = shutdownError("")
	case m.http.server != nil:
		err = walimpls.Errorf(walimpls.CodeInternal, "", "metrics: Start was called twice")
	}
	if err != nil {
		_ = lis.Close()
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsPath, m.Handler())
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: scrapeHeaderTimeout, ReadTimeout: scrapeHeaderTimeout,
		WriteTimeout: scrapeWriteTimeout, IdleTimeout: scrapeIdleTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: zap.NewStdLog(m.opt.Log),
	}
	ended := make(chan struct{})
	m.http.server, m.http.ended = server, ended
	m.opt.Log.Info("serving metrics", zap.String("url", "http://"+lis.Addr().String()+metricsPath))
	go func() {
		defer close(ended)
		if err := server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			m.opt.Log.Error("metrics are not served any more", zap.Error(err))
		}
	}()
	return nil
}

// Close ends what Start began: a scrape under way gets a moment, within ctx, and
// is cut off then. It is idempotent.
func (m *Metrics) Close(ctx context.Context) {
	if m == nil {
		return
	}
	m.http.mu.Lock()
	server, ended := m.http.server, m.http.ended
	m.http.closed = true
	m.http.mu.Unlock()
	if server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeGrace)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
	<-ended
}
