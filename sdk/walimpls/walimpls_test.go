package walimpls

import (
	"errors"
	"strings"
	"testing"

	"github.com/walrig/walrig/sdk/message"
)

func TestNamesOfChannels(t *testing.T) {
	for _, name := range []string{"a", "0", "orders", "Orders-1_v.2", strings.Repeat("x", 200)} {
		if err := ValidateName("channel", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", ".a", "_a", "a/b", "a b", "ä", "a\x00", "../x", strings.Repeat("x", 201), strings.Repeat("y", 1<<20)} {
		err := ValidateName("channel", name)
		if !errors.Is(err, ErrInvalidArgument) || AsError(err).Hint == "" {
			t.Errorf("%.20q: %v", name, err)
		}
		if len(err.Error()) > 300 {
			t.Errorf("the error for a name of %d bytes has %d", len(name), len(err.Error()))
		}
	}
}

func TestPairsAreComparedByTermThenIncarnation(t *testing.T) {
	ascending := []Pair{{}, {1, 0}, {1, 1}, {1, 2}, {2, 1}, {10, 1}}
	for i, p := range ascending {
		for j, q := range ascending {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if p.Compare(q) != want {
				t.Errorf("%s compared with %s: %d, want %d", p, q, p.Compare(q), want)
			}
		}
	}
}

func TestOpenOptionsAreChecked(t *testing.T) {
	good := OpenOptions{Channel: "orders", Term: 1, Incarnation: 1, Access: AccessReadWrite}
	if err := good.Validate(); err != nil || good.Pair() != (Pair{1, 1}) {
		t.Errorf("%v %v", err, good.Pair())
	}
	if err := (OpenOptions{Channel: "orders", Access: AccessReadOnly}).Validate(); err != nil {
		t.Errorf("a read-only open needs no pair: %v", err)
	}
	for name, edit := range map[string]func(*OpenOptions){
		"channel":     func(o *OpenOptions) { o.Channel = "" },
		"term":        func(o *OpenOptions) { o.Term = 0 },
		"incarnation": func(o *OpenOptions) { o.Incarnation = -1 },
		"access":      func(o *OpenOptions) { o.Access = 0 },
	} {
		bad := good
		edit(&bad)
		if err := bad.Validate(); !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if AccessReadOnly.String() != "read-only" || AccessReadWrite.String() != "read-write" || Access(7).String() != "access(7)" {
		t.Error("the names of the access modes changed")
	}
}

func TestReadOptionsAreChecked(t *testing.T) {
	for _, s := range []Start{FromAll(), FromLatest(), StartFrom("x"), StartAfter("x")} {
		o, err := ReadOptions{Start: s}.Normalize("orders")
		if err != nil || o.BufferRecords != DefaultBufferRecords || o.BufferBytes != DefaultBufferBytes {
			t.Errorf("%+v: %+v %v", s, o, err)
		}
	}
	for _, s := range []Start{{}, {Policy: 9}, StartFrom(""), StartAfter(""), StartFrom(message.Uint64ID(0)), StartAfter("\x00")} {
		if _, err := (ReadOptions{Start: s}).Normalize("orders"); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func validDescription() Description {
	return Description{
		Backend: "mem", IDLayout: "u64",
		Capabilities: Capabilities{Fencing: FencingStrict, Durability: DurabilityFsync, Truncation: TruncationDeferred},
		Limits:       Limits{MaxMessageBytes: 1, MaxBatchRecords: 1, MaxBatchBytes: 1},
		Config:       []ConfigField{{Name: "dir", Type: ConfigString}},
	}
}

func TestDescriptionsAreChecked(t *testing.T) {
	if err := validDescription().Validate(); err != nil {
		t.Errorf("%v", err)
	}
	for want, edit := range map[string]func(*Description){
		"backend":                      func(d *Description) { d.Backend = "" },
		"layout":                       func(d *Description) { d.IDLayout = "u7" },
		"fencing":                      func(d *Description) { d.Capabilities.Fencing = "" },
		"durability":                   func(d *Description) { d.Capabilities.Durability = "hope" },
		"truncation":                   func(d *Description) { d.Capabilities.Truncation = "maybe" },
		"limits":                       func(d *Description) { d.Limits.MaxBatchBytes = 0 },
		"declared twice":               func(d *Description) { d.Config = append(d.Config, d.Config[0]) },
		"required and has a default":   func(d *Description) { d.Config[0].Required, d.Config[0].Default = true, "x" },
		"its default":                  func(d *Description) { d.Config[0].Type, d.Config[0].Default = ConfigInt, "x" },
		`type "colour" is not known`:   func(d *Description) { d.Config[0].Type = "colour" },
		"only a string can have OneOf": func(d *Description) { d.Config[0].Type, d.Config[0].OneOf = ConfigInt, []string{"1"} },
		"is not one of":                func(d *Description) { d.Config[0].Default, d.Config[0].OneOf = "c", []string{"a", "b"} },
	} {
		d := validDescription()
		edit(&d)
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	all := Description{Limits: Limits{MaxMessageBytes: -1}}
	if n := strings.Count(all.Validate().Error(), "\n"); n < 5 {
		t.Errorf("only %d problems of an empty description are reported", n+1)
	}
}
