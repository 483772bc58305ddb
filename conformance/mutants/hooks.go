package mutants

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/walrig/walrig/conformance"
	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Mutant is a backend with one defect.
type Mutant struct {
	Name string
	// Defect is what is wrong with it.
	Defect string
	// Clause is the clause that it breaks.
	Clause string
	// Also are clauses whose checks must fail too: those that nothing can break
	// but what breaks Clause, and those through which the defect reaches a host.
	Also []string
	// Source is where such a defect was seen: a case of the public reports, or "".
	Source string

	hooks func(l *life) hooks
}

// hooks change what happens on the way to the reference; nil leaves it as it is.
type hooks struct {
	describe func(*walimpls.Description)
	config   func(error) error
	fresh    bool // each start has a store of its own
	open     func(ctx context.Context, opt walimpls.OpenOptions) (*wal, error)
	drop     func(ctx context.Context, channel string, term int64) error
	closing  func() // before an orderly Close of the opener
	append   func(w *wal, ctx context.Context, batch []message.Message) ([]message.ID, error)
	read     func(w *wal, ctx context.Context, opt walimpls.ReadOptions) (*scanner, error)
	next     func(s *scanner, ctx context.Context) ([]message.Message, error)
	endScan  func(s *scanner) error
	truncate func(w *wal, ctx context.Context, before message.ID) error
	bounds   func(w *wal, ctx context.Context) (walimpls.Bounds, error)
	close    func(w *wal, ctx context.Context) error
	size     func(stored, appended int64) int64
}

// disk is what outlives a kill.
type disk struct {
	store *faultbackend.Store

	mu    sync.Mutex // guards what follows
	lives int
	notes map[message.ID]message.Message // for mutants that store beside the log
	owner map[string]*wal                // the newest handle of each channel, over all lives
	size  func(stored, appended int64) int64
	grown int64 // bytes that were ever appended
}

// Limits of the reference: small enough to try them all quickly.
var limits = walimpls.Limits{MaxMessageBytes: 3 << 19, MaxBatchRecords: 1000, MaxBatchBytes: 6 << 20}

// rules make acknowledgements slow now and then, so that contexts end under way.
const rules = "append delay-ack 1ms prob=0.2 per=call"

// target is a conformance.Target.
type target struct {
	mutant  Mutant
	disk    *disk
	release chan struct{} // closed by Close: what hangs goes on
}

// Target returns a mutant, or with the zero Mutant the reference, as a target. The
// function releases what it holds; call it at the end.
func Target(m Mutant) (conformance.Target, func()) {
	t := &target{mutant: m, release: make(chan struct{})}
	t.disk = newDisk()
	return t, func() { close(t.release); _ = t.disk.store.Close() }
}

func newDisk() *disk {
	return &disk{store: faultbackend.NewStore(), notes: map[message.ID]message.Message{}, owner: map[string]*wal{}}
}

func (t *target) Info() conformance.TargetInfo {
	name := "reference"
	if t.mutant.Name != "" {
		name = "mutant " + t.mutant.Name
	}
	return conformance.TargetInfo{Kind: "in process", Name: name}
}

func (t *target) Start(ctx context.Context) (conformance.Instance, error) {
	l := &life{target: t, disk: t.disk}
	if t.mutant.hooks != nil {
		l.hooks = t.mutant.hooks(l)
	}
	if l.hooks.fresh {
		l.disk = newDisk()
	}
	if l.hooks.size != nil {
		t.disk.mu.Lock()
		t.disk.size = l.hooks.size
		t.disk.mu.Unlock()
	}
	return l, l.boot(ctx)
}

// Size implements conformance.Sizer.
func (t *target) Size(context.Context) (int64, error) {
	stored := t.disk.store.Bytes()
	t.disk.mu.Lock()
	size, grown := t.disk.size, t.disk.grown
	t.disk.mu.Unlock()
	if size != nil {
		return size(stored, grown), nil
	}
	return stored, nil
}

// CheckConfig implements conformance.ConfigChecker.
func (t *target) CheckConfig(ctx context.Context, extra walimpls.Config) error {
	o, err := faultbackend.NewBuilder().Build(ctx, extra, zap.NewNop())
	if err == nil {
		err = o.Close(ctx)
	}
	if l := (&life{target: t, disk: t.disk}); t.mutant.hooks != nil {
		if h := t.mutant.hooks(l); h.config != nil {
			return h.config(err)
		}
	}
	return err
}

// life is one process of the backend; a kill ends it and begins the next.
type life struct {
	target *target
	disk   *disk

	mu     sync.Mutex // guards what follows
	hooks  hooks
	inner  walimpls.Opener
	number int
	closed bool
}

func (l *life) boot(ctx context.Context) error {
	o, err := faultbackend.NewBuilder(faultbackend.WithStore(l.disk.store), faultbackend.WithLimits(limits)).
		Build(ctx, walimpls.Config{"rules": rules}, zap.NewNop())
	l.disk.mu.Lock()
	l.disk.lives++
	number := l.disk.lives
	l.disk.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner, l.number = o, number
	return err
}

