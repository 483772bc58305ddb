package kafka

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// producer appends to one log over one connection to its leader. One goroutine cuts
// batches, sends them and takes the answers; appends wait in a queue for it.
type producer struct {
	k       *cluster
	log     *zap.Logger
	channel string
	topic   string
	id      uuid
	who     producerID
	wake    chan struct{}
	running context.Context
	stop    context.CancelFunc
	stopped chan struct{}

	mu      sync.Mutex // guards what follows
	queue   []*pending
	events  []event
	ended   *walimpls.Error // what further appends get; nil while they are taken
	contact time.Time       // when the last request that proved ownership was sent
	idle    chan struct{}   // closed when nothing is in flight after the end; nil before
	// lease bounds the time without contact after which the brokers may have
	// forgotten what fences this producer; renew proves that they have not.
	lease time.Duration
	renew func(ctx context.Context) error

	// For the goroutine alone.
	w         window
	c         *conn
	resend    bool // c is new: what is in flight goes first
	wait      backoff
	notBefore time.Time // no attempt before, after a failure or by the broker's wish
	blocked   bool      // there is work that waits for notBefore
	missing   time.Time // since when the topic is missing
	lastErr   error     // the last failure, for the errors of what is given up
}

// pending is one append. Its records are encoded and belong to the producer.
type pending struct {
	bodies   []byte
	ends     []int // where each record's body ends
	deadline time.Time
	done     chan struct{}

	// Guarded by producer.mu.
	cut      int // records that are in batches
	settled  int
	outcomes []walimpls.Outcome
}

// event is the answer to a flight.
type event struct {
	c     *conn
	f     *flight
	frame []byte
	err   error
	sent  time.Time
}

func newProducer(k *cluster, log *zap.Logger, channel, topic string, id uuid, who producerID, lastBase int64) *producer {
	p := &producer{
		k: k, log: log, channel: channel, topic: topic, id: id, who: who,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), contact: time.Now(),
		w: window{lastBase: lastBase},
	}
	p.running, p.stop = context.WithCancel(context.Background())
	go p.run()
	return p
}

// append stores the records and returns one outcome each.
func (p *producer) append(ctx context.Context, bodies []byte, ends []int) []walimpls.Outcome {
	a := &pending{bodies: bodies, ends: ends, deadline: time.Now().Add(p.k.s.deliveryTimeout), done: make(chan struct{}),
		outcomes: make([]walimpls.Outcome, len(ends))}
	p.mu.Lock()
	if p.ended != nil {
		a.fillLocked(0, walimpls.NotStored, p.ended)
		p.mu.Unlock()
		return a.outcomes
	}
	p.queue = append(p.queue, a)
	p.mu.Unlock()
	p.signal()
	select {
	case <-a.done:
		return a.outcomes
	case <-ctx.Done():
	}
	return p.abandon(ctx, a)
}

// abandon takes an append out whose caller leaves.
func (p *producer) abandon(ctx context.Context, a *pending) []walimpls.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-a.done:
		return a.outcomes
	default:
	}
	for i, q := range p.queue {
		if q == a {
			p.queue = append(p.queue[:i:i], p.queue[i+1:]...)
			break
		}
	}
	out := append([]walimpls.Outcome(nil), a.outcomes...)
	left := walimpls.ContextError(ctx, p.channel, "append")
	lost := unknownOutcome(p.channel, "its caller left before the broker answered")
	unknown := false
	for i := range out {
		switch {
		case i >= a.cut:
			out[i] = walimpls.Outcome{State: walimpls.NotStored, Err: left}
		case out[i].State == walimpls.Unknown:
			unknown = true
			out[i].Err = lost
		}
	}
	a.ends = a.ends[:a.cut] // what was not cut never will be
	if unknown && p.ended == nil {
		p.ended = endedByUnknown(p.channel)
		p.signal()
	}
	return out
}

func (a *pending) fillLocked(from int, state walimpls.State, err error) {
	for i := from; i < len(a.outcomes); i++ {
		a.outcomes[i] = walimpls.Outcome{State: state, Err: err}
	}
}

func (p *producer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// post is called on connections' goroutines.
func (p *producer) post(e event) {
	p.mu.Lock()
	p.events = append(p.events, e)
	p.mu.Unlock()
	p.signal()
}

// end makes further appends fail as not stored. What is in flight goes on.
func (p *producer) end(err *walimpls.Error) {
	p.mu.Lock()
	if p.ended == nil {
		p.ended = err
	}
	p.mu.Unlock()
	p.signal()
}

// usable returns why no append is taken, or nil.
func (p *producer) usable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return p.ended
	}
	return nil
}

