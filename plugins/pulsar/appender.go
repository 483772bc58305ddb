package pulsar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// state is what an appender can still do.
type state int

const (
	stateOpen   state = iota
	stateDead         // an outcome was unknown; see contract rule 3
	stateFenced       // another handle has the log
	stateClosed
)

// appender sends the records of one handle. One goroutine hands messages over,
// in order; the client's goroutines answer. Whatever fails after the hand-over
// ends the appender: the records under way are unknown then, and the producer is
// closed, so that none of them is sent any more.
type appender struct {
	h    *handle
	p    *producer
	wake chan struct{} // has a token when there may be something to send
	stop chan struct{} // closed when the state is no longer open
	done chan struct{} // closed when the sending goroutine has ended

	mu        sync.Mutex // guards what follows
	w         window
	state     state
	why       error
	room      chan struct{} // closed when bytes left the queue; nil while nobody waits
	settled   chan struct{} // closed when nothing is under way; nil while nobody waits
	resolving bool          // a goroutine looks for places

	resolved atomic.Int64 // places that were found by reading
}

func newAppender(h *handle, next uint64, fence entry, p *pending) *appender {
	s := &h.o.settings
	a := &appender{
		h: h, p: p.producer,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		w: window{channel: h.ch.Name, pair: h.ch.Pair, next: next, last: fence, batchBytes: s.batchBytes, inFlight: s.inFlight},
	}
	h.o.run.goFunc(a.run)
	h.o.run.goFunc(func() {
		select {
		case reason := <-p.ended:
			a.fail(stateFenced, reason)
		case <-a.stop:
		}
	})
	return a
}

// append sends the records and returns their outcomes.
func (a *appender) append(ctx context.Context, records [][]byte) *request {
	r := newRequest(records)
	if err := a.push(ctx, r); err != nil {
		for i := range r.out {
			r.set(i, walimpls.Outcome{State: walimpls.NotStored, Err: err})
		}
		return r
	}
	limit := time.NewTimer(a.h.o.settings.appendTimeout)
	defer limit.Stop()
	select {
	case <-r.done:
		return r
	case <-ctx.Done():
		a.giveUp(r, walimpls.ContextError(ctx, a.h.ch.Name, "append"))
	case <-limit.C:
		e := walimpls.Errorf(walimpls.CodeUnavailable, a.h.ch.Name, "append: no acknowledgement within %s", a.h.o.settings.appendTimeout)
		a.giveUp(r, e)
	}
	<-r.done // giveUp has settled everything
	return r
}

// push queues r when there is room.
func (a *appender) push(ctx context.Context, r *request) error {
	var limit *time.Timer // made when it has to wait
	for {
		a.mu.Lock()
		if a.state != stateOpen {
			defer a.mu.Unlock()
			return a.refusalLocked("append")
		}
		if a.w.queuedBytes == 0 || a.w.queuedBytes+r.bytes <= a.h.o.settings.queueBytes {
			a.w.push(r)
			a.mu.Unlock()
			a.poke()
			return nil
		}
		if a.room == nil {
			a.room = make(chan struct{})
		}
		room := a.room
		a.mu.Unlock()
		if limit == nil {
			limit = time.NewTimer(a.h.o.settings.appendTimeout)
			defer limit.Stop()
		}
		select {
		case <-room:
		case <-a.stop:
		case <-ctx.Done():
			return walimpls.ContextError(ctx, a.h.ch.Name, "append")
		case <-limit.C:
			return walimpls.Errorf(walimpls.CodeUnavailable, a.h.ch.Name, "append: the queue stayed full for %s", a.h.o.settings.appendTimeout)
		}
	}
}

// giveUp settles what is left of r. If any of it was handed over, that is unknown
// and ends the appender.
func (a *appender) giveUp(r *request, err *walimpls.Error) {
	a.mu.Lock()
	taken := r.taken
	if taken < len(r.records) {
		a.w.withdraw(r, err)
	}
	open := r.open
	a.mu.Unlock()
	if open > 0 {
		a.fail(stateDead, err)
	}
}

func (a *appender) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run hands messages over until the appender ends.
func (a *appender) run() {
	defer close(a.done)
	for {
		a.mu.Lock()
		var s *sent
		if a.state == stateOpen {
			s = a.w.take()
		}
		if s != nil && a.room != nil {
			close(a.room)
			a.room = nil
		}
		a.mu.Unlock()
		if s != nil {
			a.send(s)
			continue
		}
		select {
		case <-a.wake:
		case <-a.stop:
			return
		}
	}
}

