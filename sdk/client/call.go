package client

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
)

// call does one unary call. kind is what the call is once it was sent.
func (c *Client) call(ctx context.Context, method string, req, resp proto.Message, kind handed) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	sent, err := c.roundTrip(ctx, method, req, resp)
	if err == nil {
		return nil
	}
	if !sent {
		kind = nothingSent
	}
	return c.callError(ctx, err, kind)
}

// roundTrip does what grpc's Invoke does and tells besides whether the
// connection was handed the request. A stream that could not be made has sent
// nothing; a SendMsg that fails has refused the message, since for a call with
// one request gRPC reports the end of the stream by RecvMsg.
func (c *Client) roundTrip(ctx context.Context, method string, req, resp proto.Message) (sent bool, err error) {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{}, method)
	if err != nil {
		return false, err
	}
	if err := stream.SendMsg(req); err != nil {
		return false, err
	}
	return true, stream.RecvMsg(resp)
}

// CreateOptions are the parameters of CreateChannel. The zero value creates a
// new log in the default plugin.
type CreateOptions struct {
	// Plugin is a configured plugin's name; "" is the default plugin.
	Plugin string
	// Adopt continues a log that exists in the plugin's store already.
	Adopt bool
	// Term opens the channel at once in cluster mode. In standalone mode it must be 0.
	Term int64
	// IfNotExists makes an existing channel a success.
	IfNotExists bool
}

// CreateChannel creates a channel; created is false if it was there already
// (IfNotExists). A log that is there without a catalog row is ErrForeignStore
// unless Adopt is given.
func (c *Client) CreateChannel(ctx context.Context, name string, opt CreateOptions) (st *walv1.ChannelStatus, created bool, err error) {
	resp := &walv1.CreateChannelResponse{}
	err = c.call(ctx, walv1.AdminService_CreateChannel_FullMethodName, &walv1.CreateChannelRequest{
		Name: name, Plugin: opt.Plugin, Adopt: opt.Adopt, Term: opt.Term, IfNotExists: opt.IfNotExists,
	}, resp, mutation)
	return resp.GetChannel(), resp.GetCreated(), err
}

// DescribeChannel returns what the host knows about a channel.
func (c *Client) DescribeChannel(ctx context.Context, name string) (*walv1.ChannelStatus, error) {
	resp := &walv1.DescribeChannelResponse{}
	err := c.call(ctx, walv1.AdminService_DescribeChannel_FullMethodName, &walv1.DescribeChannelRequest{Name: name}, resp, readOnly)
	return resp.GetChannel(), err
}

// ListChannels returns all channels, sorted by name.
func (c *Client) ListChannels(ctx context.Context) ([]*walv1.ChannelStatus, error) {
	resp := &walv1.ListChannelsResponse{}
	err := c.call(ctx, walv1.AdminService_ListChannels_FullMethodName, &walv1.ListChannelsRequest{}, resp, readOnly)
	return resp.GetChannels(), err
}

// OpenChannel opens a channel at a term (cluster mode), or tries at once to
// open an unavailable one (standalone mode, term 0). With adopt the log that is
// in the store now becomes the channel's.
func (c *Client) OpenChannel(ctx context.Context, name string, term int64, adopt bool) (*walv1.ChannelStatus, error) {
	resp := &walv1.OpenChannelResponse{}
	err := c.call(ctx, walv1.AdminService_OpenChannel_FullMethodName,
		&walv1.OpenChannelRequest{Name: name, Term: term, Adopt: adopt}, resp, mutation)
	return resp.GetChannel(), err
}

// CloseChannel ends a term of a channel (cluster mode).
func (c *Client) CloseChannel(ctx context.Context, name string, term int64) error {
	return c.call(ctx, walv1.AdminService_CloseChannel_FullMethodName,
		&walv1.CloseChannelRequest{Name: name, Term: term}, &walv1.CloseChannelResponse{}, mutation)
}

// RemoveChannel forgets a channel and, with purge, deletes its log.
func (c *Client) RemoveChannel(ctx context.Context, name string, purge bool) error {
	return c.call(ctx, walv1.AdminService_RemoveChannel_FullMethodName,
		&walv1.RemoveChannelRequest{Name: name, Purge: purge}, &walv1.RemoveChannelResponse{}, mutation)
}

// TruncateChannel removes what lies before the id (text form) and keeps the id.
func (c *Client) TruncateChannel(ctx context.Context, name, before string) (*walv1.ChannelStatus, error) {
	resp := &walv1.TruncateChannelResponse{}
	err := c.call(ctx, walv1.AdminService_TruncateChannel_FullMethodName,
		&walv1.TruncateChannelRequest{Name: name, Before: before}, resp, mutation)
	return resp.GetChannel(), err
}

