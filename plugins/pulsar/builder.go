package pulsar

import (
	"context"
	"net/url"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/walrig/walrig/sdk/walimpls"
)

// Version is the backend's version, as status shows it.
const Version = "0.1.0"

// The limits of one record and of one Append. A broker takes 5 MiB in one
// message unless it is told otherwise; what is above 4 MiB is room for headers.
const (
	maxMessageBytes = 4 << 20
	maxBatchBytes   = 32 << 20
)

// The configuration keys.
const (
	keyServiceURL     = "service_url"
	keyAdminURL       = "admin_url"
	keyTenant         = "tenant"
	keyNamespace      = "namespace"
	keyListener       = "listener_name"
	keyTLSCA          = "tls_ca_file"
	keyTLSCert        = "tls_cert_file"
	keyTLSKey         = "tls_key_file"
	keyTLSHostname    = "tls_verify_hostname"
	keyTLSInsecure    = "tls_insecure"
	keyToken          = "token"
	keyTokenFile      = "token_file"
	keyOAuth2Issuer   = "oauth2_issuer_url"
	keyOAuth2Audience = "oauth2_audience"
	keyOAuth2Scope    = "oauth2_scope"
	keyOAuth2KeyFile  = "oauth2_key_file"
	keyConnectTimeout = "connect_timeout"
	keyRequestTimeout = "request_timeout"
	keyOpenTimeout    = "open_timeout"
	keyAppendTimeout  = "append_timeout"
	keyBatchBytes     = "batch_bytes"
	keyInFlight       = "max_in_flight"
	keyQueueBytes     = "queue_bytes"
)

var configFields = []walimpls.ConfigField{
	{Name: keyServiceURL, Type: walimpls.ConfigString, Required: true,
		Doc: "address of the brokers or proxies: pulsar://host:6650, or pulsar+ssl://host:6651 with TLS; several hosts are separated by commas"},
	{Name: keyAdminURL, Type: walimpls.ConfigString, Required: true,
		Doc: "address of the admin REST API: http://host:8080 or https://host:8443"},
	{Name: keyTenant, Type: walimpls.ConfigString, Default: "public",
		Doc: "tenant of the namespace; it must exist"},
	{Name: keyNamespace, Type: walimpls.ConfigString, Default: "walrig",
		Doc: "namespace of the logs; it is made if it is missing, and its policies are set: keep it for walrig alone"},
	{Name: keyListener, Type: walimpls.ConfigString,
		Doc: "advertised listener of the brokers to connect to; empty for their default"},
	{Name: keyTLSCA, Type: walimpls.ConfigString,
		Doc: "file with the certificates (PEM) that sign the servers'; empty for the system's"},
	{Name: keyTLSCert, Type: walimpls.ConfigString,
		Doc: "file with the client's certificate (PEM), for authentication by TLS"},
	{Name: keyTLSKey, Type: walimpls.ConfigString,
		Doc: "file with the key (PEM) of tls_cert_file"},
	{Name: keyTLSHostname, Type: walimpls.ConfigBool, Default: true,
		Doc: "check that a server's certificate is for its host name"},
	{Name: keyTLSInsecure, Type: walimpls.ConfigBool, Default: false,
		Doc: "accept any certificate; for tests only"},
	{Name: keyToken, Type: walimpls.ConfigString, Secret: true,
		Doc: "token (JWT) for authentication"},
	{Name: keyTokenFile, Type: walimpls.ConfigString,
		Doc: "file with the token; it is read anew for each connection and request, so it may be replaced while the plugin runs"},
	{Name: keyOAuth2Issuer, Type: walimpls.ConfigString,
		Doc: "issuer URL for authentication by OAuth 2.0 client credentials"},
	{Name: keyOAuth2Audience, Type: walimpls.ConfigString,
		Doc: "audience of the OAuth 2.0 tokens"},
	{Name: keyOAuth2Scope, Type: walimpls.ConfigString,
		Doc: "further scopes of the OAuth 2.0 tokens, separated by spaces"},
	{Name: keyOAuth2KeyFile, Type: walimpls.ConfigString,
		Doc: "JSON file with the OAuth 2.0 client id and secret"},
	{Name: keyConnectTimeout, Type: walimpls.ConfigDuration, Default: "4s",
		Doc: "how long one attempt to connect may take; 100ms to 1m"},
	{Name: keyRequestTimeout, Type: walimpls.ConfigDuration, Default: "4s",
		Doc: "how long one request to a broker or to the admin API may take, such as the loading of a topic; 500ms to 1m"},
	{Name: keyOpenTimeout, Type: walimpls.ConfigDuration, Default: "30s",
		Doc: "how long an open, a drop or a truncation may take, repetitions included; 1s to 10m"},
	{Name: keyAppendTimeout, Type: walimpls.ConfigDuration, Default: "30s",
		Doc: "how long records wait for their acknowledgement, reconnections included, before their outcome is unknown; 1s to 10m"},
	{Name: keyBatchBytes, Type: walimpls.ConfigBytes, Default: "256KiB",
		Doc: "how many bytes of records share one Pulsar message; a larger record has one for itself; 1KiB to 4MiB"},
	{Name: keyInFlight, Type: walimpls.ConfigInt, Default: 4,
		Doc: "how many Pulsar messages of one log may wait for their acknowledgement; 1 to 64"},
	{Name: keyQueueBytes, Type: walimpls.ConfigBytes, Default: "64MiB",
		Doc: "how many bytes of records of one log may wait to be sent; further appends wait; at least 32MiB"},
}

