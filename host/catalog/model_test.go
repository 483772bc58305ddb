package catalog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// naive is the catalog as its contract says it, without anything that makes it
// work: it says which error a call gives and what is stored afterwards.
type naive map[string]Row

func (n naive) claim(channel string, term int64) error {
	row, ok := n[channel]
	switch {
	case !ok:
		return walimpls.ErrNotFound
	case term < 1:
		return walimpls.ErrInvalidArgument
	case term <= row.Term:
		return walimpls.ErrTermExpired
	}
	row.Term = term
	n[channel] = row
	return nil
}

func (n naive) update(channel string, term int64, after Row) error {
	before, ok := n[channel]
	switch {
	case !ok:
		return walimpls.ErrNotFound
	case before.Term != term:
		return walimpls.ErrTermExpired
	case after.Channel != before.Channel, after.Term != before.Term, after.TickBound < before.TickBound:
		return walimpls.ErrInvalidArgument
	}
	if before.TruncatedBefore != nil && before.StoreID == after.StoreID &&
		(after.TruncatedBefore == nil || after.TruncatedBefore.ID < before.TruncatedBefore.ID) {
		return walimpls.ErrInvalidArgument
	}
	n[channel] = after.Clone()
	return nil
}

func (n naive) remove(channel string, term int64) error {
	row, ok := n[channel]
	switch {
	case !ok:
		return walimpls.ErrNotFound
	case row.Term != term:
		return walimpls.ErrTermExpired
	}
	delete(n, channel)
	return nil
}

func (n naive) list() []Row {
	rows := []Row{}
	for _, r := range n {
		rows = append(rows, r.Clone())
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].Channel < rows[j].Channel })
	return rows
}

var (
	drawName = rapid.SampledFrom([]string{"a", "b", "c.d", "x"})
	drawTerm = rapid.Int64Range(-1, 6)
	drawCP   = rapid.Custom(func(t *rapid.T) Checkpoint {
		return Checkpoint{
			ID:   message.ID(rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "id")),
			Term: drawTerm.Draw(t, "term"), Tick: message.Tick(rapid.Uint64().Draw(t, "tick")),
			LastUnitTerm: drawTerm.Draw(t, "unit term"), LastUnitTick: message.Tick(rapid.Uint64().Draw(t, "unit tick")),
		}
	})
)

// drawChange draws what an owner may want of a row, right or wrong.
func drawChange(t *rapid.T, r *Row) {
	r.TickBound = message.Tick(rapid.Uint64Range(0, 4).Draw(t, "bound"))
	r.StoreID = rapid.SampledFrom([]string{"", "log1", "log2"}).Draw(t, "store")
	r.Checkpoints = nil
	if cps := rapid.SliceOfN(drawCP, 0, 2).Draw(t, "checkpoints"); len(cps) > 0 {
		r.Checkpoints = cps
	}
	r.TruncatedBefore = nil
	if rapid.Bool().Draw(t, "truncated") {
		cp := drawCP.Draw(t, "point")
		r.TruncatedBefore = &cp
	}
	r.VChannels = nil
	if rapid.Bool().Draw(t, "vchannels") {
		r.VChannels = []VChannel{{Name: drawName.Draw(t, "vchannel"), StartTick: 1}}
	}
	switch rapid.IntRange(0, 9).Draw(t, "wrong") {
	case 0:
		r.Term++
	case 1:
		r.Channel += "2"
	}
}

