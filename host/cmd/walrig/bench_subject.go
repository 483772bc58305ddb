package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/walrig/walrig/host/bench"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/plugins/rmq"
	"github.com/walrig/walrig/sdk/client"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The ways to a log.
const (
	throughHost    = "host"
	throughPlugin  = "plugin"
	throughProcess = "process"
)

// benchCleanup bounds what removes a log after the measuring.
const benchCleanup = 30 * time.Second

// benchSubject says what is measured.
type benchSubject struct {
	through, plugin string
	from            conformOptions // --config and --set
}

func (s *benchSubject) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.through, "through", throughHost, "host, plugin (its process, without a host), or process (the backend in this one)")
	f.StringVar(&s.plugin, "plugin", "", "the plugin: a configured name, a backend, or the path of a binary (default: the host's, else rmq)")
	f.StringVar(&s.from.in.File, "config", "", "configuration file (YAML) with the plugin's entry; not for --through host")
	f.StringArrayVar(&s.from.sets, "set", nil, "configuration of the backend, as key=value; not for --through host; may be repeated")
}

// benchLog is a log under measurement.
type benchLog struct {
	bench.Target
	source func(context.Context) (bench.Source, error)
	undo   []func(context.Context) error // last first
}

// close removes what was made, also when ctx has ended.
func (l benchLog) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), benchCleanup)
	defer cancel()
	var errs []error
	for i := len(l.undo) - 1; i >= 0; i-- {
		errs = append(errs, l.undo[i](ctx))
	}
	return errors.Join(errs...)
}

func (a *app) openBench(cmd *cobra.Command, s benchSubject, args []string) (l benchLog, err error) {
	ctx := cmd.Context()
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close(ctx))
		}
	}()
	switch s.through {
	case throughHost:
		if len(s.from.sets) > 0 || s.from.in.File != "" {
			return l, usageError("change the host's configuration, or use --through plugin", "--set and --config are not for --through host")
		}
		return a.benchHost(ctx, s, args)
	case throughPlugin, throughProcess:
		if len(args) > 0 {
			return l, usageError("without a host a log is made for the run: leave the name away", "a channel is for --through host")
		}
		return a.benchOpener(cmd, s)
	}
	return l, usageError("", "--through is host, plugin or process, not %q", s.through)
}

func newBenchName() string { return "bench-" + strings.ToLower(rand.Text()[:12]) }

// benchHost is a channel of a running host.
func (a *app) benchHost(ctx context.Context, s benchSubject, args []string) (l benchLog, err error) {
	c, err := a.dial(ctx)
	if err != nil {
		return l, err
	}
	l.undo = append(l.undo, func(context.Context) error { return c.Close() })
	name := newBenchName()
	if len(args) > 0 {
		name = args[0]
		if _, err := c.DescribeChannel(ctx, name); err != nil {
			return l, err
		}
	} else {
		if _, _, err := c.CreateChannel(ctx, name, client.CreateOptions{Plugin: s.plugin}); err != nil {
			return l, err
		}
		l.undo = append(l.undo, func(ctx context.Context) error { return c.RemoveChannel(ctx, name, true) })
	}
	appender, err := c.NewAppender(ctx, name, client.AppenderOptions{})
	if err != nil {
		return l, err
	}
	l.undo = append(l.undo, func(ctx context.Context) error { _ = appender.Close(ctx); return nil })
	l.Target = hostTarget{appender}
	l.source = func(ctx context.Context) (bench.Source, error) {
		r, err := c.NewReader(ctx, name, client.ReadOptions{})
		if err != nil {
			return nil, err
		}
		return &hostSource{r}, nil
	}
	return l, nil
}

// hostTarget appends through one stream, as one application does.
type hostTarget struct{ *client.Appender }

