package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/walrig/walrig/sdk/walimpls"
)

// The configuration keys.
const (
	keyBrokers         = "brokers"
	keyClientID        = "client_id"
	keyTopicPrefix     = "topic_prefix"
	keyReplication     = "replication_factor"
	keyMinInSync       = "min_insync_replicas"
	keySegmentBytes    = "segment_bytes"
	keyCompression     = "compression"
	keyBatchBytes      = "batch_bytes"
	keyTLS             = "tls"
	keyTLSCA           = "tls_ca"
	keyTLSCert         = "tls_cert"
	keyTLSKey          = "tls_key"
	keyTLSServerName   = "tls_server_name"
	keySASL            = "sasl_mechanism"
	keySASLUser        = "sasl_username"
	keySASLPassword    = "sasl_password"
	keyDialTimeout     = "dial_timeout"
	keyRequestTimeout  = "request_timeout"
	keyDeliveryTimeout = "delivery_timeout"
	keyOpenTimeout     = "open_timeout"
	keyFetchWait       = "fetch_wait"
	keyRenewInterval   = "renew_interval"
)

// The values of sasl_mechanism.
const (
	saslNone   = "none"
	saslPlain  = "plain"
	saslSHA256 = "scram-sha-256"
	saslSHA512 = "scram-sha-512"
)

var configFields = []walimpls.ConfigField{
	{Name: keyBrokers, Type: walimpls.ConfigStrings, Required: true,
		Doc: "addresses (host:port) to begin with; one that answers is enough, the others are found through it"},
	{Name: keyClientID, Type: walimpls.ConfigString, Default: "walrig",
		Doc: "client.id, for the brokers' logs, metrics and quotas"},
	{Name: keyTopicPrefix, Type: walimpls.ConfigString, Default: "walrig-",
		Doc: "what every topic and transactional id of this plugin begins with; at most 48 bytes"},
	{Name: keyReplication, Type: walimpls.ConfigInt, Default: 0,
		Doc: "copies of a topic that is created; 0 takes the brokers' default"},
	{Name: keyMinInSync, Type: walimpls.ConfigInt, Default: 0,
		Doc: "min.insync.replicas of a topic that is created, and the least that an existing one must have; 0 takes the brokers' default"},
	{Name: keySegmentBytes, Type: walimpls.ConfigBytes, Default: "128MiB",
		Doc: "segment.bytes of a topic that is created: truncation frees whole segments; 1MiB to 1GiB"},
	{Name: keyCompression, Type: walimpls.ConfigString, Default: "none", OneOf: []string{"none", "gzip", "snappy", "lz4", "zstd"},
		Doc: "how batches are compressed; every codec is read, whatever this says"},
	{Name: keyBatchBytes, Type: walimpls.ConfigBytes, Default: "1MiB",
		Doc: "size at which a record batch is cut, before compression; a larger record is a batch of its own; 16KiB to 4MiB"},
	{Name: keyTLS, Type: walimpls.ConfigBool, Default: false,
		Doc: "talk TLS to the brokers"},
	{Name: keyTLSCA, Type: walimpls.ConfigString,
		Doc: "PEM file of the authorities that the brokers' certificates are checked with; empty takes the system's"},
	{Name: keyTLSCert, Type: walimpls.ConfigString,
		Doc: "PEM file of the client's certificate, for mutual TLS"},
	{Name: keyTLSKey, Type: walimpls.ConfigString,
		Doc: "PEM file of the client's private key, for mutual TLS"},
	{Name: keyTLSServerName, Type: walimpls.ConfigString,
		Doc: "name that the brokers' certificates must have; empty takes the host name of each broker"},
	{Name: keySASL, Type: walimpls.ConfigString, Default: saslNone, OneOf: []string{saslNone, saslPlain, saslSHA256, saslSHA512},
		Doc: "how to log in"},
	{Name: keySASLUser, Type: walimpls.ConfigString,
		Doc: "user to log in as"},
	{Name: keySASLPassword, Type: walimpls.ConfigString, Secret: true,
		Doc: "password to log in with"},
	{Name: keyDialTimeout, Type: walimpls.ConfigDuration, Default: "5s",
		Doc: "bound of a connection's set-up, TLS and log-in included; 100ms to 1m"},
	{Name: keyRequestTimeout, Type: walimpls.ConfigDuration, Default: "10s",
		Doc: "bound of one request; a connection that does not answer in time is given up; 1s to 5m"},
	{Name: keyDeliveryTimeout, Type: walimpls.ConfigDuration, Default: "30s",
		Doc: "how long an append is retried over failed connections and changes of the leader; then it is unknown if it may be stored, else not stored; 1s to 10m"},
	{Name: keyOpenTimeout, Type: walimpls.ConfigDuration, Default: "30s",
		Doc: "bound of an open, a drop, and every other call that has no earlier deadline; 1s to 10m"},
	{Name: keyFetchWait, Type: walimpls.ConfigDuration, Default: "1s",
		Doc: "how long a reader at the end of the log lets the broker hold its request; new records end the wait; 10ms to 5s"},
	{Name: keyRenewInterval, Type: walimpls.ConfigDuration, Default: "0s",
		Doc: "how often an open owner renews its producer state and transactional id; 0 takes a quarter of the brokers' expirations, at most 1h"},
}

