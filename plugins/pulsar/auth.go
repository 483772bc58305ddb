package pulsar

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar/auth"
)

// credentials are what connections and admin requests are authenticated with.
// They are made at the first use, because OAuth 2.0 asks its issuer then.
type credentials struct {
	settings *settings

	mu       sync.Mutex // guards what follows
	provider *sharedProvider
}

// sharedProvider is a provider that many clients use: none of them may
// initialize it again or close it.
type sharedProvider struct{ auth.Provider }

func (sharedProvider) Init() error  { return nil }
func (sharedProvider) Close() error { return nil }

// get returns the provider. A failed attempt is forgotten.
func (c *credentials) get() (*sharedProvider, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.provider != nil {
		return c.provider, nil
	}
	p, err := c.settings.newProvider()
	if err == nil {
		err = p.Init()
	}
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	c.provider = &sharedProvider{p}
	return c.provider, nil
}

// bearer is the token that goes with an admin request, "" for none. It may ask
// the OAuth 2.0 issuer, which does not know contexts.
func (c *credentials) bearer() (string, error) {
	p, err := c.get()
	if err != nil || p.Name() != "token" {
		return "", err
	}
	data, err := p.GetData()
	if err != nil {
		return "", fmt.Errorf("credentials: %w", err)
	}
	return string(data), nil
}

func (s *settings) newProvider() (auth.Provider, error) {
	switch {
	case s.token != "":
		return auth.NewAuthenticationToken(s.token), nil
	case s.tokenFile != "":
		return auth.NewAuthenticationTokenFromFile(s.tokenFile), nil
	case s.oauth2Issuer != "":
		return auth.NewAuthenticationOAuth2WithParams(map[string]string{
			auth.ConfigParamType:      auth.ConfigParamTypeClientCredentials,
			auth.ConfigParamIssuerURL: s.oauth2Issuer,
			auth.ConfigParamAudience:  s.oauth2Aud,
			auth.ConfigParamScope:     s.oauth2Scope,
			auth.ConfigParamKeyFile:   s.oauth2KeyFile,
		})
	case s.tlsCert != "":
		return auth.NewAuthenticationTLS(s.tlsCert, s.tlsKey), nil
	}
	return auth.NewAuthDisabled(), nil
}

// tlsConfig is the TLS configuration of the admin API's client. The Pulsar
// client makes its own from the same files.
func (s *settings) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.tlsInsecure}
	if s.tlsCA != "" {
		pem, err := os.ReadFile(s.tlsCA)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", s.tlsCA)
		}
	}
	if s.tlsCert != "" {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.tlsCert, s.tlsKey)
			return &pair, err
		}
	}
	return cfg, nil
}
