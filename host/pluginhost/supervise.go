package pluginhost

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// supervisor carries out the decisions of core for one plugin. One goroutine
// runs it; everything that others see goes through Plugin.update.
type supervisor struct {
	*Plugin
	log      *zap.Logger
	core     *core
	launcher *launcher
	running  *instance // the process, from its start until its end was reported
	wake     time.Time // of the last actWait
	reported string    // the last failure that was logged

	healthResults chan bool
	stopHealth    func()
}

func newPlugin(s *starter, cfg Config) *Plugin {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Plugin{
		cfg: cfg, starter: s, cancel: cancel,
		poke: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{}),
		status: Status{Name: cfg.Name, Backend: cfg.Backend, State: string(phaseStarting)},
	}
	sup := &supervisor{
		Plugin: p, core: newCore(s.opt.policy(cfg)), log: s.opt.Log.With(zap.String("plugin", cfg.Name)),
		launcher: newLauncher(), stopHealth: func() {},
	}
	go sup.run(ctx)
	return p
}

// close ends the plugin and waits for it. ctx bounds the orderly part.
func (p *Plugin) close(ctx context.Context) error {
	p.update(func() {
		if p.closing == nil {
			p.closing = ctx
		}
	})
	p.cancel()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}

// update changes what callers see and wakes those who wait for a change.
func (p *Plugin) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// run steps the core until it says stop.
func (s *supervisor) run(ctx context.Context) {
	defer close(s.done)
	defer s.launcher.close()
	d := s.core.step(evBegin, time.Now())
	for d.act != actStop {
		ev, at := s.next(ctx, d)
		d = s.core.step(ev, at)
		s.show(d)
	}
	s.shutdown()
}

// show publishes the phase that a decision led to.
func (s *supervisor) show(d decision) {
	state := string(s.core.phase)
	if s.core.phase == phaseEnding {
		state = string(phaseBackoff)
	}
	s.update(func() {
		s.status.State = state
		s.status.Restarts = s.core.restarts()
		if d.act == actKill {
			s.status.LastExit = d.why
		}
	})
}

// next carries out a decision and returns the event that comes next, with the
// time at which it came.
func (s *supervisor) next(ctx context.Context, d decision) (eventKind, time.Time) {
	var ev eventKind
	switch d.act {
	case actLaunch:
		return s.launch(ctx)
	case actKill:
		ev = s.kill(ctx, d.why)
	case actWait:
		s.wake = d.wake
		ev = s.idle(ctx)
	default:
		if s.running != nil {
			ev = s.watch(ctx)
		} else {
			ev = s.idle(ctx)
		}
	}
	return ev, time.Now()
}

// launch makes one start.
func (s *supervisor) launch(ctx context.Context) (eventKind, time.Time) {
	i, fail := s.starter.start(ctx, s.launcher, s.cfg)
	at := time.Now()
	if fail == nil {
		s.started(i)
		return evStarted, at
	}
	ev := evFailed
	if fail.Permanent {
		ev = evPermanent
	}
	left := i.proc != nil && i.proc.started() && !s.gone(ctx, i)
	if left || ctx.Err() != nil {
		ev = evStop
	}
	s.update(func() {
		if i.path != "" {
			s.status.Path, s.status.SHA256 = i.path, i.sum
		}
		s.status.LastExit = "start failed: " + fail.detail
		s.failure, s.failed = fail, at
		if s.starts++; s.starts == 1 {
			s.first = fail
		}
	})
	if text := fail.Error(); text != s.reported && ctx.Err() == nil {
		s.reported = text
		s.log.Error("plugin did not start", zap.String("error", text), zap.String("hint", fail.Err.Hint), zap.Bool("permanent", fail.Permanent))
	} else {
		s.log.Debug("plugin still does not start", zap.String("error", text))
	}
	return ev, at
}

// started publishes a process that is ready.
func (s *supervisor) started(i *instance) {
	s.running, s.reported = i, ""
	s.healthResults = make(chan bool)
	s.stopHealth = i.checkHealth(s.cfg.HealthInterval, s.healthResults)
	pid := i.proc.pid()
	s.update(func() {
		s.current, s.failure = i, nil
		s.starts++
		s.status.PID, s.status.Path, s.status.SHA256 = pid, i.path, i.sum
		s.status.Version, s.status.Protocol, s.status.Fencing = i.desc.Version, i.protocol, string(i.desc.Capabilities.Fencing)
	})
	s.log.Info("plugin is running", zap.String("backend", i.desc.Backend), zap.String("version", i.desc.Version), zap.Int("pid", pid),
		zap.Int("protocol", i.protocol), zap.String("path", i.path), zap.String("sha256", i.sum))
}

