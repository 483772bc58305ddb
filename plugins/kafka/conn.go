package kafka

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"
)

// maxFrame bounds an answer: a larger size is not Kafka's protocol, or a batch that
// no topic of this backend can hold.
const maxFrame = 256 << 20

// lostError says that a connection failed: what was sent on it may or may not have
// been done.
type lostError struct {
	addr string
	err  error
}

func (e *lostError) Error() string { return fmt.Sprintf("broker %s: %v", e.addr, e.err) }
func (e *lostError) Unwrap() error { return e.err }

var errConnClosed = errors.New("the connection was closed")

// refusedError says that a broker answered and that asking again cannot help.
type refusedError struct {
	addr, hint string
	err        error
}

func (e *refusedError) Error() string { return fmt.Sprintf("broker %s: %v", e.addr, e.err) }
func (e *refusedError) Unwrap() error { return e.err }

// needed is what this backend asks of a broker, with the version of each API.
var needed = map[int16]int16{
	apiProduce: produceVersion, apiFetch: fetchVersion, apiMetadata: metadataVersion,
	int16(protocol.ListOffsets): 5, int16(protocol.CreateTopics): 4, int16(protocol.DeleteTopics): 3,
	int16(protocol.DescribeConfigs): 3, int16(protocol.FindCoordinator): 2, int16(protocol.InitProducerId): 1,
	int16(protocol.AddPartitionsToTxn): 1, int16(protocol.EndTxn): 1, int16(protocol.DeleteRecords): 1,
}

// conn is one connection to a broker. Requests are answered in the order in which
// they were sent; any number may be under way. It is safe for concurrent use.
type conn struct {
	nc       net.Conn
	addr     string
	clientID string
	ended    chan struct{} // closed when the reading goroutine is gone

	writing sync.Mutex // held over a write, so that `waiting` is in the order of the wire

	mu          sync.Mutex // guards what follows
	correlation int32
	waiting     []*call
	err         error
}

// call is a request that waits for its answer.
type call struct {
	correlation int32
	deadline    time.Time
	// done gets the whole frame or an error, once. It runs on the connection's
	// goroutine and must not block.
	done func(frame []byte, err error)
}

// connect connects, checks the broker's versions and logs in.
func (s *settings) connect(ctx context.Context, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.dialTimeout)
	defer cancel()
	nc, err := s.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, &lostError{addr: addr, err: err}
	}
	if s.tls != nil {
		cfg := s.tls.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName, _, _ = net.SplitHostPort(addr)
		}
		t := tls.Client(nc, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, s.tlsError(addr, err)
		}
		nc = t
	}
	c := &conn{nc: nc, addr: addr, clientID: s.clientID, ended: make(chan struct{})}
	go c.read()
	if err := c.greet(ctx, s); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (s *settings) tlsError(addr string, err error) error {
	var record tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &record):
		return &refusedError{addr: addr, err: err, hint: "the broker's listener does not talk TLS: use its TLS port, or tls: false"}
	case errors.As(err, &cert):
		return &refusedError{addr: addr, err: err, hint: "check tls_ca and tls_server_name"}
	}
	return &lostError{addr: addr, err: fmt.Errorf("TLS: %w", err)}
}

// greet checks what the broker offers, and logs in.
func (c *conn) greet(ctx context.Context, s *settings) error {
	frame, err := c.roundTrip(ctx, apiAPIVersions, 0, s.dialTimeout, func(b []byte) []byte { return b })
	if err != nil {
		return err
	}
	code, versions, err := decodeVersions(frame[8:])
	if err == nil && code != codeNone {
		err = answered("api versions", int16(code), "")
	}
	if err != nil {
		return &lostError{addr: c.addr, err: err}
	}
	for api, version := range needed {
		if v := versions[api]; version < v.low || version > v.high {
			return &refusedError{addr: c.addr, hint: "use Kafka 3.1 or newer",
				err: fmt.Errorf("it offers versions %d to %d of %s, and version %d is needed", v.low, v.high, protocol.ApiKey(api), version)}
		}
	}
	if s.sasl == nil {
		return nil
	}
	return c.login(ctx, s.sasl)
}

func (c *conn) login(ctx context.Context, m sasl.Mechanism) error {
	refused := func(code int16, message string) error {
		return &refusedError{addr: c.addr, hint: "check sasl_mechanism, sasl_username and sasl_password, and what the listener allows",
			err: answered("log in with "+m.Name(), code, message)}
	}
	answer, err := c.ask(ctx, 1, &saslhandshake.Request{Mechanism: m.Name()})
	if err != nil {
		return err
	}
	if code := answer.(*saslhandshake.Response).ErrorCode; code != 0 {
		return refused(code, fmt.Sprintf("the listener offers %v", answer.(*saslhandshake.Response).Mechanisms))
	}
	host, port, _ := net.SplitHostPort(c.addr)
	n, _ := strconv.Atoi(port)
	ctx = sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: n})
	state, step, err := m.Start(ctx)
	for done := false; err == nil && !done; {
		var answer protocol.Message
		if answer, err = c.ask(ctx, 1, &saslauthenticate.Request{AuthBytes: step}); err != nil {
			return err
		}
		r := answer.(*saslauthenticate.Response)
		if r.ErrorCode != 0 {
			return refused(r.ErrorCode, r.ErrorMessage)
		}
		done, step, err = state.Next(ctx, r.AuthBytes)
	}
	if err != nil {
		return &refusedError{addr: c.addr, err: fmt.Errorf("log in with %s: %w", m.Name(), err), hint: "check sasl_username and sasl_password"}
	}
	return nil
}

