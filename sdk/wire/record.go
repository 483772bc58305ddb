package wire

import (
	"fmt"
	"unicode/utf8"

	"github.com/walrig/walrig/sdk/message"
	"github.com/walrig/walrig/sdk/walimpls"
)

// CheckRecord returns ErrInvalidArgument for a record that cannot cross a
// process boundary, nil for all others. It does not look at any limit.
func CheckRecord(channel string, m *message.Message) error {
	bad := ""
	if !utf8.ValidString(m.VChannel) {
		bad = "its vchannel"
	}
	for k, v := range m.Properties {
		if !utf8.ValidString(k) {
			bad = fmt.Sprintf("property key %q", k)
		} else if !utf8.ValidString(v) {
			bad = fmt.Sprintf("the value of property %q", k)
		}
	}
	if bad == "" {
		return nil
	}
	e := walimpls.Errorf(walimpls.CodeInvalidArgument, channel, "record: %s is not valid UTF-8", bad)
	e.Hint = "put binary data into the payload, or encode it as text"
	return e
}

// TooLarge returns the ErrTooLarge of a record of size bytes, where limit is the
// backend's MaxMessageBytes.
func TooLarge(channel string, size, limit int) error {
	e := walimpls.Errorf(walimpls.CodeTooLarge, channel, "a record of %d bytes exceeds the backend's limit of %d", size, limit)
	e.Hint = "split the record, or raise the backend's limit in its configuration if it has one"
	return e
}

// idToProto returns nil for the empty id, so that "none" takes no bytes.
func idToProto(id message.ID) []byte {
	if id == "" {
		return nil
	}
	return []byte(id)
}