// settings are a checked configuration.
type settings struct {
	brokers         []string
	clientID        string
	prefix          string
	replication     int16
	minInSync       int
	segmentBytes    int64
	codec           compress.Compression
	batchBytes      int
	tls             *tls.Config
	sasl            sasl.Mechanism
	dialTimeout     time.Duration
	requestTimeout  time.Duration
	deliveryTimeout time.Duration
	openTimeout     time.Duration
	fetchWait       time.Duration
	renewInterval   time.Duration

	// The rest is for tests.

	// closeGrace bounds Close; flightGrace the part that is spent on appends in flight.
	closeGrace  time.Duration
	flightGrace time.Duration
	// goneGrace is how long a topic must be missing before it counts as deleted.
	goneGrace time.Duration
	// dial makes the TCP connections.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// onStep, if set, is called at each step of an Open.
	onStep func(step string)
}

// parse checks cfg and reports all problems at once. It reads the TLS files and
// nothing else.
func parse(cfg walimpls.Config) (*settings, error) {
	v, err := cfg.Decode(configFields)
	if err != nil {
		return nil, err
	}
	s := &settings{
		clientID: v.String(keyClientID), prefix: v.String(keyTopicPrefix),
		replication: int16(v.Int(keyReplication)), minInSync: int(v.Int(keyMinInSync)),
		segmentBytes: v.Bytes(keySegmentBytes), batchBytes: int(v.Bytes(keyBatchBytes)),
		dialTimeout: v.Duration(keyDialTimeout), requestTimeout: v.Duration(keyRequestTimeout),
		deliveryTimeout: v.Duration(keyDeliveryTimeout), openTimeout: v.Duration(keyOpenTimeout),
		fetchWait: v.Duration(keyFetchWait), renewInterval: v.Duration(keyRenewInterval),
		closeGrace: walimpls.GracePeriod - 500*time.Millisecond, flightGrace: 2 * time.Second,
		goneGrace: 3 * time.Second, dial: (&net.Dialer{}).DialContext,
	}
	var problems []string
	bad := func(key, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("key %q: ", key)+fmt.Sprintf(format, args...))
	}
	for _, addr := range v.Strings(keyBrokers) {
		addr = strings.TrimSpace(addr)
		host, port, err := net.SplitHostPort(addr)
		if n, convErr := strconv.Atoi(port); err != nil || host == "" || convErr != nil || n < 1 || n > 65535 {
			bad(keyBrokers, "%q is not host:port", addr)
			continue
		}
		s.brokers = append(s.brokers, addr)
	}
	if len(v.Strings(keyBrokers)) == 0 {
		bad(keyBrokers, "it is empty")
	}
	if s.clientID == "" || len(s.clientID) > 200 {
		bad(keyClientID, "want 1 to 200 bytes")
	}
	if !validPrefix(s.prefix) {
		bad(keyTopicPrefix, "want at most %d letters, digits, '.', '_' or '-', not starting with \"__\"", maxPrefix)
	}
	if n := v.Int(keyReplication); n < 0 || n > 100 {
		bad(keyReplication, "want 0 to 100")
	}
	if n := v.Int(keyMinInSync); n < 0 || n > 100 {
		bad(keyMinInSync, "want 0 to 100")
	} else if r := v.Int(keyReplication); r > 0 && n > r {
		bad(keyMinInSync, "%d is more than the %d copies of %s: nothing could ever be appended", n, r, keyReplication)
	}
	if s.segmentBytes < 1<<20 || s.segmentBytes > 1<<30 {
		bad(keySegmentBytes, "want 1MiB to 1GiB")
	}
	if s.batchBytes < 16<<10 || s.batchBytes > maxMessageBytes {
		bad(keyBatchBytes, "want 16KiB to 4MiB")
	}
	if err := s.codec.UnmarshalText([]byte(v.String(keyCompression))); err != nil {
		bad(keyCompression, "%v", err)
	}
	for _, d := range []struct {
		key       string
		low, high time.Duration
	}{
		{keyDialTimeout, 100 * time.Millisecond, time.Minute}, {keyRequestTimeout, time.Second, 5 * time.Minute},
		{keyDeliveryTimeout, time.Second, 10 * time.Minute}, {keyOpenTimeout, time.Second, 10 * time.Minute},
		{keyFetchWait, 10 * time.Millisecond, 5 * time.Second},
	} {
		if got := v.Duration(d.key); got < d.low || got > d.high {
			bad(d.key, "want %s to %s", d.low, d.high)
		}
	}
	problems = append(problems, s.parseTLS(v)...)
	problems = append(problems, s.parseSASL(v)...)
	if len(problems) > 0 {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "configuration: %s", strings.Join(problems, "; "))
	}
	return s, nil
}