// setLease sets how long the producer may be silent, and what proves its ownership.
func (p *producer) setLease(lease time.Duration, renew func(ctx context.Context) error) {
	p.mu.Lock()
	p.lease, p.renew = lease, renew
	p.mu.Unlock()
}

// proved notes that a request sent at the time proved ownership.
func (p *producer) proved(at time.Time) {
	p.mu.Lock()
	if at.After(p.contact) {
		p.contact = at
	}
	p.mu.Unlock()
}

// close ends the producer: queued appends get err, those in flight have a little
// time to end with what really became of them.
func (p *producer) close(grace time.Duration, err *walimpls.Error) {
	p.mu.Lock()
	if p.ended == nil {
		p.ended = err
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	p.signal()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-idle:
	case <-p.stopped:
	case <-t.C:
	}
	p.stop()
	<-p.stopped
}

// run is the producer's goroutine.
func (p *producer) run() {
	defer close(p.stopped)
	defer p.finish()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.takeAnswers()
		p.advance()
		timer.Reset(p.until())
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.running.Done():
			return
		}
	}
}

// finish settles what is left when the producer ends.
func (p *producer) finish() {
	p.takeAnswers()
	p.drop()
	p.settle(p.w.giveUp(), errors.New("the handle was closed"))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.ended = closedError(p.channel, "append")
	}
	p.refuseQueueLocked(p.ended)
}

// until is the time to the next thing that happens by the clock alone.
func (p *producer) until() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := time.Hour
	at := func(t time.Time) {
		if d := time.Until(t); d < next {
			next = max(d, time.Millisecond)
		}
	}
	if p.blocked {
		at(p.notBefore)
	}
	if len(p.w.flights) > 0 {
		at(p.w.flights[0].first.Add(p.k.s.deliveryTimeout))
	}
	if len(p.queue) > 0 {
		at(p.queue[0].deadline)
	}
	return next
}

// takeAnswers takes what the connection said.
func (p *producer) takeAnswers() {
	p.mu.Lock()
	events := p.events
	p.events = nil
	p.mu.Unlock()
	for _, e := range events {
		if e.c != p.c || p.c == nil || len(p.w.flights) == 0 || p.w.flights[0] != e.f {
			continue // of a connection that was given up
		}
		p.take(e)
	}
}

func (p *producer) take(e event) {
	r, err := produced{}, e.err
	if err == nil {
		r, err = decodeProduce(e.frame[8:])
	}
	if err != nil {
		p.failed(err)
		p.settle(p.w.lost(), err)
		return
	}
	if r.throttleMillis > 0 {
		p.notBefore = time.Now().Add(min(time.Duration(r.throttleMillis)*time.Millisecond, p.k.s.deliveryTimeout))
	}
	failure := answered("produce", int16(r.code), r.message)
	if failure == nil {
		failure = errTopicGone // the only way for a success to be none
	}
	verdicts, again := p.w.answered(r.code, r.base)
	if again {
		p.failed(failure)
		// The others may have been refused for want of this one, or not.
		p.w.lostBehindFront()
		return
	}
	if r.code == codeNone {
		p.proved(e.sent)
		p.wait, p.missing = backoff{}, time.Time{}
	}
	p.settle(verdicts, failure)
}

// failed gives the connection up; the next attempt comes after a pause.
func (p *producer) failed(err error) {
	p.drop()
	p.lastErr = err
	p.notBefore = time.Now().Add(p.wait.next())
}

func (p *producer) drop() {
	if p.c != nil {
		p.c.close()
		p.c = nil
	}
}

// advance does what can be done now.
func (p *producer) advance() {
	p.expire()
	now := time.Now()
	p.mu.Lock()
	work := len(p.w.flights) > 0 || len(p.queue) > 0 && p.ended == nil
	p.mu.Unlock()
	if p.blocked = work && now.Before(p.notBefore); work && !p.blocked {
		if p.ready() {
			p.transmit()
		}
		p.blocked = time.Now().Before(p.notBefore)
	}
	p.mu.Lock()
	if p.ended != nil {
		p.refuseQueueLocked(p.ended)
		if len(p.w.flights) == 0 && p.idle != nil {
			select {
			case <-p.idle:
			default:
				close(p.idle)
			}
		}
	}
	p.mu.Unlock()
}

