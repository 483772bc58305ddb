package pluginhost

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// tryStart makes one start without a supervisor.
func tryStart(t *testing.T, cfg Config, opt Options) (*instance, *StartError) {
	t.Helper()
	s := newStarter(opt)
	l := newLauncher()
	i, fail := s.start(t.Context(), l, cfg)
	t.Cleanup(func() {
		i.end()
		l.close()
		s.dirs.remove()
	})
	return i, fail
}

func TestFailedStartIsOneErrorThatSaysEverything(t *testing.T) {
	t.Parallel()
	text := writeFile(t, filepath.Join(t.TempDir(), "text"), "no program", 0o755)
	plain := writeFile(t, filepath.Join(t.TempDir(), "plain"), "no program", 0o644)
	short := func(c Config, d time.Duration) Config { c.StartTimeout = d; return c }
	path := func(p string) Config { return Config{Name: "p", Backend: "mem", Path: p} }
	script := func(lines string) Config {
		return path(writeFile(t, filepath.Join(t.TempDir(), "script"), "#!/bin/sh\n"+lines+"\n", 0o755))
	}
	pinned := mode(t, "sdk", "")
	pinned.SHA256 = strings.Repeat("0", 64)
	otherBackend := mode(t, "sdk", "")
	otherBackend.Backend = "kafka"
	badKey := mode(t, "sdk", "")
	badKey.Config = walimpls.Config{"dirr": "/x"}
	badDir := mode(t, "sdk", "")
	badDir.Config = walimpls.Config{"dir": "/nowhere"}
	badEnv := mode(t, "sdk", "")
	badEnv.Env = map[string]string{"PLUGIN_X": "1"}

	for name, c := range map[string]struct {
		cfg       Config
		reason    Reason
		permanent bool
		also      error    // that errors.Is finds
		text      []string // in the error
		exit      string
	}{
		"missing":                 {path("/nowhere/walrig-plugin-x"), ReasonMissing, true, os.ErrNotExist, []string{"/nowhere/walrig-plugin-x"}, ""},
		"not executable":          {path(plain), ReasonNotExecutable, true, os.ErrPermission, []string{plain}, ""},
		"a folder":                {path(t.TempDir()), ReasonNotExecutable, true, nil, []string{"is a folder"}, ""},
		"no program":              {path(text), ReasonNotExecutable, true, syscall.ENOEXEC, []string{text}, ""},
		"another checksum":        {pinned, ReasonPin, true, nil, []string{pinned.SHA256, sum(t, testPlugin(t))}, ""},
		"reserved variable":       {badEnv, ReasonConfig, true, walimpls.ErrConfig, []string{"PLUGIN_X"}, ""},
		"exits":                   {mode(t, "exit", ""), ReasonExited, false, nil, []string{testPlugin(t), "exit status 3", "cannot load the frobnicator"}, "exit status 3"},
		"panics":                  {mode(t, "panic", ""), ReasonExited, false, nil, []string{"exit status 2", `"panic: frobnicated`}, "exit status 2"},
		"is killed":               {script("kill -9 $$"), ReasonExited, false, nil, []string{"signal: killed"}, "signal: killed"},
		"another program":         {script("echo hello; echo usage: x; exit 64"), ReasonExited, false, nil, []string{"exit status 64", `"hello" | "usage: x"`}, "exit status 64"},
		"closes stdout":           {script("exec 1>&-; sleep 60"), ReasonHandshake, false, nil, []string{"sent no handshake"}, ""},
		"never shakes hands":      {short(script("echo hello; sleep 60"), time.Second), ReasonTimeout, false, context.DeadlineExceeded, []string{"not ready within 1s", "no handshake", `"hello"`}, ""},
		"shakes hands and exits":  {script("echo '1|1|unix|/nowhere|grpc|" + base64.RawStdEncoding.EncodeToString(foreignCert(t).Certificate[0]) + "'; exit 5"), ReasonExited, false, nil, []string{"exit status 5"}, "exit status 5"},
		"a socket that is no one": {script("echo '1|1|unix|/nowhere|grpc|'; sleep 60"), ReasonHandshake, true, nil, []string{"no certificate"}, ""},
		"the old rpc":             {script("echo '1|1|unix|/nowhere|netrpc|'; sleep 60"), ReasonHandshake, true, nil, []string{"netrpc"}, ""},
		"another core":            {script("echo '2|1|unix|/nowhere|grpc|'; sleep 60"), ReasonVersion, true, nil, []string{"handshake has the version 2, this host's has 1"}, ""},
		"no certificate":          {mode(t, "nocert", ""), ReasonHandshake, true, nil, []string{"no certificate"}, ""},
		"no service":              {mode(t, "noservice", ""), ReasonDescription, true, walimpls.ErrUnsupported, []string{"no walrig backend"}, ""},
		"describe fails":          {mode(t, "describe-fails", ""), ReasonDescription, true, walimpls.ErrInternal, []string{"no idea what I am"}, ""},
		"describe hangs":          {short(mode(t, "describe-hangs", ""), 4*time.Second), ReasonTimeout, false, context.DeadlineExceeded, []string{"not ready within 4s", "describe its backend"}, ""},
		"describe exits":          {mode(t, "describe-exits", ""), ReasonExited, false, nil, []string{"exit status 7", "I quit"}, "exit status 7"},
		"describe is invalid":     {mode(t, "describe-invalid", ""), ReasonDescription, true, nil, []string{"description is not valid", "limits must be positive"}, ""},
		"another backend":         {otherBackend, ReasonDescription, true, nil, []string{`serves the backend "mem", but "kafka"`}, ""},
		"configure refuses":       {mode(t, "configure-refuses", ""), ReasonConfigure, false, walimpls.ErrUnavailable, []string{"refused its configuration", "not today"}, ""},
		"unknown key":             {badKey, ReasonConfigure, true, walimpls.ErrConfig, []string{`"dirr"`, `did you mean "dir"`}, ""},
		"wrong value":             {badDir, ReasonConfigure, true, walimpls.ErrInvalidArgument, []string{"/nowhere"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, fail := tryStart(t, c.cfg, Options{})
			if fail == nil {
				t.Fatal("it started")
			}
			t.Log(fail)
			if fail.Reason != c.reason || fail.Permanent != c.permanent || fail.Err.Retryable == c.permanent || fail.Exit != c.exit {
				t.Errorf("reason %s, permanent %v, exit %q", fail.Reason, fail.Permanent, fail.Exit)
			}
			if !errors.Is(fail, walimpls.ErrPluginStart) || c.also != nil && !errors.Is(fail, c.also) {
				t.Errorf("not an ErrPluginStart, or not a %v", c.also)
			}
			for _, part := range append(c.text, fmt.Sprintf("plugin %q", c.cfg.Name)) {
				if !strings.Contains(fail.Error(), part) {
					t.Errorf("no %q in it", part)
				}
			}
			if i.proc != nil && i.proc.started() {
				gone(t, "the process", i.proc.proc.Pid, 0)
			}
		})
	}
}

