package brokers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// KafkaCluster is several private Kafka processes that form one cluster.
type KafkaCluster struct {
	KafkaEndpoint
	// Brokers are the processes: Brokers[i].ID is i+1, which is the id by which a
	// client's metadata names a leader. Each is a voter of the metadata quorum
	// too, so that the cluster works while more than half of them run.
	Brokers []*KafkaBroker
}

// StartKafkaCluster starts n brokers for this test alone, and ends them with the
// test. New topics get min(n, 3) replicas and need one less in sync; a broker that
// is killed is taken for dead after 3 s, and then its leaderships move.
func StartKafkaCluster(t testing.TB, n int, opts KafkaOptions) *KafkaCluster {
	t.Helper()
	if n < 2 {
		t.Fatalf("a cluster of %d brokers: use StartKafka", n)
	}
	r := privateRoom(t, kafkaRecipe, "a Kafka cluster")
	c := &KafkaCluster{}
	nodes := make([]*node, n)
	for i := range n {
		nodes[i] = &node{room: r, dir: r.node(i + 1)}
		c.Brokers = append(c.Brokers, &KafkaBroker{ID: i + 1, node: nodes[i]})
	}
	closeWith(t, r, nodes...)
	each := 2 + len(opts.Listeners)
	err := bootFresh(n*each, func(p []int) error { return c.boot(opts, slices.Collect(slices.Chunk(p, each))) })
	if err == nil {
		err = c.awaitMembers()
	}
	if err != nil {
		end(t, "a Kafka cluster", err)
	}
	return c
}

// Broker returns the broker with a node id.
func (c *KafkaCluster) Broker(id int) *KafkaBroker {
	for _, b := range c.Brokers {
		if b.ID == id {
			return b
		}
	}
	return nil
}

// boot starts all brokers at the same time: none answers before there is a
// quorum.
func (c *KafkaCluster) boot(opts KafkaOptions, ports [][]int) error {
	id, err := clusterID()
	if err != nil {
		return err
	}
	if opts.HeapMB == 0 {
		opts.HeapMB = 320
	}
	var voters []string
	c.Addrs = nil
	for i, b := range c.Brokers {
		b.KafkaEndpoint = kafkaAt(ports[i][0])
		b.Listeners = listenerAddrs(opts, ports[i][2:])
		c.Addrs = append(c.Addrs, b.Addr)
		voters = append(voters, fmt.Sprintf("%d@%s", b.ID, local(ports[i][1])))
	}
	c.Addr = c.Addrs[0]
	errs := make([]error, len(c.Brokers))
	var wg sync.WaitGroup
	for i, b := range c.Brokers {
		replicas := min(len(c.Brokers), 3)
		b.env = kafkaEnv(opts, ports[i], clusterProps(b.ID, voters, replicas))
		// The later entry wins.
		b.env = append(b.env, "CLUSTER_ID="+id, "SESSION_MS=3000")
		wg.Go(func() { errs[i] = b.startEmpty() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func clusterProps(id int, voters []string, replicas int) map[string]string {
	factor, insync := fmt.Sprint(replicas), fmt.Sprint(replicas-1)
	return map[string]string{
		"node.id":                                          fmt.Sprint(id),
		"controller.quorum.voters":                         strings.Join(voters, ","),
		"default.replication.factor":                       factor,
		"min.insync.replicas":                              insync,
		"offsets.topic.replication.factor":                 factor,
		"transaction.state.log.replication.factor":         factor,
		"transaction.state.log.min.isr":                    insync,
		"share.coordinator.state.topic.replication.factor": factor,
		"share.coordinator.state.topic.min.isr":            insync,
	}
}

// clusterID is 16 random bytes as Kafka writes them. The first character is a
// letter: "-" in front would read as an option.
func clusterID() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return "A" + base64.RawURLEncoding.EncodeToString(b)[1:], nil
}

// awaitMembers waits until every broker knows of all others: a topic that is
// made earlier may get no replica on the last one.
func (c *KafkaCluster) awaitMembers() error {
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	for _, b := range c.Brokers {
		if err := b.awaitPeers(ctx, len(c.Brokers)); err != nil {
			return err
		}
	}
	return nil
}

func (b *KafkaBroker) awaitPeers(ctx context.Context, want int) error {
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(b.Addr), Timeout: 10 * time.Second, Transport: transport}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	seen := 0
	for {
		meta, err := client.Metadata(ctx, &kafka.MetadataRequest{})
		if err == nil {
			if seen = len(meta.Brokers); seen >= want {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("broker %d knows of %d brokers, not of %d: %w", b.ID, seen, want, errors.Join(err, ctx.Err()))
		case <-tick.C:
		}
	}
}