func (a *appender) send(s *sent) {
	msg := &client.ProducerMessage{Payload: s.env.payload, Properties: s.env.properties()}
	for {
		err := a.p.send(msg, func(id client.MessageID, err error) { a.answer(s, id, err) })
		if err == nil {
			return
		}
		if !errors.Is(err, errOffline) {
			a.fail(stateFenced, err)
			return
		}
		select {
		case <-a.p.connected():
		case <-a.stop:
			return // and s is unknown already
		}
	}
}

// answer takes the client's word on s. It runs in the client's goroutine, or
// within the hand-over itself when the client refuses the message.
func (a *appender) answer(s *sent, id client.MessageID, err error) {
	if errors.Is(err, client.ErrMessageTooLarge) {
		a.refused(s)
		return
	}
	switch {
	case errors.Is(err, client.ErrProducerFenced):
		a.fail(stateFenced, errFencedByBroker)
		return
	case errors.Is(err, client.ErrTopicNotfound), errors.Is(err, client.ErrTopicTerminated):
		a.fail(stateFenced, errTopicGone)
		return
	case err != nil:
		a.fail(stateDead, err)
		return
	}
	at := entry{id.LedgerID(), id.EntryID()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != stateOpen && len(a.w.sent) == 0 {
		return // it is unknown already, and stays so
	}
	a.ackedLocked(s, at, at.ledger >= 0 && at.entry >= 0)
	a.poke()
}

func (a *appender) ackedLocked(s *sent, at entry, known bool) {
	a.w.acked(s, at, known)
	if known {
		a.h.log.remember(at, s.env)
	}
	if len(a.w.sent) == 0 && a.settled != nil {
		close(a.settled)
		a.settled = nil
	}
	// Answers come in order, so the first that has no place is at the front.
	if !a.resolving && len(a.w.sent) > 0 && a.w.sent[0].lost {
		a.resolving = true
		a.h.o.run.goFunc(a.resolve)
	}
}

// refused takes a message back that is too large for the broker.
func (a *appender) refused(s *sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != stateOpen || len(a.w.sent) == 0 || a.w.sent[len(a.w.sent)-1] != s {
		return
	}
	a.w.tooLarge(s, func(size int) error {
		e := walimpls.Errorf(walimpls.CodeTooLarge, a.h.ch.Name, "append: a record of %d bytes with its header, the broker takes less in one message", size)
		e.Hint = "raise maxMessageSize of the brokers, and nettyMaxFrameSizeBytes of the bookies, or write smaller records"
		return e
	})
}

// resolve finds the places of messages that the broker had stored before a
// reconnect: it answers their repetition with no place (-1:-1). They lie behind
// the message before them, in order.
func (a *appender) resolve() {
	ctx, cancel := context.WithTimeout(a.h.life, a.h.o.settings.appendTimeout)
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		a.mu.Lock()
		if a.state != stateOpen || len(a.w.sent) == 0 || !a.w.sent[0].lost {
			a.resolving = false
			a.mu.Unlock()
			return
		}
		want, from := a.w.sent[0], a.w.last
		a.mu.Unlock()
		at, err := a.find(ctx, from, want.env.first)
		switch {
		case err == nil:
			a.mu.Lock()
			a.ackedLocked(want, at, true)
			a.mu.Unlock()
			a.resolved.Add(1)
			a.poke()
			continue
		case ctx.Err() != nil, errors.Is(err, errNotThere):
			a.mu.Lock()
			a.resolving = false
			a.mu.Unlock()
			a.fail(stateDead, fmt.Errorf("the place of a stored message was not found: %w", err))
			return
		}
		a.h.o.log.Info("searching for the place of a stored message again", zap.String("channel", a.h.ch.Name), zap.Error(err))
		pause.Reset(50 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		case <-a.stop:
		}
	}
}

var errNotThere = errors.New("it is not in the log")

// find returns the place of this handle's message with the index, looking behind from.
func (a *appender) find(ctx context.Context, from entry, first uint64) (entry, error) {
	topic := a.h.log.topic
	lay, err := a.h.o.admin.layout(ctx, topic)
	if err != nil {
		return entry{}, err
	}
	for at, ok := lay.after(from); ok; at, ok = lay.after(at) {
		env, err := a.h.o.admin.read(ctx, topic, at)
		if err != nil {
			return entry{}, err
		}
		if env.pair != a.h.ch.Pair {
			continue
		}
		if env.first == first {
			return at, nil
		}
		if env.first > first {
			break
		}
	}
	return entry{}, fmt.Errorf("index %d behind %s: %w", first, from, errNotThere)
}

