package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestAMillionLinesComeBackByteForByte is the first thing that a new user does.
func TestAMillionLinesComeBackByteForByte(t *testing.T) {
	lines := 1_000_000
	switch {
	case testing.Short():
		lines = 50_000
	case len(raceFlag) > 0:
		lines = 200_000 // the programs under test are many times slower
	}
	var text bytes.Buffer
	for i := range lines {
		switch i % 7 {
		case 0:
			text.WriteByte('\n') // an empty record
		case 1:
			fmt.Fprintf(&text, "%d\r\x00\xff not text\n", i)
		default:
			fmt.Fprintf(&text, "line %d of a file that somebody keeps\n", i)
		}
	}
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	h := startHost(t, dir, 30*time.Second)
	if _, errs, code := h.walrig("", "append", "orders", "--create", "-f", file); code != 0 {
		t.Fatalf("append: exit %d: %s", code, errs)
	}
	compare := func(want []byte) {
		t.Helper()
		cmd := exec.Command(filepath.Join(binaries, "walrig"), "read", "orders", "-o", "raw", "--addr", h.addr)
		cmd.Env = cleanEnv()
		got, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, appended %d", len(got), len(want))
		}
	}
	compare(text.Bytes())
	h.stop()
	h = startHost(t, dir, 10*time.Second)
	if _, errs, code := h.walrig("behind\n", "append", "orders"); code != 0 {
		t.Fatalf("append after the restart: exit %d: %s", code, errs)
	}
	compare(append(text.Bytes(), "behind\n"...))
}
