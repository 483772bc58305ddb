package message

import (
	"errors"
	"testing"
)

// FuzzParseCheckpoint: no text makes it panic, what is accepted is written and read
// back the same, and every checkpoint comes back from its token.
func FuzzParseCheckpoint(f *testing.F) {
	f.Add("", "store", []byte{1}, int64(1), uint64(2))
	f.Add("AQ", "", []byte{}, int64(0), uint64(0))
	f.Add(Checkpoint{StoreID: "s", ID: "\x00\x01", Term: 3, Tick: 1 << 63}.String(), "s", []byte{0, 0}, int64(1<<62), ^uint64(0))
	f.Add("AQFzAgABAwSAgICA", "fault-0123", []byte("12345678"), int64(7), uint64(1)<<18)
	f.Fuzz(func(t *testing.T, token, store string, id []byte, term int64, tick uint64) {
		if c, err := ParseCheckpoint(token); err != nil {
			if !errors.Is(err, ErrBadCheckpoint) {
				t.Errorf("%q: %v is no ErrBadCheckpoint", token, err)
			}
			if c != (Checkpoint{}) {
				t.Errorf("%q: %v, and %+v all the same", token, err, c)
			}
		} else if again, err := ParseCheckpoint(c.String()); err != nil || again != c {
			t.Errorf("%q is %+v, whose token is read as %+v, %v", token, c, again, err)
		}
		if term < 0 || len(store)+len(id) > 500 {
			return
		}
		c := Checkpoint{StoreID: store, ID: ID(id), Term: term, Tick: Tick(tick)}
		if got, err := ParseCheckpoint(c.String()); err != nil || got != c {
			t.Errorf("%+v comes back as %+v, %v", c, got, err)
		}
		// A changed token is refused, wherever the change is.
		text := []byte(c.String())
		at := int(uint64(term) % uint64(len(text)))
		text[at] ^= 1
		if got, err := ParseCheckpoint(string(text)); err == nil && got == c {
			t.Errorf("token %q changed at %d is still accepted", c, at)
		} else if err == nil {
			t.Errorf("token %q changed at %d is read as %+v", c, at, got)
		}
	})
}
