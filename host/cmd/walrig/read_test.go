package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

func filled(t *testing.T, payloads ...string) (*fakeHost, string) {
	t.Helper()
	h := &fakeHost{}
	addr := startFakeHost(t, h)
	for _, p := range payloads {
		h.store([]byte(p))
	}
	return h, addr
}

func TestReadFormats(t *testing.T) {
	_, addr := filled(t, "one", "", "b\x00\xff")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "one\n\nb\\x00\\xff\n"},
		{[]string{"-o", "raw"}, "one\n\nb\x00\xff\n"},
		{[]string{"-o", "raw", "--delimiter", `\0`}, "one\x00\x00b\x00\xff\x00"},
		{[]string{"-o", "raw", "--delimiter", "", "-n", "1"}, "one"},
		{[]string{"-n", "2"}, "one\n\n"},
		{[]string{"-n", "0"}, ""},
		{[]string{"-n", "9"}, "one\n\nb\\x00\\xff\n"},
		{[]string{"--follow", "-n", "3"}, "one\n\nb\\x00\\xff\n"},
		{[]string{"-o", "json", "-n", "1"}, `{"channel":"orders","id":"1","time_tick":null,"time":null,"term":3,"type":"data","vchannel":"","txn_id":null,"properties":{},"payload":"b25l","text":"one","checkpoint":null}` + "\n"},
	} {
		r := runApp(t.Context(), addr, nil, append([]string{"read", "orders"}, c.args...)...)
		if r.exit != 0 || r.stderr != "" || r.stdout != c.want {
			t.Errorf("%v: %+v, want %q", c.args, r, c.want)
		}
	}
}

func TestReadThatFallsShortOfItsCountTimesOut(t *testing.T) {
	_, addr := filled(t, "one")
	r := runApp(t.Context(), addr, nil, "read", "orders", "--follow", "-n", "2", "--timeout", "200ms")
	if r.exit != walimpls.ExitUnreachable || r.stdout != "one\n" || !strings.Contains(r.stderr, "got 1 of 2 records") {
		t.Errorf("%+v", r)
	}
	r = runApp(t.Context(), addr, nil, "read", "orders", "--follow", "--timeout", "200ms")
	if r.exit != 0 || r.stdout != "one\n" || r.stderr != "" {
		t.Errorf("without a count: %+v", r)
	}
}

func TestLostPositionNamesTheEarliest(t *testing.T) {
	_, addr := filled(t, "one")
	r := runApp(t.Context(), addr, nil, "read", "orders", "--from", "after:1", "-o", "json")
	e := failure(t, r.stderr)
	if r.exit != 1 || e.Code != walimpls.CodePositionLost || shown(e.Earliest) != "17" || shown(e.Latest) != "20" || shown(e.Channel) != "orders" {
		t.Errorf("%+v", r)
	}
}

func TestReadIsSilentWhenNobodyListens(t *testing.T) {
	_, addr := filled(t, "one", "two")
	for _, format := range []string{"text", "json", "raw"} {
		var stderr bytes.Buffer
		r := runWith(t.Context(), addr, nil, &failingWriter{0, syscall.EPIPE}, &stderr, "read", "orders", "--follow", "-o", format)
		if r.exit != 0 || r.stderr != "" {
			t.Errorf("%s: %+v", format, r)
		}
	}
	var stderr bytes.Buffer
	r := runWith(t.Context(), addr, nil, &failingWriter{0, syscall.ENOSPC}, &stderr, "read", "orders")
	if r.exit != 1 || !strings.Contains(r.stderr, "no space") {
		t.Errorf("full disk: %+v", r)
	}
}

func TestFollowShowsARecordBeforeTheNextOneComes(t *testing.T) {
	h, addr := filled(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	out, stdout := io.Pipe()
	done := make(chan result, 1)
	go func() {
		done <- runWith(ctx, addr, nil, stdout, &bytes.Buffer{}, "read", "orders", "--follow")
		stdout.Close()
	}()
	buf := make([]byte, 100)
	for _, p := range []string{"one", "two", "three"} {
		h.store([]byte(p))
		n, err := out.Read(buf)
		if err != nil || string(buf[:n]) != p+"\n" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
	}
	cancel(errInterrupted)
	select {
	case r := <-done:
		if r.exit != walimpls.ExitInterrupted || r.stderr != "" {
			t.Errorf("%+v", r)
		}
	case <-time.After(20 * time.Second):
		t.Error("an interrupted read does not end")
	}
}

func TestReadRefusesBadInput(t *testing.T) {
	_, addr := filled(t)
	for _, args := range [][]string{
		{"read"}, {"read", "orders", "-n", "-1"}, {"read", "orders", "--delimiter", "x"}, {"read", "orders", "-o", "xml"},
		{"read", "orders", "-o", "raw", "--delimiter", `\q`}, {"read", "orders", "--timeout", "-1s"}, {"read", "orders", "--folow"}, {"raed"}, {"channel"}, {"channel", "creat"},
	} {
		if r := runApp(t.Context(), addr, nil, args...); r.exit != walimpls.ExitUsage || !strings.HasPrefix(r.stderr, "error: ") || !strings.Contains(r.stderr, "\nhint: ") && len(args) > 3 && args[2] != "-n" && args[2] != "--timeout" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	r := runApp(t.Context(), addr, nil, "raed")
	if want := "error: unknown command \"raed\" (did you mean \"read\"?) (invalid_argument)\nhint: see `walrig --help`\n"; r.stderr != want {
		t.Errorf("%q", r.stderr)
	}
	r = runApp(t.Context(), addr, nil, "read", "--folow", "-ojson")
	if e := failure(t, r.stderr); e.Code != walimpls.CodeInvalidArgument || e.Message != `unknown flag: --folow (did you mean "follow"?)` {
		t.Errorf("%+v", e)
	}
}
