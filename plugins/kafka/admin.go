package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/addpartitionstotxn"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/deletetopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/endtxn"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// kafka-go has no DeleteRecords; its protocol package takes one declared like this.
func init() { protocol.Register(&deleteRecordsRequest{}, &deleteRecordsResponse{}) }

type deleteRecordsRequest struct {
	Topics    []deleteRecordsTopic `kafka:"min=v0,max=v1"`
	TimeoutMs int32                `kafka:"min=v0,max=v1"`
}

type deleteRecordsTopic struct {
	Name       string                   `kafka:"min=v0,max=v1"`
	Partitions []deleteRecordsPartition `kafka:"min=v0,max=v1"`
}

type deleteRecordsPartition struct {
	Partition int32 `kafka:"min=v0,max=v1"`
	Offset    int64 `kafka:"min=v0,max=v1"`
}

type deleteRecordsResponse struct {
	ThrottleTimeMs int32                     `kafka:"min=v0,max=v1"`
	Topics         []deleteRecordsTopicReply `kafka:"min=v0,max=v1"`
}

type deleteRecordsTopicReply struct {
	Name       string                        `kafka:"min=v0,max=v1"`
	Partitions []deleteRecordsPartitionReply `kafka:"min=v0,max=v1"`
}

type deleteRecordsPartitionReply struct {
	Partition    int32 `kafka:"min=v0,max=v1"`
	LowWatermark int64 `kafka:"min=v0,max=v1"`
	ErrorCode    int16 `kafka:"min=v0,max=v1"`
}

// ApiKey is the name that protocol.Message has.
func (*deleteRecordsRequest) ApiKey() protocol.ApiKey { //nolint:revive // an interface's name
	return protocol.DeleteRecords
}

// ApiKey is the name that protocol.Message has.
func (*deleteRecordsResponse) ApiKey() protocol.ApiKey { //nolint:revive // an interface's name
	return protocol.DeleteRecords
}

// request asks c with the version that `needed` names.
func (k *cluster) request(ctx context.Context, c *conn, m protocol.Message) (protocol.Message, error) {
	return c.askWithin(ctx, needed[int16(m.ApiKey())], m, k.s.requestTimeout)
}

// onLeader runs do with the control connection to the leader, again if need be.
func (k *cluster) onLeader(ctx context.Context, topic string, id uuid, do func(c *conn) error) error {
	return retry(ctx, func() error {
		addr, err := k.leader(ctx, topic, id)
		if err != nil {
			return err
		}
		c, err := k.control(ctx, addr)
		if err != nil {
			return err
		}
		return do(c)
	})
}

// Special timestamps of ListOffsets.
const (
	offsetLatest   = -1
	offsetEarliest = -2
)

// offset returns the log start or the high watermark.
func (k *cluster) offset(ctx context.Context, c *conn, topic string, which int64) (int64, error) {
	a, err := k.request(ctx, c, &listoffsets.Request{ReplicaID: -1, Topics: []listoffsets.RequestTopic{{
		Topic: topic, Partitions: []listoffsets.RequestPartition{{CurrentLeaderEpoch: -1, Timestamp: which}}}}})
	if err != nil {
		return 0, err
	}
	r := a.(*listoffsets.Response)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return 0, errors.New("list offsets: the answer names no partition")
	}
	p := r.Topics[0].Partitions[0]
	return p.Offset, answered("list offsets", p.ErrorCode, "")
}

// deleteRecords removes what lies before the offset.
func (k *cluster) deleteRecords(ctx context.Context, topic string, id uuid, before int64) error {
	return k.onLeader(ctx, topic, id, func(c *conn) error {
		a, err := k.request(ctx, c, &deleteRecordsRequest{TimeoutMs: k.brokerTimeout(), Topics: []deleteRecordsTopic{{
			Name: topic, Partitions: []deleteRecordsPartition{{Offset: before}}}}})
		if err != nil {
			return err
		}
		r := a.(*deleteRecordsResponse)
		if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
			return errors.New("delete records: the answer names no partition")
		}
		return answered("delete records", r.Topics[0].Partitions[0].ErrorCode, "")
	})
}

// brokerTimeout is what a broker may take for a request, so that its answer comes
// before the connection is given up.
func (k *cluster) brokerTimeout() int32 { return int32(k.s.requestTimeout / 2 / time.Millisecond) }

