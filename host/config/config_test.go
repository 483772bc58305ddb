package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/walimpls"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "walrig.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustLoad(t *testing.T, in Input) *Config {
	t.Helper()
	cfg, err := Load(in)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return cfg
}

// problems loads and returns the problems, with the file's folder cut off.
func problems(t *testing.T, in Input) []string {
	t.Helper()
	_, err := Load(in)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("Load: %v, want an *Error", err)
	}
	if !errors.Is(err, walimpls.ErrConfig) {
		t.Errorf("the error is not an ErrConfig: %v", err)
	}
	var out []string
	for _, p := range e.Problems {
		out = append(out, strings.ReplaceAll(p.String(), filepath.Dir(in.File)+"/", ""))
	}
	return out
}

func entry(t *testing.T, cfg *Config, key string) Entry {
	t.Helper()
	for _, e := range cfg.Explain() {
		if e.Key == key {
			return e
		}
	}
	t.Fatalf("Explain does not show %s", key)
	return Entry{}
}

func TestWithoutAnythingThereIsAWorkingHost(t *testing.T) {
	cfg := mustLoad(t, Input{})
	wd, _ := os.Getwd()
	data := filepath.Join(wd, "walrig-data")
	if cfg.DataDir != data || cfg.Listen != "127.0.0.1:7700" || cfg.Mode != ModeStandalone || cfg.DefaultPlugin != "local" {
		t.Errorf("defaults: %+v", cfg)
	}
	if len(cfg.Plugins) != 1 {
		t.Fatalf("plugins: %+v", cfg.Plugins)
	}
	p := cfg.Plugins[0]
	if p.Name != "local" || p.Backend != "rmq" || p.Config["dir"] != filepath.Join(data, "rmq") || p.StartTimeout != 20*time.Second {
		t.Errorf("implied plugin: %+v", p)
	}
}

func TestLaterSourcesWin(t *testing.T) {
	file := write(t, "log:\n  level: debug\n  format: json\nlisten: 127.0.0.1:1\n")
	in := Input{File: file}
	steps := []struct {
		change func()
		want   string
		source string
	}{
		{func() {}, "debug", file + ":2"},
		{func() {
			in.Env = []string{"WALRIG_LOG__LEVEL=warn", "OTHER=x", "WALRIG_ADDR=ignored", "WALRIG_TEST_X=1"}
		}, "warn", "WALRIG_LOG__LEVEL"},
		{func() { in.Set = []string{"log.level=error"} }, "error", "--set log.level"},
		{func() { in.Set = append(in.Set, "log.level=info") }, "info", "--set log.level"},
		{func() { in.Flags = map[string]string{"log.level": "debug"} }, "debug", "--log-level"},
	}
	for i, s := range steps {
		s.change()
		cfg := mustLoad(t, in)
		e := entry(t, cfg, "log.level")
		if cfg.Log.Level != s.want || e.Value != s.want || e.Source.Text != s.source {
			t.Errorf("step %d: level %q from %q, want %q from %q", i, cfg.Log.Level, e.Source.Text, s.want, s.source)
		}
		if cfg.Log.Format != "json" || cfg.Listen != "127.0.0.1:1" {
			t.Errorf("step %d: other keys of the file are lost: %+v", i, cfg)
		}
	}
}

