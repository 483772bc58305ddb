package pulsar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// maxAnswer bounds the body of an answer: an entry, or the statistics of a topic
// with very many ledgers.
const maxAnswer = 64 << 20

// admin speaks the admin REST API. Every request is bounded by the settings'
// request timeout, and by its context.
type admin struct {
	settings *settings
	http     *http.Client
	creds    *credentials
	run      *background
}

func newAdmin(s *settings, creds *credentials, run *background) *admin {
	return &admin{settings: s, creds: creds, run: run, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: s.connectTimeout * 4, TLSHandshakeTimeout: s.connectTimeout},
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
	}}
}

func (a *admin) close() { a.http.CloseIdleConnections() }

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
	if err := a.prepare(); err != nil {
		return nil, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "admin API: %w", err)
	}
	bearer, err := bounded(ctx, a.run, a.creds.bearer, func(string) {})
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
	resp, err := a.http.Do(req)
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

// prepare reads the certificates at the first request.
func (a *admin) prepare() error {
	a.creds.mu.Lock()
	defer a.creds.mu.Unlock()
	//nolint:forcetypeassert // newAdmin made it
	t := a.http.Transport.(*http.Transport)
	if t.TLSClientConfig != nil || !strings.HasPrefix(a.settings.adminURL, "https:") {
		return nil
	}
	cfg, err := a.settings.tlsConfig()
	if err != nil {
		return err
	}
	t.TLSClientConfig = cfg
	return nil
}

func (a *admin) failure(method string, path []string, r *answer) error {
	what := fmt.Sprintf("admin API: %s %s: %s (status %d)", method, strings.Join(path, "/"), r.reason(), r.status)
	switch r.status {
	case http.StatusNotFound:
		return fmt.Errorf("%s: %w", what, errMissing)
	case http.StatusUnauthorized, http.StatusForbidden:
		code := walimpls.CodePermissionDenied
		if r.status == http.StatusUnauthorized {
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
