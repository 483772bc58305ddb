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
func (f idFormat) text(id message.ID) string {
	if id == "" {
		return ""
	}
	if f.u64 {
		if v, ok := id.Uint64(); ok {
			return strconv.FormatUint(v, 10)
		}
	}
	s, err := f.layout.Format(id)
	if err != nil {
		return "?" + id.String()
	}
	return s
}
