package server

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/host/walmanager"
	"github.com/walrig/walrig/sdk/message"
)

// collector is Metrics as the registry sees it.
type collector struct{ m *Metrics }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector. The registry runs it in a goroutine
// of its own, where a panic would end the host.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	defer func() {
		if p := recover(); p != nil {
			ch <- prometheus.NewInvalidMetric(c.m.descs[buildInfo], fmt.Errorf("panic while collecting: %v", p))
		}
	}()
	s := &scrape{descs: &c.m.descs, out: ch, now: c.m.opt.Now(), flushers: c.m.opt.Flusher}
	s.put(buildInfo, 1, c.m.opt.Version)
	for _, st := range c.m.opt.Plugins() {
		s.plugin(st)
	}
	for _, st := range c.m.present() {
		s.channel(st)
	}
	for _, vec := range []prometheus.Collector{c.m.records, c.m.bytes, c.m.took, c.m.opens, c.m.catalogCalls} {
		vec.Collect(ch)
	}
}

// present returns the channels, after dropping the counters of those that are
// gone. A channel is known before anything of it is counted, so that one that
// was counted first and is not known later was removed.
func (m *Metrics) present() []walmanager.ChannelState {
	counted := m.known()
	states := m.opt.Channels()
	if states == nil {
		return nil
	}
	there := make(map[string]bool, len(states))
	for _, st := range states {
		there[st.Channel] = true
	}
	for _, name := range counted {
		if !there[name] {
			m.forget(name)
		}
	}
	return states
}

// scrape hands the values of one scrape out.
type scrape struct {
	descs *[metricCount]*prometheus.Desc
	out   chan<- prometheus.Metric
	now   time.Time
	// flushers returns a channel's flusher; nil where nothing is flushed.
	flushers func(channel string) *flusher.Flusher
}

// put hands a gauge or a counter out, with the labels in the table's order.
func (s *scrape) put(id metricID, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if metricTable[id].kind == counterKind {
		kind = prometheus.CounterValue
	}
	metric, err := prometheus.NewConstMetric(s.descs[id], kind, value, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(s.descs[id], err)
	}
	s.out <- metric
}

func (s *scrape) plugin(st pluginhost.Status) {
	s.put(pluginInfo, 1, st.Name, st.Backend, st.Version, st.Fencing)
	s.put(pluginRestarts, float64(st.Restarts), st.Name)
	for _, state := range []string{"starting", "running", "backoff", "stopped"} {
		s.put(pluginState, oneIf(state == st.State), st.Name, state)
	}
}

func oneIf(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

func (s *scrape) channel(st walmanager.ChannelState) {
	s.put(channelTerm, float64(st.Term), st.Channel)
	if st.WAL == nil {
		s.put(channelAvailable, 0, st.Channel)
		return
	}
	now := st.WAL.Status()
	s.put(channelAvailable, oneIf(st.State == walmanager.Available && !now.Reopening), st.Channel)
	s.put(channelUnresolvedBytes, float64(now.UnresolvedBytes), st.Channel)
	s.put(channelOpenTxns, float64(now.OpenTxns), st.Channel)
	s.put(wabRecords, float64(now.WAB.Records), st.Channel)
	s.put(wabBytes, float64(now.WAB.Bytes), st.Channel)
	if now.LastTick > 0 {
		s.put(channelTickAge, max(0, s.now.Sub(now.LastTick.Time()).Seconds()), st.Channel)
	}
	s.scanners(st.Channel, now)
	if s.flushers != nil {
		if f := s.flushers(st.Channel); f != nil {
			s.flush(st.Channel, f.Status(false))
		}
	}
}

func (s *scrape) flush(channel string, st flusher.Status) {
	s.put(flushLag, float64(st.LagMillis)/1000, channel)
	s.put(flushLagBytes, float64(st.LagBytes), channel)
	s.put(flushMemory, float64(st.Memory), channel)
	for id, at := range map[metricID]message.Tick{flushCheckpointAge: st.Saved.Tick, flushTruncationAge: st.Truncated.Tick} {
		if at > 0 {
			s.put(id, max(0, s.now.Sub(at.Time()).Seconds()), channel)
		}
	}
	c := st.Counters
	for id, n := range map[metricID]int64{
		flushFiles: c.Files, flushRows: c.Rows, flushBytes: c.Bytes, flushFailures: c.Failures, flushDetached: c.Detached, flushLost: c.LostPositions,
	} {
		s.put(id, float64(n), channel)
	}
}

// scanners sums up: readers choose their names, so that one series each could
// become any number.
func (s *scrape) scanners(channel string, now wal.Status) {
	s.put(scannerViolations, float64(now.Violations), channel)
	for _, mode := range []scanner.Mode{scanner.CatchUp, scanner.Tailing} {
		n, buffered, lag := 0, int64(0), time.Duration(0)
		for _, r := range now.Readers {
			// One that has not begun yet has no mode.
			if (r.Mode == scanner.Tailing) != (mode == scanner.Tailing) {
				continue
			}
			n++
			buffered += r.BufferedBytes
			if r.Checkpoint.Tick > 0 {
				lag = max(lag, now.LastTick.Time().Sub(r.Checkpoint.Tick.Time()))
			}
		}
		s.put(scannerCount, float64(n), channel, string(mode))
		s.put(scannerBufferedBytes, float64(buffered), channel, string(mode))
		s.put(scannerLag, lag.Seconds(), channel, string(mode))
	}
}
