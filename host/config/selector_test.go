package config

import (
	"strings"
	"testing"
)

// The seed's table: which backend is selected when none is named.
func TestTheFirstConfiguredBackendOfTheModeIsSelected(t *testing.T) {
	for _, c := range []struct {
		standalone bool
		configured string
		want       string // "" for an error
	}{
		{true, "rmq pulsar kafka", "rmq"},
		{true, "pulsar kafka", "pulsar"},
		{true, "kafka", "kafka"},
		{true, "", ""},
		{false, "rmq pulsar kafka", "pulsar"},
		{false, "pulsar kafka", "pulsar"},
		{false, "kafka", "kafka"},
		{false, "", ""},
		// Beyond the seed's rows: the order of writing does not count, rmq alone
		// makes no cluster, and other backends are never chosen by themselves.
		{true, "kafka pulsar rmq", "rmq"},
		{true, "fault kafka", "kafka"},
		{true, "fault", ""},
		{false, "rmq kafka", "kafka"},
		{false, "rmq", ""},
		{false, "fault rmq", ""},
	} {
		got, err := SelectBackend(c.standalone, "", strings.Fields(c.configured))
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("standalone %v, configured %q: %q, %v; want %q", c.standalone, c.configured, got, err, c.want)
		}
	}
}

// The seed's second half: a name is taken as it stands in both modes, but for rmq in a cluster.
func TestANamedBackendWinsExceptTheEmbeddedOneInACluster(t *testing.T) {
	for _, configured := range []string{"", "rmq pulsar kafka", "kafka"} {
		for _, name := range []string{"rmq", "pulsar", "kafka", "of-somebody-else"} {
			for _, standalone := range []bool{true, false} {
				got, err := SelectBackend(standalone, name, strings.Fields(configured))
				if name == "rmq" && !standalone {
					if err == nil || got != "" || !strings.Contains(err.Error(), "mode cluster") {
						t.Errorf("rmq in cluster mode: %q, %v", got, err)
					}
				} else if got != name || err != nil {
					t.Errorf("standalone %v, %s named: %q, %v", standalone, name, got, err)
				}
			}
		}
	}
}

// backends makes an Input with one plugin of each backend, called as its backend with an x.
func backends(mode, list string) Input {
	in := Input{Set: []string{"mode=" + mode}}
	for _, b := range strings.Fields(list) {
		in.Set = append(in.Set, "plugins.x"+b+".backend="+b)
	}
	return in
}

func TestTheDefaultPluginIsOneOfTheSelectedBackend(t *testing.T) {
	for _, c := range []struct{ mode, backends, named, want string }{
		{"standalone", "rmq pulsar kafka", "", "xrmq"},
		{"standalone", "pulsar kafka", "", "xpulsar"},
		{"standalone", "kafka", "", "xkafka"},
		{"standalone", "fault", "", ""},
		{"standalone", "fault rmq", "xfault", "xfault"},
		{"standalone", "", "", "local"},
		{"standalone", "rmq", "nothere", ""},
		{"cluster", "rmq pulsar kafka", "", "xpulsar"},
		{"cluster", "pulsar kafka", "", "xpulsar"},
		{"cluster", "rmq kafka", "", "xkafka"},
		{"cluster", "rmq kafka", "xkafka", "xkafka"},
		{"cluster", "fault", "xfault", "xfault"},
		{"cluster", "rmq kafka", "xrmq", ""},
		{"cluster", "rmq", "", ""},
		{"cluster", "", "", ""},
	} {
		in := backends(c.mode, c.backends)
		if c.named != "" {
			in.Set = append(in.Set, "default_plugin="+c.named)
		}
		cfg, err := Load(in)
		if (err != nil) != (c.want == "") || err == nil && cfg.DefaultPlugin != c.want {
			t.Errorf("%+v: got %+v, %v", c, cfg, err)
		}
		if err != nil && len(problems(t, in)) != 1 {
			t.Errorf("%+v: %q, want one problem", c, problems(t, in))
		}
	}
	in := backends("standalone", "pulsar")
	in.Set = append(in.Set, "plugins.b.backend=rmq", "plugins.a.backend=rmq")
	if cfg := mustLoad(t, in); cfg.DefaultPlugin != "a" {
		t.Errorf("of two plugins with one backend: %q", cfg.DefaultPlugin)
	}
}

func TestExplainSaysHowTheDefaultWasSelected(t *testing.T) {
	for mode, want := range map[string]Source{
		"standalone": {Kind: SourceDefault, Text: "default (rmq: the first configured of rmq, pulsar, kafka)"},
		"cluster":    {Kind: SourceDefault, Text: "default (kafka: the first configured of pulsar, kafka)"},
	} {
		if e := entry(t, mustLoad(t, backends(mode, "rmq kafka")), "default_plugin"); e.Source != want || e.Value == "" {
			t.Errorf("mode %s: %+v", mode, e)
		}
	}
	in := backends("standalone", "rmq kafka")
	in.Env = []string{"WALRIG_DEFAULT_PLUGIN=xkafka"}
	if e := entry(t, mustLoad(t, in), "default_plugin"); e.Value != "xkafka" || e.Source.Text != "WALRIG_DEFAULT_PLUGIN" {
		t.Errorf("a named one: %+v", e)
	}
}

func TestWhatCannotBeSelectedSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		in   Input
		want string
	}{
		{backends("standalone", "fault"), "default_plugin: is not set, and in mode standalone only rmq, pulsar, kafka are chosen without being named, while the configured backends are fault: name a plugin, or configure one of these backends"},
		{backends("cluster", "rmq"), "default_plugin: is not set, and in mode cluster only pulsar, kafka are chosen without being named, while the configured backends are rmq: name a plugin, or configure one of these backends"},
		{Input{Backend: "rmq", Flags: map[string]string{"mode": "cluster"}}, "--backend: the backend rmq is embedded in one host, it cannot be the default in mode cluster: name a plugin of another backend, or use mode standalone"},
	} {
		if got := problems(t, c.in); len(got) != 1 || got[0] != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestBackendFlagChoosesTheDefaultPlugin(t *testing.T) {
	two := []string{"plugins.a.backend=rmq", "plugins.b.backend=kafka"}
	for _, c := range []struct {
		what, backend, plugin string
		set                   []string
		plugins               int
	}{
		{"nothing is configured: local gets it", "fault", "local", nil, 1},
		{"a plugin has it", "kafka", "b", two, 2},
		{"no plugin has it: local gets it", "fault", "local", two, 3},
		{"default_plugin is set: that one gets it", "fault", "b", append(two, "default_plugin=b"), 2},
	} {
		cfg := mustLoad(t, Input{Backend: c.backend, Set: c.set})
		p := cfg.plugin(func(p Plugin) bool { return p.Name == cfg.DefaultPlugin })
		if p == nil || p.Name != c.plugin || p.Backend != c.backend || len(cfg.Plugins) != c.plugins {
			t.Errorf("%s: %+v", c.what, cfg)
		}
		if e := entry(t, cfg, "plugins."+c.plugin+".backend"); e.Source.Text != "--backend" {
			t.Errorf("%s: source %+v", c.what, e.Source)
		}
	}
}
