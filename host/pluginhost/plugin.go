package pluginhost

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Plugin is one configured plugin. It stays the same while its processes come
// and go; it is safe for concurrent use.
type Plugin struct {
	cfg     Config
	starter *starter
	cancel  context.CancelFunc // ends the supervisor: starts and waits at once
	poke    chan struct{}      // one slot: a caller needs the plugin
	done    chan struct{}      // closed when the supervisor has ended

	mu      sync.Mutex      // guards what follows
	changed chan struct{}   // closed and replaced whenever something below changes
	current *instance       // the running process, nil if there is none
	starts  int             // starts that have ended
	failure *StartError     // of the last start, nil if it went well
	failed  time.Time       // when that was
	first   error           // of the first start
	closing context.Context // bounds the orderly end; nil before close
	status  Status
	left    error // a process that does not end
}

// Name returns the configured name.
func (p *Plugin) Name() string { return p.cfg.Name }

// Backend returns the configured backend.
func (p *Plugin) Backend() string { return p.cfg.Backend }

// Open opens a channel in the running process, as walimpls.Opener says. While
// there is none it waits for one until ctx ends; a start that failed for a
// reason which waiting does not mend is returned at once, as a *StartError. An
// Open whose process ends meanwhile is ErrUnavailable and not repeated here:
// whether the pair was used is only known to the store, so another attempt takes
// the next incarnation.
//
// The WAL is the one of sdk/plugin/remote: it breaks when its process ends, and
// is never moved to the next one.
func (p *Plugin) Open(ctx context.Context, opt walimpls.OpenOptions) (wal walimpls.WAL, err error) {
	err = p.call(ctx, opt.Channel, func(ctx context.Context, i *instance) error {
		wal, err = i.client.Open(ctx, opt)
		return err
	})
	return wal, err
}

// Drop deletes a channel's log, as walimpls.Opener says. It waits for a running
// process as Open does.
func (p *Plugin) Drop(ctx context.Context, channel string, term int64) error {
	return p.call(ctx, channel, func(ctx context.Context, i *instance) error {
		return i.client.Drop(ctx, channel, term)
	})
}

// call makes a call in the running process. If the process was gone before the
// call was sent, which is noticed later than it happens, the next one gets it.
func (p *Plugin) call(ctx context.Context, channel string, do func(context.Context, *instance) error) error {
	for {
		i, err := p.await(ctx, channel)
		if err != nil {
			return err
		}
		var sent atomic.Bool
		err = do(context.WithValue(ctx, sentKey{}, &sent), i)
		if err == nil || sent.Load() || !errors.Is(err, walimpls.ErrUnavailable) || !p.replaced(ctx, i) {
			return err
		}
	}
}

// replaced waits until the process is not the running one any more.
func (p *Plugin) replaced(ctx context.Context, i *instance) bool {
	for {
		p.mu.Lock()
		current, changed := p.current, p.changed
		p.mu.Unlock()
		if current != i {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Description returns what the running process describes. It waits for one as
// Open does.
func (p *Plugin) Description(ctx context.Context) (walimpls.Description, error) {
	i, err := p.await(ctx, "")
	if err != nil {
		return walimpls.Description{}, err
	}
	return i.desc, nil
}

// Status returns what is known about the plugin now. It never blocks.
func (p *Plugin) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// WaitFirstStart waits until the first start has ended, and returns its error.
func (p *Plugin) WaitFirstStart(ctx context.Context) error {
	for {
		p.mu.Lock()
		starts, first, closing, changed := p.starts, p.first, p.closing, p.changed
		p.mu.Unlock()
		switch {
		case starts > 0:
			return first
		case closing != nil:
			return p.stopping("")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.notRunning(ctx, "")
		}
	}
}

// await returns the running process; see Open for what it waits for. A permanent
// failure is only returned while it is young. An older one may be mended by now
// (the binary is there, the configuration was corrected), so a caller causes
// another attempt and gets what comes out of that.
func (p *Plugin) await(ctx context.Context, channel string) (*instance, error) {
	seen := -1
	for {
		p.mu.Lock()
		current, failure, closing, changed := p.current, p.failure, p.closing, p.changed
		if seen < 0 {
			seen = p.starts
		}
		fresh := p.starts > seen || time.Since(p.failed) < pokeGap
		p.mu.Unlock()
		switch {
		case closing != nil:
			return nil, p.stopping(channel)
		case current != nil:
			return current, nil
		case failure != nil && failure.Permanent && fresh:
			return nil, failure.withChannel(channel)
		case failure != nil && failure.Permanent:
			select {
			case p.poke <- struct{}{}:
			default:
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, p.notRunning(ctx, channel)
		}
	}
}

// stopping is the answer while the host stops.
func (p *Plugin) stopping(channel string) error {
	return walimpls.Errorf(walimpls.CodeShutdown, channel, "plugin %q: the host is stopping", p.cfg.Name)
}

// notRunning is the error of a caller whose context ended while it waited. It
// is an ErrUnavailable or, if the last start failed, that *StartError; and the
// context's error in both cases.
func (p *Plugin) notRunning(ctx context.Context, channel string) error {
	p.mu.Lock()
	failure, last := p.failure, p.status.LastExit
	p.mu.Unlock()
	if failure != nil {
		e := failure.withChannel(channel)
		e.Cause = errors.Join(ctx.Err(), e.Cause)
		return e
	}
	text := "has not started yet"
	if last != "" {
		text = "is being restarted; its last process ended: " + last
	}
	e := walimpls.Errorf(walimpls.CodeUnavailable, channel, "plugin %q %s", p.cfg.Name, text)
	e.Err = ctx.Err()
	return e
}
