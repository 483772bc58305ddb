package catalog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/walrig/walrig/sdk/walimpls"
)

func TestWhatWasWrittenIsThereAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	var want []Row
	for round := range 4 {
		c := openBolt(t, path)
		rows, err := c.List(t.Context())
		if err != nil || len(rows) != len(want) || len(want) > 0 && !reflect.DeepEqual(rows, want) {
			t.Fatalf("round %d: %+v, %v; want %+v", round, rows, err, want)
		}
		mustCreate(t, c, full("c"+string(rune('a'+round))))
		for i := range rows {
			mustClaim(t, c, rows[i].Channel, rows[i].Term+1)
		}
		want, _ = c.List(t.Context())
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A write that returned is in the file already, whatever becomes of the process.
func TestAWriteIsInTheFileWhenItReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c := openBolt(t, path)
	for term := int64(1); term <= 3; term++ {
		if term == 1 {
			mustCreate(t, c, Row{Channel: "orders"})
		}
		mustClaim(t, c, "orders", term)
		copied := filepath.Join(t.TempDir(), "copy.db")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if row, err := openBolt(t, copied).Get(t.Context(), "orders"); err != nil || row.Term != term {
			t.Fatalf("after the claim of term %d a copy of the file has %+v, %v", term, row, err)
		}
	}
}

func TestASecondHostIsToldWhoHoldsTheFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c := openBolt(t, path)
	start := time.Now()
	_, err := OpenBolt(path, BoltOptions{LockTimeout: 100 * time.Millisecond})
	wantError(t, err, walimpls.ErrUnavailable, path, "another host holds", filepath.Dir(path))
	if e := walimpls.AsError(err); e.Hint == "" || !e.Retryable {
		t.Errorf("the error is %+v", e)
	}
	if waited := time.Since(start); waited > 5*time.Second {
		t.Errorf("it took %v", waited)
	}
	mustCreate(t, c, Row{Channel: "orders"}) // the first is not disturbed
}

func TestTheLockOfADyingHostIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	first := openBolt(t, path)
	mustCreate(t, first, Row{Channel: "orders"})
	waiting := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		second, err := OpenBolt(path, BoltOptions{LockTimeout: 30 * time.Second, openFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			defer close(waiting)
			return os.OpenFile(name, flag, mode)
		}})
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := second.Get(context.Background(), "orders"); err != nil {
			t.Error(err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	<-waiting
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestAPathThatCannotBeAFileIsOneClearError(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"missing folder":       filepath.Join(dir, "missing", "catalog.db"),
		"a folder":             dir,
		"a file as the folder": filepath.Join(file, "catalog.db"),
	} {
		_, err := OpenBolt(path, BoltOptions{})
		if !errors.Is(err, walimpls.ErrUnavailable) || !strings.Contains(err.Error(), path) || walimpls.AsError(err).Retryable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnotherProgramsFileIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	edit(t, path, func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err })
	before, _ := os.ReadFile(path)
	_, err := OpenBolt(path, BoltOptions{})
	wantError(t, err, walimpls.ErrForeignStore, path)
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
}

// edit changes the bbolt file behind the catalog's back.
func edit(t testing.TB, path string, f func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestACatalogOfAnotherReleaseSaysWhichReadsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	_ = openBolt(t, path).Close()
	edit(t, path, func(tx *bolt.Tx) error {
		return tx.Bucket(metaBucket).Put(formatKey, []byte(`{"format":7,"read_by":"walrig 3.2","new":{}}`))
	})
	_, err := OpenBolt(path, BoltOptions{})
	if e := walimpls.AsError(err); e == nil || e.Code != walimpls.CodeUnsupported {
		t.Fatal(err)
	}
	wantError(t, err, walimpls.ErrUnsupported, "format 7", "format 1", "walrig 3.2")

	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, []byte("{}")) })
	_, err = OpenBolt(path, BoltOptions{})
	wantError(t, err, walimpls.ErrCorrupt)

	edit(t, path, func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket(metaBucket).Put(formatKey, []byte(`{"format":1}`)), tx.DeleteBucket(rowsBucket))
	})
	_, err = OpenBolt(path, BoltOptions{})
	wantError(t, err, walimpls.ErrCorrupt, "rows")
}

