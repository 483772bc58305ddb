package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/walrig/walrig/internal/brokers"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// forgetful is a broker that forgets idle producers and transactional ids in seconds.
func forgetful(t *testing.T) *brokers.KafkaBroker {
	return brokers.StartKafka(t, brokers.KafkaOptions{Props: map[string]string{
		"producer.id.expiration.ms": "5000", "producer.id.expiration.check.interval.ms": "100",
		"transactional.id.expiration.ms": "5000", "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
	}})
}

// What brokers forget after a while, in parallel since it is mostly waiting.
func TestWhatBrokersForget(t *testing.T) {
	b := forgetful(t)
	t.Run("together", func(t *testing.T) {
		for name, run := range map[string]func(t *testing.T, b *brokers.KafkaBroker){
			"AnOwnerKeepsTheirMemoryAliveSoAZombieStaysFenced": testOwnerKeepsMemory,
			"AZombieIsKeptOutWhenTheyForgot":                   testZombieAfterExpiry,
			"AnOpenWithAnotherProducerIDFencesTheOldOneFirst":  testOtherProducerID,
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); run(t, b) })
		}
	})
}

const expired = 12 * time.Second // well beyond the expirations

// zombieBatch appends as a producer that nobody told that it was fenced: no check of
// this backend is in the way, only the broker's.
func zombieBatch(t *testing.T, o *opener, l *ref, p producerID, sequence int32, pair walimpls.Pair, text string) produced {
	t.Helper()
	m := data(text)
	m.Term, m.Incarnation = pair.Term, pair.Incarnation
	b := newBatch(p, sequence, 0, time.Now().UnixMilli(), 0)
	b.add(appendBody(nil, &m, l.id.tag(), nil))
	raw, err := b.finish()
	must(t, err)
	ctx := testContext(t)
	var r produced
	must(t, o.k.onLeader(ctx, l.topic, l.id, func(c *conn) error {
		a := newAnswer()
		c.sendProduce(l.topic, raw, o.s.requestTimeout, a.set)
		frame, err := a.wait(ctx)
		if err != nil {
			return err
		}
		r, err = decodeProduce(frame[8:])
		return err
	}))
	return r
}

func testOwnerKeepsMemory(t *testing.T, b *brokers.KafkaBroker) {
	cfg := config(b.Addrs)
	first, second := build(t, cfg), build(t, cfg)
	old := mustOpen(t, first, rw("c", 1, 1)).(*handle)
	mustAppend(t, old, "one")
	owner := mustOpen(t, second, rw("c", 2, 1))
	zombie := old.p.who
	end := time.Now().Add(expired)
	for i := int32(2); time.Now().Before(end); i++ {
		// The owner is idle but for its renewals.
		if r := zombieBatch(t, second, old.l, zombie, i, old.ch.Pair, "zombie"); !r.code.fences() {
			t.Fatalf("the zombie's batch got %s", r.code)
		}
		time.Sleep(300 * time.Millisecond)
	}
	mustAppend(t, owner, "two")
	if got := texts(readAll(t, owner)); fmt.Sprint(got) != "[one two]" {
		t.Fatalf("got %v", got)
	}
}

// Nobody keeps the memory alive: the brokers take a zombie's batch again. Its own
// handle refuses to send it, and if it was sent all the same readers leave it out.
func testZombieAfterExpiry(t *testing.T, b *brokers.KafkaBroker) {
	cfg := config(b.Addrs)
	first, second := build(t, with(cfg, keyRenewInterval, "1h")), build(t, cfg)
	old := mustOpen(t, first, rw("c", 1, 1)).(*handle)
	mustAppend(t, old, "one")
	owner := mustOpen(t, second, rw("c", 2, 1))
	mustAppend(t, owner, "two")
	must(t, owner.Close(context.Background()))
	time.Sleep(expired)

	_, err := old.Append(testContext(t), batchOf("handle"))
	wantIs(t, err, walimpls.ErrFenced)
	// The broker looks for what to forget now and then.
	r := zombieBatch(t, second, old.l, old.p.who, 7, old.ch.Pair, "raw")
	for end := time.Now().Add(2 * time.Minute); r.code != codeNone; r = zombieBatch(t, second, old.l, old.p.who, 7, old.ch.Pair, "raw") {
		if time.Now().After(end) {
			t.Fatalf("this broker still remembers: %s", r.code)
		}
		time.Sleep(time.Second)
	}
	reader := mustOpen(t, second, ro("c"))
	if p := reader.Channel().Pair; p != (walimpls.Pair{Term: 2, Incarnation: 1}) {
		t.Errorf("the highest pair is %s, 2.1 is in the log", p)
	}
	next := mustOpen(t, second, rw("c", 2, 2))
	mustAppend(t, next, "three")
	if got := texts(readAll(t, next)); fmt.Sprint(got) != "[one two three]" {
		t.Fatalf("got %v: the zombie's record is read", got)
	}
}