// expire gives up what has been tried for too long.
func (p *producer) expire() {
	now := time.Now()
	if f := p.w.flights; len(f) > 0 && f[0].attempts > 0 && now.After(f[0].first.Add(p.k.s.deliveryTimeout)) {
		why := p.lastErr
		if why == nil {
			why = errors.New("the broker does not answer")
		}
		if p.c != nil && !p.resend { // sent, and not answered
			p.settle(p.w.lost(), why)
		}
		p.drop()
		p.settle(p.w.giveUp(), fmt.Errorf("given up after %s: %w", p.k.s.deliveryTimeout, why))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 && now.After(p.queue[0].deadline) {
		a := p.queue[0]
		p.queue = p.queue[1:]
		e := walimpls.Errorf(walimpls.CodeUnavailable, p.channel, "append: no broker took it within %s: %v; nothing was stored", p.k.s.deliveryTimeout, p.lastErr)
		e.Hint = hintBrokers
		p.settleLocked(a, a.cut, len(a.ends), walimpls.NotStored, -1, e)
	}
}

// ready sees to it that there is a connection and that the brokers still keep lower
// epochs out.
func (p *producer) ready() bool {
	ctx, cancel := context.WithTimeout(p.running, p.k.s.requestTimeout)
	defer cancel()
	if renew := p.overdue(); renew != nil {
		began := time.Now()
		if err := renew(ctx); err != nil {
			p.judge(err)
			return false
		}
		p.proved(began)
	}
	if p.c != nil {
		return true
	}
	addr, err := p.k.leader(ctx, p.topic, p.id)
	var c *conn
	if err == nil {
		c, err = p.k.s.connect(ctx, addr)
	}
	if err != nil {
		p.judge(err)
		return false
	}
	p.c, p.resend = c, true
	return true
}

// overdue returns what must succeed before anything is sent, or nil. The time since
// the last contact is taken from the clock that ran fastest: one of them may stand
// still while the machine sleeps.
func (p *producer) overdue() func(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent := max(time.Since(p.contact), time.Now().Round(0).Sub(p.contact.Round(0)))
	if p.lease > 0 && silent > p.lease {
		return p.renew
	}
	return nil
}

// judge decides what a failed attempt to get ready means.
func (p *producer) judge(err error) {
	p.failed(err)
	var code *answerError
	gone := errors.Is(err, errTopicGone)
	if errors.As(err, &code) {
		switch {
		case code.code.fences():
			p.lose(endsFenced, fencedError(p.channel, err))
			return
		case code.code.topicGone():
			if p.missing.IsZero() {
				p.missing = time.Now()
			}
			gone = time.Since(p.missing) > p.k.s.goneGrace
		}
	} else {
		p.missing = time.Time{}
	}
	switch {
	case gone:
		p.lose(endsFenced, droppedHandle(p.channel))
	case !transient(err) && !errors.Is(err, context.DeadlineExceeded) && p.running.Err() == nil:
		p.lose(endsRefused, typed(p.channel, "append", err))
	}
}

// lose ends the producer, and what is in flight with it.
func (p *producer) lose(why ending, err *walimpls.Error) {
	p.end(err)
	p.w.end = max(p.w.end, why)
	p.settle(p.w.lost(), err)
}

// transmit sends what is in flight again if the connection is new, then new batches.
func (p *producer) transmit() {
	if p.resend {
		p.resend = false
		for _, f := range p.w.flights {
			p.sendFlight(f)
		}
	}
	for {
		if len(p.w.flights) > 0 {
			// Appends that are about to arrive are worth a few yields: fewer, larger batches.
			for range 3 {
				runtime.Gosched()
			}
		}
		f := p.cutBatch()
		if f == nil {
			return
		}
		p.sendFlight(f)
	}
}

func (p *producer) sendFlight(f *flight) {
	c, now := p.c, time.Now()
	f.sent(now)
	c.sendProduce(p.topic, f.bytes, p.k.s.requestTimeout, func(frame []byte, err error) {
		p.post(event{c: c, f: f, frame: frame, err: err, sent: now})
	})
}

// maxBatchCount bounds the records of one batch.
const maxBatchCount = 1 << 16

// cutBatch takes the next batch out of the queue, or returns nil.
func (p *producer) cutBatch() *flight {
	room := min(p.w.room(), maxBatchCount)
	if room == 0 {
		return nil
	}
	p.mu.Lock()
	if p.ended != nil || len(p.queue) == 0 {
		p.mu.Unlock()
		return nil
	}
	f := &flight{}
	size := 0
	for len(p.queue) > 0 && int(f.count) < room {
		a := p.queue[0]
		from, begin := a.cut, startOf(a.ends, a.cut)
		to := from
		for to < len(a.ends) && int(f.count) < room {
			n := a.ends[to] - begin + 12
			if f.count > 0 && size+n > p.k.s.batchBytes {
				break
			}
			size += n
			begin = a.ends[to]
			to++
			f.count++
		}
		if to > from {
			f.pieces = append(f.pieces, piece{append: a, from: from, to: to, at: int(f.count) - (to - from), ends: a.ends})
			a.cut = to
		}
		if to < len(a.ends) {
			break
		}
		p.queue = p.queue[1:]
	}
	p.mu.Unlock()

	b := newBatch(p.who, p.w.next, p.k.s.codec, time.Now().UnixMilli(), size+64)
	for _, pc := range f.pieces {
		begin := startOf(pc.ends, pc.from)
		for _, end := range pc.ends[pc.from:pc.to] {
			b.add(pc.append.bodies[begin:end])
			begin = end
		}
	}
	bytes, err := b.finish()
	if err != nil {
		// Compression into memory does not fail; if it does, nothing was sent.
		p.settle([]verdict{{flight: f, state: walimpls.NotStored, base: -1}}, err)
		p.end(typed(p.channel, "append", err))
		return nil
	}
	f.bytes = bytes
	p.w.add(f)
	return f
}

// startOf is where the body of record i begins.
func startOf(ends []int, i int) int {
	if i == 0 {
		return 0
	}
	return ends[i-1]
}

// settle tells the appends what became of their records.
func (p *producer) settle(verdicts []verdict, why error) {
	if len(verdicts) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range verdicts {
		var err *walimpls.Error
		switch {
		case v.state == walimpls.Unknown:
			err = unknownOutcome(p.channel, fmt.Sprint(why))
		case v.state == walimpls.NotStored && v.code.fences():
			err = fencedError(p.channel, why)
		case v.state == walimpls.NotStored:
			err = typed(p.channel, "append", why)
		}
		for _, pc := range v.flight.pieces {
			base := v.base
			if base >= 0 {
				base += int64(pc.at)
			}
			p.settleLocked(pc.append, pc.from, pc.to, v.state, base, err)
		}
	}
	if p.ended != nil {
		return
	}
	switch p.w.end {
	case endsFenced:
		p.ended = fencedError(p.channel, why)
	case endsUnknown:
		p.ended = endedByUnknown(p.channel)
	case endsRefused:
		e := typed(p.channel, "append", why)
		e.Hint, e.Retryable = hintReopen, false
		p.ended = e
	}
}

func (p *producer) settleLocked(a *pending, from, to int, state walimpls.State, base int64, err error) {
	if state == walimpls.Stored {
		ids := idsFrom(base, to-from)
		for i := from; i < to; i++ {
			a.outcomes[i] = walimpls.Outcome{State: state, ID: ids[i-from]}
		}
	} else {
		for i := from; i < to; i++ {
			a.outcomes[i] = walimpls.Outcome{State: state, Err: err}
		}
	}
	a.settled += to - from
	if a.settled == len(a.ends) {
		close(a.done)
	}
}

// refuseQueueLocked ends the appends that were not handed over.
func (p *producer) refuseQueueLocked(err error) {
	queue := p.queue
	p.queue = nil
	for _, a := range queue {
		p.settleLocked(a, a.cut, len(a.ends), walimpls.NotStored, -1, err)
	}
}

// idsFrom returns the ids of n offsets from base on; they share one allocation.
func idsFrom(base int64, n int) []message.ID {
	buf := make([]byte, 0, 8*n)
	for i := range n {
		buf = append(buf, message.Uint64ID(uint64(base)+uint64(i))...)
	}
	all := string(buf)
	ids := make([]message.ID, n)
	for i := range ids {
		ids[i] = message.ID(all[8*i : 8*i+8])
	}
	return ids
}
