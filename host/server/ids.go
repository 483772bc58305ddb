package server

import (
	"strconv"

	"github.com/walrig/walrig/sdk/message"
)

// idFormat makes the text form of ids, many a second: one number of eight bytes,
// the most common layout, takes a short cut.
type idFormat struct {
	layout message.Layout
	u64    bool
}

func newIDFormat(layout message.Layout) idFormat {
	return idFormat{layout: layout, u64: layout == "u64"}
}

// text returns the text form, "" for the empty id, and hexadecimal digits behind
// "?" for one that does not fit the layout, which is the plugin's defect.
func (f idFormat) text(id message.ID) string { return string(f.append(nil, id)) }

// append appends what text returns.
func (f idFormat) append(dst []byte, id message.ID) []byte {
	if id == "" {
		return dst
	}
	if f.u64 {
		if v, ok := id.Uint64(); ok {
			return strconv.AppendUint(dst, v, 10)
		}
	}
	s, err := f.layout.Format(id)
	if err != nil {
		s = "?" + id.String()
	}
	return append(dst, s...)
}
