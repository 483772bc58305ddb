package parquet

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"
)

// maxDoomed bounds the keys that wait to be removed. What does not fit is found
// by the next owner.
const maxDoomed = 100_000

// collectLoop removes what is superseded, and later what crashes left. Nothing
// waits for it, and it holds no lock while it talks to the store.
func (s *Sink) collectLoop() {
	tick := time.NewTicker(s.opt.CollectEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		for _, o := range s.owners() {
			if err := o.collect(s.ctx); err != nil && s.ctx.Err() == nil {
				s.opt.Log.Warn("could not remove what is not needed in the bucket; it is tried again", zap.String("pchannel", o.pchannel), zap.Error(err))
			}
		}
	}
}

// collect removes the doomed keys and sweeps the vchannels whose time has come.
// The look for a newer owner comes first, see takeOver.
func (o *logOwner) collect(ctx context.Context) error {
	o.mu.Lock()
	doomed := o.doomed
	o.doomed = nil
	states := maps.Clone(o.states)
	o.mu.Unlock()
	due := map[string]*vstate{}
	for v, st := range states { // a state's mutex comes before the owner's
		st.mu.Lock()
		if !st.sweepAt.IsZero() && !time.Now().Before(st.sweepAt) {
			due[v] = st
		}
		st.mu.Unlock()
	}
	if len(doomed) == 0 && len(due) == 0 {
		return nil
	}
	if o.fencedBy() != nil {
		return nil
	}
	if err := o.check(ctx); err != nil {
		o.doom(doomed...)
		if o.fencedBy() != nil {
			return nil
		}
		return err
	}
	for i, key := range doomed {
		if err := o.s.removeUnless(ctx, key); err != nil {
			o.doom(doomed[i:]...)
			return err
		}
	}
	for v, st := range due {
		if err := o.sweep(ctx, v, st); err != nil {
			return err
		}
	}
	return nil
}

// removeUnless removes an object unless ctx has ended, which not every driver looks at.
func (s *Sink) removeUnless(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.st.remove(ctx, key)
}

// errSwept ends a listing that reached this owner's own objects.
var errSwept = errors.New("the rest is of this owner")

// sweep removes what earlier owners wrote and no manifest lists. Whoever wrote
// it is fenced: this owner's claim does not name it, and a newer owner that might
// have chosen it would have announced itself before the look that came first.
func (o *logOwner) sweep(ctx context.Context, vchannel string, st *vstate) error {
	if err := o.loaded(ctx, vchannel, st); err != nil {
		return err
	}
	m := st.m
	st.mu.Unlock()
	entries, pages, err := o.walk(ctx, m, m.Swept)
	if err != nil {
		return err
	}
	listed := make(map[string]bool, len(entries)+len(pages))
	for _, e := range entries {
		listed[o.l.file(vchannel, e)] = true
	}
	for _, key := range pages {
		listed[key] = true
	}
	young := false
	oldest := time.Now().Add(-o.s.opt.GarbageAge).Unix()
	for _, folder := range []string{o.l.data(vchannel), o.l.index(vchannel)} {
		after := folder
		if !m.Swept.isZero() {
			after += m.Swept.String() + "~" // behind every name that starts with the position
		}
		var left []string
		err := o.s.st.list(ctx, folder, after, func(f object) error {
			name := strings.TrimPrefix(f.key, folder)
			if len(name) < positionWidth {
				return nil
			}
			at, ok := parsePosition(name[:positionWidth])
			switch {
			case !ok || listed[f.key]:
			case !at.Owner.less(o.id):
				return errSwept
			case f.modUnix > oldest:
				young = true
			default:
				left = append(left, f.key)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errSwept) {
			return err
		}
		for _, key := range left {
			if err := o.s.removeUnless(ctx, key); err != nil {
				return err
			}
		}
		if len(left) > 0 {
			o.s.opt.Log.Info("removed left-over objects", zap.String("pchannel", o.pchannel), zap.String("vchannel", vchannel), zap.Int("objects", len(left)))
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if young {
		st.sweepAt = time.Now().Add(o.s.opt.GarbageAge)
		return nil
	}
	st.swept, st.sweepAt = st.base, time.Time{}
	return nil
}
