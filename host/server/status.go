package server

import (
	"context"
	"sync"
	"time"

	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal"
	"github.com/walrig/walrig/sdk/message"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// Bounds of what a status may ask backends: a plugin that hangs leaves the ids
// out and does not keep the status from anybody.
const (
	boundsTimeout  = time.Second
	parallelBounds = 16
)

// Status describes the host.
func (s *Server) Status(ctx context.Context) *walv1.StatusResponse {
	s.mu.Lock()
	addr := s.addr
	s.mu.Unlock()
	return &walv1.StatusResponse{
		Version: s.opt.Version, Pid: int64(s.pid), Addr: addr, DataDir: s.opt.DataDir,
		Ready: s.isReady(), Mode: string(s.opt.Mode), Plugins: s.allPlugins(), Channels: s.allChannels(ctx),
	}
}

func (s *Server) allPlugins() []*walv1.PluginStatus {
	var out []*walv1.PluginStatus
	for _, plugin := range s.opt.Plugins.Plugins() {
		out = append(out, pluginStatus(plugin.Status()))
	}
	return out
}

func pluginStatus(st pluginhost.Status) *walv1.PluginStatus {
	return &walv1.PluginStatus{
		Name: st.Name, Backend: st.Backend, Version: st.Version, Pid: int64(st.PID), State: st.State, Restarts: st.Restarts,
		LastExit: st.LastExit, Sha256: st.SHA256, Protocol: int64(st.Protocol), Path: st.Path, Fencing: st.Fencing,
	}
}

// allChannels describes every channel, several at a time.
func (s *Server) allChannels(ctx context.Context) []*walv1.ChannelStatus {
	ask, cancel := context.WithTimeout(ctx, boundsTimeout)
	defer cancel()
	all := s.channels.all()
	out := make([]*walv1.ChannelStatus, len(all))
	slots := make(chan struct{}, parallelBounds)
	var wg sync.WaitGroup
	for i, c := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			out[i] = s.describeChannel(ctx, ask, c)
		})
	}
	wg.Wait()
	return out
}

// channelStatus describes a channel; what is not known is left out.
func (s *Server) channelStatus(ctx context.Context, c *channel) *walv1.ChannelStatus {
	ask, cancel := context.WithTimeout(ctx, boundsTimeout)
	defer cancel()
	return s.describeChannel(ctx, ask, c)
}

// describeChannel is channelStatus with a context of its own for the backend.
func (s *Server) describeChannel(ctx, ask context.Context, c *channel) *walv1.ChannelStatus {
	st, _, reason := c.now()
	out := &walv1.ChannelStatus{Name: c.name, Plugin: c.plugin}
	if row, err := s.opt.Catalog.Get(ctx, c.name); err == nil {
		out.Backend, out.StoreId, out.Term = row.Backend, row.StoreID, row.Term
		if desc, err := c.description(ask); err == nil && row.TruncatedBefore != nil {
			out.TruncatedBefore = newIDFormat(desc.IDLayout).text(row.TruncatedBefore.ID)
		}
	}
	if st == available {
		w, err := s.opt.Manager.Get(c.name, 0)
		if err != nil {
			st, reason = unavailable, err
		} else {
			st, reason = describeOpen(ask, c, w, out)
		}
	}
	if f := s.opt.Flush.Flusher(c.name); f != nil {
		if desc, err := c.description(ask); err == nil {
			out.Flush, _ = flushStatus(f, newIDFormat(desc.IDLayout), false)
		}
	}
	out.State, out.Error = string(st), wire.ErrorToProto(reason)
	return out
}

// describeOpen fills in what an open WAL tells, and returns its state: one that
// is opening its backend again is opening, and says why.
func describeOpen(ctx context.Context, c *channel, w wal.WAL, out *walv1.ChannelStatus) (state, error) {
	now := w.Status()
	out.Term, out.Incarnation, out.StoreId = now.Channel.Term, now.Channel.Incarnation, now.Channel.StoreID
	out.LastTimeTick, out.OpenTxns, out.UnresolvedBytes = uint64(now.LastTick), int64(now.OpenTxns), int64(now.UnresolvedBytes)
	out.Wab = &walv1.WABStatus{Records: int64(now.WAB.Records), Bytes: int64(now.WAB.Bytes)}
	out.Violations = now.Violations
	for _, r := range now.Readers {
		out.Scanners = append(out.Scanners, &walv1.ScannerStatus{
			Name: r.Name, Mode: string(r.Mode), BufferedBytes: r.BufferedBytes,
			LagMs: lag(now.LastTick, r.Checkpoint.Tick),
		})
	}
	if now.Reopening {
		return opening, now.LastError
	}
	desc, err := c.description(ctx)
	if err != nil {
		return available, nil
	}
	out.LastConfirmedId = newIDFormat(desc.IDLayout).text(now.LastConfirmed)
	if b, err := w.Bounds(ctx); err == nil && b.LatestRecord != "" {
		out.EarliestId, out.LatestId = textBounds(desc, b)
	}
	return available, nil
}

// lag is how far a position is behind the channel's tick, in milliseconds; 0
// before the first position that has a tick.
func lag(now, at message.Tick) int64 {
	if at == 0 {
		return 0
	}
	return max(0, now.Physical()-at.Physical())
}

func textBounds(desc walimpls.Description, b walimpls.Bounds) (earliest, latest string) {
	ids := newIDFormat(desc.IDLayout)
	return ids.text(b.Earliest), ids.text(b.LatestRecord)
}
