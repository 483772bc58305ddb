package pulsar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// maxAnswer bounds the body of an answer: an entry, or the statistics of a topic
// with very many ledgers.
const maxAnswer = 64 << 20

// admin speaks the admin REST API. Every request is bounded by the settings'
// request timeout, and by its context.
type admin struct {
	settings *settings
	creds    *credentials
	run      *background

	mu   sync.Mutex // guards what follows
	http *http.Client
}

// client makes the HTTP client, which reads the certificates, at the first request.
func (a *admin) client() (*http.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.http != nil {
		return a.http, nil
	}
	cfg, err := a.settings.tlsConfig()
	if err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "admin API: %w", err)
	}
	connect := a.settings.connectTimeout
	a.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: connect}).DialContext,
			TLSClientConfig:     cfg,
			TLSHandshakeTimeout: connect,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     30 * time.Second,
		},
		// A broker redirects to the one that serves the topic. It is as trusted as
		// the first, but not over a weaker scheme.
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) >= 5 {
				return errors.New("redirected too often")
			}
			if via[0].URL.Scheme == req.URL.Scheme {
				if a := via[0].Header.Get("Authorization"); a != "" {
					req.Header.Set("Authorization", a)
				}
			}
			return nil
		},
	}
	return a.http, nil
}

func (a *admin) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.http != nil {
		a.http.CloseIdleConnections()
	}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// reason is the broker's own word on a failure.
func (r *answer) reason() string {
	var said struct {
		Reason string `json:"reason"`
	}
	text := strings.TrimSpace(string(r.body))
	if json.Unmarshal(r.body, &said) == nil && said.Reason != "" {
		text = strings.TrimSpace(said.Reason)
	}
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return text
}

// call makes a request; path segments are escaped here. body is sent as JSON,
// nil for none. A status of 400 or more is an error, which wraps errMissing for 404.
func (a *admin) call(ctx context.Context, method string, path []string, query string, body any) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, a.settings.requestTimeout)
	defer cancel()
	httpClient, err := a.client()
	if err != nil {
		return nil, err
	}
	bearer, err := a.bearer(ctx)
	if err != nil {
		return nil, unavailable("", "admin API", err)
	}
	target := a.settings.adminURL + "/admin/v2"
	for _, p := range path {
		target += "/" + url.PathEscape(p)
	}
	if query != "" {
		target += "?" + query
	}
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, reader)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, unavailable("", "admin API", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, unavailable("", "admin API", err)
	}
	r := &answer{status: resp.StatusCode, header: resp.Header, body: text}
	if r.status < 400 {
		return r, nil
	}
	return r, a.failure(method, path, r)
}

// bearer is the token of a request. Only OAuth 2.0 asks somebody for it.
func (a *admin) bearer(ctx context.Context) (string, error) {
	if a.settings.oauth2Issuer == "" {
		return a.creds.bearer()
	}
	return bounded(ctx, a.run, a.creds.bearer, func(string) {})
}

func (a *admin) failure(method string, path []string, r *answer) error {
	what := fmt.Sprintf("admin API: %s %s: %s (status %d)", method, strings.Join(path, "/"), r.reason(), r.status)
	switch r.status {
	case http.StatusNotFound:
		return fmt.Errorf("%s: %w", what, errMissing)
	case http.StatusUnauthorized, http.StatusForbidden:
		// Pulsar answers a missing right with either status.
		code := walimpls.CodePermissionDenied
		if r.status == http.StatusUnauthorized && !strings.HasPrefix(r.reason(), "Unauthorized to") {
			code = walimpls.CodeUnauthenticated
		}
		e := walimpls.Errorf(code, "", "%s", what)
		e.Hint = "give the plugin's role the rights that docs/pulsar.md lists"
		return e
	}
	return unavailable("", "the brokers refuse", errors.New(what))
}

// ok reports whether the answer has one of the statuses, besides those of success.
func (r *answer) ok(err error, statuses ...int) bool {
	if err == nil {
		return true
	}
	for _, s := range statuses {
		if r != nil && r.status == s {
			return true
		}
	}
	return false
}

func (a *admin) namespacePath(more ...string) []string {
	return append([]string{"namespaces", a.settings.tenant, a.settings.namespace}, more...)
}

func (a *admin) topicPath(topic string, more ...string) []string {
	return append([]string{"persistent", a.settings.tenant, a.settings.namespace, topic}, more...)
}
