package client

import (
	"context"
	"errors"
	"time"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// WaitReady asks for the host's status until it is ready, and returns it: its
// plugins have started or failed, and each channel is open or has reported its
// first error. A host that cannot be reached yet is waited for too (use
// WithLazyConnect). When ctx ends first it returns ErrTimeout, ErrUnreachable
// or the like, and the last status there was, nil for none.
func (c *Client) WaitReady(ctx context.Context) (*walv1.StatusResponse, error) {
	var last *walv1.StatusResponse
	pause := 20 * time.Millisecond
	for {
		st, err := c.Status(ctx)
		if err == nil && st.GetReady() {
			return st, nil
		}
		if err == nil {
			last = st
			err = walimpls.Errorf(walimpls.CodeTimeout, "", "the host at %s is not ready", c.addr)
		}
		var e *walimpls.Error
		if ctx.Err() == nil && errors.As(err, &e) && !e.Retryable {
			return last, err
		}
		if !sleep(ctx, pause) {
			return last, err
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}
