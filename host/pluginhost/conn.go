package pluginhost

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// link is the one connection to a plugin process. It is dialed here and not by
// go-plugin, whose client leaks a connection that does not come up, and waits
// for a plugin without bound. A link that breaks is never dialed again: what
// was in flight is lost, so the process is replaced.
type link struct {
	conn   *grpc.ClientConn
	broken chan struct{} // closed when the connection was lost
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

var errOnce = errors.New("the connection to a plugin is made once")

// dial connects to a plugin that has shaken hands. It returns once the plugin
// answered; out then receives what the plugin writes through go-plugin.
func dial(ctx context.Context, addr net.Addr, creds *tls.Config, out *output) (*link, error) {
	var dialed atomic.Bool
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dialed.Swap(true) {
				return nil, errOnce
			}
			return new(net.Dialer).DialContext(ctx, addr.Network(), addr.String())
		}),
		grpc.WithTransportCredentials(credentials.NewTLS(creds)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithIdleTimeout(0),
		grpc.WithChainUnaryInterceptor(noteSent),
	)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, broken: make(chan struct{})}
	if err := l.ping(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.wg.Go(func() { l.watch(ctx) })
	l.wg.Go(func() { l.stdio(ctx, out) })
	return l, nil
}

// sentKey is the context key of an *atomic.Bool that noteSent sets.
type sentKey struct{}

// noteSent tells its caller whether a call may have reached the plugin. One that
// found the connection broken was never sent, and can be made again elsewhere.
func noteSent(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var p peer.Peer // stays empty while the call has no connection
	err := invoke(ctx, method, req, reply, conn, append(opts, grpc.Peer(&p))...)
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok && (err == nil || p.Addr != nil) {
		sent.Store(true)
	}
	return err
}

// ping is one health check. A plugin without the health service is healthy as
// long as it answers at all.
func (l *link) ping(ctx context.Context) error {
	resp, err := grpc_health_v1.NewHealthClient(l.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	switch status.Code(err) {
	case codes.OK:
		if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
			return errors.New("it answers that it is " + s.String())
		}
		return nil
	case codes.Unimplemented, codes.NotFound:
		return nil
	}
	return err
}

// watch closes broken when the connection is lost.
func (l *link) watch(ctx context.Context) {
	state := connectivity.Ready
	for l.conn.WaitForStateChange(ctx, state) {
		if state = l.conn.GetState(); state != connectivity.Ready {
			close(l.broken)
			return
		}
	}
}

// stdio reads what a Go plugin prints to its os.Stdout and os.Stderr, which
// go-plugin's server redirects into a stream. Nobody else reads it, and a print
// in the plugin blocks if nobody does. The stream's message, plugin.StdioData
// {int32 channel = 1; bytes data = 2}, is internal to go-plugin; as an empty
// message it arrives with all its fields unknown.
func (l *link) stdio(ctx context.Context, out *output) {
	stdout, stderr := lineSplitter{fn: out.stdout}, lineSplitter{fn: out.stderr}
	defer stderr.flush()
	defer stdout.flush()
	stream, err := l.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/plugin.GRPCStdio/StreamStdio")
	if err != nil || stream.SendMsg(&emptypb.Empty{}) != nil || stream.CloseSend() != nil {
		return
	}
	for {
		var msg emptypb.Empty
		if stream.RecvMsg(&msg) != nil {
			return // the end of the process, or a plugin without this service
		}
		channel, data := parseStdio(msg.ProtoReflect().GetUnknown())
		switch channel {
		case 1:
			_, _ = stdout.Write(data)
		case 2:
			_, _ = stderr.Write(data)
		}
	}
}

func parseStdio(b []byte) (channel uint64, data []byte) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, nil
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			channel, n = protowire.ConsumeVarint(b)
		case num == 2 && typ == protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return 0, nil
		}
		b = b[n:]
	}
	return channel, data
}

// shutdown asks the plugin to end by itself, and says whether it can be asked.
func (l *link) shutdown(ctx context.Context) bool {
	err := l.conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
	return status.Code(err) != codes.Unimplemented
}

// close ends the connection and what reads from it.
func (l *link) close() {
	l.cancel()
	_ = l.conn.Close()
	l.wg.Wait()
}