// Kill implements conformance.Killer: what was not stored is gone.
func (l *life) Kill(ctx context.Context) error {
	l.mu.Lock()
	inner := l.inner
	if l.target.mutant.hooks != nil {
		l.hooks = l.target.mutant.hooks(l)
	}
	l.mu.Unlock()
	if err := inner.Close(ctx); err != nil {
		return err
	}
	return l.boot(ctx)
}

func (l *life) current() (walimpls.Opener, hooks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inner, l.hooks
}

// Description implements conformance.Instance.
func (l *life) Description(context.Context) (walimpls.Description, error) {
	d := faultbackend.NewBuilder(faultbackend.WithLimits(limits)).Describe()
	d.Capabilities.Durability = walimpls.DurabilityFsync
	d.Capabilities.ExclusiveStore = false
	if _, h := l.current(); h.describe != nil {
		h.describe(&d)
	}
	return d, nil
}

// Open implements walimpls.Opener.
func (l *life) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	open := l.open
	if _, h := l.current(); h.open != nil {
		open = h.open
	}
	w, err := open(ctx, opt)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// open opens in the reference.
func (l *life) open(ctx context.Context, opt walimpls.OpenOptions) (*wal, error) {
	l.mu.Lock()
	inner, h, number := l.inner, l.hooks, l.number
	l.mu.Unlock()
	in, err := inner.Open(ctx, opt)
	if err != nil {
		return nil, err
	}
	w := &wal{WAL: in, life: l, hooks: h, channel: in.Channel(), born: number}
	if opt.Access == walimpls.AccessReadWrite {
		l.disk.mu.Lock()
		l.disk.owner[w.channel.Name] = w
		l.disk.mu.Unlock()
	}
	return w, nil
}

// owner returns the newest read-write handle of a channel.
func (l *life) owner(channel string) *wal {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	return l.disk.owner[channel]
}

// Drop implements walimpls.Opener.
func (l *life) Drop(ctx context.Context, channel string, term int64) error {
	inner, h := l.current()
	if h.drop != nil {
		return h.drop(ctx, channel, term)
	}
	return inner.Drop(ctx, channel, term)
}

// Close implements walimpls.Opener.
func (l *life) Close(ctx context.Context) error {
	l.mu.Lock()
	inner, h := l.inner, l.hooks
	l.closed = true
	l.mu.Unlock()
	if h.closing != nil {
		h.closing()
	}
	return inner.Close(ctx)
}

// wal is a handle of the reference behind the hooks.
type wal struct {
	walimpls.WAL
	life    *life
	hooks   hooks
	channel walimpls.Channel // what Channel returns
	born    int              // the number of the life that opened it

	mu    sync.Mutex // guards what follows
	ended bool       // for mutants that make outcomes unknown themselves
	count int
}

func (w *wal) Channel() walimpls.Channel { return w.channel }

func (w *wal) Append(ctx context.Context, batch []message.Message) ([]message.ID, error) {
	w.life.disk.mu.Lock()
	for i := range batch {
		w.life.disk.grown += int64(batch[i].Size())
	}
	w.life.disk.mu.Unlock()
	if w.hooks.append != nil {
		return w.hooks.append(w, ctx, batch)
	}
	return w.WAL.Append(ctx, batch)
}

func (w *wal) Read(ctx context.Context, opt walimpls.ReadOptions) (walimpls.Scanner, error) {
	read := (*wal).read
	if w.hooks.read != nil {
		read = w.hooks.read
	}
	s, err := read(w, ctx, opt)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// read reads from the reference.
func (w *wal) read(ctx context.Context, opt walimpls.ReadOptions) (*scanner, error) {
	in, err := w.WAL.Read(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &scanner{Scanner: in, wal: w, opt: opt}, nil
}

func (w *wal) Truncate(ctx context.Context, before message.ID) error {
	if w.hooks.truncate != nil {
		return w.hooks.truncate(w, ctx, before)
	}
	return w.WAL.Truncate(ctx, before)
}

func (w *wal) Bounds(ctx context.Context) (walimpls.Bounds, error) {
	if w.hooks.bounds != nil {
		return w.hooks.bounds(w, ctx)
	}
	return w.WAL.Bounds(ctx)
}

func (w *wal) Close(ctx context.Context) error {
	if w.hooks.close != nil {
		return w.hooks.close(w, ctx)
	}
	return w.WAL.Close(ctx)
}

// scanner is a scanner of the reference behind the hooks.
type scanner struct {
	walimpls.Scanner
	wal *wal
	opt walimpls.ReadOptions

	mu     sync.Mutex // guards what follows
	closed bool
	place  message.ID
	held   []message.Message
}

func (s *scanner) Next(ctx context.Context) ([]message.Message, error) {
	if s.wal.hooks.next != nil {
		return s.wal.hooks.next(s, ctx)
	}
	return s.Scanner.Next(ctx)
}

func (s *scanner) Close() error {
	if s.wal.hooks.endScan != nil {
		return s.wal.hooks.endScan(s)
	}
	return s.Scanner.Close()
}