// fail ends the appender, once: what was handed over is unknown, what waits is
// not stored.
func (a *appender) fail(to state, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != stateOpen {
		if a.state == stateDead && to == stateFenced {
			a.state, a.why = to, why // fenced says more
		}
		return
	}
	a.state, a.why = to, why
	close(a.stop)
	handedOver := unknownOutcome(a.h.ch.Name, why)
	if to == stateFenced {
		handedOver = fencedUnknown(a.h.ch.Name, why)
	}
	if to == stateClosed {
		handedOver = unknownOutcome(a.h.ch.Name, errors.New("the handle was closed before the acknowledgement"))
	}
	a.w.end(handedOver, a.refusalLocked("append"))
	if a.settled != nil {
		close(a.settled)
		a.settled = nil
	}
	a.p.close()
}

// refusalLocked is why nothing can be appended any more; nothing was stored.
func (a *appender) refusalLocked(what string) error {
	name := a.h.ch.Name
	switch a.state {
	case stateFenced:
		e := walimpls.Errorf(walimpls.CodeFenced, name, "%s: handle %s: %w", what, a.h.ch.Pair, a.why)
		e.Hint = "open the channel again with a higher pair, if this host still owns it"
		return e
	case stateDead:
		e := walimpls.Errorf(walimpls.CodeUnavailable, name, "%s: an earlier append of this handle has an unknown outcome, which ended it; nothing was stored: %v", what, a.why)
		e.Hint, e.Retryable = hintReopen, false
		return e
	}
	return closedError(name, what)
}

// refusal is refusalLocked, nil while the appender works.
func (a *appender) refusal(what string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == stateOpen {
		return nil
	}
	return a.refusalLocked(what)
}

// close ends the appender. What waits is not stored; what is under way gets a
// little time to end with what really became of it.
func (a *appender) close(grace time.Duration) {
	a.mu.Lock()
	for len(a.w.queue) > 0 && a.state == stateOpen {
		a.w.withdraw(a.w.queue[0], closedError(a.h.ch.Name, "append"))
	}
	var settled chan struct{}
	if len(a.w.sent) > 0 {
		if a.settled == nil {
			a.settled = make(chan struct{})
		}
		settled = a.settled
	}
	a.mu.Unlock()
	if settled != nil {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-settled:
		case <-timer.C:
		}
	}
	a.fail(stateClosed, errors.New("closed"))
}

// encode makes the stored form of the batch. refused has an error for each record
// that is refused by itself, and is nil if there is none.
func (h *handle) encode(batch []message.Message) (records [][]byte, refused []error, err error) {
	name := h.ch.Name
	if len(batch) > maxRecords {
		return nil, nil, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a batch of %d records, the limit is %d; cut it", len(batch), maxRecords)
	}
	total := 0
	refuse := func(i int, err error) {
		if refused == nil {
			refused = make([]error, len(batch))
		}
		refused[i] = err
	}
	for i := range batch {
		size := batch[i].Size()
		switch t := batch[i].Type; {
		case size > maxMessageBytes:
			refuse(i, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a record of %d bytes, the limit is %d", size, maxMessageBytes))
		case t == message.TypeInvalid, t == message.TypeFence:
			refuse(i, walimpls.Errorf(walimpls.CodeInvalidArgument, name, "append: records of type %s cannot be appended", t))
		default:
			total += size
		}
	}
	if total > maxBatchBytes {
		return nil, nil, walimpls.Errorf(walimpls.CodeTooLarge, name, "append: a batch of %d bytes, the limit is %d; cut it", total, maxBatchBytes)
	}
	const headerGuess = 64
	buf := make([]byte, 0, total+headerGuess*len(batch))
	records = make([][]byte, 0, len(batch))
	for i := range batch {
		if refused != nil && refused[i] != nil {
			continue
		}
		m := batch[i]
		m.Term, m.Incarnation = h.ch.Term, h.ch.Incarnation
		begin := len(buf)
		buf = message.AppendRecord(buf, &m)
		records = append(records, buf[begin:len(buf):len(buf)])
	}
	return records, refused, nil
}
