package parquet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// owner names one taking over of a log: its term, and the n-th within it. Two
// owners never share a pair, because an owner begins with a create-only object
// of that name.
type owner struct {
	Term int64
	Open int64
}

func (o owner) less(p owner) bool {
	return o.Term < p.Term || (o.Term == p.Term && o.Open < p.Open)
}

// String is the fixed-width form that names begin with: names sort as owners do.
func (o owner) String() string { return fmt.Sprintf("%016x-%08x", o.Term, o.Open) }

// position names one manifest of a vchannel. A position is used for one attempt
// to write and never again.
type position struct {
	Owner owner
	Seq   int64
}

func (p position) isZero() bool { return p == position{} }

func (p position) less(q position) bool {
	return p.Owner.less(q.Owner) || (p.Owner == q.Owner && p.Seq < q.Seq)
}

func (p position) String() string {
	if p.isZero() {
		return ""
	}
	return fmt.Sprintf("%s-%08x", p.Owner, p.Seq)
}

// The widths of the forms above.
const (
	ownerWidth    = 16 + 1 + 8
	positionWidth = ownerWidth + 1 + 8
)

func parseOwner(s string) (owner, bool) {
	if len(s) != ownerWidth || s[16] != '-' {
		return owner{}, false
	}
	term, ok1 := parseHex(s[:16])
	open, ok2 := parseHex(s[17:])
	return owner{Term: term, Open: open}, ok1 && ok2
}

func parsePosition(s string) (position, bool) {
	if len(s) != positionWidth || s[ownerWidth] != '-' {
		return position{}, false
	}
	o, ok1 := parseOwner(s[:ownerWidth])
	seq, ok2 := parseHex(s[ownerWidth+1:])
	return position{Owner: o, Seq: seq}, ok1 && ok2
}

// parseHex accepts lower case only, so that one position has one name.
func parseHex(s string) (int64, bool) {
	v, err := strconv.ParseInt(s, 16, 64)
	return v, err == nil && v >= 0 && s == strings.ToLower(s) && s[0] != '+' && s[0] != '-'
}

// MarshalText and UnmarshalText put positions into JSON under their names.
func (p position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *position) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*p = position{}
		return nil
	}
	var ok bool
	if *p, ok = parsePosition(string(text)); !ok {
		return fmt.Errorf("%q is no manifest position", text)
	}
	return nil
}

// maxNameBytes bounds an escaped name: it is one component of a path, and file
// systems allow 255 bytes.
const maxNameBytes = 230

// broadcast is the escaped form of the vchannel "". No escaped name starts with
// an underscore.
const broadcast = "_broadcast"

// escapeName turns any name into one safe path component. Letters, digits, '.',
// '_' and '-' stay, except a first byte that is not a letter or digit; every
// other byte becomes ~XX. So no name is "..", has a slash, or meets another.
func escapeName(name string) string {
	if name == "" {
		return broadcast
	}
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			b.WriteByte(c)
		case i > 0 && (c == '.' || c == '_' || c == '-'):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "~%02X", c)
		}
	}
	return b.String()
}

// unescapeName is the inverse of escapeName; ok is false for a component that
// escapeName does not make.
func unescapeName(component string) (name string, ok bool) {
	if component == broadcast {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(component); i++ {
		if component[i] != '~' {
			b.WriteByte(component[i])
			continue
		}
		if i+2 >= len(component) {
			return "", false
		}
		raw, err := hex.DecodeString(component[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.WriteByte(raw[0])
		i += 2
	}
	name = b.String()
	return name, name != "" && escapeName(name) == component
}

// layout makes the keys of one log: <pchannel>/<store id>/…
type layout struct{ root string }

func newLayout(pchannel, storeID string) (layout, error) {
	if pchannel == "" || storeID == "" {
		return layout{}, walimpls.Errorf(walimpls.CodeInvalidArgument, pchannel, "sink: the pchannel %q and the store id %q must not be empty", pchannel, storeID)
	}
	channel, store := escapeName(pchannel), escapeName(storeID)
	if len(channel) > maxNameBytes {
		return layout{}, walimpls.Errorf(walimpls.CodeInvalidArgument, "", "sink: the pchannel's name is too long: %d bytes escaped, at most %d", len(channel), maxNameBytes)
	}
	if len(store) > maxNameBytes {
		// Nobody reads a store id back from a key, so a digest may stand for its end.
		sum := sha256.Sum256([]byte(storeID))
		store = store[:maxNameBytes-34] + "~~" + hex.EncodeToString(sum[:16])
	}
	return layout{root: channel + "/" + store + "/"}, nil
}

func (l layout) owners() string             { return l.root + "owners/" }
func (l layout) intent(o owner) string      { return l.owners() + o.String() + ".intent" }
func (l layout) claim(o owner) string       { return l.owners() + o.String() + ".json" }
func (l layout) manifests() string          { return l.root + "manifests/" }
func (l layout) vmanifests(v string) string { return l.manifests() + escapeName(v) + "/" }
func (l layout) index(v string) string      { return l.root + "index/" + escapeName(v) + "/" }
func (l layout) data(v string) string       { return l.root + "data/" + escapeName(v) + "/" }

const (
	manifestSuffix = ".json"
	droppedSuffix  = ".drop.json"
)

func (l layout) manifest(v string, r ref) string {
	return l.vmanifests(v) + r.String() + manifestSuffix
}

func (l layout) page(v string, p pageRef) string {
	return fmt.Sprintf("%s%s-%02x-%04x.json", l.index(v), p.At, p.Level, p.N)
}

func (l layout) file(v string, e entry) string {
	return fmt.Sprintf("%s%s-%04x-%020d-%020d.parquet", l.data(v), e.At, e.N, uint64(e.FirstTick), uint64(e.LastTick))
}

// ref is what a manifest's name says: its position, and whether it is a tombstone.
type ref struct {
	At      position
	Dropped bool
}

func (r ref) String() string {
	if r.Dropped {
		return r.At.String() + ".drop"
	}
	return r.At.String()
}

func parseRef(s string) (ref, bool) {
	name, dropped := strings.CutSuffix(s, ".drop")
	at, ok := parsePosition(name)
	return ref{At: at, Dropped: dropped}, ok
}

// parseFileName reads what layout.file put into the last component of a key.
func parseFileName(name string) (entry, bool) {
	name, ok := strings.CutSuffix(name, ".parquet")
	if !ok || len(name) != positionWidth+1+4+1+20+1+20 {
		return entry{}, false
	}
	at, ok := parsePosition(name[:positionWidth])
	parts := strings.Split(name[positionWidth:], "-")
	if !ok || len(parts) != 4 || parts[0] != "" || len(parts[1]) != 4 {
		return entry{}, false
	}
	n, ok := parseHex(parts[1])
	first, err1 := strconv.ParseUint(parts[2], 10, 64)
	last, err2 := strconv.ParseUint(parts[3], 10, 64)
	return entry{At: at, N: int(n), FirstTick: message.Tick(first), LastTick: message.Tick(last)}, ok && err1 == nil && err2 == nil
}