// createTopic creates the topic; one that exists is success.
func (k *cluster) createTopic(ctx context.Context, topic string) error {
	configs := []createtopics.RequestConfig{
		{Name: "cleanup.policy", Value: "delete"},
		{Name: "retention.ms", Value: "-1"},
		{Name: "retention.bytes", Value: "-1"},
		{Name: "max.message.bytes", Value: strconv.Itoa(maxTopicMessage)},
		// The clock of an owner must not matter: brokers refuse times ahead of theirs.
		{Name: "message.timestamp.type", Value: "LogAppendTime"},
		{Name: "unclean.leader.election.enable", Value: "false"},
		{Name: "segment.bytes", Value: strconv.FormatInt(k.s.segmentBytes, 10)},
	}
	if k.s.minInSync > 0 {
		configs = append(configs, createtopics.RequestConfig{Name: "min.insync.replicas", Value: strconv.Itoa(k.s.minInSync)})
	}
	replication := k.s.replication
	if replication == 0 {
		replication = -1 // the brokers' default
	}
	return retry(ctx, func() error {
		c, err := k.controller(ctx)
		if err != nil {
			return err
		}
		a, err := k.request(ctx, c, &createtopics.Request{TimeoutMs: k.brokerTimeout(), Topics: []createtopics.RequestTopic{{
			Name: topic, NumPartitions: 1, ReplicationFactor: replication, Configs: configs}}})
		if err != nil {
			return err
		}
		r := a.(*createtopics.Response)
		if len(r.Topics) != 1 {
			return errors.New("create topic: the answer names no topic")
		}
		if kafkaCode(r.Topics[0].ErrorCode) == codeTopicExists {
			return nil
		}
		return answered("create topic "+topic, r.Topics[0].ErrorCode, r.Topics[0].ErrorMessage)
	})
}

// deleteTopic deletes the topic; a missing one is success.
func (k *cluster) deleteTopic(ctx context.Context, topic string) error {
	return retry(ctx, func() error {
		c, err := k.controller(ctx)
		if err != nil {
			return err
		}
		a, err := k.request(ctx, c, &deletetopics.Request{TopicNames: []string{topic}, TimeoutMs: k.brokerTimeout()})
		if err != nil {
			return err
		}
		r := a.(*deletetopics.Response)
		if len(r.Responses) != 1 {
			return errors.New("delete topic: the answer names no topic")
		}
		if kafkaCode(r.Responses[0].ErrorCode) == codeUnknownTopic {
			return nil
		}
		return answered("delete topic "+topic, r.Responses[0].ErrorCode, "")
	})
}

// Resource types of DescribeConfigs.
const (
	resourceTopic  = 2
	resourceBroker = 4
)

// configs returns settings of a topic or broker.
func (k *cluster) configs(ctx context.Context, c *conn, kind int8, name string, keys ...string) (map[string]string, error) {
	a, err := k.request(ctx, c, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{{
		ResourceType: kind, ResourceName: name, ConfigNames: keys}}})
	if err != nil {
		return nil, err
	}
	r := a.(*describeconfigs.Response)
	if len(r.Resources) != 1 {
		return nil, errors.New("describe configs: the answer names no resource")
	}
	if err := answered("describe the settings of "+name, r.Resources[0].ErrorCode, r.Resources[0].ErrorMessage); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range r.Resources[0].ConfigEntries {
		out[e.ConfigName] = e.ConfigValue
	}
	return out, nil
}

// txnTimeout bounds a transaction that this backend leaves open by a crash between
// two requests. No record is in one.
const txnTimeout = 10 * time.Second

// initProducer takes the transactional id over: the epoch grows.
func (k *cluster) initProducer(ctx context.Context, txnID string) (p producerID, err error) {
	err = retry(ctx, func() error {
		c, err := k.coordinator(ctx, txnID)
		if err != nil {
			return err
		}
		a, err := k.request(ctx, c, &initproducerid.Request{TransactionalID: txnID, TransactionTimeoutMs: int32(txnTimeout / time.Millisecond)})
		if err != nil {
			return err
		}
		r := a.(*initproducerid.Response)
		p = producerID{pid: r.ProducerID, epoch: r.ProducerEpoch}
		if err := answered("init producer id", r.ErrorCode, ""); err != nil {
			return err
		}
		if p.pid < 0 || p.epoch < 0 {
			return fmt.Errorf("init producer id: the answer is %d, %d", p.pid, p.epoch)
		}
		return nil
	})
	return p, err
}

// emptyAbort begins and aborts a transaction without records on the topic. The
// marker that it leaves in the log fences every lower epoch, and renews producer
// state and transactional id. The coordinator answers before the marker is written.
func (k *cluster) emptyAbort(ctx context.Context, txnID, topic string, p producerID) error {
	return retry(ctx, func() error {
		c, err := k.coordinator(ctx, txnID)
		if err != nil {
			return err
		}
		a, err := k.request(ctx, c, &addpartitionstotxn.Request{TransactionalID: txnID, ProducerID: p.pid, ProducerEpoch: p.epoch,
			Topics: []addpartitionstotxn.RequestTopic{{Name: topic, Partitions: []int32{0}}}})
		if err != nil {
			return err
		}
		for _, t := range a.(*addpartitionstotxn.Response).Results {
			for _, r := range t.Results {
				if err := answered("begin the fencing transaction", r.ErrorCode, ""); err != nil {
					return err
				}
			}
		}
		a, err = k.request(ctx, c, &endtxn.Request{TransactionalID: txnID, ProducerID: p.pid, ProducerEpoch: p.epoch})
		if err != nil {
			return err
		}
		return answered("abort the fencing transaction", a.(*endtxn.Response).ErrorCode, "")
	})
}
