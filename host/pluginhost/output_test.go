package pluginhost

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"
)

func TestLinesAreTheSameHoweverTheyArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text []byte
		type line struct {
			text string
			cut  int
		}
		var want []line
		for _, n := range rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 5, maxLine - 1, maxLine, maxLine + 1, 3 * maxLine}), 1, 6).Draw(t, "lines") {
			l := bytes.Repeat([]byte{'a' + byte(n%7)}, n)
			text = append(append(text, l...), '\n')
			want = append(want, line{string(l[:min(n, maxLine)]), max(0, n-maxLine)})
		}
		if rapid.Bool().Draw(t, "unfinished") {
			text = append(text, "tail"...)
			want = append(want, line{"tail", 0})
		}
		var got []line
		s := lineSplitter{}
		s.fn = func(l []byte, cut int) {
			if n := min(cut, maxLineEnd); cut > 0 && string(s.end[len(s.end)-n:]) != strings.Repeat(string(l[:1]), n) {
				t.Fatalf("the end of a line that was cut is %q", s.end)
			}
			got = append(got, line{string(l), cut})
		}
		for len(text) > 0 {
			n := min(len(text), rapid.IntRange(1, 2*maxLine).Draw(t, "chunk"))
			_, _ = s.Write(text[:n])
			text = text[n:]
		}
		s.flush()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %d lines, want %d", len(got), len(want))
		}
	})
}

func TestHandshakeIsFoundBehindOtherText(t *testing.T) {
	cert := strings.Repeat("A", 60)
	for text, want := range map[string]handshake{
		"1|1|unix|/tmp/x|grpc|" + cert:              {core: 1, protocol: 1, rpc: "grpc", cert: true},
		"1|12|unix|/tmp/x|grpc|":                    {core: 1, protocol: 12, rpc: "grpc"},
		"took 51|3|unix|/tmp/x|grpc|" + cert + "\r": {core: 1, protocol: 3, rpc: "grpc", cert: true},
		"1|1|tcp|127.0.0.1:1234|netrpc":             {core: 1, protocol: 1, rpc: "netrpc"},
		"2|1|unix|/tmp/x|grpc|" + cert + "|true":    {core: 2, protocol: 1, rpc: "grpc", cert: true},
		"1|1|unix|/tmp/x":                           {core: 1, protocol: 1},
	} {
		got, ok := parseHandshake([]byte(text))
		got.line = ""
		if !ok || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "hello", "a|b|c|d", "1|1|", "1|x|unix|/tmp", "1|1|udp|x", "1||unix|/tmp/x"} {
		if h, ok := parseHandshake([]byte(text)); ok {
			t.Errorf("%q is taken for the handshake %+v", text, h)
		}
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add([]byte("1|1|unix|/tmp/x|grpc|cert"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if h, ok := parseHandshake(line); ok && strings.Count(h.line, "|") < 3 {
			t.Fatalf("%q has too few fields", h.line)
		}
	})
}

func FuzzHCLog(f *testing.F) {
	f.Add([]byte(`{"@level":"info","@message":"x","k":{"a":[1]}}`))
	log, _ := observer.New(zap.DebugLevel)
	f.Fuzz(func(_ *testing.T, line []byte) {
		logLine{text: line, stream: "stderr"}.write(zap.New(log))
		new(tail).add(line, false)
		parseStdio(line)
	})
}

func observed(level zapcore.Level) (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(level)
	return zap.New(core), logs
}

func TestPluginLogLinesKeepLevelTimeAndFields(t *testing.T) {
	log, logs := observed(zap.DebugLevel)
	logLine{text: []byte(`{"@level":"warn","@message":"slow","@timestamp":"2026-01-02T03:04:05.000006Z","@module":"rmq","took":"5s","plugin":"x","n":12345678901234567890}`)}.write(log)
	logLine{text: []byte("plain \x1b[31mtext\xff")}.write(log)
	logLine{text: []byte("cut"), cut: 7}.write(log)
	logLine{text: []byte("panic: oh"), panics: true}.write(log)
	logLine{text: []byte(`{"foo":1}`)}.write(log)
	got := logs.All()
	if len(got) != 5 {
		t.Fatalf("%d lines", len(got))
	}
	e := got[0]
	if e.Level != zap.WarnLevel || e.Message != "slow" || !e.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)) {
		t.Errorf("entry %+v", e.Entry)
	}
	fields := fmt.Sprint(e.ContextMap())
	if want := "map[module:rmq n:12345678901234567890 plugin_field:x took:5s]"; fields != want {
		t.Errorf("fields %s, want %s", fields, want)
	}
	if got[1].Message != `plain \x1b[31mtext\xff` || got[1].Level != zap.InfoLevel {
		t.Errorf("plain line %q", got[1].Message)
	}
	if !strings.Contains(got[2].Message, "7 more bytes") {
		t.Errorf("cut line %q", got[2].Message)
	}
	if got[3].Level != zap.ErrorLevel || got[4].Message != `{"foo":1}` {
		t.Errorf("panic %v, foreign JSON %q", got[3].Level, got[4].Message)
	}
}

