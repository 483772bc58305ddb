package parquet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob"
	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/walimpls"
)

func localStore(dir string) *bucketStore {
	return &bucketStore{bucket: blob.NewBucket(newLocalBucket(dir)), owned: true}
}

// Two drivers on one folder share nothing in memory, like two processes.
func TestOneOfManyCreatesWinsInAFolder(t *testing.T) {
	dir := t.TempDir()
	stores := []*bucketStore{localStore(dir), localStore(dir)}
	ctx := context.Background()
	for round := range 20 {
		key := "a/b/" + strings.Repeat("x", round+1)
		var won atomic.Int64
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				switch err := stores[i%2].put(ctx, key, []byte{byte(i)}); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, errExists):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of 8 create-only writes won", won.Load())
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, tmpFolder))
	if err != nil || len(left) != 0 {
		t.Fatalf("temporary files %v are left: %v", left, err)
	}
}

func TestCancelledWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := localStore(dir)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := s.create(ctx, "a/file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Fatalf("close: %v", err)
	}
	if _, err := s.get(context.Background(), "a/file", 10); err == nil {
		t.Fatal("the file is there")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, tmpFolder)); len(left) != 0 {
		t.Fatalf("temporary files %v are left", left)
	}
}

func TestHalfWrittenFilesOfACrashAreRemovedWhenOld(t *testing.T) {
	dir := t.TempDir()
	tmp := filepath.Join(dir, tmpFolder)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"old": 2 * tmpMaxAge, "young": time.Minute} {
		path := filepath.Join(tmp, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	s := localStore(dir)
	if err := s.put(context.Background(), "a", nil); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(tmp)
	if len(left) != 1 || left[0].Name() != "young" {
		t.Fatalf("left: %v", left)
	}
	if keys, err := keysOf(s, "", ""); err != nil || !slices.Equal(keys, []string{"a"}) {
		t.Fatalf("temporary files are listed: %q, %v", keys, err)
	}
}

func keysOf(s *bucketStore, prefix, after string) (keys []string, err error) {
	err = s.list(context.Background(), prefix, after, func(o object) error {
		keys = append(keys, o.key)
		return nil
	})
	return keys, err
}

func TestFolderListsInKeyOrderFromAnyStart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "walrig-list-")
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		s := localStore(dir)
		part := rapid.StringMatching(`[a-b.-]{1,2}x`)
		model := map[string]bool{}
		for range rapid.IntRange(0, 12).Draw(rt, "n") {
			key := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(rt, "key"), "/")
			if clash := slices.ContainsFunc(slices.Collect(keysIn(model)), func(k string) bool {
				return strings.HasPrefix(k, key+"/") || strings.HasPrefix(key, k+"/")
			}); clash || model[key] {
				continue
			}
			model[key] = true
			if err := s.put(context.Background(), key, []byte(key)); err != nil {
				rt.Fatal(err)
			}
		}
		prefix := rapid.SampledFrom([]string{"", "a", "ax/", "ax/b", "-x/", "zz/"}).Draw(rt, "prefix")
		after := rapid.StringMatching(`([a-b.-x/]{0,6})?`).Draw(rt, "after")
		var want []string
		for k := range model {
			if strings.HasPrefix(k, prefix) && k > after {
				want = append(want, k)
			}
		}
		slices.Sort(want)
		got, err := keysOf(s, prefix, after)
		if err != nil || !slices.Equal(got, want) {
			rt.Fatalf("list(%q, %q) = %q, %v; want %q of %v", prefix, after, got, err, want, model)
		}
	})
}

func keysIn(m map[string]bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestFolderPagesListEverythingOnce(t *testing.T) {
	dir := t.TempDir()
	b := blob.NewBucket(newLocalBucket(dir))
	defer func() { _ = b.Close() }()
	ctx := context.Background()
	want := []string{"a-b", "a.b", "a/b", "a/c/d", "a/c/e", "b"}
	for _, key := range want {
		if err := b.WriteAll(ctx, key, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for size := 1; size <= 7; size++ {
		var got []string
		for token := blob.FirstPageToken; token != nil; {
			page, next, err := b.ListPage(ctx, token, size, nil)
			if err != nil || len(page) > size {
				t.Fatalf("page of %d: %v", len(page), err)
			}
			for _, o := range page {
				got = append(got, o.Key)
			}
			token = next
		}
		if !slices.Equal(got, want) {
			t.Fatalf("pages of %d: %q, want %q", size, got, want)
		}
	}
}

func TestFolderRefusesKeysThatLeaveIt(t *testing.T) {
	s := localStore(filepath.Join(t.TempDir(), "in"))
	for _, key := range []string{"../x", "a/../../x", "/x", "a//b", "a/", ".", "", tmpFolder + "/x", "a\\b", "a\x00b"} {
		if err := s.put(context.Background(), key, nil); err == nil {
			t.Errorf("key %q was accepted", key)
		}
	}
}

func TestFolderErrorsSayWhatToDo(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), "file://"+filepath.Join(file, "sub"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	_, err = s.Open(context.Background(), testKey("v", 1))
	var e *walimpls.Error
	if !errors.As(err, &e) || e.Hint == "" || e.Channel != testChannel {
		t.Fatalf("a folder below a file: %#v", err)
	}
	for _, url := range []string{"", "orders", "ftp://x/y", "file://", "file:///", "file://host/x", "file:///x?y=z", "s3://", "s3:///x", "s3://b?nonsense=1", "%zz"} {
		if _, err := Open(context.Background(), url, Options{}); !errors.Is(err, walimpls.ErrConfig) {
			t.Errorf("bucket %q: %v, want ErrConfig", url, err)
		}
	}
}