// checkHealth makes a health check every interval, until the function that it
// returns is called.
func (i *instance) checkHealth(interval time.Duration, results chan<- bool) (stop func()) {
	if interval <= 0 {
		interval = DefaultHealthInterval
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			within, cancel := context.WithTimeout(ctx, interval)
			healthy := i.link.ping(within) == nil
			cancel()
			select {
			case results <- healthy:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// watch waits until something happens to the running process.
func (s *supervisor) watch(ctx context.Context) eventKind {
	select {
	case <-ctx.Done():
		return evStop
	case <-s.running.proc.exited:
		return s.exited()
	case healthy := <-s.healthResults:
		if healthy {
			return evHealthy
		}
		s.log.Warn("plugin did not answer a health check")
		return evMiss
	case <-s.running.link.broken:
	}
	// Nobody gets this client any more. A connection breaks first when a process
	// ends; wait for how it ended.
	s.withdraw()
	select {
	case <-s.running.proc.exited:
		return s.exited()
	case <-time.After(pipeWait):
		return evDisconnect
	case <-ctx.Done():
		return evStop
	}
}

// withdraw takes the process away from callers.
func (s *supervisor) withdraw() {
	s.update(func() { s.current = nil })
}

// exited cleans up behind a process that ended by itself.
func (s *supervisor) exited() eventKind {
	text, _ := s.running.proc.exit()
	stderr, _ := s.running.out.traces()
	s.log.Error("plugin ended", zap.String("exit", text), zap.Strings("last_stderr_lines", stderr))
	s.release(text)
	return evExited
}

// kill kills the process and waits until it is gone, however long that takes:
// a second process must never run beside it.
func (s *supervisor) kill(ctx context.Context, why string) eventKind {
	s.log.Error("plugin is killed", zap.String("because", why), zap.Int("pid", s.running.proc.pid()))
	s.withdraw()
	s.running.end()
	if !s.gone(ctx, s.running) {
		return evStop
	}
	s.release(why)
	return evExited
}

// gone waits until the process is reaped; false if the host stops first.
func (s *supervisor) gone(ctx context.Context, i *instance) bool {
	select {
	case <-i.proc.exited:
		return true
	default:
		s.log.Error("plugin was killed and does not end; it hangs in the kernel")
	}
	select {
	case <-i.proc.exited:
		return true
	case <-ctx.Done():
		return false
	}
}

// release forgets the process, which is gone.
func (s *supervisor) release(lastExit string) {
	s.stopHealth()
	i := s.running
	s.running = nil
	s.update(func() {
		s.current = nil
		s.status.PID, s.status.LastExit = 0, lastExit
	})
	i.end()
}

// idle waits for the end of the backoff.
func (s *supervisor) idle(ctx context.Context) eventKind {
	timer := time.NewTimer(time.Until(s.wake))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return evStop
	case <-timer.C:
		return evWake
	case <-s.poke:
		return evPoke
	}
}

// shutdown ends the process in an orderly way, within the bounds of close.
func (s *supervisor) shutdown() {
	s.mu.Lock()
	closing, i := s.closing, s.running
	s.mu.Unlock()
	if i != nil {
		s.withdraw()
		s.stopHealth()
		i.stop(closing)
		text, _ := i.proc.exit()
		var left error
		if text == "" {
			left = walimpls.Errorf(walimpls.CodeInternal, "", "plugin %q: process %d was killed and does not end; it hangs in the kernel", s.cfg.Name, i.proc.pid())
		}
		s.running = nil
		s.update(func() {
			s.left = left
			s.status.PID, s.status.LastExit = i.proc.pid(), text
		})
		s.log.Info("plugin stopped", zap.String("exit", text))
	}
}

// Verify starts a plugin once, describes and configures it, and stops it. The
// Status has what was found out, also with an error; so has the Description, whose
// Backend is "" if the plugin was not described.
func Verify(ctx context.Context, cfg Config, opt Options) (Status, walimpls.Description, error) {
	st := Status{Name: cfg.Name, Backend: cfg.Backend, State: string(phaseStopped)}
	if err := checkNames([]Config{cfg}); err != nil {
		return st, walimpls.Description{}, err
	}
	s := newStarter(opt)
	defer s.dirs.remove()
	l := newLauncher()
	defer l.close()
	i, fail := s.start(ctx, l, cfg)
	st.Path, st.SHA256 = i.path, i.sum
	if fail != nil {
		st.LastExit = "start failed: " + fail.detail
		return st, i.desc, fail
	}
	i.stop(ctx)
	st.Version, st.Protocol, st.Fencing = i.desc.Version, i.protocol, string(i.desc.Capabilities.Fencing)
	st.LastExit, _ = i.proc.exit()
	return st, i.desc, nil
}
