package pluginhost

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// handshake is go-plugin's handshake line, the part that our errors are about:
// core|protocol|network|address|rpc|certificate.
type handshake struct {
	line     string
	core     int
	protocol int
	rpc      string
	cert     bool
}

// The line may have text before it that was printed without a newline.
var handshakeLine = regexp.MustCompile(`([0-9])\|([0-9]{1,6})\|(unix|tcp)\|[^|]+(?:\|[^|]*)*$`)

// parseHandshake finds the handshake in a line of stdout.
func parseHandshake(line []byte) (handshake, bool) {
	m := handshakeLine.FindSubmatchIndex(line)
	if m == nil {
		return handshake{}, false
	}
	text := strings.TrimSpace(string(line[m[0]:]))
	parts := strings.Split(text, "|")
	h := handshake{line: text}
	h.core, _ = strconv.Atoi(parts[0])
	h.protocol, _ = strconv.Atoi(parts[1])
	if len(parts) > 4 {
		h.rpc = parts[4]
	}
	h.cert = len(parts) > 5 && len(parts[5]) > 50
	return h, true
}

// handshakeReader is what go-plugin reads as the plugin's stdout: the handshake
// line, then the end. It blocks until the line is there or will never be.
// go-plugin must not read the real pipe: it stops at a line over 64 KiB.
type handshakeReader struct {
	once  sync.Once
	ready chan struct{}
	text  *bytes.Reader
}

func newHandshakeReader() *handshakeReader {
	return &handshakeReader{ready: make(chan struct{}), text: bytes.NewReader(nil)}
}

// deliver sets what is read; "" is the end. Only the first call counts.
func (r *handshakeReader) deliver(line string) {
	r.once.Do(func() {
		if line != "" {
			r.text.Reset([]byte(line + "\n"))
		}
		close(r.ready)
	})
}

// Read implements io.Reader.
func (r *handshakeReader) Read(p []byte) (int, error) {
	<-r.ready
	return r.text.Read(p)
}

// Close implements io.Closer.
func (r *handshakeReader) Close() error {
	r.deliver("")
	return nil
}

var _ io.ReadCloser = (*handshakeReader)(nil)