func TestAllProblemsAreReportedAtOnceWithTheirPlaces(t *testing.T) {
	file := write(t, `lisen: 127.0.0.1:1
log:
  level: loud
  colour: true
plugins:
  local:
    bakend: rmq
    sha256: abc
    start_timeout: 0s
    config:
      nested: {a: {b: c}}
      list: [1, [2]]
      password: {env: NOT_THERE}
  "bad.name": {backend: rmq}
mode: swarm
`)
	got := problems(t, Input{
		File:  file,
		Env:   []string{"WALRIG_DATADIR=x", "WALRIG_PLUGINS__LOCAL__BACKEND=rmq"},
		Set:   []string{"nokey", "level=debug"},
		Flags: map[string]string{"insecure": "maybe"},
	})
	for _, want := range []string{
		`walrig.yaml:1: lisen: unknown key (did you mean "listen"?)`,
		`walrig.yaml:3: log.level: "loud" is not one of debug, info, warn, error`,
		`walrig.yaml:4: log.colour: unknown key`,
		`walrig.yaml:7: plugins.local.bakend: unknown key (did you mean "backend"?)`,
		`walrig.yaml:6: plugins.local.backend: is required, such as rmq`,
		`walrig.yaml:8: plugins.local.sha256: "abc" is not a SHA-256 checksum: 64 hexadecimal digits`,
		`walrig.yaml:9: plugins.local.start_timeout: "0s" is not a duration above zero such as 10s`,
		`walrig.yaml:11: plugins.local.config.nested: a map is not a value here; a secret is written {env: NAME} or {file: PATH}`,
		`walrig.yaml:12: plugins.local.config.list: a list holds single values here, not a list`,
		`walrig.yaml:13: plugins.local.config.password: the environment variable NOT_THERE is not set`,
		`walrig.yaml:14: plugins: plugin name "bad.name" is not valid: use 1 to 63 letters, digits, '_' or '-', starting with a letter or digit`,
		`walrig.yaml:15: mode: "swarm" is not one of standalone, cluster`,
		`WALRIG_DATADIR: no key has this variable (did you mean "WALRIG_DATA_DIR"?)`,
		`WALRIG_PLUGINS__LOCAL__BACKEND: plugins cannot be set by a variable: use the file, or --set plugins.local.backend=…`,
		`--set: want a.b=c, such as --set log.level=debug`,
		`--set level: unknown key (did you mean "log.level"?)`,
		`--insecure: "maybe" is not true or false`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("got:\n%s", strings.Join(got, "\n"))
	}
}

func TestFilesThatAreNoConfigurationAreExplained(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"syntax":    {"a: [1\nb: 2\n", "walrig.yaml:"},
		"twice":     {"listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "walrig.yaml:2: listen: written twice, first at walrig.yaml:1"},
		"list":      {"- a\n", "walrig.yaml:1: the file must be a map of keys, not a list"},
		"documents": {"mode: standalone\n---\nmode: cluster\n", "walrig.yaml:2: a second document in one file is not supported"},
		"merge":     {"x: &x {a: 1}\n<<: *x\n", "walrig.yaml:2: a key must be plain text; merge keys are not supported"},
		"self":      {"plugins: &a\n  local: *a\n", "nested deeper than"},
		"scalar":    {"log: loud\n", "walrig.yaml:1: log: must be a map, not a single value"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(problems(t, Input{File: write(t, c.text)}), "\n")
			if !strings.Contains(got, c.want) {
				t.Errorf("got:\n%s\nwant: %s", got, c.want)
			}
		})
	}
	if got := problems(t, Input{File: "/nonexistent/w.yaml"}); len(got) != 1 || !strings.Contains(got[0], "no such file") {
		t.Errorf("a missing file: %q", got)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "plugins:\nlog:\n  level:\n"} {
		mustLoad(t, Input{File: write(t, empty)})
	}
}

