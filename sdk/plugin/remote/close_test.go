package remote_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestCloseEndsBlockedReadsAndAppends(t *testing.T) {
	b, entered, release := held()
	defer release()
	h := configured(t, b)
	w := open(t, h.Client, "orders", 1, 1)
	s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromLatest()})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { _, err := s.Next(soon(t)); read <- err }()
	outcomes := make(chan walimpls.Outcome, 10)
	for range 10 {
		w.AppendAsync([]message.Message{data("x")}, func(o []walimpls.Outcome) { outcomes <- o[0] })
	}
	<-entered
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- w.Close(soon(t)) }()
	}
	if err := <-read; !errors.Is(err, walimpls.ErrClosed) {
		t.Errorf("the blocked Next: %v", err)
	}
	release()
	for range 10 {
		// Closed while it was handed over: either way is honest, but not "failed".
		if o := <-outcomes; o.State != walimpls.Stored && !errors.Is(o.Err, walimpls.ErrClosed) && !errors.Is(o.Err, walimpls.ErrUnknownOutcome) {
			t.Errorf("%+v", o)
		}
	}
	for range 2 {
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := w.Close(soon(t)); err != nil {
		t.Errorf("Close again: %v", err)
	}
	for name, err := range map[string]error{
		"Append":   func() error { _, err := w.Append(soon(t), []message.Message{data("x")}); return err }(),
		"Read":     func() error { _, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromAll()}); return err }(),
		"Bounds":   func() error { _, err := w.Bounds(soon(t)); return err }(),
		"Truncate": w.Truncate(soon(t), message.Uint64ID(1)),
		"Next":     func() error { _, err := s.Next(soon(t)); return err }(),
	} {
		if !errors.Is(err, walimpls.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	select {
	case <-w.Broken():
		t.Error("a handle that was closed counts as broken")
	default:
	}
	eventually(t, func() bool { return b.Handles.Load() == 0 && b.Scanners.Load() == 0 }, "nothing is open in the plugin")
}

func TestCloseIsBoundedWhenTheBackendHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the whole grace period")
	}
	hang := make(chan struct{})
	b := &membackend.Backend{BeforeClose: func() { <-hang }}
	b.BeforeAppend = func(context.Context, []message.Message) error { <-hang; return nil }
	h := configured(t, b)
	defer close(hang)
	w := open(t, h.Client, "orders", 1, 1)
	outcome := make(chan walimpls.Outcome, 1)
	w.AppendAsync([]message.Message{data("x")}, func(o []walimpls.Outcome) { outcome <- o[0] })
	waitSent(t, w, 1)
	begin := time.Now()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Close(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close with a context of 10 ms: %v", err)
	}
	if err := h.Client.Close(t.Context()); err == nil {
		t.Error("nobody is told that the close hangs")
	}
	if d := time.Since(begin); d > walimpls.GracePeriod+time.Second {
		t.Errorf("Close took %s", d)
	}
	if o := <-outcome; o.State != walimpls.Unknown {
		t.Errorf("the append that hangs: %+v", o)
	}
	if _, err := h.Client.Open(t.Context(), walimpls.OpenOptions{Channel: "orders", Term: 2, Incarnation: 1, Access: walimpls.AccessReadWrite}); !errors.Is(err, walimpls.ErrClosed) {
		t.Errorf("Open of a closed client: %v", err)
	}
}

func TestOpenGivesUpWithItsContextAndLeavesNothing(t *testing.T) {
	b := &membackend.Backend{BeforeOpen: func(ctx context.Context, opt walimpls.OpenOptions) error {
		if opt.Incarnation == 1 {
			<-ctx.Done()
			return nil // it succeeds all the same
		}
		return nil
	}}
	h := configured(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := h.Client.Open(ctx, walimpls.OpenOptions{Channel: "orders", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite})
	if !errors.Is(err, context.DeadlineExceeded) || walimpls.AsError(err).Channel != "orders" {
		t.Errorf("%v", err)
	}
	eventually(t, func() bool { return b.Handles.Load() == 0 }, "the handle is closed in the plugin")
	w := open(t, h.Client, "orders", 1, 2)
	if err := w.Close(soon(t)); err != nil {
		t.Error(err)
	}
}

// An Open that is given up is closed in the plugin at once, but for one case: the
// answer was on its way already. Nobody knows of such a handle, the next Open fences
// it, and the plugin closes it (TestHandleThatNobodyAttachesToIsClosed).
func TestOpensGivenUpAtAnyMomentDisturbNobody(t *testing.T) {
	b := &membackend.Backend{}
	h := configured(t, b)
	const opens = 100
	lost := 0
	for i := range opens {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
		w, err := h.Client.Open(ctx, walimpls.OpenOptions{Channel: "orders", Term: 1, Incarnation: int64(i + 1), Access: walimpls.AccessReadWrite})
		cancel()
		switch {
		case err == nil:
			if err := w.Close(soon(t)); err != nil {
				t.Error(err)
			}
		case errors.Is(err, context.DeadlineExceeded):
			lost++
		default:
			t.Errorf("open %d: %v", i, err)
		}
	}
	w := open(t, h.Client, "orders", 1, opens+1)
	appendAll(t, w, "x")
	t.Logf("%d of %d opens were given up, %d handles wait for their end", lost, opens, b.Handles.Load()-1)
	if err := w.Close(soon(t)); err != nil {
		t.Error(err)
	}
	if left := b.Handles.Load(); left > int64(lost) {
		t.Errorf("%d handles are open, %d opens were given up", left, lost)
	}
}

// M-23.
func TestScannersComeAndGoWhileAWriterAppends(t *testing.T) {
	b := &membackend.Backend{}
	w := open(t, configured(t, b).Client, "orders", 1, 1)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := w.Append(soon(t), []message.Message{data(fmt.Sprint(i))}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 10 {
				s, err := w.Read(soon(t), walimpls.ReadOptions{Start: walimpls.FromLatest()})
				if err != nil {
					t.Error(err)
					return
				}
				var last message.ID
				for n := 0; n < 10; {
					got, err := s.Next(soon(t))
					if err != nil {
						t.Error(err)
						return
					}
					for _, m := range got {
						if last != "" && !last.Less(m.ID) {
							t.Errorf("%s behind %s", m.ID, last)
						}
						last = m.ID
					}
					n += len(got)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-stopped
	eventually(t, func() bool { return b.Scanners.Load() == 0 }, "no scanner is registered")
}
