package server

import (
	"context"
	"time"

	"github.com/walrig/walrig/flusher"
	"github.com/walrig/walrig/host/catalog"
	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// maxVChannels bounds the vchannels of one call.
const maxVChannels = 10_000

func (a *admin) CreateVChannels(ctx context.Context, req *walv1.CreateVChannelsRequest) (*walv1.CreateVChannelsResponse, error) {
	c, err := a.s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	names := req.GetVchannels()
	if len(names) == 0 || len(names) > maxVChannels {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, c.name, "create vchannels: %d names, want 1 to %d", len(names), maxVChannels)
	}
	w, err := c.wal(ctx)
	if err != nil {
		return nil, err
	}
	created, err := w.CreateVChannels(ctx, names)
	if err != nil {
		return nil, err
	}
	if len(created) == 0 && !req.GetIfNotExists() {
		e := walimpls.Errorf(walimpls.CodeAlreadyExists, c.name, "vchannel %q is declared already", names[0])
		return nil, e
	}
	return &walv1.CreateVChannelsResponse{Created: created}, nil
}

func (a *admin) DropVChannel(ctx context.Context, req *walv1.DropVChannelRequest) (*walv1.DropVChannelResponse, error) {
	c, err := a.s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	w, err := c.wal(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.DropVChannel(ctx, req.GetVchannel()); err != nil {
		return nil, err
	}
	return &walv1.DropVChannelResponse{}, nil
}

func (a *admin) ListVChannels(ctx context.Context, req *walv1.ListVChannelsRequest) (*walv1.ListVChannelsResponse, error) {
	c, err := a.s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	row, err := a.s.opt.Catalog.Get(ctx, c.name)
	if err != nil {
		return nil, err
	}
	flushes := map[string]*walv1.VChannelFlush{}
	if f := a.s.opt.Flush.Flusher(c.name); f != nil {
		_, list := flushStatus(f, idFormat{}, true)
		for _, v := range list {
			flushes[v.GetVchannel()] = v
		}
	}
	resp := &walv1.ListVChannelsResponse{}
	for _, v := range row.VChannels {
		resp.Vchannels = append(resp.Vchannels, &walv1.VChannelStatus{
			Name: v.Name, State: vchannelState(v), StartTick: uint64(v.StartTick), DroppedTick: uint64(v.DroppedTick), Flush: flushes[v.Name],
		})
	}
	return resp, nil
}

func vchannelState(v catalog.VChannel) string {
	switch {
	case !v.Live():
		return "dropped"
	case v.Dropping:
		return "dropping"
	}
	return "declared"
}

// flusherOf returns the channel's flusher, or says that there is none.
func (s *Server) flusherOf(c *channel) (*flusher.Flusher, error) {
	if !s.opt.Flush.Enabled() {
		e := walimpls.Errorf(walimpls.CodeUnsupported, c.name, "this host flushes nothing")
		e.Hint = "configure flusher.bucket"
		return nil, e
	}
	if f := s.opt.Flush.Flusher(c.name); f != nil {
		return f, nil
	}
	return nil, walimpls.Errorf(walimpls.CodeUnavailable, c.name, "the channel is not open, so nothing is flushed")
}

func (a *admin) FlushNow(ctx context.Context, req *walv1.FlushNowRequest) (*walv1.FlushNowResponse, error) {
	c, err := a.s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	if v := req.GetVchannel(); v != "" {
		if err := walimpls.ValidateName("vchannel", v); err != nil {
			return nil, err
		}
	}
	w, err := c.wal(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := a.s.flusherOf(c); err != nil {
		return nil, err
	}
	r := w.Flush(ctx, req.GetVchannel())
	if r.State != walimpls.Stored {
		return nil, r.Err
	}
	for req.GetWait() {
		// A term that ends meanwhile has another flusher behind it.
		f, err := a.s.flusherOf(c)
		if err == nil {
			err = f.Wait(ctx, req.GetVchannel(), r.Term, r.Tick)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil || f == nil || f == a.s.opt.Flush.Flusher(c.name) {
			return nil, err
		}
	}
	return &walv1.FlushNowResponse{Term: r.Term, TimeTick: uint64(r.Tick)}, nil
}

func (a *admin) FlushStatus(ctx context.Context, req *walv1.FlushStatusRequest) (*walv1.FlushStatusResponse, error) {
	c, err := a.s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	if !a.s.opt.Flush.Enabled() {
		return &walv1.FlushStatusResponse{Flush: &walv1.FlushStatus{State: "off"}}, nil
	}
	f, err := a.s.flusherOf(c)
	if err != nil {
		return nil, err
	}
	desc, err := c.description(ctx)
	if err != nil {
		return nil, err
	}
	st, list := flushStatus(f, newIDFormat(desc.IDLayout), true)
	return &walv1.FlushStatusResponse{Flush: st, Vchannels: list}, nil
}

// flushStatus converts a flusher's status.
func flushStatus(f *flusher.Flusher, ids idFormat, services bool) (*walv1.FlushStatus, []*walv1.VChannelFlush) {
	st := f.Status(services)
	out := &walv1.FlushStatus{
		State: string(st.State), Error: wire.ErrorToProto(firstError(st.Err, st.SaveErr)),
		TimeTick: uint64(st.Checkpoint.Tick), SavedTick: uint64(st.Saved.Tick), LagTicks: st.LagTicks, LagMs: st.LagMillis, LagBytes: st.LagBytes,
		Files: st.Counters.Files, Rows: st.Counters.Rows, Bytes: st.Counters.Bytes, Failures: st.Counters.Failures,
		Detached: st.Counters.Detached, LostPositions: st.Counters.LostPositions, Truncations: st.Counters.Truncations,
		MemoryBytes: int64(st.Memory), MemoryPeak: int64(st.MemoryPeak),
	}
	if st.Checkpoint.StoreID != "" {
		out.Checkpoint = st.Checkpoint.String()
	}
	if ids != (idFormat{}) {
		out.SavedId, out.TruncatedBefore = ids.text(st.Saved.ID), ids.text(st.Truncated.ID)
	}
	var list []*walv1.VChannelFlush
	for _, v := range st.VChannels {
		list = append(list, &walv1.VChannelFlush{
			Vchannel: v.Name, State: v.State, Checkpoint: v.Checkpoint.String(), TimeTick: uint64(v.Checkpoint.Tick),
			LagBytes: v.Bytes, LagMs: v.LagMillis, Error: wire.ErrorToProto(v.Err),
		})
	}
	return out, list
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// listTimeout bounds one listing of files.
const listTimeout = 30 * time.Second

func (a *admin) ListFiles(ctx context.Context, req *walv1.ListFilesRequest) (*walv1.ListFilesResponse, error) {
	c, err := a.s.channels.find(req.GetChannel())
	if err != nil {
		return nil, err
	}
	if v := req.GetVchannel(); v != "" {
		if err := walimpls.ValidateName("vchannel", v); err != nil {
			return nil, err
		}
	}
	f, err := a.s.flusherOf(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	files, err := f.Files(ctx, req.GetVchannel())
	if err != nil {
		return nil, err
	}
	resp := &walv1.ListFilesResponse{}
	for _, file := range files {
		resp.Files = append(resp.Files, &walv1.File{
			Path: file.Path, Rows: file.Rows, Bytes: file.Bytes, FirstTick: uint64(file.FirstTick), LastTick: uint64(file.LastTick), Term: file.Term,
		})
	}
	return resp, nil
}