// Builder makes the Pulsar backend. The zero value is ready to use.
type Builder struct{}

// NewBuilder returns the builder of the Pulsar backend.
func NewBuilder() Builder { return Builder{} }

var _ walimpls.Builder = Builder{}

// Name returns "pulsar".
func (Builder) Name() string { return "pulsar" }

// Describe says what the backend is and can do.
func (b Builder) Describe() walimpls.Description {
	return walimpls.Description{
		Backend:  b.Name(),
		Version:  Version,
		IDLayout: idLayout,
		Capabilities: walimpls.Capabilities{
			Fencing:    walimpls.FencingStrict,
			Durability: walimpls.DurabilityReplicated,
			Truncation: walimpls.TruncationDeferred,
			Drop:       true,
			ReadOnly:   true,
		},
		Limits: walimpls.Limits{MaxMessageBytes: maxMessageBytes, MaxBatchRecords: maxRecords, MaxBatchBytes: maxBatchBytes},
		Config: append([]walimpls.ConfigField(nil), configFields...),
	}
}

// settings are an opener's parameters, checked.
type settings struct {
	serviceURL, adminURL       string
	tenant, namespace          string
	listener                   string
	tlsCA, tlsCert, tlsKey     string
	tlsHostname, tlsInsecure   bool
	token, tokenFile           string
	oauth2Issuer, oauth2Aud    string
	oauth2Scope, oauth2KeyFile string

	connectTimeout, requestTimeout time.Duration
	openTimeout, appendTimeout     time.Duration
	batchBytes                     int
	inFlight                       int
	queueBytes                     int

	// watchInterval is how often a handle looks for what others did to its log.
	watchInterval time.Duration
	// closeGrace bounds Close; inFlightGrace the part of it that is spent on
	// records that wait for their acknowledgement.
	closeGrace, inFlightGrace time.Duration
}

// Build checks cfg and returns an Opener that has touched nothing yet.
func (b Builder) Build(_ context.Context, cfg walimpls.Config, log *zap.Logger) (walimpls.Opener, error) {
	v, err := cfg.Decode(configFields)
	if err != nil {
		return nil, err
	}
	s := settings{
		serviceURL: v.String(keyServiceURL), adminURL: strings.TrimRight(v.String(keyAdminURL), "/"),
		tenant: v.String(keyTenant), namespace: v.String(keyNamespace), listener: v.String(keyListener),
		tlsCA: v.String(keyTLSCA), tlsCert: v.String(keyTLSCert), tlsKey: v.String(keyTLSKey),
		tlsHostname: v.Bool(keyTLSHostname), tlsInsecure: v.Bool(keyTLSInsecure),
		token: v.String(keyToken), tokenFile: v.String(keyTokenFile),
		oauth2Issuer: v.String(keyOAuth2Issuer), oauth2Aud: v.String(keyOAuth2Audience),
		oauth2Scope: v.String(keyOAuth2Scope), oauth2KeyFile: v.String(keyOAuth2KeyFile),
		connectTimeout: v.Duration(keyConnectTimeout), requestTimeout: v.Duration(keyRequestTimeout),
		openTimeout: v.Duration(keyOpenTimeout), appendTimeout: v.Duration(keyAppendTimeout),
		batchBytes: int(v.Bytes(keyBatchBytes)), inFlight: int(v.Int(keyInFlight)), queueBytes: int(v.Bytes(keyQueueBytes)),
		watchInterval: time.Second,
		closeGrace:    walimpls.GracePeriod - 500*time.Millisecond,
		inFlightGrace: time.Second,
	}
	if problems := s.problems(); len(problems) > 0 {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "configuration: %s", strings.Join(problems, "; "))
	}
	if log == nil {
		log = zap.NewNop()
	}
	return newOpener(s, log), nil
}

