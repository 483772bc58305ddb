package pluginhost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
)

func writeFile(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBinaryIsFoundInTheDocumentedPlaces(t *testing.T) {
	dir := t.TempDir()
	host := filepath.Join(dir, "bin", "walrig")
	beside := writeFile(t, filepath.Join(dir, "bin", "walrig-plugin-both"), "", 0o755)
	writeFile(t, filepath.Join(dir, "plugins", "walrig-plugin-both"), "", 0o755)
	second := writeFile(t, filepath.Join(dir, "plugins", "walrig-plugin-second"), "", 0o755)
	explicit := writeFile(t, filepath.Join(dir, "x", "any-name"), "", 0o755)
	opt := Options{HostBinary: host, PluginDir: filepath.Join(dir, "plugins")}
	for _, c := range []struct {
		cfg  Config
		want string
		text string
	}{
		{cfg: Config{Backend: "both"}, want: beside},
		{cfg: Config{Backend: "second"}, want: second},
		{cfg: Config{Backend: "both", Path: explicit}, want: explicit},
		{cfg: Config{Backend: "none"}, text: "no binary walrig-plugin-none in " + filepath.Join(dir, "bin") + " or " + filepath.Join(dir, "plugins")},
		{cfg: Config{Backend: "both", Path: filepath.Join(dir, "nowhere")}, text: "there is no " + filepath.Join(dir, "nowhere")},
	} {
		path, fail := discover(c.cfg, opt)
		if c.text == "" && (fail != nil || path != c.want) {
			t.Errorf("%+v: %s, %v; want %s", c.cfg, path, fail, c.want)
		}
		if c.text != "" && (fail == nil || fail.what != c.text || fail.reason != ReasonMissing || !fail.permanent || fail.hint == "") {
			t.Errorf("%+v: %s, %+v; want %q", c.cfg, path, fail, c.text)
		}
	}
}

func TestEnvironmentIsBuiltFromTheAllowList(t *testing.T) {
	host := []string{"PATH=/bin", "HOME=/h", "TMPDIR=/t", "LC_ALL=C", "TZ=UTC", "DB_PASSWORD=x", "PROXY=b", "AWS_SECRET_ACCESS_KEY=k",
		"WALRIG_TOKEN=t", "WALRIG_LISTEN=l", "HTTPS_PROXY=http://u:p@h", "SSL_CERT_FILE=/c", "broken"}
	own := map[string]string{"PROXY": "a", "TZ": "CET", "EMPTY": ""}
	got := pluginEnv(host, own, []string{"PLUGIN_CLIENT_CERT=a=b\nc", "COOKIE=1"}, 1)
	want := []string{"COOKIE=1", "EMPTY=", "HOME=/h", "LC_ALL=C", "PATH=/bin", "PLUGIN_CLIENT_CERT=a=b\nc", "PROXY=a", "SSL_CERT_FILE=/c",
		"TMPDIR=/t", "TZ=CET", "WALRIG_PLUGIN_DEPTH=2"}
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}

func TestEntryIsCheckedAsAWhole(t *testing.T) {
	bad := Config{Backend: "no/name", SHA256: "12", StartTimeout: -1, Env: map[string]string{"PLUGIN_X": "", "COOKIE": "", depthVariable: "", "A=B": "", "": "", "Z": "\x00"}}
	fail := bad.check("COOKIE")
	if fail == nil || fail.reason != ReasonConfig || !fail.permanent {
		t.Fatalf("%+v", fail)
	}
	for _, part := range []string{"PLUGIN_X", "COOKIE", depthVariable, `"A=B"`, `""`, "Z has a zero byte", "no/name", `"12"`, "negative"} {
		if !strings.Contains(fail.what, part) {
			t.Errorf("%q does not name %s", fail.what, part)
		}
	}
	if fail := (Config{Backend: "rmq", SHA256: strings.Repeat("aB", 32), Env: map[string]string{"A": "b"}}).check("COOKIE"); fail != nil {
		t.Errorf("a correct entry: %v", fail.what)
	}
}

func TestPluginThatStartsItselfIsStopped(t *testing.T) {
	t.Setenv(depthVariable, "2")
	if fail := checkDepth(); fail != nil {
		t.Errorf("depth 2: %v", fail.what)
	}
	t.Setenv(depthVariable, "3")
	if fail := checkDepth(); fail == nil || !fail.permanent {
		t.Error("depth 3 may start plugins")
	}
}

func TestImageRefusesWhatIsNoProgram(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path   string
		reason Reason
		text   string
	}{
		"a folder":       {dir, ReasonNotExecutable, "is a folder"},
		"a pipe":         {fifo, ReasonNotExecutable, "not a program"},
		"no permission":  {writeFile(t, filepath.Join(dir, "plain"), "x", 0o644), ReasonNotExecutable, "is not executable"},
		"a missing file": {filepath.Join(dir, "gone"), ReasonMissing, "there is no"},
		"a dangling link": {func() string {
			l := filepath.Join(dir, "link")
			_ = os.Symlink(filepath.Join(dir, "gone"), l)
			return l
		}(), ReasonMissing, "there is no"},
	} {
		_, fail := openImage(t.Context(), c.path, "", dir)
		if fail == nil || fail.reason != c.reason || !fail.permanent || !strings.Contains(fail.what, c.text) || !strings.Contains(fail.what, c.path) || fail.hint == "" {
			t.Errorf("%s: %+v", name, fail)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, fail := openImage(canceled, writeFile(t, filepath.Join(dir, "p"), "x", 0o755), "", dir); fail == nil || fail.permanent {
		t.Errorf("with a context that has ended: %+v", fail)
	}
}

// runImage launches the image and returns what it prints.
func runImage(t *testing.T, img *image) (string, error) {
	t.Helper()
	path, extra, err := img.executable(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	l := newLauncher()
	defer l.close()
	proc, err := l.start(path, []string{img.path}, &os.ProcAttr{Files: append([]*os.File{nil, w, nil}, extra...), Sys: processAttr()})
	_ = w.Close()
	if err != nil {
		return "", err
	}
	buf := make([]byte, 1000)
	n, _ := r.Read(buf)
	_, err = proc.Wait()
	return string(buf[:n]), err
}

// copyProgram copies a program of the system that prints its arguments.
func copyProgram(t *testing.T, dir string) string {
	t.Helper()
	echo, err := exec.LookPath("uname")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(echo)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, filepath.Join(dir, "program"), string(text), 0o755)
}

func sum(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

// Between the check and the launch somebody replaces the binary, or overwrites
// it in place. What runs is what was checked.
func TestCheckedBinaryIsTheOneThatRuns(t *testing.T) {
	const evil = "#!/bin/sh\necho evil\n"
	dir := t.TempDir()
	replace := func(path string) { _ = os.Rename(writeFile(t, filepath.Join(dir, "evil"), evil, 0o755), path) }
	overwrite := func(path string) { _ = os.WriteFile(path, []byte(evil), 0o755) }
	for name, c := range map[string]struct {
		script, pinned bool
		swap           func(string)
	}{
		"a program is replaced":            {false, false, replace},
		"a pinned program is replaced":     {false, true, replace},
		"a pinned program is overwritten":  {false, true, overwrite},
		"a script is replaced":             {true, false, replace},
		"a pinned script is replaced":      {true, true, replace},
		"a pinned script is overwritten":   {true, true, overwrite},
		"a pinned script is left in peace": {true, true, func(string) {}},
	} {
		t.Run(name, func(t *testing.T) {
			path, want := copyProgram(t, dir), "Linux\n"
			if c.script {
				path, want = writeFile(t, filepath.Join(dir, "script"), "#!/bin/sh\necho good\n", 0o755), "good\n"
			}
			pin := ""
			if c.pinned {
				pin = strings.ToUpper(sum(t, path))
			}
			img, fail := openImage(t.Context(), path, pin, dir)
			if fail != nil {
				t.Fatal(fail.what)
			}
			defer img.close()
			if img.sum != sum(t, path) {
				t.Errorf("checksum %s, want %s", img.sum, sum(t, path))
			}
			c.swap(path)
			if got, err := runImage(t, img); got != want || err != nil {
				t.Errorf("ran %q, %v; want %q", got, err, want)
			}
		})
	}
}

func TestPinMismatchNamesBothSums(t *testing.T) {
	dir := t.TempDir()
	path := copyProgram(t, dir)
	pin := strings.Repeat("AB", 32)
	img, fail := openImage(t.Context(), path, pin, dir)
	if fail == nil || fail.reason != ReasonPin || !fail.permanent {
		t.Fatalf("%+v", fail)
	}
	if !strings.Contains(fail.what, sum(t, path)) || !strings.Contains(fail.what, strings.ToLower(pin)) || img.sum != sum(t, path) {
		t.Errorf("%s; image %+v", fail.what, img)
	}
}

func TestLaunchFailuresSayWhatTheFileIs(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	foreign := slices.Clone(program[:1<<16])
	foreign[18], foreign[19] = 0xb7, 0 // e_machine: AArch64
	if strings.HasPrefix(string(program[18:20]), "\xb7\x00") {
		foreign[18] = 0x3e // x86-64
	}
	for name, c := range map[string]struct{ text, want string }{
		"another architecture":         {string(foreign), "is a program for "},
		"text":                         {"just text", "is neither a program for "},
		"Windows":                      {"MZ\x90\x00", "is a program for Windows"},
		"macOS":                        {"\xcf\xfa\xed\xfe....", "is a program for macOS"},
		"an interpreter that is gone":  {"#!/nowhere/sh\n", "interpreter does not exist"},
		"an interpreter that is empty": {"", "is neither a program for "},
	} {
		path := writeFile(t, filepath.Join(dir, name), c.text, 0o755)
		img, fail := openImage(t.Context(), path, "", dir)
		if fail != nil {
			t.Errorf("%s: %v", name, fail.what)
			continue
		}
		_, err := runImage(t, img)
		if err == nil {
			t.Errorf("%s: it runs", name)
			continue
		}
		fail = img.launchFailure(err)
		if fail.reason != ReasonNotExecutable || !fail.permanent || !strings.Contains(fail.what, c.want) || !strings.Contains(fail.what, path) || fail.hint == "" {
			t.Errorf("%s: %+v", name, fail)
		}
		img.close()
	}
}

// A binary that is still being written is retried for a moment and is then a
// failure that passes.
func TestBusyBinaryIsNotAPermanentFailure(t *testing.T) {
	dir := t.TempDir()
	path := copyProgram(t, dir)
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	img, fail := openImage(t.Context(), path, "", dir)
	if fail != nil {
		t.Fatal(fail.what)
	}
	defer img.close()
	_, err = runImage(t, img)
	if err == nil {
		t.Log("this kernel lets a file be executed that is open for writing")
	} else if fail := img.launchFailure(err); !errors.Is(err, syscall.ETXTBSY) || fail.permanent {
		t.Errorf("%v: %+v", err, fail)
	}
	_ = w.Close()
	if got, err := runImage(t, img); err != nil || got == "" {
		t.Errorf("after that: %q, %v", got, err)
	}
}

// shortDir returns a folder with a path that is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestSocketFolderIsShortAndPrivate(t *testing.T) {
	base := t.TempDir()
	long := filepath.Join(base, strings.Repeat("x", 250-len(base)))
	for _, dir := range []string{long, long[:60]} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, first := range map[string]string{"250 characters": long, "60 characters": long[:60], "missing": filepath.Join(base, "gone"), "a file": writeFile(t, filepath.Join(base, "f"), "", 0o644)} {
		d := newRunDir([]string{first, os.TempDir()}, zap.NewNop())
		path, err := d.get()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o700 || strings.HasPrefix(path, first) {
			t.Errorf("%s: %s %v %v", name, path, info.Mode(), err)
		}
		// As long as go-plugin makes it.
		socket := filepath.Join(path, "plugin-dir0123456789", "plugin0123456789")
		if len(socket) > maxSocketPath {
			t.Errorf("%s: a path of %d bytes", name, len(socket))
		}
		if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
			t.Error(err)
		}
		listen(t, socket)
		if again, err := d.get(); again != path || err != nil {
			t.Errorf("%s: then %s, %v", name, again, err)
		}
		_ = os.RemoveAll(path) // a cleaner of temporary folders
		again, err := d.get()
		if err != nil || again == "" {
			t.Errorf("%s: after it was removed: %v", name, err)
		}
		d.remove()
		if _, err := os.Stat(again); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is left", name, again)
		}
	}
	_, err := newRunDir([]string{long, filepath.Join(base, "gone")}, zap.NewNop()).get()
	if err == nil || !strings.Contains(err.Error(), long) || !strings.Contains(err.Error(), "103 is the limit") || !strings.Contains(err.Error(), "gone") {
		t.Errorf("no folder works: %v", err)
	}
}

