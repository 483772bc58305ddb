package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/walrig/walrig/sdk/plugin/plugintest"
	"github.com/walrig/walrig/sdk/walimpls"
)

// OverRPC is a backend that is linked in and served over the real protocol, on a
// socket. What was started is stopped when the test ends at the latest.
func OverRPC(tb testing.TB, b walimpls.Builder, cfg walimpls.Config, opts ...TargetOptions) Target {
	return &overRPC{inProcess: inProcess{builder: b, cfg: cfg, opt: one(opts)}, tb: tb}
}

type overRPC struct {
	inProcess
	tb testing.TB
}

func (o *overRPC) Info() TargetInfo {
	info := o.inProcess.Info()
	info.Kind = "over rpc"
	return info
}

func (o *overRPC) Start(ctx context.Context) (Instance, error) {
	s := &served{target: o}
	return s, s.serve(ctx, o.cfg)
}

func (o *overRPC) CheckConfig(ctx context.Context, extra walimpls.Config) error {
	s := &served{target: o}
	return errors.Join(s.serve(ctx, merge(o.cfg, extra)), s.Close(ctx))
}

// served is one client and the backend behind it; Break replaces both.
type served struct {
	target *overRPC

	mu      sync.Mutex // guards harness
	harness *plugintest.Harness
}

func (s *served) serve(ctx context.Context, cfg walimpls.Config) error {
	h := plugintest.Start(s.target.tb, s.target.builder)
	s.mu.Lock()
	s.harness = h
	s.mu.Unlock()
	if err := h.Client.Configure(ctx, cfg); err != nil {
		return errors.Join(err, s.Close(ctx))
	}
	return nil
}

func (s *served) current() *plugintest.Harness {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.harness
}

func (s *served) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	return s.current().Client.Open(ctx, opt)
}

func (s *served) Drop(ctx context.Context, channel string, term int64) error {
	return s.current().Client.Drop(ctx, channel, term)
}

func (s *served) Description(ctx context.Context) (walimpls.Description, error) {
	return s.current().Client.Describe(ctx)
}

// Close ends the client and then the backend behind it, as a process would end.
func (s *served) Close(ctx context.Context) error {
	h := s.current()
	err := h.Client.Close(ctx)
	h.Kill()
	return errors.Join(err, h.Server.Close(ctx))
}

// Break cuts the connection: no answer comes any more, while what was handed over
// is done. Then the backend ends, and another takes its place.
func (s *served) Break(ctx context.Context) error {
	h := s.current()
	h.Kill()
	err := errors.Join(h.Client.Close(ctx), h.Server.Close(ctx))
	return errors.Join(err, s.serve(ctx, s.target.cfg))
}
