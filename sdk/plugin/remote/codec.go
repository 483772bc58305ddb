package remote

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"

	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
)

// outgoing is an AppendRequest that tells when gRPC has encoded it. From then on
// nothing looks at the records any more, so their buffers may go back to the
// caller of Append although the bytes still wait to be sent.
type outgoing struct {
	request *pluginv1.AppendRequest
	encoded func()
}

// notifyCodec is gRPC's proto codec, and understands *outgoing. On the wire it is
// the same.
type notifyCodec struct{ encoding.CodecV2 }

func newNotifyCodec() notifyCodec { return notifyCodec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c notifyCodec) Marshal(v any) (mem.BufferSlice, error) {
	o, ok := v.(*outgoing)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data, err := c.CodecV2.Marshal(o.request)
	o.request = nil // gRPC keeps v for a while
	o.encoded()
	return data, err
}
