package wal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/walrig/walrig/conformance/faultbackend"
	"github.com/walrig/walrig/host/catalog"
	"github.com/walrig/walrig/host/pluginhost"
	"github.com/walrig/walrig/host/wal/scanner"
	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/plugin"
	"github.com/walrig/walrig/sdk/walimpls"
)

// TestMain is the fault plugin too, when the plugin host starts this binary.
func TestMain(m *testing.M) {
	if os.Getenv(pluginEnv) != "" {
		plugin.Serve(faultbackend.NewBuilder())
		return
	}
	goleak.VerifyTestMain(m)
}

const pluginEnv = "WAL_TEST_IS_PLUGIN"

const testChannel = "orders"

// fixture is a store with a catalog, and hosts on them.
type fixture struct {
	t       *testing.T
	store   *faultbackend.Store
	rules   *faultbackend.Controller
	catalog catalog.Catalog
	terms   map[string]int64
	// plugin is set when the store is behind a plugin process, which takes its
	// rules from rulesFile.
	plugin    *pluginhost.Plugin
	rulesFile string
}

// newPluginFixture is newFixture with the store in a plugin process.
func newPluginFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, terms: map[string]int64{}, rulesFile: filepath.Join(t.TempDir(), "rules")}
	f.catalog = f.newCatalog()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := pluginhost.New(pluginhost.Options{
		Log: zap.NewNop(), MinBackoff: 5 * time.Millisecond,
		Plugins: []pluginhost.Config{{
			Name: "fault", Backend: faultbackend.Name, Path: self, Env: map[string]string{pluginEnv: "1"},
			Config: walimpls.Config{"file": filepath.Join(t.TempDir(), "log"), "rules_file": f.rulesFile},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close(context.Background()) })
	if f.plugin, err = h.Plugin("fault"); err != nil {
		t.Fatal(err)
	}
	return f
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, terms: map[string]int64{}, store: faultbackend.NewStore(), rules: faultbackend.NewController()}
	t.Cleanup(func() { _ = f.store.Close() })
	f.catalog = f.newCatalog()
	return f
}

// newCatalog returns an empty catalog that knows the test's channel.
func (f *fixture) newCatalog() catalog.Catalog {
	f.t.Helper()
	c, err := catalog.OpenBolt(filepath.Join(f.t.TempDir(), "catalog"), catalog.BoltOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	f.create(c, testChannel)
	return c
}

func (f *fixture) create(c catalog.Catalog, channel string) {
	f.t.Helper()
	if err := c.Create(context.Background(), catalog.Row{
		Channel: channel, Plugin: "fault", Backend: faultbackend.Name, VChannelsKnown: true,
		VChannels: []catalog.VChannel{{Name: "v1"}, {Name: "v2"}, {Name: "v3"}},
	}); err != nil {
		f.t.Fatal(err)
	}
}

// backend adapts an in-process opener to Backend.
type backend struct {
	walimpls.Opener
	desc walimpls.Description
}

func (b backend) Description(context.Context) (walimpls.Description, error) { return b.desc, nil }

// opener returns a host's opener on the store. change may alter the options.
func (f *fixture) opener(c catalog.Catalog, change func(*Options)) Opener {
	f.t.Helper()
	opt := Options{
		Catalog: c, Log: zaptest.NewLogger(f.t, zaptest.Level(zap.ErrorLevel)),
		TickInterval: 5 * time.Millisecond,
		Backend:      func(string) (Backend, error) { return f.plugin, nil },
	}
	if f.plugin == nil {
		b := faultbackend.NewBuilder(faultbackend.WithStore(f.store), faultbackend.WithController(f.rules))
		o, err := b.Build(context.Background(), walimpls.Config{}, zap.NewNop())
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { _ = o.Close(context.Background()) })
		opt.Backend = func(string) (Backend, error) { return backend{o, b.Describe()}, nil }
	}
	if change != nil {
		change(&opt)
	}
	return NewOpener(opt)
}

// open opens the test's channel at the next term.
func (f *fixture) open(change func(*Options)) WAL {
	f.t.Helper()
	return f.openChannel(testChannel, change)
}

func (f *fixture) openChannel(channel string, change func(*Options)) WAL {
	f.t.Helper()
	f.terms[channel]++
	w, err := f.opener(f.catalog, change).Open(context.Background(), channel, f.terms[channel])
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = w.Close(context.Background()) })
	return w
}

func (f *fixture) setRules(text string) {
	f.t.Helper()
	set := func(text string) error { return faultbackend.WriteRules(f.rulesFile, text) }
	if f.plugin == nil {
		set = f.rules.SetRules
	}
	if err := set(text); err != nil {
		f.t.Fatal(err)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func data(payloads ...string) []message.Message {
	batch := make([]message.Message, len(payloads))
	for i, p := range payloads {
		batch[i] = message.Message{Type: message.TypeData, Payload: []byte(p)}
	}
	return batch
}

// mustAppend appends one record a payload and returns the results.
func mustAppend(t *testing.T, w WAL, payloads ...string) []Result {
	t.Helper()
	results := w.Append(within(t, 10*time.Second), data(payloads...))
	for i, r := range results {
		if r.State != walimpls.Stored {
			t.Fatalf("append %q: %v %v", payloads[i], r.State, r.Err)
		}
	}
	return results
}

// readUntilCaughtUp returns the units up to where the scanner has caught up.
func readUntilCaughtUp(t *testing.T, w WAL, opt scanner.Options) []scanner.Unit {
	t.Helper()
	s, err := w.Read(within(t, 10*time.Second), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return drain(t, s)
}

func drain(t *testing.T, s *scanner.Scanner) []scanner.Unit {
	t.Helper()
	ctx := within(t, 20*time.Second)
	var all []scanner.Unit
	for {
		units, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("after %d units: %v", len(all), err)
		}
		for _, u := range units {
			if len(u.Messages) > 0 {
				all = append(all, u)
			}
			if u.CaughtUp {
				return all
			}
		}
	}
}

// texts renders units: a plain record is its payload, a transaction [a b].
func texts(units []scanner.Unit) []string {
	var out []string
	for _, u := range units {
		var parts []string
		for _, m := range u.Messages {
			parts = append(parts, string(m.Payload))
		}
		if u.TxnID != 0 {
			out = append(out, fmt.Sprint(parts))
		} else {
			out = append(out, parts...)
		}
	}
	return out
}

// waitFor polls a condition that other goroutines make true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true within 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *fixture) limits() walimpls.Limits { return faultbackend.NewBuilder().Describe().Limits }