// M-22: what is wrong with one channel's row stays with that channel.
func TestADamagedRowHurtsItsChannelAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c := openBolt(t, path)
	for _, name := range []string{"a", "b", "c"} {
		mustCreate(t, c, full(name))
		mustClaim(t, c, name, 3)
	}
	_ = c.Close()
	edit(t, path, func(tx *bolt.Tx) error {
		b := tx.Bucket(rowsBucket)
		return errors.Join(
			b.Put([]byte("b"), bytes.Replace(b.Get([]byte("b")), []byte(`"term":3`), []byte(`"term":2`), 1)),
			b.Put([]byte("c"), []byte(`{"format":2,"read_by":"walrig 1.0"}`)))
	})
	c = openBolt(t, path)
	rows, err := c.List(t.Context())
	if len(rows) != 1 || rows[0].Channel != "a" {
		t.Errorf("the rows that are right are %+v", rows)
	}
	wantError(t, err, walimpls.ErrCorrupt, `"b"`, "checksum")
	wantError(t, err, walimpls.ErrUnsupported, `"c"`, "walrig 1.0")
	mustClaim(t, c, "a", 4)
	for name, want := range map[string]error{"b": walimpls.ErrCorrupt, "c": walimpls.ErrUnsupported} {
		_, err = c.Get(t.Context(), name)
		wantError(t, err, want, name)
		_, err = c.Claim(t.Context(), name, 9)
		wantError(t, err, want, name)
		wantError(t, c.Delete(t.Context(), name, 3), want, name)
		wantError(t, c.Create(t.Context(), Row{Channel: name}), walimpls.ErrAlreadyExists, name)
	}
}

// After a write that failed below, nobody knows what the disk holds: the handle
// must not go on as if nothing had happened.
func TestAFailedWriteEndsTheHandle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	var file *os.File
	c, err := OpenBolt(path, BoltOptions{openFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, mode)
		file = f
		return f, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	mustCreate(t, c, Row{Channel: "orders"})
	mustClaim(t, c, "orders", 1)
	_ = file.Close() // every write of bbolt fails from now on
	_, err = c.Claim(t.Context(), "orders", 2)
	wantError(t, err, walimpls.ErrUnavailable, path)
	if walimpls.AsError(err).Retryable {
		t.Error("a retry on this handle cannot help")
	}
	_, again := c.Claim(t.Context(), "orders", 3)
	wantError(t, again, walimpls.ErrUnavailable, path)
	_, err = c.Get(t.Context(), "orders")
	wantError(t, err, walimpls.ErrUnavailable)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if row, err := openBolt(t, path).Get(t.Context(), "orders"); err != nil || row.Term != 1 {
		t.Errorf("after opening again: %+v, %v", row, err)
	}
}

// A file that shrinks under a mapped catalog is a memory fault, which would
// otherwise end the process.
func TestAFaultInTheMappedFileIsCorrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c := openBolt(t, path)
	mustCreate(t, c, Row{Channel: "orders"})
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	_, err := c.Get(t.Context(), "orders")
	wantError(t, err, walimpls.ErrCorrupt, path)
	_, err = c.Claim(t.Context(), "orders", 1)
	wantError(t, err, walimpls.ErrCorrupt, path)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	_ = openBolt(t, path) // the lock is given back
}

