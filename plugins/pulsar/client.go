package pulsar

import (
	"math/rand/v2"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// newClient makes a Pulsar client of its own for one producer or one reader:
// readers and writers share neither memory nor a connection, and closing the
// client's connection takes away whatever a close and a reconnect that met have
// left on the broker.
func (o *opener) newClient(hear func(line string), fields ...zap.Field) (client.Client, error) {
	creds, err := o.creds.get()
	if err != nil {
		return nil, err
	}
	s := &o.settings
	return client.NewClient(client.ClientOptions{
		URL:                        s.serviceURL,
		ListenerName:               s.listener,
		Authentication:             creds,
		ConnectionTimeout:          s.connectTimeout,
		OperationTimeout:           s.requestTimeout,
		KeepAliveInterval:          5 * time.Second,
		MaxConnectionsPerBroker:    1,
		MemoryLimitBytes:           -1, // this package bounds what it hands over
		ConnectionMaxIdleTime:      -1,
		TLSTrustCertsFilePath:      s.tlsCA,
		TLSCertificateFile:         s.tlsCert,
		TLSKeyFilePath:             s.tlsKey,
		TLSAllowInsecureConnection: s.tlsInsecure,
		TLSValidateHostname:        s.tlsHostname,
		Logger:                     clientLog{o.log.With(fields...), hear},
		MetricsRegisterer:          prometheus.NewRegistry(), // nobody's: the host has metrics of its own
		Description:                "walrig",
	})
}

// reconnectPause is the client's pause between two attempts to reconnect: from
// 20 ms to a second, with some chance in it.
type reconnectPause struct{ d time.Duration }

func newReconnectPause() backoff.Policy { return &reconnectPause{} }

func (r *reconnectPause) Next() time.Duration {
	r.d = min(max(2*r.d, 20*time.Millisecond), time.Second)
	return r.d/2 + rand.N(r.d/2)
}
func (r *reconnectPause) IsMaxBackoffReached() bool { return r.d >= time.Second }
func (r *reconnectPause) Reset()                    { r.d = 0 }
