package flush

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal"
)

// Service is the flushers of a host.
type Service struct {
	sink    flusher.Sink
	catalog catalog.Catalog
	opt     flusher.Options

	mu        sync.Mutex // guards byChannel
	byChannel map[string]*flusher.Flusher
}

// New returns a service that flushes to the sink, which it takes over.
func New(sink flusher.Sink, rows catalog.Catalog, opt flusher.Options) *Service {
	return &Service{sink: sink, catalog: rows, opt: opt.WithDefaults(), byChannel: map[string]*flusher.Flusher{}}
}

// Enabled reports whether anything is flushed.
func (s *Service) Enabled() bool { return s != nil }

// Flusher returns the flusher of a channel that is open, nil if there is none.
func (s *Service) Flusher(channel string) *flusher.Flusher {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byChannel[channel]
}

// VChannels lists the vchannels of which something was flushed.
func (s *Service) VChannels(ctx context.Context, channel, storeID string) ([]string, error) {
	return s.sink.VChannels(ctx, channel, storeID)
}

// Close closes the sink; the WALs are closed before.
func (s *Service) Close() error {
	if s == nil {
		return nil
	}
	return s.sink.Close()
}

// Options adds what a WAL has to know of the service.
func (s *Service) Options(opt wal.Options) wal.Options {
	if s != nil {
		opt.FlusherDrops, opt.FlushedVChannels = true, s.VChannels
	}
	return opt
}

// Opener returns an opener whose WALs are flushed.
func (s *Service) Opener(inner wal.Opener) wal.Opener {
	if s == nil {
		return inner
	}
	return opener{inner, s}
}

type opener struct {
	wal.Opener
	s *Service
}

// Open implements wal.Opener.
func (o opener) Open(ctx context.Context, channel string, term int64) (wal.WAL, error) {
	w, err := o.Opener.Open(ctx, channel, term)
	if err != nil {
		return nil, err
	}
	f := flusher.Start(o.s.opt, walLog{w}, row{catalog: o.s.catalog, wal: w}, o.s.sink)
	o.s.mu.Lock()
	o.s.byChannel[channel] = f
	o.s.mu.Unlock()
	return &flushed{WAL: w, s: o.s, channel: channel, flusher: f}, nil
}

// flushed is a WAL with its flusher.
type flushed struct {
	wal.WAL
	s       *Service
	channel string
	flusher *flusher.Flusher
}

// closeWait is how long a flusher may take to end. What it leaves behind is in
// the log still.
const closeWait = time.Second

// Close implements wal.WAL.
func (w *flushed) Close(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, closeWait)
	if err := w.flusher.Close(short); err != nil {
		w.s.opt.Log.Warn("a flusher does not end, leaving it behind", zap.String("pchannel", w.channel), zap.Error(err))
	}
	cancel()
	w.s.mu.Lock()
	if w.s.byChannel[w.channel] == w.flusher {
		delete(w.s.byChannel, w.channel)
	}
	w.s.mu.Unlock()
	return w.WAL.Close(ctx)
}