// sample returns the bytes of a catalog with branch pages, free pages and large rows.
func sample(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sample.db")
	c := openBolt(t, path)
	ctx := context.Background()
	for i := range 20 {
		row := full("channel" + strings.Repeat("x", i))
		for range i % 3 * 40 {
			row.Checkpoints = append(row.Checkpoints, row.Checkpoints[0])
		}
		if err := c.Create(ctx, row); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Claim(ctx, row.Channel, int64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(ctx, "channelxxxx", 5); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tryDamaged opens the bytes as a catalog and uses it: whatever they are, there
// is an answer, no panic and no hang, and an error has a code.
func tryDamaged(t testing.TB, path string, b []byte) error {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := OpenBolt(path, BoltOptions{LockTimeout: time.Second, noSync: true})
	if err == nil {
		var rows []Row
		rows, err = c.List(context.Background())
		for i, row := range rows {
			if i > 2 {
				break
			}
			_, claimed := c.Claim(context.Background(), row.Channel, row.Term+1)
			err = errors.Join(err, claimed)
		}
		err = errors.Join(err, c.Create(context.Background(), full("another")), c.Close())
	}
	var typed *walimpls.Error
	if err != nil && !errors.As(err, &typed) {
		t.Fatalf("untyped error: %v", err)
	}
	return err
}

func TestEveryKindOfDamageIsCorrupt(t *testing.T) {
	good := sample(t)
	path := filepath.Join(t.TempDir(), "damaged.db")
	if err := tryDamaged(t, path, good); err != nil {
		t.Fatalf("the undamaged file: %v", err)
	}
	page := os.Getpagesize()
	cases := map[string]func([]byte) []byte{
		"not a bbolt file": func([]byte) []byte { return []byte(strings.Repeat("hello ", 10_000)) },
		"one byte":         func([]byte) []byte { return []byte{1} },
		"one page":         func(b []byte) []byte { return b[:page] },
		"half":             func(b []byte) []byte { return b[:len(b)/2/page*page] },
		"zeros":            func(b []byte) []byte { return make([]byte, len(b)) },
		"zeroed pages":     func(b []byte) []byte { clear(b[2*page:]); return b },
		"pages of ones": func(b []byte) []byte {
			for i := 2 * page; i < len(b); i++ {
				b[i] = 0xff
			}
			return b
		},
		"swapped pages": func(b []byte) []byte {
			return append(append(append([]byte{}, b[:2*page]...), b[3*page:]...), b[2*page:3*page]...)
		},
		"both heads": func(b []byte) []byte { b[30]++; b[page+30]++; return b },
	}
	for name, damage := range cases {
		if err := tryDamaged(t, path, damage(bytes.Clone(good))); !errors.Is(err, walimpls.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name the file: %v", name, err)
		}
	}
}

// A branch that points to itself makes bbolt loop for ever, and a live page in
// the list of free pages makes it write over it.
func TestDamageThatWouldHangOrLoseDataIsFoundAtOpen(t *testing.T) {
	good := sample(t)
	f := &boltFile{file: bytes.NewReader(good), size: int64(len(good)), used: map[uint64]bool{}}
	head, err := f.newestHead()
	if err != nil {
		t.Fatal(err)
	}
	f.pages = order.Uint64(head[40:])
	if err := f.tree(order.Uint64(head[16:]), 0); err != nil {
		t.Fatal(err)
	}
	pageOf := func(b []byte, id uint64) []byte { return b[id*f.pageSize:][:f.pageSize] }
	branch := uint64(0)
	for id := range f.used {
		if order.Uint16(pageOf(good, id)[8:]) == flagBranch {
			branch = id
		}
	}
	if branch == 0 {
		t.Fatal("the sample has no branch page")
	}
	path := filepath.Join(t.TempDir(), "damaged.db")

	loop := bytes.Clone(good)
	for i := range int(order.Uint16(pageOf(loop, branch)[10:])) {
		order.PutUint64(pageOf(loop, branch)[pageHead+i*elemSize+8:], branch)
	}
	if err := tryDamaged(t, path, loop); !errors.Is(err, walimpls.ErrCorrupt) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a loop: %v", err)
	}

	free := bytes.Clone(good)
	list := pageOf(free, order.Uint64(head[32:]))
	if order.Uint16(list[10:]) == 0 {
		t.Fatal("the sample has no free page")
	}
	order.PutUint64(list[pageHead:], branch)
	if err := tryDamaged(t, path, free); !errors.Is(err, walimpls.ErrCorrupt) || !strings.Contains(err.Error(), "free") {
		t.Errorf("a live page as free: %v", err)
	}

	many := bytes.Clone(good)
	list = pageOf(many, order.Uint64(head[32:]))
	order.PutUint16(list[10:], 0xFFFF)
	order.PutUint64(list[pageHead:], 1<<40)
	if err := tryDamaged(t, path, many); !errors.Is(err, walimpls.ErrCorrupt) {
		t.Errorf("a huge list: %v", err)
	}
}

func TestTheCheckPassesGoodFiles(t *testing.T) {
	for _, b := range [][]byte{nil, sample(t)} {
		if err := checkFile(bytes.NewReader(b), int64(len(b))); err != nil {
			t.Error(err)
		}
	}
	if err := checkFile(io.NewSectionReader(bytes.NewReader(nil), 0, 0), 1); err == nil {
		t.Error("a file that cannot be read is right")
	}
}
