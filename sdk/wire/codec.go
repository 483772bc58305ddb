package wire

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
)

// Marshaler is a message that encodes itself. What it returns belongs to gRPC,
// which frees it when it was sent.
type Marshaler interface {
	MarshalWire() (mem.BufferSlice, error)
}

// Unmarshaler is a message that decodes itself. data is valid during the call
// alone.
type Unmarshaler interface {
	UnmarshalWire(data []byte) error
}

// Codec is gRPC's proto codec, and understands Marshaler and Unmarshaler: the
// messages that carry records by the thousand go through no generated type. On the
// wire it is the same encoding, so the other side may use any codec of the proto
// format.
func Codec() encoding.CodecV2 {
	return codec{encoding.GetCodecV2("proto"), new(Buffers)}
}

type codec struct {
	encoding.CodecV2
	// received are messages that came in pieces.
	received *Buffers
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(Marshaler); ok {
		return m.MarshalWire()
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(Unmarshaler)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		return m.UnmarshalWire(data[0].ReadOnlyData())
	}
	n := data.Len()
	whole := c.received.Lend(n)[:n]
	defer c.received.giveBack(whole)
	data.CopyTo(whole)
	return m.UnmarshalWire(whole)
}

// Raw is an encoded message.
type Raw struct{ data mem.BufferSlice }

// MarshalWire implements Marshaler.
func (r *Raw) MarshalWire() (mem.BufferSlice, error) { return r.data, nil }

// Buffers lends the buffers that the messages of one stream are encoded into, and
// takes them back when gRPC has sent them. The zero value is ready; it is safe for
// concurrent use.
type Buffers struct {
	mu   sync.Mutex
	free [][]byte
}

// Bounds of what waits to be used again. A stream has few messages under way, and
// an unusually large one is not kept.
const (
	maxFreeBuffers = 4
	maxFreeBytes   = 4 << 20
)

// Lend returns an empty buffer with room for size bytes, which Raw takes.
func (p *Buffers) Lend(size int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.free) - 1; i >= 0; i-- {
		if b := p.free[i]; cap(b) >= size {
			p.free[i] = p.free[len(p.free)-1]
			p.free[len(p.free)-1] = nil
			p.free = p.free[:len(p.free)-1]
			return b[:0]
		}
	}
	return make([]byte, 0, size)
}

// giveBack ends a loan. Of too many buffers the smallest go.
func (p *Buffers) giveBack(b []byte) {
	if cap(b) > maxFreeBytes {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < maxFreeBuffers {
		p.free = append(p.free, b)
		return
	}
	least := 0
	for i := range p.free {
		if cap(p.free[i]) < cap(p.free[least]) {
			least = i
		}
	}
	if cap(p.free[least]) < cap(b) {
		p.free[least] = b
	}
}

// Raw returns the message that b encodes. b belongs to it.
func (p *Buffers) Raw(b []byte) *Raw {
	return &Raw{data: mem.BufferSlice{mem.NewBuffer(&b, (*recycler)(p))}}
}

// recycler is what gRPC gives a buffer back to.
type recycler Buffers

// Get implements mem.BufferPool.
func (r *recycler) Get(size int) *[]byte {
	b := make([]byte, size)
	return &b
}

// Put implements mem.BufferPool.
func (r *recycler) Put(b *[]byte) { (*Buffers)(r).giveBack(*b) }