// P-07: whatever goes wrong after the handshake, and however often, nothing is left.
func TestFailedStartsLeaveNothingBehind(t *testing.T) {
	rounds := 12 // of each kind; 50 starts with those that hang
	if testing.Short() {
		rounds = 2
	}
	hangs := mode(t, "describe-hangs", "")
	hangs.StartTimeout = 3 * time.Second
	badKey := mode(t, "sdk", "")
	badKey.Config = walimpls.Config{"x": "y"}
	kinds := []Config{mode(t, "noservice", ""), mode(t, "describe-fails", ""), mode(t, "configure-refuses", ""), badKey, hangs}
	place := shortDir(t)
	before := openFiles(t)
	var wg sync.WaitGroup
	starts := 0
	for _, cfg := range kinds {
		n := rounds
		if cfg.Name == hangs.Name {
			n = 2
		}
		starts += n
		wg.Go(func() {
			s := newStarter(Options{RuntimeDir: place})
			l := newLauncher()
			for range n {
				i, fail := s.start(t.Context(), l, cfg)
				if fail == nil || !errors.Is(fail, walimpls.ErrPluginStart) {
					t.Errorf("%s: %v", cfg.Name, fail)
				}
				if i.proc != nil && i.proc.started() {
					gone(t, cfg.Name, i.proc.proc.Pid, 0)
				}
			}
			l.close()
			s.dirs.remove()
		})
	}
	wg.Wait()
	if after := openFiles(t); after > before {
		t.Errorf("%d files were open before %d starts, %d after", before, starts, after)
	}
	if left, _ := os.ReadDir(place); len(left) > 0 {
		t.Errorf("%s has %d entries left", place, len(left))
	}
	t.Logf("%d failed starts", starts)
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc to count open files in")
	}
	return len(fds)
}

