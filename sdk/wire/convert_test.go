package wire

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

func TestStartsCross(t *testing.T) {
	for _, s := range []walimpls.Start{walimpls.FromAll(), walimpls.FromLatest(), walimpls.StartFrom("\x00a"), walimpls.StartAfter("b")} {
		if got := StartFromProto(StartToProto(s)); got != s {
			t.Errorf("%+v came over as %+v", s, got)
		}
	}
	for _, p := range []*pluginv1.Start{nil, {}, {Policy: 77, Id: []byte("x")}, StartToProto(walimpls.Start{Policy: 9})} {
		if _, err := (walimpls.ReadOptions{Start: StartFromProto(p)}).Normalize(""); !errors.Is(err, walimpls.ErrInvalidArgument) {
			t.Errorf("%v is a start: %v", p, err)
		}
	}
}

func TestBoundsCross(t *testing.T) {
	for _, b := range []walimpls.Bounds{{Empty: true}, {Earliest: "a", Latest: "c", LatestRecord: "b"}} {
		if got := BoundsFromProto(BoundsToProto(b)); got != b {
			t.Errorf("%+v came over as %+v", b, got)
		}
	}
	if BoundsFromProto(nil) != (walimpls.Bounds{}) {
		t.Error("no answer has bounds")
	}
}

func TestDescriptionCrosses(t *testing.T) {
	d := walimpls.Description{
		Backend: "mem", Version: "1.2", IDLayout: "u64.u32",
		Capabilities: walimpls.Capabilities{
			Fencing: walimpls.FencingStrict, Durability: walimpls.DurabilityFsync, Truncation: walimpls.TruncationDeferred,
			Drop: true, ReadOnly: true, ExclusiveStore: true,
		},
		Limits: walimpls.Limits{MaxMessageBytes: 1, MaxBatchRecords: 2, MaxBatchBytes: 3},
		Config: []walimpls.ConfigField{
			{Name: "dir", Type: walimpls.ConfigString, Required: true, Doc: "the folder"},
			{Name: "wait", Type: walimpls.ConfigDuration, Default: 90 * time.Second},
			{Name: "size", Type: walimpls.ConfigBytes, Default: int64(1<<53 + 1)},
			{Name: "ratio", Type: walimpls.ConfigString, Default: "fast", OneOf: []string{"fast", "safe"}, Secret: true},
			{Name: "brokers", Type: walimpls.ConfigStrings, Default: []string{"a", "b"}},
		},
	}
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := DescriptionToProto(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DescriptionFromProto(p)
	if err != nil || got.Validate() != nil {
		t.Fatal(err, got.Validate())
	}
	cfg := walimpls.Config{"dir": "/x"}
	want, _ := cfg.Decode(d.Config)
	values, err := cfg.Decode(got.Config)
	if err != nil || !reflect.DeepEqual(values, want) {
		t.Errorf("the defaults came over as %v, %v; want %v", values, err, want)
	}
	for i := range d.Config {
		d.Config[i].Default, got.Config[i].Default = nil, nil
	}
	if !reflect.DeepEqual(got, d) {
		t.Errorf("came over as %+v, want %+v", got, d)
	}
	if empty, err := DescriptionFromProto(nil); err != nil || empty.Validate() == nil {
		t.Errorf("no description at all: %v %v", err, empty.Validate())
	}
	if _, err := DescriptionFromProto(&pluginv1.DescribeResponse{Config: []*pluginv1.ConfigField{{Name: "x", DefaultJson: "{"}}}); err == nil {
		t.Error("a default that is no JSON was accepted")
	}
	if _, err := DescriptionToProto(walimpls.Description{Config: []walimpls.ConfigField{{Name: "x", Default: func() {}}}}); err == nil {
		t.Error("a default that cannot be JSON was accepted")
	}
}

func TestConfigurationCrossesExactly(t *testing.T) {
	fields := []walimpls.ConfigField{
		{Name: "s", Type: walimpls.ConfigString}, {Name: "b", Type: walimpls.ConfigBool}, {Name: "i", Type: walimpls.ConfigInt},
		{Name: "d", Type: walimpls.ConfigDuration}, {Name: "z", Type: walimpls.ConfigBytes}, {Name: "l", Type: walimpls.ConfigStrings},
	}
	cfg := walimpls.Config{"s": "<&>\u2028", "b": true, "i": int64(math.MaxInt64), "d": 1500 * time.Millisecond, "z": "64MiB", "l": []string{"x"}}
	want, err := cfg.Decode(fields)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ConfigToJSON(cfg)
	if err != nil {
		t.Fatal(err)
	}
	over, err := ConfigFromJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := over.Decode(fields); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("came over as %v, %v; want %v", got, err, want)
	}
	if c, err := ConfigFromJSON(nil); err != nil || len(c) != 0 {
		t.Errorf("no configuration: %v %v", c, err)
	}
	for _, bad := range []string{"[]", "3", "null", "{", `{} {}`, `{"a":}`} {
		if c, err := ConfigFromJSON([]byte(bad)); err == nil {
			t.Errorf("%s is the configuration %v", bad, c)
		}
	}
	if _, err := ConfigToJSON(walimpls.Config{"f": func() {}}); err == nil {
		t.Error("a function was sent")
	}
}

func FuzzConfigFromJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5,"x",{"b":9223372036854775808}],"c":1e999}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg, err := ConfigFromJSON(b)
		if err != nil {
			return
		}
		_, _ = cfg.Decode([]walimpls.ConfigField{{Name: "a", Type: walimpls.ConfigStrings}, {Name: "c", Type: walimpls.ConfigInt}})
	})
}

func FuzzDescriptionFromProto(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var p pluginv1.DescribeResponse
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		if d, err := DescriptionFromProto(&p); err == nil {
			_ = d.Validate()
		}
	})
}