// P-08: what a dead host left is removed; nobody's process is touched, whatever
// is written in its files, and nobody's folder.
func TestFoldersOfDeadHostsAreRemovedAndNothingElse(t *testing.T) {
	place := shortDir(t)
	sleep := exec.CommandContext(t.Context(), "sleep", "300")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	dead := filepath.Join(place, runDirPrefix+"1")
	writeFile(t, filepath.Join(dead, "plugin-dir1", "pid"), "1", 0o600)
	_ = os.WriteFile(filepath.Join(dead, "pid"), []byte(strconv.Itoa(sleep.Process.Pid)), 0o600)
	listen(t, filepath.Join(dead, "plugin-dir1", "plugin1"))
	_ = os.Chmod(dead, 0o700)
	halfMade, beingMade := filepath.Join(place, freshDirPrefix+"1"), filepath.Join(place, freshDirPrefix+"2")
	for _, dir := range []string{halfMade, beingMade} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * freshAge)
	if err := os.Chtimes(halfMade, old, old); err != nil {
		t.Fatal(err)
	}
	live := newRunDir([]string{place}, zap.NewNop())
	livePath, err := live.get()
	if err != nil {
		t.Fatal(err)
	}
	defer live.remove()
	open := filepath.Join(place, runDirPrefix+"2") // not private: not made by a host
	writeFile(t, filepath.Join(open, "f"), "", 0o600)
	target := filepath.Join(place, "target")
	writeFile(t, filepath.Join(target, "f"), "", 0o600)
	_ = os.Chmod(target, 0o700)
	link := filepath.Join(place, runDirPrefix+"3")
	_ = os.Symlink(target, link)
	strange := filepath.Join(place, runDirPrefix+"4")
	if os.Getuid() == 0 {
		writeFile(t, filepath.Join(strange, "f"), "", 0o600)
		_ = os.Chmod(strange, 0o700)
		if err := os.Chown(strange, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}

	newRunDir([]string{place}, zap.NewNop()).sweep()

	for _, path := range []string{dead, halfMade} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left", path)
		}
	}
	keep := []string{livePath, beingMade, filepath.Join(open, "f"), filepath.Join(target, "f"), link}
	if os.Getuid() == 0 {
		keep = append(keep, filepath.Join(strange, "f"))
	}
	for _, path := range keep {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s was removed", path)
		}
	}
	if err := sleep.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a stranger's process: %v", err)
	}
}

// Many hosts start at once; none takes another one's folder for a dead host's.
func TestHostsThatStartAtOnceKeepTheirFolders(t *testing.T) {
	place := shortDir(t)
	const hosts = 16
	paths := make(chan string, hosts)
	for range hosts {
		go func() {
			d := newRunDir([]string{place}, zap.NewNop())
			d.sweep()
			path, err := d.get()
			if err != nil {
				path = err.Error()
			}
			t.Cleanup(d.remove)
			paths <- path
		}()
	}
	seen := map[string]bool{}
	for range hosts {
		path := <-paths
		if _, err := os.Stat(path); err != nil || seen[path] {
			t.Errorf("%s: %v (seen %v)", path, err, seen[path])
		}
		seen[path] = true
	}
}