func testOtherProducerID(t *testing.T, b *brokers.KafkaBroker) {
	cfg := with(config(b.Addrs), keyRenewInterval, "1h")
	first, second := build(t, cfg), build(t, cfg)
	old := mustOpen(t, first, rw("c", 1, 1)).(*handle)
	mustAppend(t, old, "one")
	var next *handle
	for term := int64(2); ; term++ {
		time.Sleep(expired) // any request would renew the transactional id
		next = mustOpen(t, second, rw("c", term, 1)).(*handle)
		if next.p.who.pid != old.p.who.pid {
			break
		}
		if term == 5 {
			t.Fatalf("the producer id is still %d: the transactional id does not expire here", next.p.who.pid)
		}
		old = next
	}
	for _, epoch := range []int16{old.p.who.epoch, old.p.who.epoch + 1, math.MaxInt16 - 1} {
		if r := zombieBatch(t, second, old.l, producerID{old.p.who.pid, epoch}, 2, old.ch.Pair, "zombie"); !r.code.fences() {
			t.Fatalf("the old producer's batch of epoch %d got %s", epoch, r.code)
		}
	}
	_, err := old.Append(testContext(t), batchOf("handle"))
	wantIs(t, err, walimpls.ErrFenced)
	mustAppend(t, next, "two")
	log := readAll(t, next)
	if got := texts(log); fmt.Sprint(got) != "[one two]" {
		t.Fatalf("got %v", got)
	}
	for _, m := range log {
		if m.Type == message.TypeInvalid {
			t.Fatal("a hidden record was read")
		}
	}
}

// Renewals write markers between batches in flight.
func TestRenewalDisturbsNoAppend(t *testing.T) {
	o := build(t, with(shared(t), keyRenewInterval, "5ms"))
	history := newOracle()
	c := hire(t, history, o, "c", 1, 8, 0)
	until(t, "records are acknowledged", func() bool { return history.stored() > 2000 })
	c.end()
	if c.inc != 1 {
		t.Errorf("the channel was opened %d times", c.inc)
	}
	history.verify(t, finalLog(t, o, "c"))
}

func TestATopicThatWouldLoseRecordsIsRefusedWithItsCure(t *testing.T) {
	cfg := shared(t)
	o := build(t, cfg)
	client := &kafkago.Client{Addr: kafkago.TCP(o.s.brokers[0]), Transport: &kafkago.Transport{}}
	defer client.Transport.(*kafkago.Transport).CloseIdleConnections()
	topic := topicName(o.s.prefix, "c")
	_, err := client.CreateTopics(testContext(t), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}})
	must(t, err)
	_, err = o.Open(testContext(t), rw("c", 1, 1))
	wantIs(t, err, walimpls.ErrInvalidArgument)
	var e *walimpls.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "retention.ms=-1") || !strings.Contains(e.Hint, topic) {
		t.Fatalf("%v, hint %q", err, e.Hint)
	}
}

func TestAReaderCreatesNoTopic(t *testing.T) {
	o := build(t, shared(t))
	_, err := o.Open(testContext(t), ro("none"))
	wantIs(t, err, walimpls.ErrNotFound)
	_, _, err = o.k.lookup(testContext(t), topicName(o.s.prefix, "none"))
	var code *answerError
	if !errors.As(err, &code) || code.code != codeUnknownTopic {
		t.Fatalf("got %v", err)
	}
}

// Payload as value, vchannel as key, properties as headers.
func TestAnotherLibraryReadsTheRecords(t *testing.T) {
	o := build(t, shared(t))
	w := mustOpen(t, o, rw("c", 1, 1))
	ids, err := w.Append(testContext(t), []message.Message{{Type: message.TypeData, VChannel: "v", Payload: []byte("hello"), Properties: map[string]string{"a": "1", "b": ""}}})
	must(t, err)
	client := &kafkago.Client{Addr: kafkago.TCP(o.s.brokers[0]), Transport: &kafkago.Transport{}}
	defer client.Transport.(*kafkago.Transport).CloseIdleConnections()
	at, _ := ids[0].Uint64()
	f, err := client.Fetch(testContext(t), &kafkago.FetchRequest{Topic: topicName(o.s.prefix, "c"), Offset: int64(at), MinBytes: 1, MaxBytes: 1 << 20, MaxWait: time.Second})
	must(t, err)
	must(t, f.Error)
	r, err := f.Records.ReadRecord()
	must(t, err)
	key, _ := kafkago.ReadAll(r.Key)
	value, _ := kafkago.ReadAll(r.Value)
	if r.Offset != int64(at) || string(key) != "v" || string(value) != "hello" || len(r.Headers) != 3 || r.Headers[0].Key != metaHeader ||
		r.Headers[1].Key != "a" || string(r.Headers[1].Value) != "1" || r.Headers[2].Key != "b" || len(r.Headers[2].Value) != 0 {
		t.Fatalf("offset %d key %q value %q headers %v", r.Offset, key, value, r.Headers)
	}
}