// send writes one request. body appends what follows the header. done is called
// once in any case, perhaps before send returns.
func (c *conn) send(api, version int16, timeout time.Duration, body func([]byte) []byte, done func([]byte, error)) {
	c.write(timeout, done, func(correlation int32) (net.Buffers, error) {
		b := body(appendHeader(make([]byte, 0, 256), api, version, correlation, c.clientID))
		finishFrame(b)
		return net.Buffers{b}, nil
	})
}

// sendProduce is send of a record batch, which is not copied.
func (c *conn) sendProduce(topic string, batch []byte, timeout time.Duration, done func([]byte, error)) {
	c.write(timeout, done, func(correlation int32) (net.Buffers, error) {
		b := appendHeader(make([]byte, 0, 256), apiProduce, produceVersion, correlation, c.clientID)
		b = appendProduce(b, topic, int32(timeout/2/time.Millisecond), len(batch))
		binary.BigEndian.PutUint32(b, uint32(len(b)+len(batch)-4))
		return net.Buffers{b, batch}, nil
	})
}

func (c *conn) write(timeout time.Duration, done func([]byte, error), frame func(correlation int32) (net.Buffers, error)) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		done(nil, err)
		return
	}
	c.correlation++
	w := &call{correlation: c.correlation, deadline: time.Now().Add(timeout), done: done}
	bufs, err := frame(w.correlation)
	if err != nil {
		c.mu.Unlock()
		done(nil, err)
		return
	}
	c.waiting = append(c.waiting, w)
	if len(c.waiting) == 1 {
		_ = c.nc.SetReadDeadline(w.deadline)
	}
	c.mu.Unlock()
	_ = c.nc.SetWriteDeadline(w.deadline)
	if _, err := bufs.WriteTo(c.nc); err != nil {
		c.fail(err)
	}
}

// read hands the answers out until the connection ends.
func (c *conn) read() {
	defer close(c.ended)
	r := bufio.NewReaderSize(c.nc, 64<<10)
	for {
		frame, err := readFrame(r)
		if err != nil {
			c.fail(err)
			return
		}
		c.mu.Lock()
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		if len(c.waiting) == 0 || int32(binary.BigEndian.Uint32(frame[4:])) != c.waiting[0].correlation {
			c.mu.Unlock()
			c.fail(errors.New("an answer that nobody asked for"))
			return
		}
		w := c.waiting[0]
		c.waiting = c.waiting[1:]
		next := time.Time{}
		if len(c.waiting) > 0 {
			next = c.waiting[0].deadline
		}
		_ = c.nc.SetReadDeadline(next)
		c.mu.Unlock()
		w.done(frame, nil)
	}
}

// readFrame reads one answer with its size and correlation id.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("an answer of %d bytes: this is no Kafka listener, or it expects TLS", size)
	}
	frame := make([]byte, 4+size)
	copy(frame, head[:])
	if _, err := io.ReadFull(r, frame[4:]); err != nil {
		return nil, err
	}
	return frame, nil
}

// fail ends the connection; whoever waits on it gets the error.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = &lostError{addr: c.addr, err: err}
	waiting := c.waiting
	c.waiting = nil
	err = c.err
	c.mu.Unlock()
	c.nc.Close()
	for _, w := range waiting {
		w.done(nil, err)
	}
}

// alive reports whether requests may be sent.
func (c *conn) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil
}

// close ends the connection and waits for its goroutine.
func (c *conn) close() {
	c.fail(errConnClosed)
	<-c.ended
}

// roundTrip sends one hand-written request and returns the frame of the answer.
func (c *conn) roundTrip(ctx context.Context, api, version int16, timeout time.Duration, body func([]byte) []byte) ([]byte, error) {
	a := newAnswer()
	c.send(api, version, timeout, body, a.set)
	return a.wait(ctx)
}

// ask sends one of kafka-go's requests and returns the answer.
func (c *conn) ask(ctx context.Context, version int16, m protocol.Message) (protocol.Message, error) {
	return c.askWithin(ctx, version, m, 0)
}

func (c *conn) askWithin(ctx context.Context, version int16, m protocol.Message, timeout time.Duration) (protocol.Message, error) {
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	a := newAnswer()
	c.write(timeout, a.set, func(correlation int32) (net.Buffers, error) {
		var b bytes.Buffer
		err := protocol.WriteRequest(&b, version, correlation, c.clientID, m)
		return net.Buffers{b.Bytes()}, err
	})
	frame, err := a.wait(ctx)
	if err != nil {
		return nil, err
	}
	_, answer, err := protocol.ReadResponse(bytes.NewReader(frame), m.ApiKey(), version)
	if err != nil {
		return nil, &lostError{addr: c.addr, err: fmt.Errorf("%s: %w", m.ApiKey(), err)}
	}
	return answer, nil
}

// answer is what one caller waits for.
type answer struct {
	done  chan struct{}
	frame []byte
	err   error
}

func newAnswer() *answer { return &answer{done: make(chan struct{})} }

func (a *answer) set(frame []byte, err error) {
	a.frame, a.err = frame, err
	close(a.done)
}

func (a *answer) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-a.done:
		return a.frame, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
