package message

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLayoutGivesIdsTheirText(t *testing.T) {
	cases := []struct {
		layout Layout
		id     ID
		text   string
	}{
		{"u64", Uint64ID(42), "42"},
		{"u64", Uint64ID(0), "0"},
		{"u64", Uint64ID(1<<64 - 1), "18446744073709551615"},
		{"u64.u64.u32", ID("\x00\x00\x00\x00\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00"), "12:3:0"},
		{"u8.u16", ID("\xff\x01\x00"), "255:256"},
	}
	for _, c := range cases {
		text, err := c.layout.Format(c.id)
		if err != nil || text != c.text {
			t.Errorf("%s.Format(%s) = %q, %v; want %q", c.layout, c.id, text, err, c.text)
		}
		id, err := c.layout.Parse(c.text)
		if err != nil || id != c.id {
			t.Errorf("%s.Parse(%q) = %s, %v; want %s", c.layout, c.text, id, err, c.id)
		}
	}
}

func TestTextThatIsNotCanonicalIsRefused(t *testing.T) {
	for _, text := range []string{"", " 1", "1 ", "+1", "-1", "01", "0x1", "1:2", "18446744073709551616", "1_0", "١", "1:", ":1"} {
		if id, err := Layout("u64").Parse(text); !errors.Is(err, ErrInvalidID) {
			t.Errorf("Parse(%q) = %s, %v; want ErrInvalidID", text, id, err)
		}
	}
	if _, err := Layout("u8").Parse("256"); !errors.Is(err, ErrInvalidID) {
		t.Errorf("a number above its field was accepted: %v", err)
	}
}

func TestIdOfAnotherLengthHasNoText(t *testing.T) {
	for _, id := range []ID{"", "1234567", "123456789", ID(strings.Repeat("x", 1<<20))} {
		if text, err := Layout("u64").Format(id); !errors.Is(err, ErrInvalidID) {
			t.Errorf("Format of %d bytes = %q, %v; want ErrInvalidID", len(id), text, err)
		}
	}
}

func TestBadLayoutsAreRefused(t *testing.T) {
	for _, l := range []Layout{"", "u63", "u64.", ".u64", "u64,u64", "U64", "u8.u8.u8.u8.u8.u8.u8.u8.u8"} {
		if l.Validate() == nil || l.Size() != 0 {
			t.Errorf("layout %q: Validate %v, Size %d; want an error and 0", l, l.Validate(), l.Size())
		}
		if _, err := l.Format("x"); err == nil {
			t.Errorf("layout %q formats", l)
		}
		if _, err := l.Parse("1"); err == nil {
			t.Errorf("layout %q parses", l)
		}
	}
}

func genLayout(t *rapid.T) Layout {
	fields := rapid.SliceOfN(rapid.SampledFrom([]string{"u8", "u16", "u32", "u64"}), 1, maxLayoutFields).Draw(t, "fields")
	return Layout(strings.Join(fields, "."))
}

func TestEveryIdOfALayoutRoundTripsThroughText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLayout(t)
		id := ID(rapid.SliceOfN(rapid.Byte(), l.Size(), l.Size()).Draw(t, "id"))
		text, err := l.Format(id)
		if err != nil {
			t.Fatal(err)
		}
		back, err := l.Parse(text)
		if err != nil || back != id {
			t.Fatalf("%s → %q → %s, %v", id, text, back, err)
		}
		hex, _ := id.MarshalText()
		var again ID
		if err := again.UnmarshalText(hex); err != nil || again != id {
			t.Fatalf("%s → %s → %s, %v", id, hex, again, err)
		}
	})
}

// The text form must sort as its numbers do, not as text: 9 < 10 < 100.
func TestByteOrderIsNumericOrder(t *testing.T) {
	l := Layout("u64.u32")
	var ids []ID
	for _, text := range []string{"9:0", "9:9", "9:10", "9:100", "10:0", "100:1"} {
		id, err := l.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if !slices.IsSortedFunc(ids, ID.Compare) {
		t.Errorf("not ascending: %v", ids)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		if (a < b) != Uint64ID(a).Less(Uint64ID(b)) {
			t.Fatalf("%d and %d", a, b)
		}
		if v, ok := Uint64ID(a).Uint64(); !ok || v != a {
			t.Fatalf("Uint64 of %d: %d %v", a, v, ok)
		}
	})
}

func TestZeroIdIsEmptyOrAllZero(t *testing.T) {
	for _, id := range []ID{"", "\x00", Uint64ID(0)} {
		if !id.IsZero() {
			t.Errorf("%q is not zero", id)
		}
	}
	for _, id := range []ID{"\x00\x01", "0", Uint64ID(1)} {
		if id.IsZero() {
			t.Errorf("%q is zero", id)
		}
	}
	if _, ok := ID("short").Uint64(); ok {
		t.Error("an id of 5 bytes has a u64 value")
	}
	var id ID
	if err := id.UnmarshalText([]byte("zz")); !errors.Is(err, ErrInvalidID) {
		t.Errorf("UnmarshalText of no hex: %v", err)
	}
}

func FuzzLayoutParse(f *testing.F) {
	f.Add("u64", "42")
	f.Add("u64.u64.u32", "12:3:0")
	f.Add("u8.", ":::")
	f.Fuzz(func(t *testing.T, layout, text string) {
		l := Layout(layout)
		id, err := l.Parse(text)
		if err != nil {
			return
		}
		if back, err := l.Format(id); err != nil || back != text {
			t.Fatalf("%s.Parse(%q) = %s, which formats as %q, %v", l, text, id, back, err)
		}
	})
}
