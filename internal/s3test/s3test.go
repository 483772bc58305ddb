package s3test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// EnvRequire set to 1 makes a test fail that would be skipped because the server
// cannot be built.
const EnvRequire = "WALRIG_REQUIRE_BROKERS"

// The bounds of doc.go, and the server's credentials and region.
const (
	buildTimeout = 10 * time.Minute
	startTimeout = time.Minute
	stopTimeout  = 5 * time.Second

	AccessKey = "walrig-test"
	SecretKey = "walrig-test-secret"
	Region    = "us-east-1"
)

// Server is a running server.
type Server struct {
	binary string
	folder string
	addr   string
	cmd    *exec.Cmd
	exited chan struct{}
	output bytes.Buffer // read when exited is closed
}

// Start starts a server with an empty store.
func Start(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real S3 server: run without -short")
	}
	binary, err := build()
	if err != nil {
		if os.Getenv(EnvRequire) == "1" {
			t.Fatalf("%s=1, but the S3 server cannot be built: %v", EnvRequire, err)
		}
		t.Skipf("no S3 server: %v (set %s=1 to make this a failure)", err, EnvRequire)
	}
	s := &Server{binary: binary, folder: t.TempDir()}
	for _, sub := range []string{"buckets", "metadata"} {
		if err := os.Mkdir(filepath.Join(s.folder, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.Stop(t) })
	s.Restart(t)
	return s
}

// build returns the server's binary. The go command builds it once and keeps it.
func build() (string, error) {
	top, err := moduleRoot()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=tools/versitygw.mod", "-n", "versitygw")
	cmd.Dir = top
	cmd.WaitDelay = stopTimeout
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go tool versitygw: %w: %s", err, lastLine(problems.String()))
	}
	binary := strings.TrimSpace(out.String())
	if _, err := os.Stat(binary); err != nil {
		return "", err
	}
	return binary, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// moduleRoot walks up from the package under test.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "tools", "versitygw.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("tools/versitygw.mod is not above the working directory")
		}
		dir = parent
	}
}

// Restart starts the server, after a Stop on its old port with its old buckets.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	for range 5 { // somebody else may take a free port first
		addr := s.addr
		if addr == "" {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr = l.Addr().String()
			_ = l.Close()
		}
		if s.run(t, addr) {
			s.addr = addr
			return
		}
	}
	t.Fatalf("the S3 server does not start: %s", s.output.String())
}

// run reports whether the server listens; false means that it ended.
func (s *Server) run(t testing.TB, addr string) bool {
	t.Helper()
	s.output.Reset()
	s.cmd = exec.Command(s.binary, "--port", addr, "--access", AccessKey, "--secret", SecretKey, "--region", Region, "--quiet",
		"posix", "--sidecar", filepath.Join(s.folder, "metadata"), filepath.Join(s.folder, "buckets"))
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.cmd.WaitDelay = stopTimeout
	s.cmd.SysProcAttr = childAttr()
	started, exited := make(chan error, 1), make(chan struct{})
	s.exited = exited
	go func() { // ends with the process, which Stop ends
		defer close(exited)
		// The child dies with the thread that started it, which stays as long as
		// this goroutine does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		if answers(addr) {
			return true
		}
		select {
		case <-exited:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.Stop(t)
	t.Fatalf("the S3 server did not answer within %s: %s", startTimeout, s.output.String())
	return false
}

// answers asks for what needs no credentials: any answer of HTTP will do.
func answers(addr string) bool {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + addr + "/")
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return true
}

// Stop kills the server; its buckets stay for a Restart. It is idempotent.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.exited == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	select {
	case <-s.exited:
	case <-time.After(startTimeout):
		t.Errorf("the S3 server (pid %d) does not end", s.cmd.Process.Pid)
	}
	s.exited = nil
}

// Pause stops the server in its tracks: connections stay and nothing is answered.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// Resume ends a Pause.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// Addr is the server's address, such as "127.0.0.1:41234".
func (s *Server) Addr() string { return s.addr }

// Env is what a process needs to be let in, as KEY=value.
func (s *Server) Env() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey,
		"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
	}
}

// SetEnv sets Env for the test's own process.
func (s *Server) SetEnv(t testing.TB) {
	t.Helper()
	for _, kv := range s.Env() {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
}

// URL is the bucket as flusher.bucket names it.
func (s *Server) URL(bucket string) string {
	q := url.Values{"endpoint": {"http://" + s.addr}, "region": {Region}, "use_path_style": {"true"}}
	return "s3://" + bucket + "?" + q.Encode()
}

// Client returns a client with the server's credentials.
func (s *Server) Client() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + s.addr), Region: Region, UsePathStyle: true,
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: AccessKey, SecretAccessKey: SecretKey}, nil
		}),
	})
}

// CreateBucket makes a bucket and returns its URL.
func (s *Server) CreateBucket(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if _, err := s.Client().CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(name)}); err != nil {
		t.Fatalf("create bucket %s: %v", name, err)
	}
	return s.URL(name)
}