// CreateVChannels declares vchannels of a channel and returns those that were
// not declared before. If none of them is new, it is ErrAlreadyExists unless
// ifNotExists is given.
func (c *Client) CreateVChannels(ctx context.Context, channel string, names []string, ifNotExists bool) ([]string, error) {
	resp := &walv1.CreateVChannelsResponse{}
	err := c.call(ctx, walv1.AdminService_CreateVChannels_FullMethodName,
		&walv1.CreateVChannelsRequest{Channel: channel, Vchannels: names, IfNotExists: ifNotExists}, resp, mutation)
	return resp.GetCreated(), err
}

// DropVChannel makes a vchannel take no more records. What it holds is flushed
// first, and its files stay.
func (c *Client) DropVChannel(ctx context.Context, channel, vchannel string) error {
	return c.call(ctx, walv1.AdminService_DropVChannel_FullMethodName,
		&walv1.DropVChannelRequest{Channel: channel, Vchannel: vchannel}, &walv1.DropVChannelResponse{}, mutation)
}

// ListVChannels returns the vchannels of a channel, and the tombstones of those
// that were dropped.
func (c *Client) ListVChannels(ctx context.Context, channel string) ([]*walv1.VChannelStatus, error) {
	resp := &walv1.ListVChannelsResponse{}
	err := c.call(ctx, walv1.AdminService_ListVChannels_FullMethodName, &walv1.ListVChannelsRequest{Channel: channel}, resp, readOnly)
	return resp.GetVchannels(), err
}

// FlushNow flushes what was stored in a vchannel ("" for all) before the call.
// With wait it returns when that is durable; it can be repeated.
func (c *Client) FlushNow(ctx context.Context, channel, vchannel string, wait bool) (*walv1.FlushNowResponse, error) {
	resp := &walv1.FlushNowResponse{}
	err := c.call(ctx, walv1.AdminService_FlushNow_FullMethodName,
		&walv1.FlushNowRequest{Channel: channel, Vchannel: vchannel, Wait: wait}, resp, readOnly)
	return resp, err
}

// FlushStatus returns how far a channel and its vchannels are flushed.
func (c *Client) FlushStatus(ctx context.Context, channel string) (*walv1.FlushStatusResponse, error) {
	resp := &walv1.FlushStatusResponse{}
	err := c.call(ctx, walv1.AdminService_FlushStatus_FullMethodName, &walv1.FlushStatusRequest{Channel: channel}, resp, readOnly)
	return resp, err
}

// ListFiles returns the files of a vchannel, oldest first; "" is for the records
// to all.
func (c *Client) ListFiles(ctx context.Context, channel, vchannel string) ([]*walv1.File, error) {
	resp := &walv1.ListFilesResponse{}
	err := c.call(ctx, walv1.AdminService_ListFiles_FullMethodName,
		&walv1.ListFilesRequest{Channel: channel, Vchannel: vchannel}, resp, readOnly)
	return resp.GetFiles(), err
}

// ListPlugins returns the configured plugins.
func (c *Client) ListPlugins(ctx context.Context) ([]*walv1.PluginStatus, error) {
	resp := &walv1.ListPluginsResponse{}
	err := c.call(ctx, walv1.AdminService_ListPlugins_FullMethodName, &walv1.ListPluginsRequest{}, resp, readOnly)
	return resp.GetPlugins(), err
}

// DescribePlugin returns a plugin's status and its backend's description.
func (c *Client) DescribePlugin(ctx context.Context, name string) (*walv1.DescribePluginResponse, error) {
	resp := &walv1.DescribePluginResponse{}
	err := c.call(ctx, walv1.AdminService_DescribePlugin_FullMethodName, &walv1.DescribePluginRequest{Name: name}, resp, readOnly)
	return resp, err
}

// VerifyPlugin starts a second process of a configured plugin, checks it and
// stops it.
func (c *Client) VerifyPlugin(ctx context.Context, name string) (*walv1.VerifyPluginResponse, error) {
	resp := &walv1.VerifyPluginResponse{}
	err := c.call(ctx, walv1.AdminService_VerifyPlugin_FullMethodName, &walv1.VerifyPluginRequest{Name: name}, resp, readOnly)
	return resp, err
}

// Status returns the host's status.
func (c *Client) Status(ctx context.Context) (*walv1.StatusResponse, error) {
	resp := &walv1.StatusResponse{}
	err := c.call(ctx, walv1.AdminService_Status_FullMethodName, &walv1.StatusRequest{}, resp, readOnly)
	return resp, err
}
