package wal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/wal/interceptors"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// vchannels is which vchannels of the pchannel take records. The row has them:
// a vchannel takes records once it is in the row, and takes none from the moment
// that the row says it is being dropped, so that no crash in between lets a
// record follow the one that drops it.
type vchannels struct {
	w *termWAL
	// ready is closed when the set is known.
	ready chan struct{}
	once  sync.Once

	mu sync.RWMutex // guards all below
	// byName has the declared vchannels (true), and those that are being dropped.
	byName map[string]bool
	// change is closed and replaced when the set changes.
	change chan struct{}
}

func newVChannels(w *termWAL) *vchannels {
	return &vchannels{w: w, ready: make(chan struct{}), change: make(chan struct{}), byName: map[string]bool{}}
}

// Ready implements interceptors.Declared.
func (v *vchannels) Ready() <-chan struct{} { return v.ready }

// open lets operations pass.
func (v *vchannels) open() { v.once.Do(func() { close(v.ready) }) }

// take takes the set over from the row.
func (v *vchannels) take(row catalog.Row) {
	byName := make(map[string]bool, len(row.VChannels))
	for _, e := range row.VChannels {
		if e.Live() {
			byName[e.Name] = e.Declared()
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.byName = byName
	close(v.change)
	v.change = make(chan struct{})
}

// Refuse implements interceptors.Declared.
func (v *vchannels) Refuse(m *message.Message) error {
	v.mu.RLock()
	declared := v.byName[m.VChannel]
	v.mu.RUnlock()
	if !declared {
		return noVChannel(v.w.claim.channel, m.VChannel)
	}
	if m.TxnID == 0 || m.Type != message.TypeData {
		return nil
	}
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if t := v.w.core.Txn(m.TxnID); t != nil && t.VChannel != "" && t.VChannel != m.VChannel {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, v.w.claim.channel, "transaction %d is on vchannel %q, the record on %q", m.TxnID, t.VChannel, m.VChannel)
		e.Hint = "begin the transaction without a vchannel if it is to write to several"
		return e
	}
	return nil
}

func noVChannel(channel, name string) error {
	e := walimpls.Errorf(walimpls.CodeNotFound, channel, "no vchannel %q is declared", name)
	e.Hint = "declare it with `walrig vchannel create " + channel + " " + name + "`"
	return e
}

// state says whether a vchannel is there and takes records, and what is closed
// when that changes.
func (v *vchannels) state(name string) (there, declared bool, change <-chan struct{}) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	declared, there = v.byName[name]
	return there, declared, v.change
}

// update changes the row's vchannels and takes the result over.
func (w *termWAL) updateVChannels(ctx context.Context, change func(*catalog.Row) error) error {
	w.vchannelWrites.Lock() // the sets are taken over in the order of the writes
	defer w.vchannelWrites.Unlock()
	row, err := w.claim.catalog.Update(ctx, w.claim.channel, w.claim.term, change)
	if err == nil {
		w.vchannels.take(row)
	}
	return err
}

func findVChannel(row *catalog.Row, name string) *catalog.VChannel {
	for i := range row.VChannels {
		if row.VChannels[i].Name == name {
			return &row.VChannels[i]
		}
	}
	return nil
}

// declare notes that the record of the tick created the vchannel.
func declare(row *catalog.Row, name string, tick message.Tick) {
	e := findVChannel(row, name)
	switch {
	case e == nil:
		row.VChannels = append(row.VChannels, catalog.VChannel{Name: name, StartTick: tick - 1})
	case !e.Live() && tick > e.DroppedTick:
		e.StartTick = tick - 1
	}
}

// drop leaves the tombstone of the record of the tick.
func drop(row *catalog.Row, name string, tick message.Tick) {
	e := findVChannel(row, name)
	if e == nil {
		row.VChannels = append(row.VChannels, catalog.VChannel{Name: name, DroppedTick: tick})
		return
	}
	if tick > e.DroppedTick && (tick > e.StartTick || !e.Live()) {
		e.DroppedTick, e.Dropping = tick, false
	}
}

