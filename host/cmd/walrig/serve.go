package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/walrig/walrig/host/config"
	"github.com/walrig/walrig/sdk/walimpls"
)

// A host that was told to end has shutdownBudget: the server drains first, then
// the logs are closed, then the plugins end; what hangs is cut off.
const (
	shutdownBudget = 10 * time.Second
	drainTimeout   = 2 * time.Second
	serverStop     = 4 * time.Second
	stackStop      = 8 * time.Second
	// listenPatience: a predecessor that was killed lets go of the data folder a
	// moment before its port.
	listenPatience = time.Second
)

func (a *app) serveCmd() *cobra.Command {
	var in config.Input
	var readyFile string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a host in the foreground",
		Long: `Run a host in the foreground. Without a configuration it keeps everything in ./walrig-data and listens on
127.0.0.1:7700.

When its plugins are configured and each channel is open or has reported its first error, it prints one line on stdout:
  walrig ready addr=127.0.0.1:7700 data_dir=/abs pid=N
A plugin or channel that does not come up does not stop the host: "walrig status" shows it, and it is tried again. Logs
go to stderr. SIGTERM or SIGINT drains and ends the host within 10 s with exit code 0; a second one ends it at once.`,
		Example: `  walrig serve
  walrig serve --data-dir /var/lib/walrig --listen 127.0.0.1:0 --ready-file /run/walrig.ready
  walrig serve --config walrig.yaml --set log.level=debug`,
		Args: needs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadConfig(cmd, in)
			if err != nil {
				return err
			}
			err = a.serve(cmd.Context(), cfg, readyFile)
			if errors.Is(err, errInterrupted) {
				return nil // told to end before it was up
			}
			return err
		},
	}
	configFlags(cmd, &in)
	cmd.Flags().StringVar(&readyFile, "ready-file", "", "write address, folder and pid to this file (JSON) when ready; it is removed at the end")
	return cmd
}

func (a *app) serve(ctx context.Context, cfg *config.Config, readyFile string) error {
	log, err := newLogger(a.stderr, cfg.Log)
	if err != nil {
		return err
	}
	lock, err := lockDataDir(ctx, cfg.DataDir, func(pid string) {
		log.Info("waiting for another host to let go of the data folder", zap.String("data_dir", cfg.DataDir), zap.String("pid", pid))
	})
	if err != nil {
		return err
	}
	defer lock.release()
	if readyFile != "" {
		if readyFile, err = filepath.Abs(readyFile); err != nil {
			return readyError(readyFile, err)
		}
		if err := removeReady(readyFile); err != nil {
			return err
		}
	}
	listener, err := listen(ctx, cfg.Listen, "--listen")
	if err != nil {
		return err
	}
	s, err := buildAndMeasure(ctx, cfg, log)
	if err != nil {
		listener.Close()
		return err
	}
	h := &runningHost{app: a, cfg: cfg, log: log, lock: lock, stack: s, readyFile: readyFile, addr: listener.Addr().String(), ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		h.served = s.server.Serve(context.WithoutCancel(ctx), listener)
	}()
	return h.run(ctx)
}

// buildAndMeasure makes the host and, if they are on, serves its metrics.
func buildAndMeasure(ctx context.Context, cfg *config.Config, log *zap.Logger) (*stack, error) {
	if cfg.MetricsListen == "" {
		return build(cfg, log)
	}
	listener, err := listen(ctx, cfg.MetricsListen, "--metrics-listen")
	if err != nil {
		return nil, err
	}
	s, err := build(cfg, log)
	if err != nil {
		listener.Close()
		return nil, err
	}
	if err := s.metrics.Start(listener, cfg.Insecure); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), walimpls.GracePeriod)
		defer cancel()
		s.close(ctx, log)
		return nil, err
	}
	return s, nil
}

// listen opens the port, and says what is wrong with one that it cannot have,
// and which flag chooses another.
func listen(ctx context.Context, addr, flag string) (net.Listener, error) {
	start := time.Now()
	for {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if err == nil {
			return listener, nil
		}
		if errors.Is(err, syscall.EADDRINUSE) && time.Since(start) < listenPatience {
			select {
			case <-time.After(lockPoll):
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		e := walimpls.Errorf(walimpls.CodeUnavailable, "", "cannot listen on %s: %w", addr, err)
		e.Retryable = false
		e.Hint = "choose another address with " + flag + "; port 0 takes a free port"
		if errors.Is(err, syscall.EADDRINUSE) {
			e.Message = "cannot listen on " + addr + ": another process uses this port"
			e.Hint = "stop that process, or choose another port with " + flag + "; port 0 takes a free one"
		}
		return nil, e
	}
}

// runningHost is a host from the moment that it listens.
type runningHost struct {
	app       *app
	cfg       *config.Config
	log       *zap.Logger
	lock      *dataLock
	stack     *stack
	readyFile string
	addr      string
	// ended is closed when Serve has returned, with served.
	ended  chan struct{}
	served error
}

// run announces the host when it is ready, and ends it when it is told to.
func (h *runningHost) run(ctx context.Context) error {
	h.log.Info("listening", zap.String("addr", h.addr), zap.String("data_dir", h.cfg.DataDir), zap.String("version", version))
	err := h.untilTold(ctx)
	h.shutDown(err == nil)
	return err
}

func (h *runningHost) untilTold(ctx context.Context) error {
	select {
	case <-h.stack.server.Ready():
		if err := h.announce(); err != nil {
			return err
		}
	case <-h.ended:
		return servedError(h.served)
	case <-ctx.Done():
		return nil
	}
	select {
	case <-h.ended:
		return servedError(h.served)
	case <-ctx.Done():
		return nil
	}
}

// servedError is for a server that ended although nobody told it to.
func servedError(err error) error {
	if err == nil {
		err = errors.New("it ended by itself")
	}
	var typed *walimpls.Error
	if errors.As(err, &typed) {
		return err
	}
	return walimpls.Errorf(walimpls.CodeInternal, "", "the server failed: %w", err)
}

func (h *runningHost) announce() error {
	info := readyInfo{Addr: h.addr, DataDir: h.cfg.DataDir, PID: os.Getpid(), Version: version}
	if h.readyFile != "" {
		if err := writeReady(h.readyFile, info); err != nil {
			return err
		}
	}
	// Whoever started the host may have closed its stdout; that stops nobody.
	if err := h.app.out().printf("walrig ready addr=%s data_dir=%s pid=%d\n", info.Addr, info.DataDir, info.PID); err != nil {
		h.log.Warn("the ready line cannot be written", zap.Error(err))
	}
	return nil
}

func (h *runningHost) shutDown(told bool) {
	start := time.Now()
	h.log.Info("ending", zap.Bool("told", told))
	h.lock.stopping()
	if h.readyFile != "" {
		_ = removeReady(h.readyFile)
	}
	// Everything below is bounded; this is for a defect in that.
	watchdog := time.AfterFunc(shutdownBudget-200*time.Millisecond, func() {
		h.log.Error("the host does not end in time, leaving now")
		os.Exit(walimpls.ExitFailure)
	})
	defer watchdog.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), serverStop)
	h.stack.server.Shutdown(ctx)
	select {
	case <-h.ended:
	case <-ctx.Done():
	}
	cancel()
	ctx, cancel = context.WithTimeout(context.Background(), stackStop-time.Since(start))
	defer cancel()
	h.stack.close(ctx, h.log)
	h.log.Info("ended", zap.Duration("took", time.Since(start)))
	_ = h.log.Sync()
}