// P-01: noise before the handshake is skipped, noise after it is read for ever.
func TestNoiseOnStdoutBreaksNothing(t *testing.T) {
	t.Parallel()
	log, logs := observed(zap.InfoLevel)
	// 10 MiB after the handshake, twice: through os.Stdout and to the pipe itself.
	cfg := mode(t, "stdout", "")
	cfg.Path = raw(t, "echo hello; head -c 100000 /dev/zero")
	p := onePlugin(t, cfg, Options{Log: log})
	ctx := within(t, 30*time.Second)
	if err := p.WaitFirstStart(ctx); err != nil {
		t.Fatal(err)
	}
	if logs.FilterMessage("hello").Len() != 1 {
		t.Error("noise before the handshake is not logged")
	}
	for logs.FilterMessage("the end").Len() == 0 {
		select {
		case <-ctx.Done():
			t.Fatal("stdout is not read to its end")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if st := p.Status(); st.State != "running" || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	if n := logs.Len(); n > 5*logBurst {
		t.Errorf("%d lines were logged", n)
	}
}

// P-02: a line of 1 MiB, 200,000 short lines and junk, while 1,000 appends run.
func TestFloodOnStderrHoldsNothingUp(t *testing.T) {
	t.Parallel()
	log, logs := observed(zap.InfoLevel)
	p := onePlugin(t, mode(t, "flood", ""), Options{Log: log})
	ctx := within(t, 60*time.Second)
	wal, err := p.Open(ctx, channel("orders"))
	if err != nil {
		t.Fatal(err)
	}
	var slowest time.Duration
	for i := range 1000 {
		begun := time.Now()
		if _, err := wal.Append(ctx, []message.Message{{Type: message.TypeData}}); err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
		slowest = max(slowest, time.Since(begun))
	}
	for logs.FilterMessage("after the flood").Len() == 0 {
		select {
		case <-ctx.Done():
			t.Fatal("later lines do not arrive")
		case <-time.After(10 * time.Millisecond):
		}
	}
	bytes := 0
	for _, e := range logs.All() {
		bytes += len(e.Message)
	}
	if bytes > 8<<20 || logs.FilterMessageSnippet("were cut").Len() == 0 {
		t.Errorf("%d bytes were logged in %d lines, %d cut", bytes, logs.Len(), logs.FilterMessageSnippet("were cut").Len())
	}
	if st := p.Status(); st.State != "running" || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	t.Logf("the slowest of 1,000 appends took %s", slowest)
}

// P-03: whatever TMPDIR is.
func TestAnyTemporaryFolderWillDo(t *testing.T) {
	base := shortDir(t)
	readOnly := filepath.Join(base, "ro")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{"missing": filepath.Join(base, "gone"), "read-only": readOnly}
	for _, n := range []int{60, 100, 250} {
		dir := filepath.Join(base, strings.Repeat("x", n-len(base)-1))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs[fmt.Sprint(n, " characters")] = dir
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", dir)
			if _, _, err := Verify(within(t, 20*time.Second), mode(t, "sdk", ""), Options{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// P-10: a plugin sees the allow-listed part of the host's environment and its
// own variables; never the host's secrets or another plugin's.
func TestSecretsOfTheHostStayThere(t *testing.T) {
	t.Setenv("DB_PASSWORD", "host-secret")
	t.Setenv("PROXY", "b")
	t.Setenv("LC_TIME", "C")
	dir := t.TempDir()
	a, b := mode(t, "env", filepath.Join(dir, "a")), mode(t, "env", filepath.Join(dir, "b"))
	a.Name, a.Env["PROXY"], a.Env["KEY_OF_A"] = "a", "a", "a-secret"
	b.Name = "b"
	h := newHost(t, Options{Plugins: []Config{a, b}})
	seen := map[string]string{}
	for _, p := range h.Plugins() {
		if err := p.WaitFirstStart(within(t, 20*time.Second)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, p.Name()))
		if err != nil {
			t.Fatal(err)
		}
		seen[p.Name()] = "\n" + string(text) + "\n"
	}
	for name, env := range seen {
		if strings.Contains(env, "host-secret") || (name == "b" && strings.Contains(env, "a-secret")) || strings.Contains(env, "PROXY=b") {
			t.Errorf("%s sees a secret: %s", name, env)
		}
		for _, want := range []string{"\nPATH=", "\nHOME=", "\nLC_TIME=C\n", "\nWALRIG_PLUGIN_DEPTH=1\n"} {
			if !strings.Contains(env, want) {
				t.Errorf("%s does not see %q", name, want)
			}
		}
	}
	if !strings.Contains(seen["a"], "\nPROXY=a\n") || !strings.Contains(seen["a"], "\nKEY_OF_A=a-secret\n") {
		t.Error("a does not see its own variables")
	}
}

// P-11: versions and times at start.
func TestVersionsAreNegotiatedAndNamedTheRightWayRound(t *testing.T) {
	t.Parallel()
	set := plugin.Plugins()[plugin.ProtocolVersion]
	opt := Options{versions: map[int]goplugin.PluginSet{2: set, 3: set}}
	_, fail := tryStart(t, mode(t, "versions", "1"), opt)
	if fail == nil || fail.Reason != ReasonVersion || !fail.Permanent || !strings.Contains(fail.Error(), "plugin offers 1, this host speaks 2, 3") {
		t.Errorf("plugin 1, host 2 and 3: %v", fail)
	}
	i, fail := tryStart(t, mode(t, "versions", "3,4"), opt)
	if fail != nil || i.protocol != 3 {
		t.Errorf("plugin 3 and 4, host 2 and 3: protocol %d, %v", i.protocol, fail)
	}
}

func TestStartTimeoutIsTheConfiguredOne(t *testing.T) {
	t.Parallel()
	cfg := mode(t, "sleep", "3s")
	cfg.StartTimeout = time.Second
	begun := time.Now()
	i, fail := tryStart(t, cfg, Options{})
	if fail == nil || fail.Reason != ReasonTimeout || !errors.Is(fail, context.DeadlineExceeded) {
		t.Errorf("3 s within 1 s: %v", fail)
	}
	if d := time.Since(begun); d > 3*time.Second {
		t.Errorf("1 s took %s", d)
	}
	if i.proc != nil && i.proc.started() {
		gone(t, "the process", i.proc.proc.Pid, 0)
	}
	cfg.StartTimeout = 15 * time.Second
	if _, fail := tryStart(t, cfg, Options{}); fail != nil {
		t.Errorf("3 s within 15 s: %v", fail)
	}
}

// P-12: the socket is of no use without the host's certificate.
func TestStrangerCannotUseThePluginsSocket(t *testing.T) {
	t.Parallel()
	i, fail := tryStart(t, mode(t, "sdk", ""), Options{})
	if fail != nil {
		t.Fatal(fail)
	}
	var socket string
	entries, err := os.ReadDir(i.socketDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			socket = filepath.Join(i.socketDir, e.Name())
		}
	}
	for dir := i.socketDir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && strings.HasPrefix(filepath.Base(dir), runDirPrefix) && info.Mode().Perm() != 0o700 {
			t.Errorf("%s has the mode %s", dir, info.Mode())
		}
	}
	for name, creds := range map[string]credentials.TransportCredentials{
		"plain text":       insecure.NewCredentials(),
		"no certificate":   credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
		"a certificate of": credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{foreignCert(t)}}),
	} {
		conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(creds),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			}))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := pluginv1.NewBackendServiceClient(conn).Describe(within(t, 5*time.Second), &pluginv1.DescribeRequest{})
		if err == nil {
			t.Errorf("%s: the plugin answers %v", name, resp)
		}
		_ = conn.Close()
	}
	if err := i.link.ping(t.Context()); err != nil {
		t.Errorf("the host: %v", err)
	}
}

