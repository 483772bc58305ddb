package pulsar

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/walrig/walrig/internal/brokers"
)

// proxy stands between the plugin and a broker, and breaks what passes. The
// broker's own address in its answers becomes the proxy's, which works because
// both have the same length.
type proxy struct {
	t        testing.TB
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[net.Conn]struct{}
	refuse bool
	deaf   bool // what the broker says is thrown away
}

// behindProxy returns the endpoint with the binary protocol, or both, behind proxies.
func behindProxy(t testing.TB, at brokers.PulsarEndpoint) (*proxy, brokers.PulsarEndpoint) {
	t.Helper()
	target := strings.TrimPrefix(at.ServiceURL, "pulsar://")
	p := newProxy(t, target)
	return p, brokers.PulsarEndpoint{ServiceURL: "pulsar://" + p.listener.Addr().String(), AdminURL: at.AdminURL}
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	p := &proxy{t: t, target: target, conns: map[net.Conn]struct{}{}}
	for range 100 { // the kernel's choice has five digits nearly always, as the target has
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		if len(l.Addr().String()) == len(target) {
			p.listener = l
			break
		}
		l.Close()
	}
	if p.listener == nil {
		t.Fatalf("no address as long as %s", target)
	}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		p.listener.Close()
		p.cut()
		p.done.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			c.Close()
			continue
		}
		up, err := net.Dial("tcp", p.target)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		p.conns[c], p.conns[up] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.done.Go(func() { p.pipe(up, c, false) })
		p.done.Go(func() { p.pipe(c, up, true) })
	}
}

func (p *proxy) pipe(to, from net.Conn, fromBroker bool) {
	defer func() {
		to.Close()
		from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			out := buf[:n]
			if fromBroker {
				p.mu.Lock()
				deaf := p.deaf
				p.mu.Unlock()
				if deaf {
					continue
				}
				out = bytes.ReplaceAll(out, []byte(p.target), []byte(p.listener.Addr().String()))
			}
			if _, err := to.Write(out); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends every connection that there is.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// down refuses connections, and cuts those that there are; or it stops doing so.
func (p *proxy) down(down bool) {
	p.mu.Lock()
	p.refuse = down
	p.mu.Unlock()
	if down {
		p.cut()
	}
}

// silence throws the broker's answers away, or stops doing so.
func (p *proxy) silence(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = on
}