func validPrefix(p string) bool {
	if len(p) > maxPrefix || strings.HasPrefix(p, "__") {
		return false
	}
	for i := 0; i < len(p); i++ {
		c := p[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

func (s *settings) parseTLS(v walimpls.Values) (problems []string) {
	bad := func(key, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("key %q: ", key)+fmt.Sprintf(format, args...))
	}
	if !v.Bool(keyTLS) {
		for _, key := range []string{keyTLSCA, keyTLSCert, keyTLSKey, keyTLSServerName} {
			if v.String(key) != "" {
				bad(key, "it has no effect without %s: true", keyTLS)
			}
		}
		return problems
	}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: v.String(keyTLSServerName)}
	if file := v.String(keyTLSCA); file != "" {
		pem, err := os.ReadFile(file)
		switch {
		case err != nil:
			bad(keyTLSCA, "%v", err)
		default:
			s.tls.RootCAs = x509.NewCertPool()
			if !s.tls.RootCAs.AppendCertsFromPEM(pem) {
				bad(keyTLSCA, "%q holds no PEM certificate", file)
			}
		}
	}
	cert, key := v.String(keyTLSCert), v.String(keyTLSKey)
	switch {
	case (cert == "") != (key == ""):
		bad(keyTLSCert, "%s and %s go together", keyTLSCert, keyTLSKey)
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			bad(keyTLSCert, "%v", err)
		}
		s.tls.Certificates = []tls.Certificate{pair}
	}
	return problems
}

func (s *settings) parseSASL(v walimpls.Values) (problems []string) {
	mechanism, user, password := v.String(keySASL), v.String(keySASLUser), v.String(keySASLPassword)
	if mechanism == saslNone {
		for _, key := range []string{keySASLUser, keySASLPassword} {
			if v.String(key) != "" {
				problems = append(problems, fmt.Sprintf("key %q: it has no effect without %s", key, keySASL))
			}
		}
		return problems
	}
	if user == "" || password == "" {
		return append(problems, fmt.Sprintf("key %q: %s needs %s and %s", keySASL, mechanism, keySASLUser, keySASLPassword))
	}
	var err error
	switch mechanism {
	case saslPlain:
		s.sasl = plain.Mechanism{Username: user, Password: password}
	case saslSHA256:
		s.sasl, err = scram.Mechanism(scram.SHA256, user, password)
	case saslSHA512:
		s.sasl, err = scram.Mechanism(scram.SHA512, user, password)
	}
	if err != nil {
		problems = append(problems, fmt.Sprintf("key %q: user or password cannot be used with %s", keySASLUser, mechanism))
	}
	return problems
}
