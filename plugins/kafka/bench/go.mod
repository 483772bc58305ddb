module github.com/walrig/walrig/plugins/kafka/bench

go 1.26

require (
	github.com/segmentio/kafka-go v0.4.51
	github.com/twmb/franz-go v1.22.3
	github.com/walrig/walrig v0.0.0
	go.uber.org/zap v1.27.0
)

replace github.com/walrig/walrig => ../../..