// CreateVChannels implements WAL.
func (w *termWAL) CreateVChannels(ctx context.Context, names []string) (created []string, err error) {
	ticks := map[string]message.Tick{}
	for _, name := range names {
		if err := walimpls.ValidateName("vchannel", name); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		if _, twice := ticks[name]; twice {
			continue
		}
		wanted, err := w.awaitGone(ctx, name)
		if err != nil {
			return nil, errors.Join(err, w.saveCreated(ctx, created, ticks))
		}
		if !wanted {
			continue
		}
		r := w.control(ctx, message.TypeCreateVChannel, name)
		if r.State != walimpls.Stored {
			if e := w.saveCreated(ctx, created, ticks); e != nil {
				return nil, e
			}
			return created, r.Err
		}
		ticks[name] = r.Tick
		created = append(created, name)
	}
	return created, w.saveCreated(ctx, created, ticks)
}

// saveCreated makes the row know what was created: from then on it takes records.
func (w *termWAL) saveCreated(ctx context.Context, created []string, ticks map[string]message.Tick) error {
	if len(created) == 0 {
		return nil
	}
	// The records are in the log: a caller that leaves must not leave them alone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.opt.AttemptTimeout)
	defer cancel()
	err := w.updateVChannels(ctx, func(row *catalog.Row) error {
		for _, name := range created {
			declare(row, name, ticks[name])
		}
		return nil
	})
	if err != nil && !errors.Is(err, walimpls.ErrTermExpired) {
		e := walimpls.Errorf(walimpls.CodeUnavailable, w.claim.channel, "the vchannel is not saved in the catalog: %w", err)
		e.Hint = "create it again"
		return e
	}
	return err
}

// awaitGone waits until a vchannel that is being dropped is gone, and reports
// whether there is none of the name.
func (w *termWAL) awaitGone(ctx context.Context, name string) (bool, error) {
	select {
	case <-w.vchannels.ready:
	case <-ctx.Done():
		return false, walimpls.ContextError(ctx, w.claim.channel, "create vchannel: the declared ones are not known yet")
	}
	for {
		there, declared, change := w.vchannels.state(name)
		if !there || declared {
			return !there, nil
		}
		select {
		case <-change:
		case <-w.done:
			return false, w.Err()
		case <-ctx.Done():
			e := walimpls.Errorf(walimpls.CodeUnavailable, w.claim.channel, "vchannel %q is still being dropped: what it holds is not flushed yet", name)
			e.Hint = "`walrig flush status " + w.claim.channel + "` shows how far it is; try again later"
			return false, e
		}
	}
}

// control appends a control record.
func (w *termWAL) control(ctx context.Context, t message.Type, vchannel string) Result {
	answer := make(chan []Result, 1)
	w.chain.Append(&interceptors.Operation{
		Ctx: ctx, Channel: w.claim.channel, Batch: []message.Message{{Type: t, VChannel: vchannel}},
		Done: func(r []Result) { answer <- r },
	})
	return (<-answer)[0]
}

// Flush implements WAL.
func (w *termWAL) Flush(ctx context.Context, vchannel string) Result {
	return w.control(ctx, message.TypeFlush, vchannel)
}

// DropVChannel implements WAL. The row says first that the vchannel is being
// dropped; the record is written by whoever opens the log next if this call
// does not get so far.
func (w *termWAL) DropVChannel(ctx context.Context, name string) error {
	if err := walimpls.ValidateName("vchannel", name); err != nil {
		return err
	}
	select {
	case <-w.vchannels.ready:
	case <-ctx.Done():
		return walimpls.ContextError(ctx, w.claim.channel, "drop vchannel: the declared ones are not known yet")
	}
	err := w.updateVChannels(ctx, func(row *catalog.Row) error {
		e := findVChannel(row, name)
		if e == nil || !e.Live() {
			return noVChannel(w.claim.channel, name)
		}
		e.Dropping = true
		return nil
	})
	if err != nil {
		return err
	}
	return w.writeDrop(ctx, name)
}

// writeDrop writes the record that drops a vchannel, and the tombstone unless a
// flusher does that when it has flushed what came before.
func (w *termWAL) writeDrop(ctx context.Context, name string) error {
	r := w.control(ctx, message.TypeDropVChannel, name)
	if r.State != walimpls.Stored {
		e := *walimpls.AsError(r.Err)
		e.Hint = "the vchannel takes no more records; drop it again"
		return &e
	}
	if w.opt.FlusherDrops {
		return nil
	}
	return w.VChannelDropped(context.WithoutCancel(ctx), name, r.Tick)
}

