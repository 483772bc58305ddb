package catalog

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/walrig/walrig/sdk/walimpls"
)

// asNobody runs f on a thread that has no right to write where mode says so,
// also when the tests run as root. The thread ends with f's goroutine.
func asNobody(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // not unlocked: the thread is not used again
		if os.Geteuid() == 0 {
			_ = syscall.Setfsuid(65534)
		}
		f()
	}()
	<-done
}

func TestAReadOnlyFolderIsOneClearError(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "catalog.db")
	_ = openBolt(t, path).Close()
	for _, p := range []string{filepath.Dir(folder), folder} {
		if err := os.Chmod(p, 0o555); err != nil { //nolint:gosec // readable for everybody is the point
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o444); err != nil { //nolint:gosec // likewise
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.Chmod(filepath.Dir(folder), 0o700) //nolint:gosec // a folder needs x
		_ = os.Chmod(folder, 0o700)               //nolint:gosec // likewise
	})
	asNobody(func() {
		for _, p := range []string{path, filepath.Join(folder, "new.db")} {
			_, err := OpenBolt(p, BoltOptions{})
			e := walimpls.AsError(err)
			if e == nil || e.Code != walimpls.CodeUnavailable || e.Retryable || !strings.Contains(err.Error(), p) || !strings.Contains(e.Hint, folder) {
				t.Errorf("%s: %+v", p, e)
			}
		}
	})
}
