package main

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/walrig/walrig/sdk/client"
)

// recordFormat appends the output form of a record, end included, to dst.
type recordFormat func(dst []byte, m *client.Message) []byte

func (a *app) recordFormat(opt readOptions) (recordFormat, error) {
	switch a.output {
	case outputJSON:
		return func(dst []byte, m *client.Message) []byte { return appendJSONRecord(dst, opt.channel, m) }, nil
	case outputRaw:
		delim, err := parseDelimiter(opt.delimiter)
		if err != nil {
			return nil, err
		}
		return func(dst []byte, m *client.Message) []byte { return append(append(dst, m.Payload...), delim...) }, nil
	}
	return appendTextRecord, nil
}

// parseDelimiter understands the escapes that a shell makes hard to type.
func parseDelimiter(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b.WriteByte(text[i])
			continue
		}
		i++
		escapes := map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', '0': 0, '\\': '\\'}
		if i < len(text) {
			if c, ok := escapes[text[i]]; ok {
				b.WriteByte(c)
				continue
			}
			if text[i] == 'x' && i+2 < len(text) {
				if v, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
					b.WriteByte(byte(v))
					i += 2
					continue
				}
			}
		}
		return "", usageError(`the escapes are \n \t \r \0 \\ \xHH`, "delimiter %q has an unknown escape", text)
	}
	return b.String(), nil
}

// appendTextRecord is for eyes: what a terminal would act upon is escaped.
func appendTextRecord(dst []byte, m *client.Message) []byte {
	if m.Type.IsSystem() {
		dst = append(dst, '[')
		dst = append(dst, m.Type.String()...)
		dst = append(dst, ' ')
		dst = append(dst, m.ID...)
		dst = append(dst, "] "...)
	}
	p := m.Payload
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		switch {
		case r == utf8.RuneError && size == 1:
			dst = appendHexByte(dst, p[0])
		case r == '\t' || unicode.IsPrint(r):
			dst = append(dst, p[:size]...)
		default:
			// Like \n, \x00 and \u2028, without the quotes.
			q := strconv.AppendQuoteRune(nil, r)
			dst = append(dst, q[1:len(q)-1]...)
		}
		p = p[size:]
	}
	return append(dst, '\n')
}

func appendHexByte(dst []byte, b byte) []byte {
	const digits = "0123456789abcdef"
	return append(dst, '\\', 'x', digits[b>>4], digits[b&15])
}

// appendJSONRecord is written by hand because a million of them is common, and
// most of the time would go into reflection.
func appendJSONRecord(dst []byte, channel string, m *client.Message) []byte {
	dst = append(dst, `{"channel":`...)
	dst = appendJSONString(dst, channel)
	dst = append(dst, `,"id":`...)
	dst = appendJSONString(dst, m.ID)
	dst = append(dst, `,"time_tick":`...)
	if m.TimeTick == 0 {
		dst = append(dst, `null,"time":null`...)
	} else {
		dst = append(dst, '"')
		dst = strconv.AppendUint(dst, uint64(m.TimeTick), 10)
		dst = append(dst, `","time":"`...)
		dst = m.TimeTick.Time().AppendFormat(dst, "2006-01-02T15:04:05.000Z07:00")
		dst = append(dst, '"')
	}
	dst = append(dst, `,"term":`...)
	dst = strconv.AppendInt(dst, m.Term, 10)
	dst = append(dst, `,"type":`...)
	dst = appendJSONString(dst, m.Type.String())
	dst = append(dst, `,"vchannel":`...)
	dst = appendJSONString(dst, m.VChannel)
	dst = append(dst, `,"txn_id":`...)
	if m.TxnID == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '"')
		dst = strconv.AppendUint(dst, m.TxnID, 10)
		dst = append(dst, '"')
	}
	dst = append(dst, `,"properties":{`...)
	for i, k := range slices.Sorted(maps.Keys(m.Properties)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSONString(dst, k)
		dst = append(dst, ':')
		dst = appendJSONString(dst, m.Properties[k])
	}
	dst = append(dst, `},"payload":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, m.Payload)
	dst = append(dst, '"')
	if utf8.Valid(m.Payload) {
		dst = append(dst, `,"text":`...)
		dst = appendJSONString(dst, string(m.Payload))
	}
	dst = append(dst, `,"checkpoint":`...)
	if m.Checkpoint == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendJSONString(dst, m.Checkpoint)
	}
	return append(dst, "}\n"...)
}

// appendJSONString quotes plain text itself and leaves the rest to encoding/json.
func appendJSONString(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			// A string always encodes.
			b, _ := json.Marshal(s)
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