// problems lists everything that is wrong with the settings.
func (s *settings) problems() (problems []string) {
	bad := func(key, what string) { problems = append(problems, `key "`+key+`": `+what) }
	checkURL := func(key, text string, schemes ...string) {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.User != nil {
			bad(key, "want an address such as "+schemes[0]+"://host:port")
			return
		}
		for _, scheme := range schemes {
			if u.Scheme == scheme {
				return
			}
		}
		bad(key, "the scheme is none of "+strings.Join(schemes, ", "))
	}
	checkURL(keyServiceURL, firstHost(s.serviceURL), "pulsar", "pulsar+ssl")
	checkURL(keyAdminURL, s.adminURL, "http", "https")
	if s.oauth2Issuer != "" {
		checkURL(keyOAuth2Issuer, s.oauth2Issuer, "https", "http")
	}
	for key, name := range map[string]string{keyTenant: s.tenant, keyNamespace: s.namespace} {
		if walimpls.ValidateName(key, name) != nil {
			bad(key, "want 1 to 200 letters, digits, '.', '_' or '-'")
		}
	}
	for key, file := range map[string]string{keyTLSCA: s.tlsCA, keyTLSCert: s.tlsCert, keyTLSKey: s.tlsKey, keyTokenFile: s.tokenFile, keyOAuth2KeyFile: s.oauth2KeyFile} {
		if file == "" {
			continue
		}
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			bad(key, "there is no such file")
		}
	}
	if (s.tlsCert == "") != (s.tlsKey == "") {
		bad(keyTLSCert, "it goes with tls_key_file: give both or none")
	}
	ways := 0
	for _, given := range []bool{s.token != "", s.tokenFile != "", s.oauth2Issuer != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		bad(keyToken, "token, token_file and oauth2_issuer_url exclude each other")
	}
	if (s.oauth2Issuer == "") != (s.oauth2KeyFile == "") {
		bad(keyOAuth2Issuer, "it goes with oauth2_key_file: give both or none")
	}
	for _, d := range []struct {
		key      string
		v        time.Duration
		from, to time.Duration
		text     string
	}{
		{keyConnectTimeout, s.connectTimeout, 100 * time.Millisecond, time.Minute, "100ms to 1m"},
		{keyRequestTimeout, s.requestTimeout, 500 * time.Millisecond, time.Minute, "500ms to 1m"},
		{keyOpenTimeout, s.openTimeout, time.Second, 10 * time.Minute, "1s to 10m"},
		{keyAppendTimeout, s.appendTimeout, time.Second, 10 * time.Minute, "1s to 10m"},
	} {
		if d.v < d.from || d.v > d.to {
			bad(d.key, "want "+d.text)
		}
	}
	if s.batchBytes < 1<<10 || s.batchBytes > maxMessageBytes {
		bad(keyBatchBytes, "want 1KiB to 4MiB")
	}
	if s.inFlight < 1 || s.inFlight > 64 {
		bad(keyInFlight, "want 1 to 64")
	}
	if s.queueBytes < maxBatchBytes {
		bad(keyQueueBytes, "want 32MiB or more")
	}
	return problems
}

// firstHost is a service URL without all hosts but the first, which url.Parse
// would not take.
func firstHost(serviceURL string) string {
	first, _, _ := strings.Cut(serviceURL, ",")
	return first
}
