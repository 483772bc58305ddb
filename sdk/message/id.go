package message

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ID is the position of a record in its pchannel: opaque bytes, held in a
// string so that it is immutable and can be a map key. The byte order of two
// ids of one log is the order of their records. Ids may have holes.
//
// The empty ID means "none". An id that is empty or made of zero bytes alone
// is never a valid start of a read.
type ID string

// Compare returns -1, 0 or +1 as id lies before, at or behind other in the log.
// Ids of two different logs have no order; comparing them is a mistake of the
// caller that this method cannot see.
func (id ID) Compare(other ID) int { return strings.Compare(string(id), string(other)) }

// Less reports whether id lies before other in the log.
func (id ID) Less(other ID) bool { return id < other }

// IsZero reports whether id is empty or made of zero bytes alone.
func (id ID) IsZero() bool {
	for i := 0; i < len(id); i++ {
		if id[i] != 0 {
			return false
		}
	}
	return true
}

// String returns the bytes of id in hexadecimal, for logs. The text form that
// users see and type is made by Layout.Format.
func (id ID) String() string { return hex.EncodeToString([]byte(id)) }

// Layout says how the bytes of an ID are divided into big-endian unsigned
// fields, and thereby its text form: the fields in decimal, joined by colons.
// It is written as the field types joined by dots: "u64" (text "42") or
// "u64.u64.u32" (text "12:3:0"). Field types are u8, u16, u32 and u64.
type Layout string

// ErrInvalidID is wrapped by every error of Layout's Format and Parse.
var ErrInvalidID = errors.New("invalid message id")

const maxLayoutFields = 8

// widths returns the size of each field in bytes.
func (l Layout) widths() ([]int, error) {
	if l == "" {
		return nil, errors.New("id layout is empty: declare one such as u64")
	}
	names := strings.Split(string(l), ".")
	if len(names) > maxLayoutFields {
		return nil, fmt.Errorf("id layout has %d fields, more than %d", len(names), maxLayoutFields)
	}
	widths := make([]int, len(names))
	for i, name := range names {
		switch name {
		case "u8":
			widths[i] = 1
		case "u16":
			widths[i] = 2
		case "u32":
			widths[i] = 4
		case "u64":
			widths[i] = 8
		default:
			return nil, fmt.Errorf("id layout %q: field %d is %q, want u8, u16, u32 or u64", string(l), i+1, name)
		}
	}
	return widths, nil
}

// Validate returns an error that says what is wrong with the layout, or nil.
func (l Layout) Validate() error {
	_, err := l.widths()
	return err
}

// Size returns the length in bytes of every id of this layout, 0 if the layout
// is not valid.
func (l Layout) Size() int {
	widths, err := l.widths()
	if err != nil {
		return 0
	}
	n := 0
	for _, w := range widths {
		n += w
	}
	return n
}

// Format returns the text form of id. An id whose length does not fit the
// layout is an error that wraps ErrInvalidID.
func (l Layout) Format(id ID) (string, error) {
	widths, err := l.widths()
	if err != nil {
		return "", err
	}
	if len(id) != l.Size() {
		return "", fmt.Errorf("%w: %d bytes, layout %s has %d", ErrInvalidID, len(id), l, l.Size())
	}
	out := make([]byte, 0, 24)
	rest := string(id)
	for i, w := range widths {
		if i > 0 {
			out = append(out, ':')
		}
		var v uint64
		for _, b := range []byte(rest[:w]) {
			v = v<<8 | uint64(b)
		}
		rest = rest[w:]
		out = strconv.AppendUint(out, v, 10)
	}
	return string(out), nil
}

// Parse is the inverse of Format. It accepts the canonical form only (decimal
// digits without sign or leading zeros), so that one id has one text.
func (l Layout) Parse(text string) (ID, error) {
	widths, err := l.widths()
	if err != nil {
		return "", err
	}
	parts := strings.Split(text, ":")
	if len(parts) != len(widths) {
		return "", fmt.Errorf("%w %q: %d fields, layout %s has %d", ErrInvalidID, text, len(parts), l, len(widths))
	}
	out := make([]byte, 0, l.Size())
	for i, part := range parts {
		v, err := strconv.ParseUint(part, 10, widths[i]*8)
		if err != nil || strconv.FormatUint(v, 10) != part {
			return "", fmt.Errorf("%w %q: field %d must be a decimal number below 2^%d", ErrInvalidID, text, i+1, widths[i]*8)
		}
		for shift := widths[i]*8 - 8; shift >= 0; shift -= 8 {
			out = append(out, byte(v>>shift))
		}
	}
	return ID(out), nil
}

// Uint64ID returns v as an id of the layout "u64".
func Uint64ID(v uint64) ID {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return ID(b[:])
}

// Uint64 returns the value of an id of the layout "u64"; ok is false for an id
// of any other length.
func (id ID) Uint64() (v uint64, ok bool) {
	if len(id) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64([]byte(id)), true
}

// MarshalText returns the hexadecimal form, so that ids survive JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (id *ID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidID, err)
	}
	*id = ID(b)
	return nil
}
