package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Target is a backend under test and the store it works on.
type Target interface {
	// Info says what it is, for the report.
	Info() TargetInfo
	// Start starts an instance on the store. A second one while the first is up
	// is another process to the store.
	Start(ctx context.Context) (Instance, error)
}

// Instance is a running backend. Close is its orderly end.
type Instance interface {
	walimpls.Opener
	// Description returns what the backend says of itself, anew at each call.
	Description(ctx context.Context) (walimpls.Description, error)
}

// Killer is an Instance that can be ended as by kill -9. After Kill the same
// Instance may come back by itself (a supervised plugin does); Kill returns when
// the old life is over.
type Killer interface {
	Kill(ctx context.Context) error
}

// Breaker is an Instance whose connection to the backend can be lost, so that the
// outcome of what is under way is not known. After Break the same Instance serves
// again. A Killer breaks its connection by its Kill.
type Breaker interface {
	Break(ctx context.Context) error
}

// ConfigChecker is a Target that can try another configuration.
type ConfigChecker interface {
	// CheckConfig returns what the backend says to its configuration with extra
	// keys. It touches no store.
	CheckConfig(ctx context.Context, extra walimpls.Config) error
}

// Sizer is a Target that can tell how many bytes the store takes.
type Sizer interface {
	Size(ctx context.Context) (int64, error)
}

// TargetInfo is what the report says of a target.
type TargetInfo struct {
	// Kind is "in process", "over rpc" or "plugin".
	Kind string `json:"kind"`
	// Name is what the user calls it.
	Name string `json:"name"`
	// Path and SHA256 are of the plugin's binary.
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	// Command is how to run the suite on it, without the flags that select checks.
	Command string `json:"command"`
}

// TargetOptions are what a target may know beside the backend.
type TargetOptions struct {
	// Name is for the report; "" means the backend's name.
	Name string
	// StorePath is the folder or file of the store, to measure it; "" if unknown.
	StorePath string
	// Size measures a store that is no folder of this machine, in bytes. Without
	// StorePath and Size the checks on space do not run.
	Size func(ctx context.Context) (int64, error)
	// Command repeats the run; see TargetInfo.
	Command string
}

func one(opts []TargetOptions) TargetOptions {
	if len(opts) == 0 {
		return TargetOptions{}
	}
	return opts[0]
}

// InProcess is a backend that is linked in. It cannot be killed, so the crash
// checks do not run.
func InProcess(b walimpls.Builder, cfg walimpls.Config, opts ...TargetOptions) Target {
	return &inProcess{builder: b, cfg: cfg, opt: one(opts)}
}

type inProcess struct {
	builder walimpls.Builder
	cfg     walimpls.Config
	opt     TargetOptions
}

func (p *inProcess) Info() TargetInfo {
	name := p.opt.Name
	if name == "" {
		name = p.builder.Name()
	}
	return TargetInfo{Kind: "in process", Name: name, Command: p.opt.Command}
}

func (p *inProcess) Start(ctx context.Context) (Instance, error) {
	o, err := p.builder.Build(ctx, p.cfg, zap.NewNop())
	if err != nil {
		return nil, err
	}
	return &linked{Opener: o, builder: p.builder}, nil
}

func (p *inProcess) CheckConfig(ctx context.Context, extra walimpls.Config) error {
	o, err := p.builder.Build(ctx, merge(p.cfg, extra), zap.NewNop())
	if err != nil {
		return err
	}
	return o.Close(ctx)
}

func (p *inProcess) Size(ctx context.Context) (int64, error) { return p.opt.size(ctx) }

type linked struct {
	walimpls.Opener
	builder walimpls.Builder
}

func (l *linked) Description(context.Context) (walimpls.Description, error) {
	d := l.builder.Describe()
	if d.Backend != l.builder.Name() {
		return d, fmt.Errorf("the Builder is called %q and describes itself as %q", l.builder.Name(), d.Backend)
	}
	return d, nil
}

func merge(a, b walimpls.Config) walimpls.Config {
	out := walimpls.Config{}
	for _, m := range []walimpls.Config{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// errNoSize says that a target does not know where its store is.
var errNoSize = errors.New("the store's size is not known to the suite")

func (o TargetOptions) size(ctx context.Context) (int64, error) {
	switch {
	case o.Size != nil:
		return o.Size(ctx)
	case o.StorePath == "":
		return 0, errNoSize
	}
	return sizeOf(o.StorePath)
}

func sizeOf(path string) (int64, error) {
	var total int64
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // files come and go
		}
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total, err
}

func fileSHA256(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
