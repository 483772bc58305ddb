package pluginhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logLine is one line that a plugin wrote.
type logLine struct {
	text   []byte
	cut    int
	stream string // "stdout" or "stderr"
	panics bool   // part of a crash dump
}

// hclogEntry is a line of hclog's JSON format.
type hclogEntry struct {
	level   string
	message string
	module  string
	caller  string
	time    time.Time
	extra   map[string]any
}

// parseHCLog reads a line of hclog's JSON format.
func parseHCLog(line []byte) (hclogEntry, bool) {
	if len(line) == 0 || line[0] != '{' {
		return hclogEntry{}, false
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var raw map[string]any
	if d.Decode(&raw) != nil || d.More() {
		return hclogEntry{}, false
	}
	take := func(key string) string {
		s, _ := raw[key].(string)
		delete(raw, key)
		return s
	}
	e := hclogEntry{level: take("@level"), message: take("@message"), module: take("@module"), caller: take("@caller"), extra: raw}
	e.time, _ = time.Parse("2006-01-02T15:04:05.000000Z07:00", take("@timestamp"))
	return e, e.level != "" || e.message != ""
}

var hclogLevels = map[string]zapcore.Level{
	"trace": zapcore.DebugLevel, "debug": zapcore.DebugLevel, "info": zapcore.InfoLevel,
	"warn": zapcore.WarnLevel, "error": zapcore.ErrorLevel,
}

// write turns the line into one line of the host's log. A line that is not
// hclog's goes in as it is; log already names the plugin.
func (l logLine) write(log *zap.Logger) {
	e, structured := parseHCLog(l.text)
	if !structured || l.cut > 0 {
		level := zapcore.InfoLevel
		if l.panics {
			level = zapcore.ErrorLevel
		}
		text := printable(l.text)
		if l.cut > 0 {
			text += fmt.Sprintf(" … (%d more bytes of this line were cut)", l.cut)
		}
		log.Log(level, text, zap.String("stream", l.stream))
		return
	}
	level, ok := hclogLevels[e.level]
	if !ok {
		level = zapcore.InfoLevel
	}
	ce := log.Check(level, printable([]byte(e.message)))
	if ce == nil {
		return
	}
	if !e.time.IsZero() {
		ce.Time = e.time
	}
	fields := make([]zap.Field, 0, len(e.extra)+2)
	for _, f := range []zap.Field{zap.String("module", e.module), zap.String("plugin_caller", e.caller)} {
		if f.String != "" {
			fields = append(fields, f)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(e.extra)) {
		v := e.extra[k]
		if s, ok := v.(string); ok {
			v = printable([]byte(s))
		}
		if k == "plugin" {
			k = "plugin_field" // the host's own field names the plugin
		}
		fields = append(fields, zap.Any(printable([]byte(k)), v))
	}
	ce.Write(fields...)
}

// printable returns the text with everything replaced that could act on a
// terminal or break a line, so that a plugin's output is only ever text.
func printable(text []byte) string {
	clean := utf8.Valid(text)
	for i := 0; clean && i < len(text); i++ {
		clean = text[i] >= ' ' && text[i] != 0x7f || text[i] == '\t'
	}
	if clean {
		return string(text)
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case r != '\t' && unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
		text = text[n:]
	}
	return b.String()
}

// isPanic says whether a line begins a crash dump of the Go runtime.
func isPanic(line []byte) bool {
	return bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: "))
}

// tail holds the last lines of stderr for the error of a failed start. Once a
// crash dump begins it holds the dump's first lines, where the cause is.
type tail struct {
	lines  []string
	frozen bool
}

const (
	tailLines    = 8
	tailLineSize = 512
)

func (t *tail) add(line []byte, panics bool) {
	if len(line) == 0 || t.frozen && len(t.lines) >= tailLines {
		return
	}
	if panics && !t.frozen {
		t.frozen = true
		t.lines = t.lines[max(0, len(t.lines)-2):]
	}
	text := tailText(line)
	if text == "" {
		return
	}
	if len(t.lines) >= tailLines {
		t.lines = slices.Delete(t.lines, 0, 1)
	}
	t.lines = append(t.lines, text)
}

// tailText returns a line as it is quoted: a structured one as text, one below
// the level info not at all.
func tailText(line []byte) string {
	text := string(line)
	if e, ok := parseHCLog(line); ok {
		if e.level == "trace" || e.level == "debug" {
			return ""
		}
		text = e.level + ": " + e.message
		for _, k := range slices.Sorted(maps.Keys(e.extra)) {
			text += fmt.Sprintf(" %s=%v", k, e.extra[k])
		}
	}
	if len(text) > tailLineSize {
		text = text[:tailLineSize] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// limiter bounds what a plugin may put into the host's log: a token bucket of
// lines, where a long line counts as one more for each KiB. Time is passed in.
type limiter struct {
	perSecond float64
	burst     float64
	tokens    float64
	last      time.Time
}

// The limits: a burst of some thousand lines, then 200 a second.
const (
	logBurst     = 2000
	logPerSecond = 200
)

func newLimiter(now time.Time) limiter {
	return limiter{perSecond: logPerSecond, burst: logBurst, tokens: logBurst, last: now}
}

// allow says whether a line of size bytes may be logged now.
func (l *limiter) allow(now time.Time, size int) bool {
	if d := now.Sub(l.last); d > 0 {
		l.tokens = min(l.burst, l.tokens+d.Seconds()*l.perSecond)
		l.last = now
	}
	cost := 1 + float64(size/1024)
	if l.tokens < cost {
		return false
	}
	l.tokens -= cost
	return true
}