// Both implementations do what the naive one says, call by call, and the one
// on disk also after it was closed and opened again at any place.
func TestBothCatalogsAgreeWithTheNaiveOne(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, "catalog.db")
		_ = os.Remove(path)
		open := func() Catalog {
			c, err := OpenBolt(path, BoltOptions{noSync: true})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		disk, mem, model := open(), NewMemory(), naive{}
		defer func() { _ = disk.Close() }()
		ctx := context.Background()

		// same runs a call on both and compares its error with the model's.
		same := func(want error, call func(Catalog) (Row, error)) {
			for _, c := range []Catalog{disk, mem} {
				row, err := call(c)
				if !errors.Is(err, want) {
					t.Fatalf("%T: %v, want %v", c, err, want)
				}
				if err == nil && row.Channel != "" && !reflect.DeepEqual(row, model[row.Channel]) {
					t.Fatalf("%T returns %+v, want %+v", c, row, model[row.Channel])
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				row := Row{Channel: drawName.Draw(t, "channel"), Plugin: "p", TickBound: 1}
				_, exists := model[row.Channel]
				var want error
				if exists {
					want = walimpls.ErrAlreadyExists
				} else {
					model[row.Channel] = row
				}
				same(want, func(c Catalog) (Row, error) { return Row{}, c.Create(ctx, row) })
			},
			"claim": func(t *rapid.T) {
				channel, term := drawName.Draw(t, "channel"), drawTerm.Draw(t, "term")
				want := model.claim(channel, term)
				same(want, func(c Catalog) (Row, error) { return c.Claim(ctx, channel, term) })
			},
			"update": func(t *rapid.T) {
				channel, term := drawName.Draw(t, "channel"), drawTerm.Draw(t, "term")
				if row, ok := model[channel]; ok && rapid.Bool().Draw(t, "right term") {
					term = row.Term
				}
				after := model[channel].Clone()
				drawChange(t, &after)
				want := model.update(channel, term, after)
				same(want, func(c Catalog) (Row, error) {
					return c.Update(ctx, channel, term, func(r *Row) error { *r = after.Clone(); return nil })
				})
			},
			"delete": func(t *rapid.T) {
				channel, term := drawName.Draw(t, "channel"), drawTerm.Draw(t, "term")
				want := model.remove(channel, term)
				same(want, func(c Catalog) (Row, error) { return Row{}, c.Delete(ctx, channel, term) })
			},
			"reopen": func(t *rapid.T) {
				if err := disk.Close(); err != nil {
					t.Fatal(err)
				}
				disk = open()
			},
			"": func(t *rapid.T) {
				for _, c := range []Catalog{disk, mem} {
					if rows, err := c.List(ctx); err != nil || !reflect.DeepEqual(rows, model.list()) {
						t.Fatalf("%T holds %+v, %v\nwant %+v", c, rows, err, model.list())
					}
				}
			},
		})
	})
	t.Logf("%d histories", n)
}

func FuzzDecodeRow(f *testing.F) {
	for _, row := range []Row{{Channel: "orders"}, full("orders")} {
		b, err := encodeRow(&row)
		if err != nil {
			f.Fatal(err)
		}
		f.Add("orders", b)
		f.Add("orders", b[:len(b)/2])
		f.Add("other", b)
		f.Add("orders", append(b, '1'))
	}
	for _, s := range []string{"", "{}", "null", "[]", `{"format":2,"read_by":"walrig 9"}`, `{"format":-1}`, `{"format":1,"read_by":"","crc":"00000000","row":null}`} {
		f.Add("orders", []byte(s))
	}
	f.Fuzz(func(t *testing.T, channel string, value []byte) {
		row, err := decodeRow(channel, value)
		if err != nil {
			if !errors.Is(err, walimpls.ErrCorrupt) && !errors.Is(err, walimpls.ErrUnsupported) {
				t.Fatalf("error of another kind: %v", err)
			}
			if len(err.Error()) > 2000+len(channel)*4 {
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if row.Channel != channel {
			t.Fatalf("the row of %q was taken for %q", row.Channel, channel)
		}
		again, err := encodeRow(&row)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeRow(channel, again); err != nil || !reflect.DeepEqual(back, row) {
			t.Fatalf("%+v becomes %+v, %v", row, back, err)
		}
	})
}

// A single changed byte anywhere in a stored row is noticed, unless it only
// says which release wrote it.
func TestEveryChangedByteOfARowIsNoticed(t *testing.T) {
	row := full("orders")
	row.Term = 3
	good, err := encodeRow(&row)
	if err != nil {
		t.Fatal(err)
	}
	from := strings.Index(string(good), rowReadBy)
	n := 0
	for i := range good {
		if i >= from && i < from+len(rowReadBy) {
			continue
		}
		for _, flip := range []byte{1, 0x10, 0x20, 0x80} {
			bad := append([]byte(nil), good...)
			bad[i] ^= flip
			n++
			if got, err := decodeRow("orders", bad); err == nil && !reflect.DeepEqual(got, row) {
				t.Errorf("byte %d ^ %#x: %+v", i, flip, got)
			}
		}
	}
	t.Logf("%d changed bytes", n)
}

// Whatever the bytes of the file are: an answer, no panic, no hang, no untyped error.
func FuzzOpenBolt(f *testing.F) {
	good := sample(f)
	f.Add([]byte(nil), uint32(0), uint8(0), uint32(0))
	for at := range uint32(24) {
		f.Add([]byte(nil), at*2999, uint8(at*7+1), at%5*4096)
	}
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"), uint32(0x3000), uint8(1), uint32(0))
	path := filepath.Join(f.TempDir(), "fuzz.db")
	f.Fuzz(func(t *testing.T, paste []byte, at uint32, flip uint8, cutOff uint32) {
		b := append([]byte(nil), good...)
		i := int(at) % len(b)
		b[i] ^= flip
		copy(b[i:], paste)
		b = b[:len(b)-int(cutOff)%len(b)]
		_ = tryDamaged(t, path, b)
	})
}
