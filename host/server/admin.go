package server

import (
	"context"
	"encoding/json"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// admin is the AdminService.
type admin struct {
	walv1.UnimplementedAdminServiceServer
	s *Server
}

func (a *admin) CreateChannel(ctx context.Context, req *walv1.CreateChannelRequest) (*walv1.CreateChannelResponse, error) {
	c, created, err := a.s.channels.create(ctx, createRequest{
		name: req.GetName(), plugin: req.GetPlugin(), adopt: req.GetAdopt(), term: req.GetTerm(), ifNotExists: req.GetIfNotExists(),
	})
	if err != nil {
		return nil, err
	}
	return &walv1.CreateChannelResponse{Channel: a.s.channelStatus(ctx, c), Created: created}, nil
}

func (a *admin) DescribeChannel(ctx context.Context, req *walv1.DescribeChannelRequest) (*walv1.DescribeChannelResponse, error) {
	c, err := a.s.channels.find(req.GetName())
	if err != nil {
		return nil, err
	}
	return &walv1.DescribeChannelResponse{Channel: a.s.channelStatus(ctx, c)}, nil
}

func (a *admin) ListChannels(ctx context.Context, _ *walv1.ListChannelsRequest) (*walv1.ListChannelsResponse, error) {
	return &walv1.ListChannelsResponse{Channels: a.s.allChannels(ctx)}, nil
}

func (a *admin) OpenChannel(ctx context.Context, req *walv1.OpenChannelRequest) (*walv1.OpenChannelResponse, error) {
	c, err := a.s.channels.open(ctx, req.GetName(), req.GetTerm(), req.GetAdopt())
	if err != nil {
		return nil, err
	}
	return &walv1.OpenChannelResponse{Channel: a.s.channelStatus(ctx, c)}, nil
}

func (a *admin) CloseChannel(ctx context.Context, req *walv1.CloseChannelRequest) (*walv1.CloseChannelResponse, error) {
	if err := a.s.channels.closeChannel(ctx, req.GetName(), req.GetTerm()); err != nil {
		return nil, err
	}
	return &walv1.CloseChannelResponse{}, nil
}

func (a *admin) RemoveChannel(ctx context.Context, req *walv1.RemoveChannelRequest) (*walv1.RemoveChannelResponse, error) {
	if err := a.s.channels.remove(ctx, req.GetName(), req.GetPurge()); err != nil {
		return nil, err
	}
	return &walv1.RemoveChannelResponse{}, nil
}

func (a *admin) TruncateChannel(ctx context.Context, req *walv1.TruncateChannelRequest) (*walv1.TruncateChannelResponse, error) {
	c, err := a.s.channels.find(req.GetName())
	if err != nil {
		return nil, err
	}
	w, desc, err := c.openWAL(ctx)
	if err != nil {
		return nil, err
	}
	before, err := c.parseID(desc, req.GetBefore())
	if err != nil {
		return nil, err
	}
	if err := w.Truncate(ctx, before); err != nil {
		return nil, withBounds(err, desc)
	}
	return &walv1.TruncateChannelResponse{Channel: a.s.channelStatus(ctx, c)}, nil
}

func (a *admin) ListPlugins(context.Context, *walv1.ListPluginsRequest) (*walv1.ListPluginsResponse, error) {
	return &walv1.ListPluginsResponse{Plugins: a.s.allPlugins()}, nil
}

func (a *admin) DescribePlugin(ctx context.Context, req *walv1.DescribePluginRequest) (*walv1.DescribePluginResponse, error) {
	plugin, err := a.s.opt.Plugins.Plugin(req.GetName())
	if err != nil {
		return nil, err
	}
	desc, err := plugin.Description(ctx)
	if err != nil {
		return nil, err
	}
	text, err := descriptionJSON(desc)
	if err != nil {
		return nil, err
	}
	return &walv1.DescribePluginResponse{Status: pluginStatus(plugin.Status()), DescriptionJson: text}, nil
}

func (a *admin) VerifyPlugin(ctx context.Context, req *walv1.VerifyPluginRequest) (*walv1.VerifyPluginResponse, error) {
	if _, err := a.s.opt.Plugins.Plugin(req.GetName()); err != nil {
		return nil, err
	}
	if a.s.opt.Verify == nil {
		return nil, walimpls.Errorf(walimpls.CodeUnsupported, "", "this host does not verify plugins")
	}
	st, desc, err := a.s.opt.Verify(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	text, err := descriptionJSON(desc)
	if err != nil {
		return nil, err
	}
	return &walv1.VerifyPluginResponse{Status: pluginStatus(st), DescriptionJson: text}, nil
}

func (a *admin) Status(ctx context.Context, _ *walv1.StatusRequest) (*walv1.StatusResponse, error) {
	return a.s.Status(ctx), nil
}

// descriptionJSON is what `walrig plugin describe -o json` shows. Fields are
// only ever added.
func descriptionJSON(d walimpls.Description) (string, error) {
	type field struct {
		Name     string   `json:"name"`
		Type     string   `json:"type"`
		Default  any      `json:"default"`
		Doc      string   `json:"doc"`
		Required bool     `json:"required"`
		Secret   bool     `json:"secret"`
		OneOf    []string `json:"one_of,omitempty"`
	}
	fields := make([]field, len(d.Config))
	for i, f := range d.Config {
		fields[i] = field{Name: f.Name, Type: string(f.Type), Default: f.Default, Doc: f.Doc, Required: f.Required, Secret: f.Secret, OneOf: f.OneOf}
	}
	out := struct {
		Backend      string         `json:"backend"`
		Version      string         `json:"version"`
		IDLayout     string         `json:"id_layout"`
		Capabilities map[string]any `json:"capabilities"`
		Limits       map[string]int `json:"limits"`
		Config       []field        `json:"config"`
	}{
		Backend: d.Backend, Version: d.Version, IDLayout: string(d.IDLayout),
		Capabilities: map[string]any{
			"fencing": d.Capabilities.Fencing, "durability": d.Capabilities.Durability, "truncation": d.Capabilities.Truncation,
			"drop": d.Capabilities.Drop, "read_only": d.Capabilities.ReadOnly, "exclusive_store": d.Capabilities.ExclusiveStore,
		},
		Limits: map[string]int{
			"max_message_bytes": d.Limits.MaxMessageBytes, "max_batch_records": d.Limits.MaxBatchRecords, "max_batch_bytes": d.Limits.MaxBatchBytes,
		},
		Config: fields,
	}
	text, err := json.Marshal(out)
	if err != nil {
		return "", walimpls.Errorf(walimpls.CodeInternal, "", "description of backend %q: %w", d.Backend, err)
	}
	return string(text), nil
}
