package walimpls

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

var testFields = []ConfigField{
	{Name: "dir", Type: ConfigString, Required: true, Doc: "the folder"},
	{Name: "sync", Type: ConfigBool, Default: true},
	{Name: "shards", Type: ConfigInt, Default: 4},
	{Name: "wait", Type: ConfigDuration, Default: "10s"},
	{Name: "size", Type: ConfigBytes, Default: "64MiB"},
	{Name: "brokers", Type: ConfigStrings},
	{Name: "mode", Type: ConfigString, Default: "fast", OneOf: []string{"fast", "safe"}},
	{Name: "level", Type: ConfigString, OneOf: []string{"a", "b"}},
	{Name: "password", Type: ConfigString, Secret: true, OneOf: []string{"hunter2"}},
	{Name: "pin", Type: ConfigInt, Secret: true},
}

func TestDefaultsAreFilledIn(t *testing.T) {
	v, err := Config{"dir": "/x"}.Decode(testFields)
	if err != nil {
		t.Fatal(err)
	}
	if v.String("dir") != "/x" || !v.Bool("sync") || v.Int("shards") != 4 || v.Duration("wait") != 10*time.Second ||
		v.Bytes("size") != 64<<20 || v.Strings("brokers") != nil || v.String("mode") != "fast" || v.String("level") != "" {
		t.Errorf("%v", v)
	}
	if v.Int("dir") != 0 || v.String("nothing") != "" || v.Bool("nothing") || v.Duration("dir") != 0 {
		t.Error("asking with another type does not give the zero value")
	}
}

func TestValuesInEveryForm(t *testing.T) {
	cases := []struct {
		typ  ConfigType
		raw  any
		want any
	}{
		{ConfigString, "x", "x"}, {ConfigString, 7, "7"}, {ConfigString, true, "true"}, {ConfigString, nil, ""},
		{ConfigBool, true, true}, {ConfigBool, "false", false}, {ConfigBool, nil, false},
		{ConfigInt, 7, int64(7)}, {ConfigInt, int64(-7), int64(-7)}, {ConfigInt, uint64(7), int64(7)}, {ConfigInt, 7.0, int64(7)}, {ConfigInt, "7", int64(7)}, {ConfigInt, nil, int64(0)},
		{ConfigDuration, "1m30s", 90 * time.Second}, {ConfigDuration, time.Second, time.Second}, {ConfigDuration, nil, time.Duration(0)},
		{ConfigBytes, "1 KiB", int64(1024)}, {ConfigBytes, 12, int64(12)}, {ConfigBytes, "12", int64(12)}, {ConfigBytes, nil, int64(0)},
		{ConfigStrings, []any{"a", "b"}, []string{"a", "b"}}, {ConfigStrings, "a,b", []string{"a", "b"}}, {ConfigStrings, []string{"a"}, []string{"a"}}, {ConfigStrings, "", []string(nil)},
	}
	for _, c := range cases {
		v, err := Config{"k": c.raw}.Decode([]ConfigField{{Name: "k", Type: c.typ}})
		if err != nil || !reflect.DeepEqual(v["k"], c.want) {
			t.Errorf("%s %v: %v, %v; want %v", c.typ, c.raw, v["k"], err, c.want)
		}
	}
	for _, c := range []struct {
		typ ConfigType
		raw any
	}{
		{ConfigString, []any{}}, {ConfigBool, "perhaps"}, {ConfigBool, 1}, {ConfigInt, "7x"}, {ConfigInt, 7.5}, {ConfigInt, true},
		{ConfigInt, math.NaN()}, {ConfigInt, math.Inf(1)}, {ConfigInt, 1e300}, {ConfigInt, uint64(math.MaxUint64)},
		{ConfigDuration, "10"}, {ConfigDuration, 10}, {ConfigDuration, "-1s"}, {ConfigDuration, -time.Second},
		{ConfigBytes, "-1"}, {ConfigBytes, -1}, {ConfigBytes, "1 QB"}, {ConfigBytes, "9999999999 TiB"},
		{ConfigStrings, []any{1}}, {ConfigStrings, 1}, {ConfigType("colour"), "x"},
	} {
		if v, err := (Config{"k": c.raw}).Decode([]ConfigField{{Name: "k", Type: c.typ}}); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s %v: %v, %v; want ErrInvalidArgument", c.typ, c.raw, v, err)
		}
	}
}

func TestAllProblemsAreReportedAtOnceAndSecretsNever(t *testing.T) {
	_, err := Config{
		"shard": 3, "wait": "soon", "mode": "reckless", "password": "hunter3", "pin": "topsecret", "zzzzzz": 1,
	}.Decode(testFields)
	if !errors.Is(err, ErrInvalidArgument) {
		t.Fatal(err)
	}
	for _, want := range []string{`key "dir" is required: the folder`, `"shard" (did you mean "shards"?)`, `soon is not a duration`, `"reckless" is not one of fast, safe`, `key "password"`, `key "pin"`, `unknown key "zzzzzz"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
	for _, secret := range []string{"hunter", "topsecret"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%v\nholds a secret", err)
		}
	}
	if _, err := (Config{"dir": nil}).Decode(testFields); err == nil {
		t.Error("null counts as given")
	}
}

func TestSizesWithUnits(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "12": 12, "12B": 12, "1KB": 1000, " 1 KiB ": 1024, "64MiB": 64 << 20, "2GB": 2e9, "8388607TiB": 8388607 << 40} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "1.5GiB", "-1", "8388608TiB", "1 MiB x", "1mib", "9223372036854775808"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestSuggestNamesTheNearestKeyOrNone(t *testing.T) {
	names := []string{"brokers", "dir", "retention"}
	for key, want := range map[string]string{"broker": "brokers", "BROKERS": "brokers", "dri": "", "retentoin": "retention", "x": "", "zookeeper": ""} {
		got := Suggest(key, names)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	f.Add("64MiB")
	f.Add("9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseBytes(text); err == nil && n < 0 {
			t.Fatalf("%q is %d", text, n)
		}
	})
}

func FuzzConfigDecode(f *testing.F) {
	f.Add([]byte(`{"dir":"/x","size":"1KiB","brokers":["a"],"wait":"1s"}`))
	f.Add([]byte(`{"dir":1e400,"sync":"t","shards":9e18,"mode":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var cfg Config
		if json.Unmarshal(b, &cfg) != nil {
			return
		}
		v, err := cfg.Decode(testFields)
		if err != nil {
			if !errors.Is(err, ErrInvalidArgument) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if len(v) != len(testFields) || v.Bytes("size") < 0 || v.Duration("wait") < 0 {
			t.Fatalf("%v", v)
		}
	})
}
