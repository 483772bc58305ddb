package pluginhost

import "time"

// This file decides what a supervisor does. It has no clock, goroutine or
// process: events go in with the time at which they happened, a decision comes
// out. supervise.go carries it out.

// policy are the numbers of the decisions; none is 0.
type policy struct {
	minBackoff   time.Duration
	maxBackoff   time.Duration
	healthyAfter time.Duration // a process that ran this long was healthy
	maxMisses    int           // health checks missed in a row before a kill
	// pokeGap is how long a permanent failure is taken for the present state
	// before a caller who asks again causes another attempt.
	pokeGap time.Duration
}

// phase is what a plugin is doing.
type phase string

// The phases. In phaseEnding the process was told to go and is not gone yet:
// a second one must not start beside it.
const (
	phaseStarting phase = "starting"
	phaseRunning  phase = "running"
	phaseEnding   phase = "ending"
	phaseBackoff  phase = "backoff"
	phaseStopped  phase = "stopped"
)

// eventKind is what happened.
type eventKind string

const (
	evBegin      eventKind = "begin"      // the supervisor begins
	evStarted    eventKind = "started"    // a start ended well
	evFailed     eventKind = "failed"     // a start failed and left nothing behind
	evPermanent  eventKind = "permanent"  // the same, and waiting does not mend it
	evExited     eventKind = "exited"     // the process is gone and reaped
	evDisconnect eventKind = "disconnect" // the connection broke, the process may live
	evHealthy    eventKind = "healthy"    // a health check was answered
	evMiss       eventKind = "miss"       // a health check was not answered
	evWake       eventKind = "wake"       // the time of a decision's wake has come
	evPoke       eventKind = "poke"       // a caller needs the plugin
	evStop       eventKind = "stop"       // the host closes
)

// action is what to do now.
type action string

const (
	actNothing action = "nothing"
	actLaunch  action = "launch" // begin a start
	actKill    action = "kill"   // kill the process, then report evExited
	actWait    action = "wait"   // report evWake at decision.wake
	actStop    action = "stop"   // end the process, if there is one, and the supervisor
)

type decision struct {
	act  action
	wake time.Time // of actWait
	why  string    // of actKill: what goes into Status.LastExit
}

// core is the state of one supervised plugin.
type core struct {
	policy
	phase     phase
	backoff   time.Duration // the next delay
	since     time.Time     // when the phase began
	wake      time.Time     // when phaseBackoff ends
	permanent bool          // the last start failed for good
	misses    int
	ups       int64 // starts that ended well
}

func newCore(p policy) *core { return &core{policy: p, phase: phaseBackoff, backoff: p.minBackoff} }

// restarts counts the processes that came up after the first.
func (c *core) restarts() int64 { return max(0, c.ups-1) }

// step takes one event. Events that make no sense in the present phase change
// nothing: they were on their way when the phase changed.
func (c *core) step(ev eventKind, at time.Time) decision {
	if ev == evStop && c.phase != phaseStopped {
		c.enter(phaseStopped, at)
		return decision{act: actStop}
	}
	switch c.phase {
	case phaseBackoff:
		return c.inBackoff(ev, at)
	case phaseStarting:
		return c.inStarting(ev, at)
	case phaseRunning:
		return c.inRunning(ev, at)
	case phaseEnding:
		if ev == evExited {
			return c.wait(at, c.nextBackoff())
		}
	}
	return decision{act: actNothing}
}

func (c *core) inBackoff(ev eventKind, at time.Time) decision {
	switch {
	case ev == evBegin,
		ev == evWake && !at.Before(c.wake),
		ev == evPoke && c.permanent && at.Sub(c.since) >= c.pokeGap:
		c.enter(phaseStarting, at)
		return decision{act: actLaunch}
	case ev == evWake:
		return decision{act: actWait, wake: c.wake}
	}
	return decision{act: actNothing}
}

func (c *core) inStarting(ev eventKind, at time.Time) decision {
	switch ev {
	case evStarted:
		c.ups++
		c.misses, c.permanent = 0, false
		c.enter(phaseRunning, at)
	case evFailed:
		c.permanent = false
		return c.wait(at, c.nextBackoff())
	case evPermanent:
		// Trying again is only to notice that somebody corrected the cause.
		c.permanent = true
		return c.wait(at, c.maxBackoff)
	}
	return decision{act: actNothing}
}

func (c *core) inRunning(ev eventKind, at time.Time) decision {
	switch ev {
	case evExited:
		c.credit(at)
		return c.wait(at, c.nextBackoff())
	case evDisconnect:
		return c.kill(at, "the connection broke; killed")
	case evHealthy:
		c.misses = 0
	case evMiss:
		if c.misses++; c.misses >= c.maxMisses {
			return c.kill(at, "no answer to its health checks; killed")
		}
	}
	return decision{act: actNothing}
}

func (c *core) kill(at time.Time, why string) decision {
	c.credit(at)
	c.enter(phaseEnding, at)
	return decision{act: actKill, why: why}
}

// credit starts the delays over if the process ran long enough.
func (c *core) credit(at time.Time) {
	if at.Sub(c.since) >= c.healthyAfter {
		c.backoff = c.minBackoff
	}
}

func (c *core) wait(at time.Time, delay time.Duration) decision {
	c.enter(phaseBackoff, at)
	c.wake = at.Add(delay)
	return decision{act: actWait, wake: c.wake}
}

// nextBackoff returns the delay that is due and doubles the next one.
func (c *core) nextBackoff() time.Duration {
	d := c.backoff
	c.backoff = min(2*d, c.maxBackoff)
	return d
}

func (c *core) enter(p phase, at time.Time) { c.phase, c.since = p, at }