func TestSecretsAreResolvedAndNeverPrinted(t *testing.T) {
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte("s3cret-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := write(t, `
plugins:
  k:
    backend: kafka
    env: {PLAIN: s3cret-plain, REF: {env: MY}}
    config:
      user: {env: MY}
      password: {file: `+secretFile+`}
      api_key: s3cret-literal
      url: "http://me:s3cret-url@host/"
      other: shown
`)
	cfg := mustLoad(t, Input{File: file, Env: []string{"MY=s3cret-env"}})
	p := cfg.Plugins[0]
	want := walimpls.Config{"user": "s3cret-env", "password": "s3cret-file", "api_key": "s3cret-literal", "url": "http://me:s3cret-url@host/", "other": "shown"}
	for k, v := range want {
		if p.Config[k] != v {
			t.Errorf("config %s = %q, want %q", k, p.Config[k], v)
		}
	}
	if p.Env["PLAIN"] != "s3cret-plain" || p.Env["REF"] != "s3cret-env" {
		t.Errorf("env: %v", p.Env)
	}
	for _, e := range cfg.Explain() {
		if strings.Contains(e.Value, "s3cret") {
			t.Errorf("%s shows a secret: %s", e.Key, e.Value)
		}
	}
	if e := entry(t, cfg, "plugins.k.config.user"); e.Value != "{env: MY}" || !e.Secret {
		t.Errorf("a reference is shown as %+v", e)
	}
	if e := entry(t, cfg, "plugins.k.config.other"); e.Value != "shown" {
		t.Errorf("a plain value is shown as %+v", e)
	}

	got := problems(t, Input{File: write(t, "plugins: {k: {backend: {env: BAD}, sha256: {env: BAD}, env: {A: {file: /none}, B: {env: EMPTY}, C: {env: A, file: B}}}}\n"),
		Env: []string{"BAD=s3cret UPPER", "EMPTY="}})
	for _, line := range got {
		if strings.Contains(line, "s3cret") {
			t.Errorf("a problem shows a secret: %s", line)
		}
	}
	if len(got) < 5 {
		t.Errorf("problems: %q", got)
	}
}

func TestScalarsKeepTheTextThatWasWritten(t *testing.T) {
	sum := strings.Repeat("12345678", 8)
	cfg := mustLoad(t, Input{
		File: write(t, "plugins:\n  local:\n    backend: fault\n    sha256: "+sum+"\n    config: {a: 5, b: 0123, c: true, d: '7', e: 1e3, f: 1.5, g: [x, 2], h: yes, i: }\n"),
		Set:  []string{"plugins.local.config.sasl.mechanism=PLAIN", "plugins.local.config.l=[a, b]", "default_plugin=local"},
	})
	p := cfg.Plugins[0]
	if p.SHA256 != sum {
		t.Errorf("sha256 %q", p.SHA256)
	}
	for k, want := range map[string]any{"a": int64(5), "b": "0123", "c": true, "d": "7", "e": "1e3", "f": 1.5, "h": "yes", "sasl.mechanism": "PLAIN"} {
		if p.Config[k] != want {
			t.Errorf("%s = %#v, want %#v", k, p.Config[k], want)
		}
	}
	if _, there := p.Config["i"]; there {
		t.Error("a key without a value is there")
	}
	if l, ok := p.Config["l"].([]any); !ok || len(l) != 2 {
		t.Errorf("list from --set: %#v", p.Config["l"])
	}
	if _, there := p.Config["dir"]; there {
		t.Error("a backend other than rmq got a dir")
	}
}

func TestEachEmbeddedPluginHasItsOwnFolder(t *testing.T) {
	cfg := mustLoad(t, Input{File: write(t, "data_dir: /d\nplugins: {local: {backend: rmq}, b: {backend: rmq}, c: {backend: rmq, config: {dir: /else}}}\n")})
	want := map[string]string{"local": "/d/rmq", "b": "/d/rmq-b", "c": "/else"}
	for _, p := range cfg.Plugins {
		if p.Config["dir"] != want[p.Name] {
			t.Errorf("%s: dir %v, want %s", p.Name, p.Config["dir"], want[p.Name])
		}
	}
}

func TestListeningBeyondLoopbackNeedsInsecure(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:0": true, "127.8.9.1:80": true, "localhost:7700": true, "[::1]:0": true, "[::ffff:127.0.0.1]:1": true,
		"0.0.0.0:7700": false, ":7700": false, "[::]:7700": false, "10.0.0.1:1": false, "example.org:1": false,
	} {
		_, err := Load(Input{Flags: map[string]string{"listen": addr}})
		if (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
		if _, err := Load(Input{Flags: map[string]string{"listen": addr, "insecure": "true"}}); err != nil {
			t.Errorf("%s with insecure: %v", addr, err)
		}
	}
	for _, key := range []string{"listen", "metrics_listen"} {
		got := problems(t, Input{Flags: map[string]string{key: "0.0.0.0:1"}})
		if len(got) != 1 || !strings.HasPrefix(got[0], "--"+strings.ReplaceAll(key, "_", "-")+": ") {
			t.Errorf("%s: %q", key, got)
		}
		mustLoad(t, Input{Flags: map[string]string{key: "0.0.0.0:1", "insecure": "true"}})
		if got := problems(t, Input{Flags: map[string]string{key: "7700"}}); len(got) != 1 {
			t.Errorf("%s: %q", key, got)
		}
	}
	for _, addr := range []string{"", "7700", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"} {
		if _, err := Load(Input{Flags: map[string]string{"listen": addr}}); err == nil {
			t.Errorf("%q is accepted", addr)
		}
	}
}

func TestMetricsAreOffUnlessAnAddressIsGiven(t *testing.T) {
	for _, in := range []Input{{}, {Env: []string{"WALRIG_METRICS_LISTEN="}}, {File: write(t, "metrics_listen:\n")}} {
		if cfg := mustLoad(t, in); cfg.MetricsListen != "" {
			t.Errorf("%+v: %q", in, cfg.MetricsListen)
		}
	}
	cfg := mustLoad(t, Input{Flags: map[string]string{"metrics_listen": "[::1]:0"}})
	if cfg.MetricsListen != "[::1]:0" || entry(t, cfg, "metrics_listen").Source.Text != "--metrics-listen" {
		t.Errorf("got %q from %+v", cfg.MetricsListen, entry(t, cfg, "metrics_listen").Source)
	}
}

func TestEveryScalarKeyHasAVariableAndAFlag(t *testing.T) {
	cfg := mustLoad(t, Input{})
	for _, k := range Keys() {
		if k.Doc == "" {
			t.Errorf("%s has no documentation", k.Name)
		}
		if k.InMap() {
			continue
		}
		if k.Env() == "" || k.Flag() == "" {
			t.Errorf("%s: variable %q, flag %q", k.Name, k.Env(), k.Flag())
		}
		value := k.Default
		switch {
		case value == "" && k.Type == TypeAddress:
			value = "127.0.0.1:0"
		case value == "":
			value = "local"
		}
		for _, in := range []Input{{Env: []string{k.Env() + "=" + value}}, {Flags: map[string]string{k.Name: value}}, {Set: []string{k.Name + "=" + value}}} {
			got := mustLoad(t, in)
			if entry(t, got, k.Name).Source.Kind == SourceDefault {
				t.Errorf("%s: %+v has no effect", k.Name, in)
			}
		}
		entry(t, cfg, k.Name)
	}
}

// Whatever bytes the file holds, Load returns.
func TestNoFileMakesLoadPanic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	fragments := []string{"plugins:", "\n", "  ", "local", ": ", "{", "}", "[", "]", "env", "config", "&a ", "*a", "log:", "level", "'", "\"", "null", "- ", "!!binary ", "<<", "x", ".", "0"}
	rapid.Check(t, func(r *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom(fragments)).Draw(r, "text"), "")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			r.Fatal(err)
		}
		cfg, err := Load(Input{File: path})
		if (cfg == nil) != (err != nil) {
			r.Fatalf("config %v, error %v", cfg, err)
		}
	})
}

func TestDocsMatchTheTable(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "configuration.md")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != Markdown() {
		t.Fatalf("docs/configuration.md is not what the table says (%v): run `go test ./host/config -run TestDocs -update`", err)
	}
}