// foreignCert is the certificate of another host.
func foreignCert(t *testing.T) tls.Certificate {
	t.Helper()
	cfg := &goplugin.ClientConfig{
		HandshakeConfig: plugin.Handshake, VersionedPlugins: plugin.Plugins(), AutoMTLS: true, SkipHostEnv: true,
		Logger: hclog.NewNullLogger(), Cmd: exec.Command("/bin/false"),
	}
	_, _ = goplugin.NewClient(cfg).Start()
	return cfg.TLSConfig.Certificates[0]
}

// S-03: a plugin that cannot start is its own problem, and works once the cause
// is mended.
func TestPluginWorksOnceTheCauseIsMended(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := mode(t, "sdk", "")
	broken.Name, broken.Path = "broken", filepath.Join(dir, "walrig-plugin-mem")
	store := filepath.Join(dir, "store")
	misconfigured := mode(t, "sdk", "")
	misconfigured.Name, misconfigured.Config = "misconfigured", walimpls.Config{"dir": store}
	h := newHost(t, Options{Plugins: []Config{broken, misconfigured, mode(t, "sdk", "")}})
	ctx := within(t, 30*time.Second)
	for i, want := range []string{broken.Path, store} {
		p := h.Plugins()[i]
		if err := p.WaitFirstStart(ctx); !errors.Is(err, walimpls.ErrPluginStart) {
			t.Errorf("%s: first start: %v", p.Name(), err)
		}
		begun := time.Now()
		_, err := p.Open(ctx, channel("orders"))
		var start *StartError
		if !errors.As(err, &start) || !start.Permanent || start.Err.Channel != "orders" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: open: %v", p.Name(), err)
		}
		if d := time.Since(begun); d > 4*time.Second {
			t.Errorf("%s: open took %s", p.Name(), d)
		}
		if st := p.Status(); !strings.HasPrefix(st.LastExit, "start failed: ") || st.PID != 0 {
			t.Errorf("%s: status %+v", p.Name(), st)
		}
	}
	if _, err := h.Plugins()[2].Open(ctx, channel("orders")); err != nil {
		t.Errorf("the other plugin: %v", err)
	}
	if err := os.Symlink(testPlugin(t), broken.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		p := h.Plugins()[i]
		// The last failure answers for pokeGap, no longer.
		for begun := time.Now(); ; {
			_, err := p.Open(ctx, channel("orders"))
			if err == nil {
				break
			}
			if time.Since(begun) > pokeGap+20*time.Second {
				t.Fatalf("%s: after the correction: %v", p.Name(), err)
			}
			select {
			case <-ctx.Done():
				t.Fatal(err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// Nothing of a host that is killed with -9 is left, not even a plugin that does
// not care for the end of its life-line.
func TestNoOrphanWhenTheHostIsKilled(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	for name, arg := range map[string]string{
		"with the SDK":       testPlugin(t) + "|sdk|",
		"ignoring its stdin": raw(t, "") + "|versions|1",
		"with grandchildren": testPlugin(t) + "|grandchild|" + pidFile,
	} {
		t.Run(name, func(t *testing.T) {
			host := exec.Command(os.Args[0])
			host.Env = append(os.Environ(), modeVariable+"=host", argVariable+"="+arg)
			host.Stderr = os.Stderr
			stdin, err := host.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stdin.Close() }()
			stdout, err := host.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := host.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				_ = host.Process.Kill()
				t.Fatal(err)
			}
			var pid int
			var dir string
			if _, err := fmt.Sscan(line, &pid, &dir); err != nil {
				t.Fatal(err)
			}
			if err := host.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = host.Wait()
			gone(t, "the plugin", pid, 2*time.Second)
			if strings.HasPrefix(name, "with grand") {
				// The kernel does not kill it; see doc.go.
				_ = syscall.Kill(readPid(t, pidFile), syscall.SIGKILL)
			}
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("the killed host's folder: %v", err)
			}
			newStarter(Options{}).dirs.remove() // sweeps
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s is left", dir)
			}
		})
	}
}
