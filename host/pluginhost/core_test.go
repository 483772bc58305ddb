package pluginhost

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testPolicy = policy{
	minBackoff: 100 * time.Millisecond, maxBackoff: 5 * time.Second,
	healthyAfter: 10 * time.Second, maxMisses: 3, pokeGap: time.Second,
}

// A step of a scenario: so much later this happens, and this is decided.
type coreStep struct {
	after time.Duration
	ev    eventKind
	act   action
	wait  time.Duration // of actWait, from now
}

func TestSupervisorDecisions(t *testing.T) {
	const ms = time.Millisecond
	up := []coreStep{{0, evBegin, actLaunch, 0}, {ms, evStarted, actNothing, 0}}
	cases := map[string][]coreStep{
		"an exit is followed by a restart, with doubled delays up to the longest": append(up[:2:2],
			coreStep{ms, evExited, actWait, 100 * ms}, coreStep{100 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 200 * ms},
			coreStep{200 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 400 * ms},
			coreStep{400 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 800 * ms},
			coreStep{800 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 1600 * ms},
			coreStep{1600 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 3200 * ms},
			coreStep{3200 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 5000 * ms},
			coreStep{5000 * ms, evWake, actLaunch, 0}, coreStep{ms, evFailed, actWait, 5000 * ms}),
		"a healthy run starts the delays over": append(up[:2:2],
			coreStep{ms, evExited, actWait, 100 * ms}, coreStep{100 * ms, evWake, actLaunch, 0}, coreStep{ms, evStarted, actNothing, 0},
			coreStep{9999 * ms, evExited, actWait, 200 * ms}, coreStep{200 * ms, evWake, actLaunch, 0}, coreStep{ms, evStarted, actNothing, 0},
			coreStep{10000 * ms, evExited, actWait, 100 * ms}),
		"a broken connection kills, and the restart waits for the end": append(up[:2:2],
			coreStep{ms, evDisconnect, actKill, 0}, coreStep{time.Hour, evHealthy, actNothing, 0}, coreStep{ms, evPoke, actNothing, 0},
			coreStep{ms, evExited, actWait, 100 * ms}),
		"misses in a row kill": append(up[:2:2],
			coreStep{ms, evMiss, actNothing, 0}, coreStep{ms, evMiss, actNothing, 0}, coreStep{ms, evHealthy, actNothing, 0},
			coreStep{ms, evMiss, actNothing, 0}, coreStep{ms, evMiss, actNothing, 0}, coreStep{ms, evMiss, actKill, 0},
			coreStep{ms, evExited, actWait, 100 * ms}),
		"a hang after a healthy run restarts at once": append(up[:2:2],
			coreStep{20 * time.Second, evMiss, actNothing, 0}, coreStep{ms, evMiss, actNothing, 0}, coreStep{ms, evMiss, actKill, 0},
			coreStep{time.Minute, evExited, actWait, 100 * ms}),
		"a permanent failure is tried again after the longest delay": {
			{0, evBegin, actLaunch, 0}, {ms, evPermanent, actWait, 5000 * ms},
			{4999 * ms, evWake, actWait, ms}, {ms, evWake, actLaunch, 0}, {ms, evStarted, actNothing, 0},
			{ms, evExited, actWait, 100 * ms},
		},
		"or when a caller asks once it is old": {
			{0, evBegin, actLaunch, 0}, {ms, evPermanent, actWait, 5000 * ms},
			{999 * ms, evPoke, actNothing, 0}, {ms, evPoke, actLaunch, 0}, {ms, evPoke, actNothing, 0}, {ms, evPermanent, actWait, 5000 * ms},
			{ms, evPoke, actNothing, 0},
		},
		"a caller does not shorten the delay of a failure that may pass": {
			{0, evBegin, actLaunch, 0}, {ms, evFailed, actWait, 100 * ms}, {50 * ms, evPoke, actNothing, 0}, {50 * ms, evWake, actLaunch, 0},
		},
		"stop is final": append(up[:2:2],
			coreStep{ms, evStop, actStop, 0}, coreStep{ms, evExited, actNothing, 0}, coreStep{time.Hour, evWake, actNothing, 0},
			coreStep{ms, evPoke, actNothing, 0}, coreStep{ms, evStop, actNothing, 0}),
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCore(testPolicy)
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				d := c.step(s.ev, now)
				if d.act != s.act {
					t.Fatalf("step %d (%s): decided %s, want %s", i, s.ev, d.act, s.act)
				}
				if d.act == actWait && d.wake.Sub(now) != s.wait {
					t.Fatalf("step %d (%s): waits %s, want %s", i, s.ev, d.wake.Sub(now), s.wait)
				}
			}
		})
	}
}

// Whatever happens, in whatever order: there is at most one process, starts are
// never closer together than the policy says, and nothing follows a stop.
func TestSupervisorPromisesHoldForAnyEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCore(testPolicy)
		now := time.Unix(1000, 0)
		alive, stopped := false, false
		var launches, ends []time.Time
		apply := func(ev eventKind) {
			d := c.step(ev, now)
			if stopped && d.act != actNothing {
				t.Fatalf("%s after the stop: %s", ev, d.act)
			}
			switch d.act {
			case actLaunch:
				if alive {
					t.Fatal("a second process beside a living one")
				}
				alive = true
				launches = append(launches, now)
				if n := len(ends); n > 0 && now.Sub(ends[n-1]) < testPolicy.minBackoff {
					t.Fatalf("restarted %s after the end", now.Sub(ends[n-1]))
				}
			case actWait:
				if d.wake.Before(now) || d.wake.Sub(now) > testPolicy.maxBackoff {
					t.Fatalf("waits %s", d.wake.Sub(now))
				}
			case actStop:
				stopped = true
			}
		}
		apply(evBegin)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			var possible []eventKind
			switch c.phase {
			case phaseStarting:
				possible = []eventKind{evStarted, evFailed, evPermanent, evPoke}
			case phaseRunning:
				possible = []eventKind{evExited, evDisconnect, evHealthy, evMiss, evPoke, evWake}
			case phaseEnding:
				possible = []eventKind{evExited, evMiss, evHealthy, evPoke}
			default:
				possible = []eventKind{evWake, evPoke, evMiss, evExited, evDisconnect}
			}
			if rapid.IntRange(0, 99).Draw(t, "stop") == 0 {
				possible = []eventKind{evStop}
			}
			ev := rapid.SampledFrom(possible).Draw(t, "event")
			if (ev == evExited || ev == evFailed || ev == evPermanent) && alive && !stopped {
				alive = false
				ends = append(ends, now)
			}
			apply(ev)
		}
		// Without a healthy run a burst is bounded: 100+200+…+3200 ms are 6.3 s.
		for i := 8; i < len(launches); i++ {
			healthy := false
			for j := i - 8; j < i; j++ {
				if launches[j+1].Sub(launches[j]) >= testPolicy.healthyAfter {
					healthy = true
				}
			}
			if d := launches[i].Sub(launches[i-8]); !healthy && d < 5*time.Second {
				t.Fatalf("9 starts within %s", d)
			}
		}
	})
}
