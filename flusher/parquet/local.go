package parquet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// localBucket is a driver of the blob library for a folder, made for what a log
// needs and the library's own file driver lacks: an object, its folder and every
// folder above are fsynced before Close returns, and create-only holds between
// processes because the name is given by link(2).
type localBucket struct {
	root string
	seq  atomic.Uint64

	mu     sync.Mutex
	synced map[string]bool // folders known to be durable; guarded by mu
}

// tmpFolder holds objects that are being written. It is inside the root, so that
// a link never crosses file systems.
const tmpFolder = ".tmp"

// tmpMaxAge is how long a crash's half-written object is kept. Nobody writes one
// object for that long.
const tmpMaxAge = 24 * time.Hour

func newLocalBucket(root string) *localBucket {
	return &localBucket{root: filepath.Clean(root), synced: map[string]bool{}}
}

// path refuses every key that could leave the root; the sink's own keys are safe.
func (b *localBucket) path(key string) (string, error) {
	if !fs.ValidPath(key) || key == "." || strings.HasPrefix(key, tmpFolder+"/") || strings.ContainsAny(key, "\\\x00:") {
		return "", fmt.Errorf("%w: key %q", errBadKey, key)
	}
	return filepath.Join(b.root, filepath.FromSlash(key)), nil
}

var errBadKey = errors.New("not a key of a local bucket")

// ensureFolder makes dir and what is missing above it, and fsyncs the parent of
// each, once in this process: whoever made a folder may have died before its sync.
func (b *localBucket) ensureFolder(dir string) error {
	b.mu.Lock()
	known := b.synced[dir]
	b.mu.Unlock()
	if known {
		return nil
	}
	parent := filepath.Dir(dir)
	if dir != b.root && parent != dir {
		if err := b.ensureFolder(parent); err != nil {
			return err
		}
	}
	var err error
	if dir == b.root {
		err = os.MkdirAll(dir, 0o777)
	} else if err = os.Mkdir(dir, 0o777); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = syncFolder(parent)
	}
	if err != nil {
		return err
	}
	if dir == filepath.Join(b.root, tmpFolder) {
		b.removeOldTemps(dir)
	}
	b.mu.Lock()
	b.synced[dir] = true
	b.mu.Unlock()
	return nil
}

