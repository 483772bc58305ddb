package pulsar

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

// fakeAdmin is an admin API that answers every request alike.
func fakeAdmin(t *testing.T, cfg walimpls.Config, answer http.HandlerFunc) *opener {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	s := &store{t: t, cfg: walimpls.Config{keyServiceURL: "pulsar://127.0.0.1:1", keyAdminURL: srv.URL}}
	for k, v := range cfg {
		s.cfg[k] = v
	}
	return s.opener()
}

func TestRefusalsOfTheAdminAPIAreTyped(t *testing.T) {
	for _, k := range []struct {
		status    int
		reason    string
		code      walimpls.Code
		retryable bool
	}{
		{401, "Authentication required", walimpls.CodeUnauthenticated, false},
		{401, "Unauthorized to validateTopicOperation for operation [UNLOAD]", walimpls.CodePermissionDenied, false},
		{403, "Unauthorized to validateNamespaceOperation", walimpls.CodePermissionDenied, false},
		{404, "Topic not found", walimpls.CodeNotFound, false},
		{500, "oops", walimpls.CodeUnavailable, true},
		{503, "not ready", walimpls.CodeUnavailable, true},
	} {
		o := fakeAdmin(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(k.status)
			_, _ = w.Write([]byte(`{"reason":"` + k.reason + `"}`))
		})
		_, err := o.Open(testContext(t), ro("c"))
		e := walimpls.AsError(err)
		if e.Code != k.code || e.Retryable != k.retryable || e.Channel != "c" {
			t.Errorf("status %d %q: got %+v", k.status, k.reason, e)
		}
		if k.status != 404 && !strings.Contains(e.Message, k.reason) {
			t.Errorf("the broker's word %q is not in %q", k.reason, e.Message)
		}
	}
}

func TestTokenGoesWithEveryRequestAndRedirect(t *testing.T) {
	seen := make(chan string, 2)
	owner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer owner.Close()
	o := fakeAdmin(t, walimpls.Config{keyToken: "secret"}, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		// Another host name, for which the HTTP client would drop the header.
		http.Redirect(w, r, strings.Replace(owner.URL, "127.0.0.1", "localhost", 1)+r.URL.Path, http.StatusTemporaryRedirect)
	})
	_, err := o.Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrNotFound)
	for range 2 {
		if got := <-seen; got != "Bearer secret" {
			t.Errorf("got %q", got)
		}
	}
}

func TestOAuth2TokensAreFetchedAndUsed(t *testing.T) {
	var issuer *httptest.Server
	issuer = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/openid-configuration") {
			_, _ = w.Write([]byte(`{"issuer":"` + issuer.URL + `","token_endpoint":"` + issuer.URL + `/token"}`))
			return
		}
		if r.FormValue("client_secret") != "hush" || r.FormValue("audience") != "pulsar" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(`{"access_token":"fetched","token_type":"Bearer","expires_in":3600}`))
	}))
	defer issuer.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections() // which the client's OAuth 2.0 uses
	key := filepath.Join(t.TempDir(), "key.json")
	must(t, os.WriteFile(key, []byte(`{"type":"client_credentials","client_id":"walrig","client_secret":"hush","issuer_url":"`+issuer.URL+`"}`), 0o600))
	seen := make(chan string, 1)
	o := fakeAdmin(t, walimpls.Config{keyOAuth2Issuer: issuer.URL, keyOAuth2KeyFile: key, keyOAuth2Audience: "pulsar"}, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusNotFound)
	})
	_, err := o.Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrNotFound)
	if got := <-seen; got != "Bearer fetched" {
		t.Errorf("got %q", got)
	}
}

func TestTheAdminAPIsCertificateIsChecked(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))
	for _, k := range []struct {
		extra walimpls.Config
		want  error
	}{
		{walimpls.Config{}, walimpls.ErrUnavailable},
		{walimpls.Config{keyTLSCA: ca}, walimpls.ErrNotFound},
		{walimpls.Config{keyTLSInsecure: true}, walimpls.ErrNotFound},
	} {
		s := &store{t: t, cfg: walimpls.Config{keyServiceURL: "pulsar+ssl://127.0.0.1:1", keyAdminURL: srv.URL}}
		for key, v := range k.extra {
			s.cfg[key] = v
		}
		_, err := s.opener().Open(testContext(t), ro("c"))
		wantIs(t, err, k.want)
	}
}

func TestABrokerThatHangsIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	o := fakeAdmin(t, walimpls.Config{keyRequestTimeout: "500ms"}, func(http.ResponseWriter, *http.Request) { <-release })
	began := time.Now()
	_, err := o.Open(testContext(t), ro("c"))
	wantIs(t, err, walimpls.ErrUnavailable)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err = o.Open(ctx, rw("c", 1, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
