package main

import (
	"context"
	"errors"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/flusher/parquet"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/host/flush"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/server"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/walimpls"
)

const catalogName = "catalog.db"

// stack is everything that a host consists of below its listener.
type stack struct {
	catalog catalog.Catalog
	plugins *pluginhost.Host
	flush   *flush.Service // nil if nothing is flushed
	manager *walmanager.Manager
	server  *server.Server
	metrics *server.Metrics // nil if they are off
}

// build makes the host from the bottom up. The data folder is there and locked.
// A plugin that cannot start is no error: status shows it.
func build(cfg *config.Config, log *zap.Logger) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
			defer cancel()
			s.close(ctx, log)
		}
	}()
	s.metrics = s.newMetrics(cfg, log)
	if s.catalog, err = catalog.OpenBolt(filepath.Join(cfg.DataDir, catalogName), catalog.BoltOptions{}); err != nil {
		return s, err
	}
	s.catalog = s.metrics.Catalog(s.catalog)
	plugins := pluginOptions(cfg, log)
	if s.plugins, err = pluginhost.New(plugins); err != nil {
		return s, err
	}
	if s.flush, err = newFlush(cfg, s.catalog, log); err != nil {
		return s, err
	}
	opener := wal.NewOpener(s.flush.Options(wal.Options{
		Catalog: s.catalog, Log: log.Named("wal"), Observer: s.metrics.Observer(),
		Backend: func(name string) (wal.Backend, error) {
			p, err := s.plugins.Plugin(name)
			if err != nil {
				return nil, err
			}
			return s.metrics.Backend(name, p), nil
		},
	}))
	s.manager = walmanager.New(s.flush.Opener(opener), log)
	s.server = server.New(server.Options{
		Catalog: s.catalog, Manager: s.manager, Plugins: server.FromHost(s.plugins), Flush: s.flush,
		Mode: server.Mode(cfg.Mode), DefaultPlugin: cfg.DefaultPlugin, Insecure: cfg.Insecure,
		Version: version, DataDir: cfg.DataDir, Log: log, DrainTimeout: drainTimeout,
		Verify: func(ctx context.Context, name string) (pluginhost.Status, walimpls.Description, error) {
			for _, p := range plugins.Plugins {
				if p.Name == name {
					return pluginhost.Verify(ctx, p, plugins)
				}
			}
			return pluginhost.Status{}, walimpls.Description{}, walimpls.Errorf(walimpls.CodeNotFound, "", "no plugin is called %q", name)
		},
	})
	return s, nil
}

func pluginOptions(cfg *config.Config, log *zap.Logger) pluginhost.Options {
	opt := pluginhost.Options{PluginDir: cfg.PluginDir, Log: log.Named("plugin")}
	for _, p := range cfg.Plugins {
		opt.Plugins = append(opt.Plugins, pluginhost.Config{
			Name: p.Name, Backend: p.Backend, Path: p.Path, SHA256: p.SHA256, Config: p.Config, Env: p.Env, StartTimeout: p.StartTimeout,
		})
	}
	return opt
}

// newFlush opens what the logs are flushed to, nil if nothing is.
func newFlush(cfg *config.Config, rows catalog.Catalog, log *zap.Logger) (*flush.Service, error) {
	f := cfg.Flusher
	if f.Bucket == "" {
		return nil, nil
	}
	log = log.Named("flusher")
	ctx, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
	defer cancel()
	sink, err := parquet.Open(ctx, f.Bucket, parquet.Options{Log: log})
	if err != nil {
		e := walimpls.Errorf(walimpls.CodeConfig, "", "flusher.bucket %q: %w", f.Bucket, err)
		e.Hint = "use a URL such as file:///abs/folder or s3://bucket?region=eu-central-1"
		return nil, e
	}
	return flush.New(sink, rows, flusher.Options{
		MaxBytes: f.MaxBytes, MaxAge: f.MaxAge, MaxMemory: f.MaxMemory, Parallel: f.Parallel, SaveEvery: f.CheckpointEvery,
		FlushTimeout: f.Timeout, MinAge: f.MinAge, MaxPinAge: f.MaxPinAge, Log: log,
	}), nil
}

// newMetrics returns what counts, nil if metrics are off. The stack answers
// scrapes once it is built.
func (s *stack) newMetrics(cfg *config.Config, log *zap.Logger) *server.Metrics {
	if cfg.MetricsListen == "" {
		return nil
	}
	return server.NewMetrics(server.MetricsOptions{
		Version: version, Log: log,
		Channels: func() []walmanager.ChannelState { return s.manager.Status() },
		Flusher:  func(channel string) *flusher.Flusher { return s.flush.Flusher(channel) },
		Plugins: func() (all []pluginhost.Status) {
			for _, p := range s.plugins.Plugins() {
				all = append(all, p.Status())
			}
			return all
		},
	})
}

// close ends everything from the top down, within ctx; parts that were never
// built are left out.
func (s *stack) close(ctx context.Context, log *zap.Logger) {
	var errs []error
	s.metrics.Close(ctx)
	if s.manager != nil {
		errs = append(errs, s.manager.Close(ctx))
	}
	errs = append(errs, s.flush.Close())
	if s.plugins != nil {
		errs = append(errs, s.plugins.Close(ctx))
	}
	if s.catalog != nil {
		errs = append(errs, s.catalog.Close())
	}
	if err := errors.Join(errs...); err != nil {
		log.Warn("not everything ended in order", zap.Error(err))
	}
}