// removeOldTemps collects what crashes left. It runs once, when the first object is written.
func (b *localBucket) removeOldTemps(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > tmpMaxAge {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (b *localBucket) NewTypedWriter(ctx context.Context, key, _ string, opts *driver.WriterOptions) (driver.Writer, error) {
	path, err := b.path(key)
	if err != nil {
		return nil, err
	}
	tmp := filepath.Join(b.root, tmpFolder)
	if err := b.ensureFolder(tmp); err != nil {
		return nil, err
	}
	if err := b.ensureFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if opts.BeforeWrite != nil {
		if err := opts.BeforeWrite(func(any) bool { return false }); err != nil {
			return nil, err
		}
	}
	name := strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatUint(b.seq.Add(1), 36)
	f, err := os.OpenFile(filepath.Join(tmp, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	return &localWriter{f: f, ctx: ctx, path: path, createOnly: opts.IfNotExist}, nil
}

type localWriter struct {
	f          *os.File
	ctx        context.Context // the driver interface hands it over once, for the writer's whole life
	path       string
	createOnly bool
	failed     error
}

func (w *localWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.f.Write(p)
	if err != nil {
		w.failed = err
	}
	return n, err
}

// Close makes the content durable, then gives it its name, then makes the name
// durable. After an error the name may be there or not, but never half of an object.
func (w *localWriter) Close() error {
	tmp := w.f.Name()
	defer func() { _ = os.Remove(tmp) }()
	err := w.failed
	if err == nil {
		err = w.ctx.Err()
	}
	if err == nil {
		err = w.f.Sync()
	}
	if closeErr := w.f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = w.ctx.Err()
	}
	if err != nil {
		return err
	}
	if w.createOnly {
		err = os.Link(tmp, w.path)
		if errors.Is(err, syscall.EPERM) { // what Linux says where there are no hard links
			err = fmt.Errorf("%w: %w", syscall.EOPNOTSUPP, err)
		}
	} else {
		err = os.Rename(tmp, w.path)
	}
	if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(w.path))
}

func (b *localBucket) NewRangeReader(_ context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	path, err := b.path(key)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist
	}
	if err == nil && opts.BeforeRead != nil {
		err = opts.BeforeRead(func(any) bool { return false })
	}
	if err == nil && offset > 0 {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r := &localReader{Reader: f, f: f, attrs: driver.ReaderAttributes{ContentType: contentType, ModTime: info.ModTime(), Size: info.Size()}}
	if length >= 0 {
		r.Reader = io.LimitReader(f, length)
	}
	return r, nil
}

const contentType = "application/octet-stream"

type localReader struct {
	io.Reader
	f     *os.File
	attrs driver.ReaderAttributes
}

func (r *localReader) Close() error                         { return r.f.Close() }
func (r *localReader) Attributes() *driver.ReaderAttributes { return &r.attrs }
func (r *localReader) As(any) bool                          { return false }

func (b *localBucket) Attributes(_ context.Context, key string) (*driver.Attributes, error) {
	path, err := b.path(key)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fs.ErrNotExist
	}
	return &driver.Attributes{ContentType: contentType, ModTime: info.ModTime(), Size: info.Size()}, nil
}

// localPage is how many objects one page of a listing has unless the caller says.
const localPage = 10_000

// errPageFull ends the walk of a listing.
var errPageFull = errors.New("page is full")

// ListPaged walks the folders in key order and enters none that lies wholly
// before the start or outside the prefix. Delimiters are not offered.
func (b *localBucket) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	if opts.Delimiter != "" {
		return nil, errUnsupported
	}
	after := string(opts.PageToken)
	if opts.BeforeList != nil {
		from := ""
		if err := opts.BeforeList(func(i any) bool {
			p, ok := i.(**string)
			if ok {
				*p = &from
			}
			return ok
		}); err != nil {
			return nil, err
		}
		after = max(after, from)
	}
	size := opts.PageSize
	if size == 0 {
		size = localPage
	}
	page := &driver.ListPage{}
	var walk func(folder string) error
	walk = func(folder string) error { // folder is a key prefix: "" or ends with a slash
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := os.ReadDir(filepath.Join(b.root, filepath.FromSlash(folder)))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, key := range sortedKeys(folder, entries) {
			inside := strings.HasPrefix(key, opts.Prefix)
			if strings.HasSuffix(key, "/") {
				if key == tmpFolder+"/" || (!inside && !strings.HasPrefix(opts.Prefix, key)) || (key < after && !strings.HasPrefix(after, key)) {
					continue
				}
				if err := walk(key); err != nil {
					return err
				}
				continue
			}
			if !inside || key <= after {
				continue
			}
			if len(page.Objects) == size {
				page.NextPageToken = []byte(page.Objects[size-1].Key)
				return errPageFull
			}
			info, err := os.Lstat(filepath.Join(b.root, filepath.FromSlash(key)))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			page.Objects = append(page.Objects, &driver.ListObject{Key: key, ModTime: info.ModTime(), Size: info.Size()})
		}
		return nil
	}
	start := opts.Prefix[:strings.LastIndexByte(opts.Prefix, '/')+1]
	if err := walk(start); err != nil && !errors.Is(err, errPageFull) {
		return nil, err
	}
	return page, nil
}

func (b *localBucket) Delete(_ context.Context, key string, opts *driver.DeleteOptions) error {
	path, err := b.path(key)
	if err != nil {
		return err
	}
	if opts.BeforeDelete != nil {
		if err := opts.BeforeDelete(func(any) bool { return false }); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// errUnsupported is for what a bucket may offer and this one does not.
var errUnsupported = errors.New("not offered by a local bucket")

func (b *localBucket) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return errUnsupported
}

func (b *localBucket) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errUnsupported
}

func (b *localBucket) As(any) bool             { return false }
func (b *localBucket) ErrorAs(error, any) bool { return false }
func (b *localBucket) Close() error            { return nil }

func (b *localBucket) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gcerrors.NotFound
	case errors.Is(err, fs.ErrExist):
		return gcerrors.AlreadyExists
	case errors.Is(err, fs.ErrPermission):
		return gcerrors.PermissionDenied
	case errors.Is(err, errBadKey):
		return gcerrors.InvalidArgument
	case errors.Is(err, errUnsupported):
		return gcerrors.Unimplemented
	case errors.Is(err, syscall.ENOSPC):
		return gcerrors.ResourceExhausted
	}
	return gcerrors.Unknown
}