func (t hostTarget) Append(ctx context.Context, payloads [][]byte) error {
	futures := make([]*client.Future, len(payloads))
	for i, p := range payloads {
		futures[i] = t.Appender.Append(client.Record{Payload: p})
	}
	for _, f := range futures {
		if _, err := f.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

type hostSource struct{ *client.Reader }

func (s *hostSource) Next(ctx context.Context) (int, int64, error) {
	m, err := s.Reader.Next(ctx)
	if err != nil {
		return 0, 0, err
	}
	return 1, int64(len(m.Payload)), nil
}

// benchOpener is a log of a backend without a host.
func (a *app) benchOpener(cmd *cobra.Command, s benchSubject) (l benchLog, err error) {
	ctx := cmd.Context()
	cfg, dir, err := a.conformPlugin(cmd, s.plugin, s.from)
	if err != nil {
		return l, err
	}
	if cfg.Config == nil {
		cfg.Config = walimpls.Config{}
	}
	builder := rmq.Builder{}
	if s.through == throughProcess && cfg.Backend != builder.Name() {
		return l, usageError("measure it with --through plugin", "backend %q is not compiled into this program, only %q is", cfg.Backend, builder.Name())
	}
	desc := builder.Describe()
	if s.through == throughPlugin {
		if _, desc, err = pluginhost.Verify(ctx, cfg, pluginhost.Options{PluginDir: dir, Log: zap.NewNop()}); err != nil && (desc.Backend == "" || !wantsStore(desc, cfg.Config)) {
			return l, err
		}
	}
	if wantsStore(desc, cfg.Config) {
		temp, err := os.MkdirTemp("", "walrig-bench-")
		if err != nil {
			return l, usageError("say where with --set "+storeKey+"=…, or with TMPDIR", "no temporary store: %v", err)
		}
		l.undo = append(l.undo, func(context.Context) error { return os.RemoveAll(temp) })
		cfg.Config[storeKey] = filepath.Join(temp, "store")
	}
	var opener interface {
		Open(context.Context, walimpls.OpenOptions) (walimpls.WAL, error)
		Drop(context.Context, string, int64) error
	}
	if s.through == throughPlugin {
		h, err := pluginhost.New(pluginhost.Options{Plugins: []pluginhost.Config{cfg}, PluginDir: dir, Log: zap.NewNop()})
		if err != nil {
			return l, err
		}
		l.undo = append(l.undo, h.Close)
		if opener, err = h.Plugin(cfg.Name); err != nil {
			return l, err
		}
	} else {
		built, err := builder.Build(ctx, cfg.Config, zap.NewNop())
		if err != nil {
			return l, err
		}
		l.undo = append(l.undo, built.Close)
		opener = built
	}
	name := newBenchName()
	w, err := opener.Open(ctx, walimpls.OpenOptions{Channel: name, Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if err != nil {
		return l, err
	}
	l.undo = append(l.undo, func(ctx context.Context) error { return opener.Drop(ctx, name, 1) }, w.Close)
	l.Target = walTarget{w}
	l.source = func(ctx context.Context) (bench.Source, error) { return newWALSource(ctx, w) }
	return l, nil
}

type walTarget struct{ walimpls.WAL }

func (t walTarget) Append(ctx context.Context, payloads [][]byte) error {
	batch := make([]message.Message, len(payloads))
	for i, p := range payloads {
		batch[i] = message.Message{Type: message.TypeData, Payload: p}
	}
	_, err := t.WAL.Append(ctx, batch)
	return err
}

// walSource ends at what was the end when it began.
type walSource struct {
	walimpls.Scanner
	end  message.ID
	done bool
}

func newWALSource(ctx context.Context, w walimpls.WAL) (bench.Source, error) {
	bounds, err := w.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	scanner, err := w.Read(ctx, walimpls.ReadOptions{Name: "bench", Start: walimpls.FromAll()})
	if err != nil {
		return nil, err
	}
	return &walSource{Scanner: scanner, end: bounds.Latest}, nil
}

func (s *walSource) Next(ctx context.Context) (records int, bytes int64, err error) {
	if s.done {
		return 0, 0, io.EOF
	}
	batch, err := s.Scanner.Next(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range batch {
		if batch[i].Type == message.TypeFence {
			continue
		}
		records++
		bytes += int64(len(batch[i].Payload))
	}
	s.done = batch[len(batch)-1].ID >= s.end
	return records, bytes, nil
}