func TestTailKeepsTheCauseOfACrash(t *testing.T) {
	var tl tail
	for i := range 30 {
		tl.add(fmt.Appendf(nil, "line %d", i), false)
	}
	if len(tl.lines) != tailLines || tl.lines[tailLines-1] != "line 29" {
		t.Fatalf("tail %q", tl.lines)
	}
	tl.add([]byte(`{"@level":"debug","@message":"noise"}`), false)
	tl.add([]byte(`{"@level":"error","@message":"no","err":"x"}`), false)
	if tl.lines[tailLines-1] != "error: no err=x" {
		t.Fatalf("tail %q", tl.lines)
	}
	tl.add([]byte("panic: boom"), true)
	for i := range 100 {
		tl.add(fmt.Appendf(nil, "frame %d", i), true)
	}
	if len(tl.lines) != tailLines || tl.lines[2] != "panic: boom" || tl.lines[7] != "frame 4" {
		t.Fatalf("tail after a crash %q", tl.lines)
	}
}

func TestLimiterBoundsLinesAndBytes(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLimiter(now)
	count := func(size int, d time.Duration) (n int) {
		now = now.Add(d)
		for l.allow(now, size) {
			n++
		}
		return n
	}
	if n := count(10, 0); n != logBurst {
		t.Errorf("burst %d", n)
	}
	if n := count(10, time.Second); n != logPerSecond {
		t.Errorf("%d lines a second", n)
	}
	if n := count(16<<10, time.Second); n != logPerSecond/17 {
		t.Errorf("%d lines of 16 KiB a second", n)
	}
	if n := count(10, time.Hour); n != logBurst {
		t.Errorf("burst after a pause %d", n)
	}
	if n := count(10, -time.Hour); n != 0 {
		t.Errorf("a clock that goes back gives %d lines", n)
	}
}

// A log that does not take its lines (a full disk, a terminal that is held)
// must not hold up the plugin, and what is lost is counted.
func TestBlockedLogNeverBlocksThePlugin(t *testing.T) {
	r, w := io.Pipe()
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(w), zap.DebugLevel))
	o := newOutput(log)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range 50_000 {
			o.stderr(fmt.Appendf(nil, "line %d", i), 0)
		}
	}()
	select {
	case <-written:
	case <-time.After(10 * time.Second):
		t.Fatal("writing to stderr blocks while the log blocks")
	}
	all := make(chan string)
	go func() {
		text, _ := io.ReadAll(r)
		all <- string(text)
	}()
	<-closeOutput(o)
	_ = w.Close()
	text := <-all
	if !strings.Contains(text, "line 0") || !strings.Contains(text, "were dropped") {
		t.Errorf("the log has %d bytes and no count of what was dropped", len(text))
	}
	if stderr, _ := o.traces(); stderr[len(stderr)-1] != "line 49999" {
		t.Errorf("last line %q", stderr[len(stderr)-1])
	}
}

func closeOutput(o *output) <-chan struct{} {
	o.close()
	return o.done
}

func TestFloodIsCountedAndLaterLinesArrive(t *testing.T) {
	log, logs := observed(zap.DebugLevel)
	o := newOutput(log)
	for range 200_000 {
		o.stderr([]byte("short line"), 0)
	}
	o.stderr([]byte("panic: after the flood"), 0)
	o.close()
	if n := logs.Len(); n > 2*logBurst {
		t.Errorf("%d lines were logged", n)
	}
	var dropped int64
	for _, e := range logs.FilterMessageSnippet("were dropped").All() {
		dropped += e.ContextMap()["lines"].(int64)
	}
	if kept := int64(logs.FilterMessage("short line").Len()); kept+dropped != 200_000 && kept+dropped != 200_001 {
		t.Errorf("%d kept + %d dropped", kept, dropped)
	}
}
