package kafka

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// maxTopicName is Kafka's limit.
const maxTopicName = 249

// maxPrefix leaves room for a channel name of 200 bytes, and for the hashed form.
const maxPrefix = 48

// topicName returns the topic of a channel. Kafka takes two names that differ in
// '.' against '_' alone for a collision and refuses the second, and a channel may
// have either. So a name without dots is itself; one with dots gets a '-' in front,
// which no channel name starts with, and a '-' before each of its '_' and '-'. What
// becomes too long is "--" and a hash.
//
//	orders     → prefix + "orders"
//	a_b        → prefix + "a_b"
//	orders.eu  → prefix + "-orders.eu"
//	a.b_c-d    → prefix + "-a.b-_c--d"
func topicName(prefix, channel string) string {
	if !strings.Contains(channel, ".") {
		return prefix + channel
	}
	name := prefix + "-" + strings.NewReplacer("_", "-_", "-", "--").Replace(channel)
	if len(name) <= maxTopicName {
		return name
	}
	sum := sha256.Sum256([]byte(channel))
	return prefix + "--" + hex.EncodeToString(sum[:])
}

// String returns the id as Kafka's own tools print it.
func (u uuid) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// storeTag is the part of the topic id that every record carries.
type storeTag [8]byte

func (u uuid) tag() (t storeTag) {
	copy(t[:], u[:])
	return t
}
