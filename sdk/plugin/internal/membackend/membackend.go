// Package membackend is a small backend in memory for the tests and benchmarks of
// sdk/plugin: it keeps the contract of sdk/walimpls, and its hooks let a test hold
// or fail a call. The fault backend for the tests of everything above the SDK is
// conformance/faultbackend.
package membackend

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// Backend is a Builder whose store is the struct itself. Set the exported fields
// before it is used.
type Backend struct {
	// Limits default to 1 MiB a record, 1024 records and 4 MiB a batch.
	Limits walimpls.Limits
	// Null acknowledges without storing, for benchmarks.
	Null bool
	// BeforeAppend is called without a lock before a batch is stored; its error is
	// Append's. Nil means no hook; so it is for the others.
	BeforeAppend func(ctx context.Context, batch []message.Message) error
	// AfterAppend is called behind the store; its error is Append's.
	AfterAppend func(batch []message.Message) error
	// BeforeOpen, BeforeRead and BeforeClose may block or fail.
	BeforeOpen  func(ctx context.Context, opt walimpls.OpenOptions) error
	BeforeRead  func(ctx context.Context, opt walimpls.ReadOptions) error
	BeforeClose func()
	// OnBuild sees the checked configuration.
	OnBuild func(walimpls.Values, *zap.Logger) error

	// Appends, Scanners and Handles count the calls of Append, and what is open.
	Appends  atomic.Int64
	Scanners atomic.Int64
	Handles  atomic.Int64

	mu      sync.Mutex
	logs    map[string]*memLog
	dropped int
}

// Fields are the keys of the configuration.
var Fields = []walimpls.ConfigField{
	{Name: "dir", Type: walimpls.ConfigString, Doc: "a folder that is not used"},
	{Name: "size", Type: walimpls.ConfigBytes, Default: "64MiB", Doc: "a size that is not used"},
	{Name: "password", Type: walimpls.ConfigString, Secret: true, Doc: "a secret"},
}

// Name implements walimpls.Builder.
func (b *Backend) Name() string { return "mem" }

// Describe implements walimpls.Builder.
func (b *Backend) Describe() walimpls.Description {
	limits := b.Limits
	if limits == (walimpls.Limits{}) {
		limits = walimpls.Limits{MaxMessageBytes: 1 << 20, MaxBatchRecords: 1024, MaxBatchBytes: 4 << 20}
	}
	return walimpls.Description{
		Backend: "mem", Version: "1.2.3", IDLayout: "u64",
		Capabilities: walimpls.Capabilities{
			Fencing: walimpls.FencingStrict, Durability: walimpls.DurabilityMemory,
			Truncation: walimpls.TruncationImmediate, Drop: true, ReadOnly: true,
		},
		Limits: limits,
		Config: Fields,
	}
}

// Build implements walimpls.Builder.
func (b *Backend) Build(_ context.Context, cfg walimpls.Config, log *zap.Logger) (walimpls.Opener, error) {
	values, err := cfg.Decode(Fields)
	if err != nil {
		return nil, err
	}
	if b.OnBuild != nil {
		if err := b.OnBuild(values, log); err != nil {
			return nil, err
		}
	}
	return &opener{b: b, wals: map[*wal]bool{}}, nil
}

type opener struct {
	b    *Backend
	mu   sync.Mutex
	wals map[*wal]bool
}

func (o *opener) Open(ctx context.Context, opt walimpls.OpenOptions) (walimpls.WAL, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if o.b.BeforeOpen != nil {
		if err := o.b.BeforeOpen(ctx, opt); err != nil {
			return nil, err
		}
	}
	l, err := o.b.log(opt.Channel, opt.Access == walimpls.AccessReadWrite)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	pair := l.highest
	if opt.Access == walimpls.AccessReadWrite {
		pair = opt.Pair()
		if pair.Incarnation == 0 {
			pair.Incarnation = 1
			if l.highest.Term == pair.Term {
				pair.Incarnation = l.highest.Incarnation + 1
			}
		}
		if pair.Compare(l.highest) <= 0 {
			defer l.mu.Unlock()
			return nil, walimpls.NewFencedError(opt.Channel, pair, l.highest)
		}
		l.highest = pair
		l.append(message.Message{Type: message.TypeFence, Term: pair.Term, Incarnation: pair.Incarnation})
	}
	l.mu.Unlock()
	w := &wal{
		o: o, l: l, closed: make(chan struct{}),
		ch: walimpls.Channel{Name: opt.Channel, StoreID: l.storeID, Pair: pair, Access: opt.Access},
	}
	o.mu.Lock()
	o.wals[w] = true
	o.mu.Unlock()
	o.b.Handles.Add(1)
	return w, nil
}

func (o *opener) Drop(_ context.Context, channel string, term int64) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	l := o.b.logs[channel]
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if term < l.highest.Term {
		return walimpls.NewFencedError(channel, walimpls.Pair{Term: term}, l.highest)
	}
	l.highest = walimpls.Pair{Term: 1 << 62}
	delete(o.b.logs, channel)
	o.b.dropped++
	return nil
}

func (o *opener) Close(ctx context.Context) error {
	o.mu.Lock()
	var wals []*wal
	for w := range o.wals {
		wals = append(wals, w)
	}
	o.mu.Unlock()
	for _, w := range wals {
		_ = w.Close(ctx)
	}
	return nil
}

func (b *Backend) log(channel string, create bool) (*memLog, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.logs[channel]
	if l == nil {
		if !create {
			return nil, walimpls.Errorf(walimpls.CodeNotFound, channel, "no such log")
		}
		if b.logs == nil {
			b.logs = map[string]*memLog{}
		}
		l = &memLog{storeID: fmt.Sprintf("mem-%s-%d", channel, b.dropped), first: 1, grown: make(chan struct{})}
		b.logs[channel] = l
	}
	return l, nil
}

// memLog is one log; the id of records[i] is first + i.
type memLog struct {
	storeID string

	mu      sync.Mutex
	highest walimpls.Pair
	first   uint64
	records []message.Message
	grown   chan struct{} // closed and replaced by each append
}

// append needs mu.
func (l *memLog) append(m message.Message) message.ID {
	m.ID = message.Uint64ID(l.first + uint64(len(l.records)))
	l.records = append(l.records, m)
	close(l.grown)
	l.grown = make(chan struct{})
	return m.ID
}

// bounds needs mu.
func (l *memLog) bounds() walimpls.Bounds {
	n := len(l.records)
	if n == 0 {
		return walimpls.Bounds{Empty: true}
	}
	b := walimpls.Bounds{Earliest: l.records[0].ID, Latest: l.records[n-1].ID}
	for i := n - 1; i >= 0; i-- {
		if l.records[i].Type != message.TypeFence {
			b.LatestRecord = l.records[i].ID
			break
		}
	}
	return b
}
