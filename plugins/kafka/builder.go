package kafka

import (
	"context"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Version is the backend's version, as status shows it.
const Version = "0.1.0"

// The limits of one record and of one Append.
const (
	maxMessageBytes = 4 << 20
	maxBatchRecords = 16384
	maxBatchBytes   = 16 << 20

	// maxTopicMessage is the max.message.bytes that a topic needs. Many tiny
	// properties make a record two thirds larger in Kafka than its Size says.
	maxTopicMessage = 8 << 20
)

// Builder makes the Kafka backend. The zero value is ready to use.
type Builder struct {
	// tune changes what tests need to be small or quick; nil in production.
	tune func(*settings)
}

// NewBuilder returns the builder of the Kafka backend.
func NewBuilder() Builder { return Builder{} }

var _ walimpls.Builder = Builder{}

// Name returns "kafka".
func (Builder) Name() string { return "kafka" }

// Describe says what the backend is and can do.
func (b Builder) Describe() walimpls.Description {
	return walimpls.Description{
		Backend:  b.Name(),
		Version:  Version,
		IDLayout: "u64",
		Capabilities: walimpls.Capabilities{
			Fencing:    walimpls.FencingStrict,
			Durability: walimpls.DurabilityReplicated,
			Truncation: walimpls.TruncationDeferred,
			Drop:       true,
			ReadOnly:   true,
		},
		Limits: walimpls.Limits{MaxMessageBytes: maxMessageBytes, MaxBatchRecords: maxBatchRecords, MaxBatchBytes: maxBatchBytes},
		Config: append([]walimpls.ConfigField(nil), configFields...),
	}
}

// Build checks cfg and returns an Opener that has not talked to a broker yet.
func (b Builder) Build(_ context.Context, cfg walimpls.Config, log *zap.Logger) (walimpls.Opener, error) {
	s, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	if b.tune != nil {
		b.tune(s)
	}
	if s.sasl != nil && s.tls == nil {
		log.Warn("user and password go over connections without TLS", zap.String("hint", "set tls: true"))
	}
	return newOpener(s, log), nil
}
