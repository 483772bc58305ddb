package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/walrig/walrig/sdk/plugin/plugintest"
	"github.com/walrig/walrig/sdk/plugin/remote"
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
	h := plugintest.Start(o.tb, o.builder)
	i := &served{Client: h.Client, harness: h}
	if err := h.Client.Configure(ctx, o.cfg); err != nil {
		return nil, errors.Join(err, i.Close(ctx))
	}
	return i, nil
}

func (o *overRPC) CheckConfig(ctx context.Context, extra walimpls.Config) error {
	h := plugintest.Start(o.tb, o.builder)
	i := &served{Client: h.Client, harness: h}
	err := h.Client.Configure(ctx, merge(o.cfg, extra))
	return errors.Join(err, i.Close(ctx))
}

type served struct {
	*remote.Client
	harness *plugintest.Harness
}

func (s *served) Description(ctx context.Context) (walimpls.Description, error) {
	return s.Describe(ctx)
}

// Close ends the client and then the backend behind it, as a process would end.
func (s *served) Close(ctx context.Context) error {
	err := s.Client.Close(ctx)
	s.harness.Kill()
	return errors.Join(err, s.harness.Server.Close(ctx))
}