// VChannelDropped implements WAL.
func (w *termWAL) VChannelDropped(ctx context.Context, name string, tick message.Tick) error {
	ctx, cancel := context.WithTimeout(ctx, w.opt.AttemptTimeout)
	defer cancel()
	return w.updateVChannels(ctx, func(row *catalog.Row) error {
		drop(row, name, tick)
		return nil
	})
}

// NoteVChannel implements WAL.
func (w *termWAL) NoteVChannel(ctx context.Context, name string, tick message.Tick) error {
	if there, _, _ := w.vchannels.state(name); there {
		return nil
	}
	return w.updateVChannels(ctx, func(row *catalog.Row) error {
		declare(row, name, tick)
		return nil
	})
}

// VChannels implements WAL.
func (w *termWAL) VChannels(ctx context.Context) ([]catalog.VChannel, error) {
	row, err := w.claim.catalog.Get(ctx, w.claim.channel)
	return row.VChannels, err
}

// recoverVChannels makes the set known: from the row, or for a log that the row
// does not know from the log itself and from what was flushed of it. Then it
// writes the drops that a former owner left half done.
func (w *termWAL) recoverVChannels(row catalog.Row) {
	defer w.wg.Done()
	defer w.vchannels.open()
	pause := backoff{first: 50 * time.Millisecond, most: 5 * time.Second}
	for !row.VChannelsKnown {
		list, err := w.vchannelsOfLog()
		if err == nil {
			err = w.updateVChannels(w.ctx, func(r *catalog.Row) error {
				r.VChannels, r.VChannelsKnown = list, true
				row = *r
				return nil
			})
		}
		if err == nil {
			break
		}
		if w.ctx.Err() != nil {
			return
		}
		w.log.Warn("the declared vchannels are not known, trying again; appends wait", zap.Error(err))
		if !pause.wait(w.ctx) {
			return
		}
	}
	w.vchannels.open()
	for _, e := range row.VChannels {
		for e.Dropping {
			ctx, cancel := context.WithTimeout(w.ctx, w.opt.AttemptTimeout)
			err := w.writeDrop(ctx, e.Name)
			cancel()
			if err == nil {
				break
			}
			w.log.Warn("a vchannel is not dropped yet, trying again", zap.String("vchannel", e.Name), zap.Error(err))
			if w.ctx.Err() != nil || !pause.wait(w.ctx) {
				return
			}
		}
	}
}

// vchannelsOfLog looks through the log. What was removed from it left traces
// only where it was flushed to. A vchannel that has records is declared, also
// when the record that created it is gone; it takes all that the log has of it.
func (w *termWAL) vchannelsOfLog() ([]catalog.VChannel, error) {
	s, err := w.Read(w.ctx, scanner.Options{Name: "vchannels", Start: scanner.All, System: true})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var found vchannelLog
	for {
		units, err := s.Next(w.ctx)
		if err != nil {
			return nil, err
		}
		for i := range units {
			for j := range units[i].Messages {
				found.meet(&units[i].Messages[j], units[i].Tick)
			}
			if !units[i].CaughtUp {
				continue
			}
			if w.opt.FlushedVChannels == nil {
				return found.list(nil), nil
			}
			flushed, err := w.opt.FlushedVChannels(w.ctx, w.claim.channel, w.claim.storeID)
			return found.list(flushed), err
		}
	}
}

// vchannelLog is what a log tells of its vchannels.
type vchannelLog struct {
	order  []string
	byName map[string]*catalog.VChannel
}

func (l *vchannelLog) meet(m *message.Message, tick message.Tick) {
	if m.VChannel == "" || m.Type == message.TypeFlush {
		return
	}
	if l.byName == nil {
		l.byName = map[string]*catalog.VChannel{}
	}
	e := l.byName[m.VChannel]
	if e == nil {
		e = &catalog.VChannel{Name: m.VChannel}
		l.byName[m.VChannel] = e
		l.order = append(l.order, m.VChannel)
	}
	switch {
	case m.Type == message.TypeDropVChannel:
		e.DroppedTick = tick
	case !e.Live():
		e.StartTick = tick - 1
	}
}

// list returns what was met, and what was flushed before the log that is left.
func (l *vchannelLog) list(flushed []string) []catalog.VChannel {
	var out []catalog.VChannel
	for _, name := range l.order {
		out = append(out, *l.byName[name])
	}
	for _, name := range flushed {
		if name != "" && !slices.Contains(l.order, name) {
			out = append(out, catalog.VChannel{Name: name})
		}
	}
	return out
}
