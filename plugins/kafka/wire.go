package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// errShort says that bytes end early or a length in them is a lie.
var errShort = errors.New("the bytes end early, or a length in them is wrong")

// uuid is a topic id.
type uuid [16]byte

// appendString appends a string with a 16-bit length.
func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// appendCompact appends a string of a flexible version.
func appendCompact(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s))+1)
	return append(b, s...)
}

// wireReader reads fields until the first error and remembers it; every read after
// it returns zero. It never panics and never allocates by a length that it was given.
type wireReader struct {
	b   []byte
	err error
}

func (r *wireReader) fail() {
	if r.err == nil {
		r.err = errShort
	}
	r.b = nil
}

// take returns the next n bytes, which are a part of the input.
func (r *wireReader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail()
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *wireReader) i8() int8 {
	if b := r.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (r *wireReader) i16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *wireReader) i32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *wireReader) i64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *wireReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *wireReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *wireReader) uuid() (u uuid) {
	copy(u[:], r.take(len(u)))
	return u
}

// str reads a string with a 16-bit length; null becomes "".
func (r *wireReader) str() string {
	n := r.i16()
	if n < 0 {
		return ""
	}
	return string(r.take(int(n)))
}

// length reads a length or count of a flexible version; null is -1. Whatever is
// counted takes at least a byte, so a count above what remains is a lie.
func (r *wireReader) length() int {
	n := r.uvarint()
	if n > uint64(len(r.b))+1 {
		r.fail()
		return -1
	}
	return int(n) - 1
}

func (r *wireReader) compact() string {
	n := r.length()
	if n < 0 {
		return ""
	}
	return string(r.take(n))
}

// compactBytes returns a part of the input.
func (r *wireReader) compactBytes() []byte {
	n := r.length()
	if n < 0 {
		return nil
	}
	return r.take(n)
}

// count reads the 32-bit count of an array; null is 0.
func (r *wireReader) count() int {
	n := r.i32()
	if int64(n) > int64(len(r.b)) {
		r.fail()
		return 0
	}
	return max(0, int(n))
}

// tags steps over tagged fields.
func (r *wireReader) tags() {
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		r.uvarint()
		size := r.uvarint()
		if size > math.MaxInt32 {
			r.fail()
			return
		}
		r.take(int(size))
	}
}

// Versions of the requests that are written here by hand. kafka-go has no topic
// ids, which these versions do.
const (
	metadataVersion = 12
	fetchVersion    = 13
	produceVersion  = 8
)

// API keys.
const (
	apiProduce     int16 = 0
	apiFetch       int16 = 1
	apiMetadata    int16 = 3
	apiAPIVersions int16 = 18
)

// flexible reports whether a hand-written request has the header with tagged fields.
func flexible(api int16) bool { return api == apiFetch || api == apiMetadata }

// appendHeader starts a request frame; finishFrame sets its size.
func appendHeader(b []byte, api, version int16, correlation int32, clientID string) []byte {
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(api))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, uint32(correlation))
	b = appendString(b, clientID)
	if flexible(api) {
		b = append(b, 0)
	}
	return b
}

func finishFrame(b []byte) { binary.BigEndian.PutUint32(b, uint32(len(b)-4)) }

// broker is a broker's advertised address.
type broker struct {
	id   int32
	host string
	port int32
}

// topicMeta is what the metadata says of a topic with one partition.
type topicMeta struct {
	code       kafkaCode
	name       string
	id         uuid
	partitions int
	// The rest is of partition 0.
	partitionCode kafkaCode
	leader        int32
	replicas      int
	inSync        int
}

// metadata is the answer to a metadata request.
type metadata struct {
	brokers    []broker
	controller int32
	topics     []topicMeta
}

// appendMetadata appends the body of a request that creates nothing.
func appendMetadata(b []byte, topic string) []byte {
	if topic == "" {
		b = append(b, 1) // no topics
	} else {
		b = append(b, 2)
		b = append(b, make([]byte, 16)...)
		b = appendCompact(b, topic)
		b = append(b, 0)
	}
	return append(b, 0, 0, 0) // no auto creation, no authorized operations, no tags
}

func decodeMetadata(body []byte) (metadata, error) {
	r := wireReader{b: body}
	var m metadata
	r.tags()
	r.i32() // throttle
	for n := r.length(); n > 0 && r.err == nil; n-- {
		m.brokers = append(m.brokers, broker{id: r.i32(), host: r.compact(), port: r.i32()})
		r.compact() // rack
		r.tags()
	}
	r.compact() // cluster id
	m.controller = r.i32()
	for n := r.length(); n > 0 && r.err == nil; n-- {
		t := topicMeta{code: kafkaCode(r.i16()), name: r.compact(), id: r.uuid(), leader: -1}
		r.i8() // internal
		for p := r.length(); p > 0 && r.err == nil; p-- {
			t.partitions++
			code, index, leader := kafkaCode(r.i16()), r.i32(), r.i32()
			r.i32() // leader epoch
			replicas := r.length()
			r.take(4 * max(0, replicas))
			inSync := r.length()
			r.take(4 * max(0, inSync))
			r.take(4 * max(0, r.length())) // offline replicas
			r.tags()
			if index == 0 {
				t.partitionCode, t.leader, t.replicas, t.inSync = code, leader, replicas, inSync
			}
		}
		r.i32() // authorized operations
		r.tags()
		m.topics = append(m.topics, t)
	}
	r.tags()
	return m, r.err
}

