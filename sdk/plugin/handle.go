package plugin

import (
	"context"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// handle is one open WAL. It lives until CloseWAL, the end of its Append stream
// or the end of the server, whichever comes first.
type handle struct {
	id     uint64
	name   string
	wal    walimpls.WAL
	limits walimpls.Limits

	// reading ends when the handle starts to close: scanners and everything else
	// but appends stop at once. storing ends when the backend has closed the WAL,
	// or did not in time: until then an append may still learn its outcome.
	reading     context.Context
	stopReading context.CancelFunc
	storing     context.Context
	stopStoring context.CancelFunc

	orphaned *time.Timer // set before the handle is shared

	mu       sync.Mutex
	attached bool
	ended    error // set when no append may be handed over any more

	closing  sync.Once
	closed   chan struct{} // closed when the close is over
	closeErr error         // valid when closed is closed
}

func newHandle(wal walimpls.WAL, limits walimpls.Limits) *handle {
	h := &handle{wal: wal, name: wal.Channel().Name, limits: limits, closed: make(chan struct{})}
	h.reading, h.stopReading = context.WithCancel(context.Background())
	h.storing, h.stopStoring = context.WithCancel(context.Background())
	return h
}

// attach claims the handle for the one Append stream that it has.
func (h *handle) attach() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.attached {
		return walimpls.Errorf(walimpls.CodeInvalidArgument, h.name, "handle %d has an Append stream already", h.id)
	}
	h.attached = true
	h.orphaned.Stop()
	return nil
}

// refusal returns why nothing more may be handed to the store, nil if it may.
func (h *handle) refusal() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

// end refuses all further appends with err; the first reason stays.
func (h *handle) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended == nil {
		h.ended = err
	}
}

// close closes the WAL once, bounded by walimpls.GracePeriod, and waits for that
// until ctx ends. Every caller gets the same result.
func (h *handle) close(ctx context.Context) error {
	h.closing.Do(func() {
		if h.orphaned != nil {
			h.orphaned.Stop()
		}
		h.end(walimpls.Errorf(walimpls.CodeClosed, h.name, "append: the handle was closed"))
		h.stopReading()
		go func() {
			grace, cancel := context.WithTimeout(context.Background(), walimpls.GracePeriod)
			defer cancel()
			h.closeErr = bounded(grace, h.wal.Close)
			h.stopStoring()
			close(h.closed)
		}()
	})
	select {
	case <-h.closed:
		return h.closeErr
	case <-ctx.Done():
		return ctx.Err()
	}
}
