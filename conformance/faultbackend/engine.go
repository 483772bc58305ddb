package faultbackend

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// closeBound ends the waits of a Close early enough to keep within
// walimpls.GracePeriod. Only hang breaks it.
const closeBound = walimpls.GracePeriod - 500*time.Millisecond

// engine carries out what the rules ask for. One belongs to each opener.
type engine struct {
	*Controller
	log    *zap.Logger
	exit   func(status int) // nil: an exit is a lost connection
	lose   func()           // nil: nothing but the handle is lost
	writer *statsWriter     // nil: no stats file
}

// holdEnd says what ended a wait early.
type holdEnd int

const (
	heldOut   holdEnd = iota // the waits are over, the call goes on
	heldCtx                  // its context ended
	heldClose                // its handle or opener was closed
)

// hold carries out the waits of one phase. A wait ends with its duration, with
// the rule, with ctx, or when closing is closed; a hang only with the first two.
func (e *engine) hold(ctx context.Context, closing <-chan struct{}, op Op, waits []*liveRule) holdEnd {
	if len(waits) == 0 {
		return heldOut
	}
	e.count(func(s *statsData) { s.waiting[op]++ })
	defer e.count(func(s *statsData) { s.waiting[op]-- })
	for _, r := range waits {
		if end := e.holdOne(ctx, closing, r); end != heldOut {
			return end
		}
	}
	return heldOut
}

func (e *engine) holdOne(ctx context.Context, closing <-chan struct{}, r *liveRule) holdEnd {
	var over, look <-chan time.Time
	if r.duration > 0 {
		timer := time.NewTimer(r.duration)
		defer timer.Stop()
		over = timer.C
	}
	if e.polled() {
		ticker := time.NewTicker(releasePoll)
		defer ticker.Stop()
		look = ticker.C
	}
	done := ctx.Done()
	if r.act == actHang {
		done, closing = nil, nil
	}
	for {
		select {
		case <-r.gone:
			return heldOut
		case <-over:
			return heldOut
		case <-done:
			return heldCtx
		case <-closing:
			return heldClose
		case <-look:
			e.refresh()
		}
	}
}

// stepFuncs are the parts of a call that step runs.
type stepFuncs struct {
	do    func() error
	late  func(*liveRule) error // what lands late; nil if nothing can
	ended func()                // the call costs the handle; nil if there is none
}

// step runs a call that has one outcome: the waits, do unless a rule forbids
// it, and the answer.
func (e *engine) step(ctx context.Context, closing <-chan struct{}, cl call, f stepFuncs) error {
	if err := ctx.Err(); err != nil {
		return errGaveUp(cl.channel, cl.op, err)
	}
	p := e.plan(cl)
	switch e.hold(ctx, closing, cl.op, p.before) {
	case heldCtx:
		return errGaveUp(cl.channel, cl.op, ctx.Err())
	case heldClose:
		return errClosed(cl.channel, "handle")
	}
	if p.whole != nil && p.whole.when != whenAfter {
		return e.strike(p.whole, cl, f.ended)
	}
	fate := p.fate(0)
	switch {
	case fate == nil || fate.act == actFailAfter:
	case fate.act == actLate && f.late != nil:
		if err := f.late(fate); err != nil {
			return err
		}
		return fate.injected(cl)
	default:
		return fate.injected(cl)
	}
	if err := f.do(); err != nil {
		return err
	}
	switch e.hold(ctx, closing, cl.op, p.after) {
	case heldCtx:
		return walimpls.Errorf(walimpls.CodeUnavailable, cl.channel, "%s: no answer came in time, it may be done: %w", cl.op, ctx.Err())
	case heldClose:
		return errClosed(cl.channel, "handle")
	}
	switch {
	case p.whole != nil:
		return e.strike(p.whole, cl, f.ended)
	case fate != nil:
		return fate.injected(cl)
	}
	return nil
}

// strike ends the process or its connections, and the handle. Where it
// returns, the error is what the caller would see of that.
func (e *engine) strike(r *liveRule, cl call, ended func()) error {
	if ended != nil {
		ended()
	}
	e.log.Info("fault: "+string(r.act), zap.String("rule", r.String()), zap.String("op", string(cl.op)), zap.String("channel", cl.channel))
	e.writer.flush()
	switch {
	case r.act == actExit && e.exit != nil:
		e.exit(r.status)
	case r.act == actLoseConnection && e.lose != nil:
		e.lose()
	}
	return r.injected(cl)
}
