package parquet

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file that a crash left is kept until it is old enough, and then removed; what
// the chain lists is kept however old it is.
func TestLeftOverFilesAreRemovedWhenTheyAreOld(t *testing.T) {
	dir := t.TempDir()
	url := "file://" + dir
	ctx := context.Background()
	opt := Options{GarbageAge: time.Hour, CollectEvery: time.Hour}
	first, err := Open(ctx, url, opt)
	if err != nil {
		t.Fatal(err)
	}
	v := mustOpen(t, first, "early", 1)
	mustFlush(t, v, 1, 3)
	left := filepath.Join(dir, filepath.FromSlash(v.o.l.file("early", entry{At: position{Owner: v.o.id, Seq: 9}, FirstTick: 4, LastTick: 5})))
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(ctx, url, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	v = mustOpen(t, second, "early", 2)
	sweep := func() {
		t.Helper()
		v.st.mu.Lock()
		if v.st.sweepAt.IsZero() {
			t.Fatal("it was swept already")
		}
		v.st.sweepAt = time.Now() // as if the hour had passed
		v.st.mu.Unlock()
		if err := collectAll(second); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if _, err := os.Stat(left); err != nil {
		t.Fatalf("a young file was removed: %v", err)
	}
	old := time.Now().Add(-2 * time.Hour)
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chtimes(path, old, old)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Fatalf("the left-over file is still there: %v", err)
	}
	files, err := v.Files(ctx)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	if _, err := os.Stat(files[0].Path); err != nil {
		t.Fatalf("a listed file was removed: %v", err)
	}
	// The next manifest says how far that was, so that nobody looks there again.
	mustFlush(t, v, 4, 6)
	if v.st.m.Swept != v.st.base || v.st.base.isZero() {
		t.Fatalf("swept up to %v, want %v", v.st.m.Swept, v.st.base)
	}
}
