package brokers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

func TestKafkaIsPausedKilledRestartedAndGoneWithItsTest(t *testing.T) {
	t.Parallel()
	var dir string
	var pid int
	t.Run("user", func(t *testing.T) {
		b := StartKafka(t, KafkaOptions{Listeners: map[string]string{"SECOND": "PLAINTEXT"}})
		topic := writeAndRead(t, []string{b.Listeners["SECOND"]}, 1)

		if err := b.Pause(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := newClient(t, b.Addrs).Metadata(ctx, &kafka.MetadataRequest{}); err == nil {
			t.Fatal("a paused broker answers")
		}
		if err := b.Resume(); err != nil {
			t.Fatal(err)
		}
		write(t, b.Addrs, topic, "resumed")

		killed, err := b.Pid()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		if alive(killed) || answers(b.Addr) {
			t.Fatal("the broker is there after Kill")
		}
		if err := b.Restart(); err != nil {
			t.Fatal(err)
		}
		write(t, b.Addrs, topic, "restarted")
		got := readAll(t, b.Addr, topic)
		if want := []string{"first", "resumed", "restarted"}; !slices.Equal(got, want) {
			t.Fatalf("read %v, wrote %v", got, want)
		}
		if pid, err = b.Pid(); err != nil {
			t.Fatal(err)
		}
		dir = b.room.dir
	})
	if alive(pid) {
		t.Error("the broker outlives its test")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

func TestBrokerDiesWithATestThatIsKilledWhileItBoots(t *testing.T) {
	t.Parallel()
	needBrokers(t, kafkaRecipe, "Kafka")
	tmp := t.TempDir()
	h := startHelper(t, "private kafka", tmp)
	if !eventually(func() bool {
		found, _ := filepath.Glob(filepath.Join(tmp, "walrig-kafka-*", "nodes", "1", "server.properties"))
		return len(found) > 0
	}) {
		t.Fatal("no boot")
	}
	h.kill()
	awaitNothing(t, tmp)
}

func TestClusterGoesOnWithoutItsKilledLeader(t *testing.T) {
	t.Parallel()
	c := StartKafkaCluster(t, 3, KafkaOptions{})
	topic := newTopic(t, c.Addrs, 3)
	write(t, c.Addrs, topic, "before")
	old := leader(t, c.Addrs, topic)
	if err := c.Broker(old).Kill(); err != nil {
		t.Fatal(err)
	}
	write(t, c.Addrs, topic, "without")
	now := leader(t, c.Addrs, topic)
	if now == old {
		t.Fatalf("broker %d still leads", old)
	}
	if err := c.Broker(old).Restart(); err != nil {
		t.Fatal(err)
	}
	write(t, c.Addrs, topic, "after")
	got := readAll(t, c.Broker(now).Addr, topic)
	if want := []string{"before", "without", "after"}; !slices.Equal(got, want) {
		t.Fatalf("read %v, wrote %v", got, want)
	}
}

// newTopic makes a topic of one partition with that many replicas.
func newTopic(t *testing.T, addrs []string, replicas int) string {
	t.Helper()
	topic := "t-" + rand.Text()
	retry(t, "create topic", func(ctx context.Context) error {
		client := newClient(t, addrs)
		resp, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
			{Topic: topic, NumPartitions: 1, ReplicationFactor: replicas}}})
		if err != nil {
			return err
		}
		if err := resp.Errors[topic]; err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
			return err
		}
		return nil
	})
	return topic
}

func newClient(t *testing.T, addrs []string) *kafka.Client {
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond}
	t.Cleanup(transport.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(addrs...), Timeout: 10 * time.Second, Transport: transport}
}

// write appends one record, acknowledged by all replicas in sync.
func write(t *testing.T, addrs []string, topic, value string) {
	t.Helper()
	client := newClient(t, addrs)
	retry(t, "write", func(ctx context.Context) error {
		resp, err := client.Produce(ctx, &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(value))})})
		if err != nil {
			return err
		}
		return resp.Error
	})
}

func leader(t *testing.T, addrs []string, topic string) int {
	t.Helper()
	client := newClient(t, addrs)
	id := 0
	retry(t, "metadata", func(ctx context.Context) error {
		meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		if len(meta.Topics) != 1 || len(meta.Topics[0].Partitions) != 1 {
			return fmt.Errorf("unexpected metadata %+v", meta.Topics)
		}
		p := meta.Topics[0].Partitions[0]
		id = p.Leader.ID
		return p.Error
	})
	return id
}

// readAll reads the topic to its end. The writer may repeat an append whose
// answer was lost: what stands twice in a row counts once.
func readAll(t *testing.T, addr, topic string) []string {
	t.Helper()
	var values []string
	retry(t, "read", func(ctx context.Context) error {
		values = nil
		conn, err := kafka.DialLeader(ctx, "tcp", addr, topic, 0)
		if err != nil {
			return err
		}
		defer conn.Close()
		last, err := conn.ReadLastOffset()
		if err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		for int64(len(values)) < last {
			msg, err := conn.ReadMessage(1 << 20)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			values = append(values, string(msg.Value))
		}
		return nil
	})
	return slices.Compact(values)
}

func writeAndRead(t *testing.T, addrs []string, replicas int) (topic string) {
	t.Helper()
	topic = newTopic(t, addrs, replicas)
	write(t, addrs, topic, "first")
	if got := readAll(t, addrs[0], topic); !slices.Equal(got, []string{"first"}) {
		t.Fatalf("read %v", got)
	}
	return topic
}

// retry repeats what a broker refuses while it elects a leader or comes up.
func retry(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var last error
	if !eventually(func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		last = do(ctx)
		return last == nil
	}) {
		t.Fatalf("%s: %v", what, last)
	}
}
