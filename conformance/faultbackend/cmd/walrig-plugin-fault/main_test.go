package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// The test binary is the plugin, too, when the host below starts it.
const modeVariable = "WALRIG_TEST_FAULT_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(modeVariable) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const channel = "orders"

// process is a host with this plugin as a real process.
type process struct {
	*pluginhost.Plugin
	ctx   context.Context
	rules string // path of the rules file
	stats string // path of the stats file
	inc   int64
}

func start(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	t.Cleanup(cancel)
	p := &process{ctx: ctx, rules: filepath.Join(dir, "rules"), stats: filepath.Join(dir, "stats")}
	host, err := pluginhost.New(pluginhost.Options{MinBackoff: 10 * time.Millisecond, Plugins: []pluginhost.Config{{
		Name: "faulty", Backend: faultbackend.Name, Path: os.Args[0],
		Env:    map[string]string{modeVariable: "1"},
		Config: walimpls.Config{"file": filepath.Join(dir, "log"), "rules_file": p.rules, "stats_file": p.stats},
	}}})
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		check(t, host.Close(ctx))
	})
	p.Plugin, err = host.Plugin("faulty")
	check(t, err)
	return p
}

// open opens with the next incarnation until a process answers.
func (p *process) open(t *testing.T) walimpls.WAL {
	t.Helper()
	for {
		p.inc++
		w, err := p.Open(p.ctx, walimpls.OpenOptions{Channel: channel, Term: 1, Incarnation: p.inc, Access: walimpls.AccessReadWrite})
		if err == nil {
			return w
		}
		if !errors.Is(err, walimpls.ErrUnavailable) || p.ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // the host has not noticed yet that the process left
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *process) append(w walimpls.WAL, payload string) walimpls.Outcome {
	ids, err := w.Append(p.ctx, []message.Message{{Type: message.TypeData, Payload: []byte(payload)}})
	return walimpls.Outcomes(channel, 1, ids, err)[0]
}

func (p *process) wantLog(t *testing.T, w walimpls.WAL, want ...string) {
	t.Helper()
	b, err := w.Bounds(p.ctx)
	check(t, err)
	sc, err := w.Read(p.ctx, walimpls.ReadOptions{Start: walimpls.FromAll()})
	check(t, err)
	defer func() { _ = sc.Close() }()
	got := []string{}
	for last := message.ID(""); last.Less(b.Latest); {
		recs, err := sc.Next(p.ctx)
		check(t, err)
		for _, m := range recs {
			if m.Type == message.TypeData {
				got = append(got, string(m.Payload))
			}
			last = m.ID
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the log holds %q, want %q", got, want)
	}
}

// waitStats reads the stats file until ok accepts it.
func (p *process) waitStats(t *testing.T, ok func(faultbackend.Stats) bool) {
	t.Helper()
	for p.ctx.Err() == nil {
		var s faultbackend.Stats
		if data, err := os.ReadFile(p.stats); err == nil {
			check(t, json.Unmarshal(data, &s))
		}
		if ok(s) {
			return
		}
		time.Sleep(2 * time.Millisecond) // a file of another process cannot be waited for
	}
	t.Fatal("the stats file never said it")
}

func TestAnExitIsSeenAndTheLogOutlivesIt(t *testing.T) {
	p := start(t)
	w := p.open(t)
	var want []string
	for i, how := range []string{"before", "torn", "after"} {
		payload := "lost " + how
		check(t, faultbackend.WriteRules(p.rules, fmt.Sprintf("append exit 3 %s incarnation=%d", how, p.inc)))
		if out := p.append(w, payload); out.State != walimpls.Unknown {
			t.Fatalf("%s: %v, %v", how, out.State, out.Err)
		}
		if how == "after" {
			want = append(want, payload)
		}
		w = p.open(t)
		if out := p.append(w, "next"); out.State != walimpls.Stored {
			t.Fatalf("%s: %v", how, out.Err)
		}
		want = append(want, "next")
		p.wantLog(t, w, want...)
		if s := p.Status(); s.Restarts != int64(i)+1 || !strings.Contains(s.LastExit, "3") {
			t.Fatalf("%s: %+v", how, s)
		}
	}
}

func TestALostConnectionIsAnUnknownOutcome(t *testing.T) {
	p := start(t)
	w := p.open(t)
	check(t, faultbackend.WriteRules(p.rules, "append lose-connection after=1 count=1"))
	p.append(w, "a")
	if out := p.append(w, "b"); out.State != walimpls.Unknown {
		t.Fatalf("%v, %v", out.State, out.Err)
	}
	if out := p.append(w, "refused"); out.State != walimpls.NotStored {
		t.Fatalf("%v, %v", out.State, out.Err)
	}
	check(t, faultbackend.WriteRules(p.rules, ""))
	w = p.open(t)
	if out := p.append(w, "c"); out.State != walimpls.Stored {
		t.Fatal(out.Err)
	}
	p.wantLog(t, w, "a", "b", "c")
	t.Logf("the host restarted the process %d times", p.Status().Restarts)
}

func TestARunningProcessIsSteeredByItsFiles(t *testing.T) {
	p := start(t)
	w := p.open(t)
	check(t, faultbackend.WriteRules(p.rules, "append block until released name=gate"))
	got := make(chan walimpls.Outcome, 1)
	go func() { got <- p.append(w, "a") }()
	p.waitStats(t, func(s faultbackend.Stats) bool { return s.Waiting[faultbackend.OpAppend] == 1 && s.Faults["gate"] == 1 })
	check(t, faultbackend.WriteRules(p.rules, `append error no_space "full" count=1`))
	if out := <-got; out.State != walimpls.Stored {
		t.Fatal(out.Err)
	}
	if out := p.append(w, "b"); out.State != walimpls.NotStored || !errors.Is(out.Err, walimpls.ErrNoSpace) {
		t.Fatalf("%v, %v", out.State, out.Err)
	}
	p.append(w, "c")
	p.wantLog(t, w, "a", "c")
	check(t, w.Close(p.ctx))
}

func TestLoseConnectionsCutsThePeersAndKeepsTheListener(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the process ends instead")
	}
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	check(t, err)
	defer func() { _ = listener.Close() }()
	for round := range 2 {
		client, err := net.Dial("unix", listener.Addr().String())
		check(t, err)
		server, err := listener.Accept()
		check(t, err)
		check(t, client.SetDeadline(time.Now().Add(10*time.Second)))
		fmt.Fprint(server, "x")
		if _, err := client.Read(make([]byte, 1)); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		loseConnections()
		if n, err := client.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("round %d: read %d bytes, %v", round, n, err)
		}
		check(t, client.Close())
		check(t, server.Close())
	}
}
