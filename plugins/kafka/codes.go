package kafka

import (
	"fmt"

	"github.com/segmentio/kafka-go"
)

// kafkaCode is an error code of the Kafka protocol.
type kafkaCode int16

// The codes that this backend decides by.
const (
	codeUnknownServer       kafkaCode = -1
	codeNone                kafkaCode = 0
	codeOffsetOutOfRange    kafkaCode = 1
	codeCorruptMessage      kafkaCode = 2
	codeUnknownTopic        kafkaCode = 3
	codeLeaderNotAvailable  kafkaCode = 5
	codeNotLeader           kafkaCode = 6
	codeRequestTimedOut     kafkaCode = 7
	codeReplicaNotAvailable kafkaCode = 9
	codeMessageTooLarge     kafkaCode = 10
	codeNetworkException    kafkaCode = 13
	codeCoordinatorLoading  kafkaCode = 14
	codeCoordinatorMissing  kafkaCode = 15
	codeNotCoordinator      kafkaCode = 16
	codeRecordListTooLarge  kafkaCode = 18
	codeNotEnoughReplicas   kafkaCode = 19
	codeNotEnoughAfter      kafkaCode = 20
	codeTopicAuthorization  kafkaCode = 29
	codeClusterAuth         kafkaCode = 31
	codeInvalidTimestamp    kafkaCode = 32
	codeUnsupportedVersion  kafkaCode = 35
	codeTopicExists         kafkaCode = 36
	codeInvalidReplication  kafkaCode = 38
	codeInvalidConfig       kafkaCode = 40
	codeNotController       kafkaCode = 41
	codeInvalidRequest      kafkaCode = 42
	codePolicyViolation     kafkaCode = 44
	codeOutOfOrder          kafkaCode = 45
	codeDuplicate           kafkaCode = 46
	codeInvalidEpoch        kafkaCode = 47
	codeInvalidTxnState     kafkaCode = 48
	codeInvalidPIDMapping   kafkaCode = 49
	codeConcurrentTxn       kafkaCode = 51
	codeTxnIDAuthorization  kafkaCode = 53
	codeStorageError        kafkaCode = 56
	codeSASLFailed          kafkaCode = 58
	codeTopicDeletionOff    kafkaCode = 73
	codeFencedLeaderEpoch   kafkaCode = 74
	codeUnknownLeaderEpoch  kafkaCode = 75
	codeOffsetNotAvailable  kafkaCode = 78
	codeInvalidRecord       kafkaCode = 87
	codeThrottled           kafkaCode = 89
	codeProducerFenced      kafkaCode = 90
	codeUnknownTopicID      kafkaCode = 100
	codeInconsistentTopicID kafkaCode = 103
)

// String returns the code's number and title.
func (c kafkaCode) String() string {
	return fmt.Sprintf("%s (Kafka error %d)", kafka.Error(c).Title(), int(c))
}

// retriable reports whether the same request may succeed a little later, perhaps
// at another broker.
func (c kafkaCode) retriable() bool {
	switch c {
	case codeCorruptMessage, codeUnknownTopic, codeLeaderNotAvailable, codeNotLeader, codeRequestTimedOut, codeReplicaNotAvailable,
		codeNetworkException, codeCoordinatorLoading, codeCoordinatorMissing, codeNotCoordinator, codeNotEnoughReplicas, codeNotEnoughAfter,
		codeNotController, codeConcurrentTxn, codeStorageError, codeFencedLeaderEpoch, codeUnknownLeaderEpoch, codeOffsetNotAvailable,
		codeThrottled, codeUnknownTopicID, codeInconsistentTopicID, codeUnknownServer:
		return true
	}
	return false
}

// mayBeStored reports whether a batch that got this answer may be in the log.
func (c kafkaCode) mayBeStored() bool {
	switch c {
	case codeRequestTimedOut, codeNotEnoughAfter, codeUnknownServer, codeNetworkException, codeStorageError:
		return true
	}
	return false
}

// fences reports whether another producer has taken over.
func (c kafkaCode) fences() bool {
	return c == codeInvalidEpoch || c == codeProducerFenced || c == codeInvalidPIDMapping
}

// topicGone reports whether the code may mean that the topic was deleted.
func (c kafkaCode) topicGone() bool {
	return c == codeUnknownTopic || c == codeUnknownTopicID || c == codeInconsistentTopicID
}

// answerError is an error code in an answer.
type answerError struct {
	what    string
	code    kafkaCode
	message string
}

func (e *answerError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("%s: %s", e.what, e.code)
	}
	return fmt.Sprintf("%s: %s: %s", e.what, e.code, e.message)
}

// answered returns nil for no error.
func answered(what string, code int16, message string) error {
	if code == 0 {
		return nil
	}
	return &answerError{what: what, code: kafkaCode(code), message: message}
}
