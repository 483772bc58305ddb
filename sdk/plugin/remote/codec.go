package remote

import (
	"google.golang.org/grpc/mem"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/wire"
)

// outgoing is an AppendRequest that tells when it was encoded. From then on
// nothing looks at the records any more, so their buffers may go back to the
// caller of Append although the bytes still wait to be sent.
type outgoing struct {
	request *request
	buffers *wire.Buffers
	encoded func()
}

// MarshalWire implements wire.Marshaler.
func (o *outgoing) MarshalWire() (mem.BufferSlice, error) {
	batches := make([][]message.Message, len(o.request.segments))
	for i, s := range o.request.segments {
		batches[i] = s.call.batch[s.from:s.to]
	}
	data := wire.EncodeAppend(o.buffers, o.request.sequence, batches...)
	o.request = nil // gRPC keeps o for a while
	o.encoded()
	return data, nil
}
