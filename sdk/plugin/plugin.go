package plugin

import (
	"context"
	"errors"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/walrig/walrig/sdk/plugin/remote"
	"github.com/walrig/walrig/sdk/walimpls"
)

// ProtocolVersion is the version of the protocol plugin/v1 that this SDK speaks.
// Host and plugin take the highest version that both know.
const ProtocolVersion = 1

// Name is the key of the backend in go-plugin's plugin map.
const Name = "walrig"

// Handshake is what host and plugin must agree on before anything else. The
// cookie is no secret: it tells a start by the host from a start by hand. The
// version is not set here, because VersionedPlugins negotiates it.
var Handshake = goplugin.HandshakeConfig{
	MagicCookieKey:   "WALRIG_PLUGIN_COOKIE",
	MagicCookieValue: "2f6f6b0e-walrig-backend",
}

// GRPCPlugin connects go-plugin with both ends: on the plugin's side it registers
// the backend, on the host's side Dispense(Name) returns a *remote.Client.
type GRPCPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
	// Builder is the backend that is served; not used on the host's side.
	Builder walimpls.Builder

	server *Server
}

var _ goplugin.GRPCPlugin = GRPCPlugin{}

// Plugins returns the plugin map of the host's side, by protocol version.
func Plugins() map[int]goplugin.PluginSet {
	return map[int]goplugin.PluginSet{ProtocolVersion: {Name: GRPCPlugin{}}}
}

// GRPCServer registers the backend on s.
func (p GRPCPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	server := p.server
	if server == nil {
		if p.Builder == nil {
			return errors.New("plugin.GRPCPlugin: Builder is nil")
		}
		server = NewServer(p.Builder, nil)
	}
	server.Register(s)
	return nil
}

// GRPCClient returns the *remote.Client that speaks over conn.
func (GRPCPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return remote.New(conn), nil
}