// appendFetch appends the body of a fetch of partition 0.
func appendFetch(b []byte, topic uuid, offset int64, maxBytes int32, waitMillis int32) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, math.MaxUint32) // no replica
	b = be.AppendUint32(b, uint32(waitMillis))
	b = be.AppendUint32(b, 1) // at least one byte
	b = be.AppendUint32(b, uint32(maxBytes))
	b = append(b, 0)                       // read uncommitted: nothing here is transactional
	b = be.AppendUint32(b, 0)              // no session
	b = be.AppendUint32(b, math.MaxUint32) // session epoch -1
	b = append(b, 2)
	b = append(b, topic[:]...)
	b = append(b, 2)
	b = be.AppendUint32(b, 0)              // partition
	b = be.AppendUint32(b, math.MaxUint32) // leader epoch is not checked
	b = be.AppendUint64(b, uint64(offset))
	b = be.AppendUint32(b, math.MaxUint32) // last fetched epoch
	b = be.AppendUint64(b, math.MaxUint64) // log start of a replica
	b = be.AppendUint32(b, uint32(maxBytes))
	b = append(b, 0, 0)       // tags of partition and topic
	return append(b, 1, 1, 0) // nothing forgotten, rack "", tags of the request
}

// fetched is the answer to a fetch.
type fetched struct {
	throttleMillis int32
	code           kafkaCode
	highWatermark  int64
	logStart       int64
	// records are whole batches, the last one perhaps cut off. A part of the frame.
	records []byte
}

func decodeFetch(body []byte) (fetched, error) {
	r := wireReader{b: body}
	var f fetched
	r.tags()
	f.throttleMillis = r.i32()
	f.code = kafkaCode(r.i16())
	r.i32() // session
	for n := r.length(); n > 0 && r.err == nil; n-- {
		r.uuid()
		for p := r.length(); p > 0 && r.err == nil; p-- {
			r.i32() // partition
			if code := kafkaCode(r.i16()); code != 0 {
				f.code = code
			}
			f.highWatermark = r.i64()
			r.i64() // last stable offset
			f.logStart = r.i64()
			for a := r.length(); a > 0 && r.err == nil; a-- {
				r.take(16)
				r.tags()
			}
			r.i32() // preferred replica
			f.records = r.compactBytes()
			r.tags()
		}
		r.tags()
	}
	r.tags()
	return f, r.err
}

// appendProduce appends the body of a request with one batch for partition 0.
func appendProduce(b []byte, topic string, timeoutMillis int32, batchBytes int) []byte {
	be := binary.BigEndian
	b = be.AppendUint16(b, math.MaxUint16) // no transactional id
	b = be.AppendUint16(b, math.MaxUint16) // acks=all
	b = be.AppendUint32(b, uint32(timeoutMillis))
	b = be.AppendUint32(b, 1)
	b = appendString(b, topic)
	b = be.AppendUint32(b, 1)
	b = be.AppendUint32(b, 0)
	return be.AppendUint32(b, uint32(batchBytes)) // the batch follows
}

// produced is the answer to a produce request.
type produced struct {
	code           kafkaCode
	base           int64
	message        string
	throttleMillis int32
}

func decodeProduce(body []byte) (produced, error) {
	r := wireReader{b: body}
	p := produced{code: codeNone, base: -1}
	seen := false
	for n := r.count(); n > 0 && r.err == nil; n-- {
		r.str()
		for k := r.count(); k > 0 && r.err == nil; k-- {
			seen = true
			r.i32()
			p.code, p.base = kafkaCode(r.i16()), r.i64()
			r.i64() // append time
			r.i64() // log start
			for e := r.count(); e > 0 && r.err == nil; e-- {
				r.i32()
				r.str()
			}
			p.message = r.str()
		}
	}
	p.throttleMillis = r.i32()
	if r.err == nil && !seen {
		r.err = fmt.Errorf("the answer to a produce request names no partition")
	}
	return p, r.err
}

// versionRange is what a broker offers of one API.
type versionRange struct{ low, high int16 }

func decodeVersions(body []byte) (kafkaCode, map[int16]versionRange, error) {
	r := wireReader{b: body}
	code := kafkaCode(r.i16())
	versions := map[int16]versionRange{}
	for n := r.count(); n > 0 && r.err == nil; n-- {
		api := r.i16()
		versions[api] = versionRange{r.i16(), r.i16()}
	}
	return code, versions, r.err
}
