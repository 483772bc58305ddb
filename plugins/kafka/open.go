package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// errLostPlace says that another Open took the producer over before this one had
// written its pair.
var errLostPlace = errors.New("another open took over meanwhile")

// txnID is the transactional id of a channel. It has no topic id in it, so that the
// owner of a log that was made again fences the handles of the old one as well.
func txnID(topic string) string { return topic }

// openWrite opens for writing; see doc.go for the steps. An Open that loses its place
// without finding a pair at or above its own starts over.
func (o *opener) openWrite(ctx context.Context, opt walimpls.OpenOptions) (*handle, error) {
	release, err := o.turn(ctx, opt.Channel)
	if err != nil {
		return nil, err
	}
	defer release()
	a := &attempt{o: o, opt: opt, l: &ref{channel: opt.Channel, topic: topicName(o.s.prefix, opt.Channel)}}
	_, _ = rand.Read(a.nonce[:])
	// No broker at all is said at once; what fails later is tried again.
	if _, err := o.k.metadata(ctx, ""); err != nil {
		return nil, err
	}
	var wait backoff
	for {
		h, err := a.run(ctx)
		if err == nil {
			return h, nil
		}
		var code *answerError
		lost := errors.Is(err, errLostPlace) || errors.As(err, &code) && code.code.fences()
		if !lost && !errors.Is(err, errTopicGone) && !transient(err) {
			return nil, err
		}
		o.log.Debug("open starts over", zap.String("channel", opt.Channel), zap.Error(err))
		if !wait.pause(ctx) {
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// attempt is one Open; it may run more than once.
type attempt struct {
	o     *opener
	opt   walimpls.OpenOptions
	l     *ref
	nonce openNonce
}

func (a *attempt) step(name string) {
	if a.o.s.onStep != nil {
		a.o.s.onStep(name)
	}
}

func (a *attempt) run(ctx context.Context) (*handle, error) {
	o, l := a.o, a.l
	lease, err := a.prepare(ctx)
	if err != nil {
		return nil, err
	}
	// Nothing of the present owner is disturbed until its pair was compared.
	before, err := o.k.tail(ctx, l, false)
	if err != nil {
		return nil, err
	}
	if err := a.judge(&before); err != nil {
		return nil, err
	}
	a.step("judged")
	who, err := o.k.initProducer(ctx, txnID(l.topic))
	if err != nil {
		return nil, err
	}
	a.step("init")
	if err := o.k.emptyAbort(ctx, txnID(l.topic), l.topic, who); err != nil {
		return nil, err
	}
	a.step("aborted")
	// Producers of another id, which the epoch does not fence: the transactional id
	// expired or ran out of epochs since.
	var old []*retired
	for pid := range before.producers {
		if pid != who.pid {
			old = append(old, &retired{pid: pid, base: before.high - 1})
		}
	}
	for _, r := range old {
		if err := o.k.retire(ctx, l, r); err != nil {
			return nil, err
		}
	}
	now, err := a.awaitMarker(ctx, before, who, old)
	if err != nil {
		return nil, err
	}
	a.step("stable")
	if err := a.judge(&now); err != nil {
		return nil, err
	}
	return a.own(ctx, now, who, old, lease)
}

// wrote reports whether the highest pair is this Open's own: an earlier run of it
// wrote the fence record, and lost its place before it knew.
func (a *attempt) wrote(t *tail) bool { return t.fence >= 0 && t.nonce == a.nonce }

// judge refuses a pair at or below the highest one.
func (a *attempt) judge(t *tail) error {
	if p := a.pair(t.highest); p.Compare(t.highest) <= 0 && !a.wrote(t) {
		return walimpls.NewFencedError(a.opt.Channel, p, t.highest)
	}
	return nil
}

// pair resolves incarnation 0.
func (a *attempt) pair(highest walimpls.Pair) walimpls.Pair {
	p := a.opt.Pair()
	if p.Incarnation == 0 {
		p.Incarnation = 1
		if highest.Term == p.Term {
			p.Incarnation = highest.Incarnation + 1
		}
	}
	return p
}

// own writes the fence record and makes the handle.
func (a *attempt) own(ctx context.Context, t tail, who producerID, old []*retired, lease time.Duration) (*handle, error) {
	o, l := a.o, a.l
	pair, at := a.pair(t.highest), t.fence
	p := newProducer(o.k, o.log, l.channel, l.topic, l.id, who, t.high-1)
	if a.wrote(&t) {
		pair = t.highest
	} else {
		fence := message.Message{Type: message.TypeFence, Term: pair.Term, Incarnation: pair.Incarnation}
		body := appendBody(nil, &fence, l.id.tag(), &a.nonce)
		out := p.append(ctx, body, []int{len(body)})[0]
		a.step("fence sent")
		if out.State != walimpls.Stored {
			p.close(0, closedError(l.channel, "open"))
			return nil, a.fenceFailed(ctx, out)
		}
		id, _ := out.ID.Uint64()
		at = int64(id)
	}
	ch := walimpls.Channel{Name: l.channel, StoreID: l.id.String(), Pair: pair, Access: walimpls.AccessReadWrite}
	h := newHandle(o, l, ch, p, at)
	h.keepAlive(who, old, lease)
	o.log.Info("opened", zap.String("channel", l.channel), zap.String("topic", l.topic), zap.Stringer("pair", pair),
		zap.Int64("producer_id", who.pid), zap.Int16("producer_epoch", who.epoch), zap.Int64("fence_offset", at))
	return h, nil
}

// fenceFailed says what an Open does whose fence record was not acknowledged.
func (a *attempt) fenceFailed(ctx context.Context, out walimpls.Outcome) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(out.Err, walimpls.ErrFenced) || out.State == walimpls.Unknown {
		return errLostPlace // what landed is found by its nonce
	}
	return out.Err
}

// awaitMarker reads on until the marker that fences is in the log, and so to a tail
// that no earlier handle can change.
func (a *attempt) awaitMarker(ctx context.Context, t tail, who producerID, old []*retired) (tail, error) {
	o, l := a.o, a.l
	pos, marked, overtaken := t.high, false, false
	open := map[int64]bool{}
	for _, r := range old {
		open[r.pid] = true
	}
	err := o.k.onLeader(ctx, l.topic, l.id, func(c *conn) error {
		high, err := o.k.offset(ctx, c, l.topic, offsetLatest)
		if err != nil {
			return err
		}
		err = o.k.scan(ctx, c, l.id, pos, high, tailBytes, func(b *batch) bool {
			if b.control && b.producer.pid == who.pid {
				marked = marked || b.producer.epoch == who.epoch
				overtaken = overtaken || b.producer.epoch > who.epoch
			}
			if b.producer.epoch == math.MaxInt16 {
				delete(open, b.producer.pid)
			}
			t.note(l, b, math.MaxInt64)
			pos = b.next
			return true
		})
		switch {
		case err != nil:
			return err
		case overtaken:
			return errLostPlace
		case !marked || len(open) > 0:
			return answered("wait for the fencing marker", int16(codeOffsetNotAvailable), "it is not in the log yet")
		}
		t.high = high
		return nil
	})
	return t, err
}

// retired is a producer that has no transactional id any more.
type retired struct {
	pid int64
	// sequence is the next to try, base the highest offset that was seen: an answer at
	// or below it is that of a batch which somebody else has written.
	sequence int32
	base     int64
}

// maxRetireTries bounds the search for the sequence where another owner stopped.
const maxRetireTries = 4096

// retire fences every epoch of a producer by a hidden record of the highest epoch. It
// is a new record each time, which keeps the brokers' memory of it alive.
func (k *cluster) retire(ctx context.Context, l *ref, r *retired) error {
	for range maxRetireTries {
		p, err := k.produceHidden(ctx, l, producerID{pid: r.pid, epoch: math.MaxInt16}, r.sequence)
		if err != nil {
			return err
		}
		switch {
		case p.code == codeNone && p.base > r.base:
			r.base = p.base
			r.sequence++
			return nil
		case p.code == codeNone, p.code == codeOutOfOrder, p.code == codeDuplicate:
			r.sequence++ // another owner got further
		default:
			return answered("fence the former producer", int16(p.code), p.message)
		}
	}
	return answered("fence the former producer", int16(codeOutOfOrder), "its sequence is not found")
}

// produceHidden appends one record that no reader is shown.
func (k *cluster) produceHidden(ctx context.Context, l *ref, who producerID, sequence int32) (r produced, err error) {
	hidden := message.Message{Type: message.TypeInvalid}
	b := newBatch(who, sequence, 0, time.Now().UnixMilli(), 128)
	b.add(appendBody(nil, &hidden, l.id.tag(), nil))
	bytes, err := b.finish()
	if err != nil {
		return r, err
	}
	err = k.onLeader(ctx, l.topic, l.id, func(c *conn) error {
		a := newAnswer()
		c.sendProduce(l.topic, bytes, k.s.requestTimeout, a.set)
		frame, err := a.wait(ctx)
		if err != nil {
			return err
		}
		if r, err = decodeProduce(frame[8:]); err != nil {
			return &lostError{addr: c.addr, err: err}
		}
		if r.code.retriable() {
			return answered("fence the former producer", int16(r.code), r.message)
		}
		return nil
	})
	return r, err
}

// prepare finds or creates the topic, checks its settings, and returns how long the
// brokers keep what fences.
func (a *attempt) prepare(ctx context.Context) (lease time.Duration, err error) {
	o, l := a.o, a.l
	found, err := o.find(ctx, l)
	if err != nil {
		return 0, err
	}
	if !found {
		if err := o.k.createTopic(ctx, l.topic); err != nil {
			return 0, err
		}
		err = retry(ctx, func() error {
			found, err := o.find(ctx, l)
			if err == nil && !found {
				err = answered("metadata of topic "+l.topic, int16(codeUnknownTopic), "it was created just now")
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if l.id == (uuid{}) {
		return 0, &refusedError{addr: strings.Join(o.s.brokers, ","), err: errors.New("the topic has no id"), hint: "use Kafka 3.1 or newer, with KRaft or an inter.broker.protocol.version of 2.8 or higher"}
	}
	t, m, err := o.k.lookup(ctx, l.topic)
	if err != nil {
		return 0, err
	}
	if t.partitions != 1 {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, l.channel, "open: the topic %s has %d partitions; a channel is one totally ordered log", l.topic, t.partitions)
		e.Hint = "use another topic_prefix, or a topic with one partition"
		return 0, e
	}
	addr, err := o.k.leader(ctx, l.topic, l.id)
	if err != nil {
		return 0, err
	}
	c, err := o.k.control(ctx, addr)
	if err != nil {
		return 0, err
	}
	if err := a.checkTopic(ctx, c, t.replicas); err != nil {
		return 0, err
	}
	return o.expiration(ctx, c, &m), nil
}

// The settings of a topic that this backend depends on.
const (
	cfgCleanup     = "cleanup.policy"
	cfgRetentionMs = "retention.ms"
	cfgRetention   = "retention.bytes"
	cfgMaxMessage  = "max.message.bytes"
	cfgMinInSync   = "min.insync.replicas"
	cfgUnclean     = "unclean.leader.election.enable"
)

// checkTopic refuses a topic that would lose records or not take them.
func (a *attempt) checkTopic(ctx context.Context, c *conn, replicas int) error {
	o, l := a.o, a.l
	cfg, err := o.k.configs(ctx, c, resourceTopic, l.topic, cfgCleanup, cfgRetentionMs, cfgRetention, cfgMaxMessage, cfgMinInSync, cfgUnclean)
	if err != nil {
		return err
	}
	problems, fixes := topicProblems(cfg, o.s.minInSync)
	if len(problems) > 0 {
		e := walimpls.Errorf(walimpls.CodeInvalidArgument, l.channel, "open: the topic %s may not hold a channel: %s", l.topic, strings.Join(problems, "; "))
		e.Hint = fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --topic %s --add-config %s", o.s.brokers[0], l.topic, strings.Join(fixes, ","))
		return e
	}
	if n, _ := strconv.Atoi(cfg[cfgMinInSync]); replicas < 2 || n < 2 {
		o.log.Warn("an acknowledged record may be on one broker only", zap.String("topic", l.topic),
			zap.Int("replicas", replicas), zap.String(cfgMinInSync, cfg[cfgMinInSync]), zap.String("hint", "use replication_factor 3 and min_insync_replicas 2"))
	}
	return nil
}

// topicProblems says what is wrong with a topic's settings, and what mends it.
func topicProblems(cfg map[string]string, minInSync int) (problems, fixes []string) {
	bad := func(fix, format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
		fixes = append(fixes, fix)
	}
	if v := cfg[cfgCleanup]; v != "delete" {
		bad(cfgCleanup+"=delete", "%s is %q, which removes records that were not truncated", cfgCleanup, v)
	}
	if v := cfg[cfgRetentionMs]; v != "-1" {
		bad(cfgRetentionMs+"=-1", "%s is %s, which removes records that were not truncated", cfgRetentionMs, v)
	}
	if v := cfg[cfgRetention]; v != "-1" {
		bad(cfgRetention+"=-1", "%s is %s, which removes records that were not truncated", cfgRetention, v)
	}
	if n, err := strconv.Atoi(cfg[cfgMaxMessage]); err != nil || n < maxTopicMessage {
		bad(fmt.Sprintf("%s=%d", cfgMaxMessage, maxTopicMessage), "%s is %s, and %d is needed for records of up to %d bytes", cfgMaxMessage, cfg[cfgMaxMessage], maxTopicMessage, maxMessageBytes)
	}
	if n, _ := strconv.Atoi(cfg[cfgMinInSync]); n < minInSync {
		bad(fmt.Sprintf("%s=%d", cfgMinInSync, minInSync), "%s is %d, and the configuration wants %d", cfgMinInSync, n, minInSync)
	}
	if cfg[cfgUnclean] == "true" {
		bad(cfgUnclean+"=false", "%s lets a broker lead that lacks acknowledged records", cfgUnclean)
	}
	return problems, fixes
}

// The brokers' defaults, for where their settings may not be read.
const (
	defaultPIDExpiration = 24 * time.Hour
	defaultTxnExpiration = 7 * 24 * time.Hour
)

// expiration returns how long the brokers keep producer state and transactional ids
// that nobody uses, the shorter of the two.
func (o *opener) expiration(ctx context.Context, c *conn, m *metadata) time.Duration {
	pid, txn := defaultPIDExpiration, defaultTxnExpiration
	for _, b := range m.brokers {
		host, port, _ := net.SplitHostPort(c.addr)
		if b.host != host || strconv.Itoa(int(b.port)) != port {
			continue
		}
		cfg, err := o.k.configs(ctx, c, resourceBroker, strconv.Itoa(int(b.id)), "producer.id.expiration.ms", "transactional.id.expiration.ms")
		if err != nil {
			o.log.Debug("the brokers' expirations cannot be read, the defaults are assumed", zap.Error(err))
			break
		}
		if n, err := strconv.ParseInt(cfg["producer.id.expiration.ms"], 10, 64); err == nil && n > 0 {
			pid = time.Duration(n) * time.Millisecond
		}
		if n, err := strconv.ParseInt(cfg["transactional.id.expiration.ms"], 10, 64); err == nil && n > 0 {
			txn = time.Duration(n) * time.Millisecond
		}
	}
	return min(pid, txn)
}
