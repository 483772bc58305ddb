package plugintest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/walrig/walrig/sdk/plugin/internal/membackend"
	"github.com/walrig/walrig/sdk/plugin/plugintest"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackendIsServedWhateverTMPDIRIs(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"usual": os.TempDir(), "250 characters": long, "missing": "/no/such/folder"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", dir)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			c := plugintest.Serve(t, &membackend.Backend{})
			if err := c.Configure(ctx, walimpls.Config{"dir": "x"}); err != nil {
				t.Fatal(err)
			}
			if d, err := c.Describe(ctx); err != nil || d.Backend != "mem" {
				t.Errorf("%+v %v", d, err)
			}
		})
	}
}

func TestNothingIsLeftWhenTheTestEnds(t *testing.T) {
	b := &membackend.Backend{}
	var address string
	t.Run("uses it", func(t *testing.T) {
		h := plugintest.Start(t, b)
		address = h.Address
		if err := h.Client.Configure(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Client.Open(t.Context(), walimpls.OpenOptions{Channel: "orders", Term: 1, Incarnation: 1, Access: walimpls.AccessReadWrite}); err != nil {
			t.Fatal(err)
		}
	})
	if b.Handles.Load() != 0 {
		t.Error("a handle is open")
	}
	if _, err := os.Stat(filepath.Dir(address)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's folder: %v", err)
	}
}
