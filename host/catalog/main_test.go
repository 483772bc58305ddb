package catalog

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forEachCatalog runs a promise of the interface against every implementation.
func forEachCatalog(t *testing.T, promise func(t *testing.T, c Catalog)) {
	t.Run("memory", func(t *testing.T) {
		c := NewMemory()
		promise(t, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("bolt", func(t *testing.T) {
		c := openBolt(t, filepath.Join(t.TempDir(), "catalog.db"))
		promise(t, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// openBolt opens the catalog at path and closes it at the test's end.
func openBolt(t testing.TB, path string) Catalog {
	t.Helper()
	c, err := OpenBolt(path, BoltOptions{LockTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
