package parquet

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
)

func TestNamesAreSafeAndComeBack(t *testing.T) {
	seen := map[string]string{}
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9._~/-]{0,4}`)).Draw(rt, "name")
		c := escapeName(name)
		if c == "." || c == ".." || strings.ContainsAny(c, "/\\\x00 :?#%") || c == "" {
			rt.Fatalf("%q became %q", name, c)
		}
		if back, ok := unescapeName(c); !ok || back != name {
			rt.Fatalf("%q became %q and came back as %q, %v", name, c, back, ok)
		}
		if other, there := seen[c]; there && other != name {
			rt.Fatalf("%q and %q are both %q", name, other, c)
		}
		seen[c] = name
	})
	for _, bad := range []string{"", "~", "~4", "~zz", "~61", "_x", ".x", "a b", "~2f"} {
		if name, ok := unescapeName(bad); ok {
			t.Errorf("%q was read as %q", bad, name)
		}
	}
	if got := escapeName("orders.v1_eu-2"); got != "orders.v1_eu-2" {
		t.Errorf("a usual name became %q", got)
	}
}

func TestPositionsSortAsTheirNamesDo(t *testing.T) {
	gen := rapid.Custom(func(rt *rapid.T) position {
		n := rapid.Int64Range(0, 1<<31)
		return position{Owner: owner{Term: rapid.Int64Range(1, 1<<62).Draw(rt, "term"), Open: n.Draw(rt, "open")}, Seq: n.Draw(rt, "seq")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		a, b := gen.Draw(rt, "a"), gen.Draw(rt, "b")
		if a.less(b) != (a.String() < b.String()) {
			rt.Fatalf("%v and %v", a, b)
		}
		if back, ok := parsePosition(a.String()); !ok || back != a {
			rt.Fatalf("%v came back as %v", a, back)
		}
	})
}

// Whatever is flushed, the tree of pages lists every file once, in order, and no
// object of it grows.
func TestManifestsListEverythingAndStaySmall(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fanout := rapid.IntRange(1, 4).Draw(rt, "fanout")
		l, err := newLayout(testChannel, testStore)
		if err != nil {
			rt.Fatal(err)
		}
		store := map[pageRef][]byte{}
		m := &manifest{PChannel: testChannel, StoreID: testStore, VChannel: "v"}
		var want []entry
		for seq := range rapid.IntRange(1, 30).Draw(rt, "flushes") {
			at := position{Owner: owner{Term: 2, Open: 1}, Seq: int64(seq + 1)}
			var files []entry
			for n := range rapid.IntRange(0, 6).Draw(rt, "files") {
				files = append(files, entry{At: at, N: n, FirstTick: message.Tick(seq), LastTick: message.Tick(seq + 1), Rows: 3, Bytes: 9})
			}
			want = append(want, files...)
			parent := m.encode(l)
			next, pages := m.next(at, files, testCheckpoint(2, message.Tick(seq)), false, fanout)
			if string(m.encode(l)) != string(parent) {
				rt.Fatal("next changed its receiver")
			}
			for _, p := range pages {
				if _, there := store[p.ref]; there {
					rt.Fatalf("page %+v was made twice", p.ref)
				}
				store[p.ref] = p.encode(l, "v")
			}
			back, err := decodeManifest(l, manifestKey{testChannel, testStore, "v", next.Ref}, next.encode(l))
			if err != nil {
				rt.Fatal(err)
			}
			m = back
			for _, level := range append([][]pageRef{make([]pageRef, len(m.tail))}, m.levels...) {
				if len(level) > fanout && fanout > 1 {
					rt.Fatalf("%d entries in one level, want at most %d", len(level), fanout)
				}
			}
		}
		var got []entry
		var walk func(refs []pageRef)
		walk = func(refs []pageRef) {
			for _, r := range refs {
				p, err := decodePage(l, "v", r, store[r])
				if err != nil {
					rt.Fatal(err)
				}
				walk(p.pages)
				got = append(got, p.files...)
			}
		}
		for _, level := range slices.Backward(m.levels) {
			walk(level)
		}
		if got = append(got, m.tail...); !slices.Equal(got, want) {
			rt.Fatalf("listed %v, want %v", got, want)
		}
	})
}

func TestFilesAreCutByBytesAndNeverEmpty(t *testing.T) {
	rows := testRows("v", 1, 10) // 2 or 3 bytes each, and the overhead
	for limit, want := range map[int64]int{1: 10, 2 * rowOverhead: 10, 2*rowOverhead + 10: 5, 1 << 30: 1} {
		parts := splitFiles(rows, limit)
		if len(parts) != want || len(slices.Concat(parts...)) != len(rows) {
			t.Errorf("limit %d: %d files", limit, len(parts))
		}
	}
	if parts := splitFiles(nil, 1); len(parts) != 0 {
		t.Errorf("no rows became %d files", len(parts))
	}
}

func FuzzDecodeManifest(f *testing.F) {
	l, _ := newLayout(testChannel, testStore)
	m := &manifest{PChannel: testChannel, StoreID: testStore, VChannel: "v"}
	var pages []page
	for seq := range 5 {
		at := position{Owner: owner{Term: 1, Open: 1}, Seq: int64(seq + 1)}
		var more []page
		m, more = m.next(at, []entry{{At: at, Rows: 1, Bytes: 1}}, testCheckpoint(1, 1), false, 1)
		pages = append(pages, more...)
	}
	f.Add(m.encode(l))
	for _, p := range pages {
		f.Add(p.encode(l, "v"))
	}
	f.Add([]byte(`{"format":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		key := manifestKey{testChannel, testStore, "v", m.Ref}
		if got, err := decodeManifest(l, key, data); err == nil {
			if again, err := decodeManifest(l, key, got.encode(l)); err != nil || again.Files != got.Files {
				t.Fatalf("accepted, but not what it writes itself: %v", err)
			}
		}
		for _, p := range pages {
			_, _ = decodePage(l, "v", p.ref, data)
		}
		_, _ = decodeClaim("k", owner{Term: 1, Open: 1}, data)
	})
}

func TestDamagedObjectsAreCorruptAndNothingIsWritten(t *testing.T) {
	m := newMemStore()
	s := testSink(m, open)
	v := mustOpen(t, s, "early", 1)
	mustFlush(t, v, 1, 6)
	key := v.o.l.manifest("early", v.st.newest)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good := m.objects[key]
	for name, bad := range map[string][]byte{
		"cut": good[:len(good)/2], "empty": {}, "newer format": []byte(strings.Replace(string(good), `"format": 1`, `"format": 2`, 1)),
		"another checkpoint": []byte(strings.Replace(string(good), `"tick": "6"`, `"tick": "7"`, 1)),
		"another vchannel":   []byte(strings.Replace(string(good), `"vchannel": "early"`, `"vchannel": "late"`, 1)), "missing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := m.clone()
			c.objects[key] = bad
			if bad == nil { // a claim names it, and it is gone
				c.objects[key] = good
				claims := testSink(c, open)
				mustOpen(t, claims, "other", 2)
				if err := claims.Close(); err != nil {
					t.Fatal(err)
				}
				delete(c.objects, key)
			}
			s := testSink(c, open)
			defer func() { _ = s.Close() }()
			_, err := s.Open(context.Background(), testKey("early", 3))
			if !isCorrupt(err) {
				t.Fatalf("open: %v, want ErrCorrupt with a hint", err)
			}
			mustFlush(t, mustOpen(t, s, "other", 3), 1, 2) // the others go on
		})
	}
}
