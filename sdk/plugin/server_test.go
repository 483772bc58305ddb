package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
	"github.com/walrig/walrig/sdk/wire"
)

// The tests here call the methods of Server as gRPC would; what needs a stream is
// tested through sdk/plugin/remote.

func configure(s *Server, json string) error {
	_, err := s.Configure(context.Background(), &pluginv1.ConfigureRequest{ConfigJson: []byte(json)})
	return wire.FromStatus(err)
}

func open(s *Server, channel string, incarnation int64) (*pluginv1.OpenResponse, error) {
	resp, err := s.Open(context.Background(), &pluginv1.OpenRequest{Channel: channel, Term: 1, Incarnation: incarnation})
	return resp, wire.FromStatus(err)
}

func TestConfigureSucceedsOnce(t *testing.T) {
	built := 0
	s := NewServer(&membackend.Backend{OnBuild: func(v walimpls.Values, log *zap.Logger) error {
		built++
		if v.Bytes("size") != 64<<20 || log == nil {
			t.Errorf("values %v, logger %v", v, log)
		}
		return nil
	}}, nil)
	if _, err := open(s, "orders", 1); !errors.Is(err, walimpls.ErrInvalidArgument) || !strings.Contains(err.Error(), "configured") {
		t.Errorf("Open before Configure: %v", err)
	}
	err := configure(s, `{"dirr":"x","size":"huge","password":7.5e300}`)
	if !errors.Is(err, walimpls.ErrInvalidArgument) || !strings.Contains(err.Error(), `did you mean "dir"?`) || !strings.Contains(err.Error(), "huge") {
		t.Errorf("a wrong configuration: %v", err)
	}
	for _, bad := range []string{`[]`, `{`} {
		if err := configure(s, bad); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if built != 0 {
		t.Error("a wrong configuration was built")
	}
	if err := configure(s, ""); err != nil {
		t.Errorf("the first right one: %v", err)
	}
	if err := configure(s, ""); !errors.Is(err, walimpls.ErrInvalidArgument) || built != 1 {
		t.Errorf("a second one: %v, built %d times", err, built)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"Configure": configure(s, ""), "Open": func() error { _, err := open(s, "orders", 1); return err }()} {
		if !errors.Is(err, walimpls.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestFailedBuildMayBeTriedAgain(t *testing.T) {
	fail := func() error { return walimpls.Errorf(walimpls.CodeInvalidArgument, "", "two problems") }
	s := NewServer(&membackend.Backend{OnBuild: func(walimpls.Values, *zap.Logger) error { return fail() }}, nil)
	if err := configure(s, ""); !errors.Is(err, walimpls.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	fail = func() error { panic("nil map") }
	if err := configure(s, ""); !errors.Is(err, walimpls.ErrInternal) || !strings.Contains(err.Error(), "nil map") {
		t.Errorf("a panic in Build: %v", err)
	}
	fail = func() error { return nil }
	if err := configure(s, ""); err != nil {
		t.Errorf("%v", err)
	}
}

func TestCallsOnAHandleThatIsNotOpenAreErrClosed(t *testing.T) {
	s := NewServer(&membackend.Backend{}, nil)
	ctx := context.Background()
	_, err := s.Truncate(ctx, &pluginv1.TruncateRequest{Handle: 7})
	if !errors.Is(wire.FromStatus(err), walimpls.ErrClosed) {
		t.Errorf("Truncate: %v", err)
	}
	_, err = s.Bounds(ctx, &pluginv1.BoundsRequest{})
	if !errors.Is(wire.FromStatus(err), walimpls.ErrClosed) {
		t.Errorf("Bounds: %v", err)
	}
	if _, err := s.CloseWAL(ctx, &pluginv1.CloseWALRequest{Handle: 7}); err != nil {
		t.Errorf("CloseWAL: %v", err)
	}
}

func TestHandleThatNobodyAttachesToIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &membackend.Backend{}
		s := NewServer(b, nil)
		if err := configure(s, ""); err != nil {
			t.Fatal(err)
		}
		resp, err := open(s, "orders", 1)
		if err != nil || resp.GetHandle() == 0 {
			t.Fatal(resp, err)
		}
		time.Sleep(attachTimeout - time.Second)
		if b.Handles.Load() != 1 {
			t.Error("closed too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if b.Handles.Load() != 0 {
			t.Error("still open")
		}
	})
}

func TestOpenWhoseHostHasLeftLeavesNothingOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &membackend.Backend{BeforeOpen: func(context.Context, walimpls.OpenOptions) error { cancel(); return nil }}
		s := NewServer(b, nil)
		if err := configure(s, ""); err != nil {
			t.Fatal(err)
		}
		_, err := s.Open(ctx, &pluginv1.OpenRequest{Channel: "orders", Term: 1, Incarnation: 1})
		if err := wire.FromStatus(err); !errors.Is(err, context.Canceled) {
			t.Errorf("Open: %v", err)
		}
		synctest.Wait()
		if n := b.Handles.Load(); n != 0 {
			t.Errorf("%d handles are open", n)
		}
	})
}

func TestCloseIsBoundedWhenTheBackendHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := NewServer(&membackend.Backend{BeforeClose: func() { <-release }}, nil)
		if err := configure(s, ""); err != nil {
			t.Fatal(err)
		}
		first, _ := open(s, "orders", 1)
		if _, err := open(s, "other", 1); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err := s.CloseWAL(t.Context(), &pluginv1.CloseWALRequest{Handle: first.GetHandle()})
		if err := wire.FromStatus(err); !errors.Is(err, walimpls.ErrTimeout) || time.Since(begin) > walimpls.GracePeriod {
			t.Errorf("CloseWAL after %s: %v", time.Since(begin), err)
		}
		begin = time.Now()
		if err := s.Close(t.Context()); !errors.Is(err, walimpls.ErrTimeout) || time.Since(begin) > walimpls.GracePeriod {
			t.Errorf("Close after %s: %v", time.Since(begin), err)
		}
		close(release)
		synctest.Wait()
	})
}
