package brokers

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a PATH with the usual tools, and what a test adds or leaves out.
func machine(t *testing.T, java, maven string) (path string) {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range []string{"bash", "flock", "setsid", "timeout", "curl", "cksum", "sha256sum", "cut", "dirname", "cat", "grep"} {
		found, err := exec.LookPath(tool)
		if err != nil {
			t.Fatalf("these tests need %s: %v", tool, err)
		}
		if err := os.Symlink(found, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for name, prints := range map[string]string{"java": java, "mvn": maven} {
		if prints == "" {
			continue
		}
		script := "#!/bin/bash\necho '" + prints + "' >&2\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const java17 = `openjdk version "17.0.15" 2025-04-15`

// TestMissingToolsSkipOrFail runs a test that needs a broker on machines that
// cannot start one, and reads what go test would show.
func TestMissingToolsSkipOrFail(t *testing.T) {
	for name, c := range map[string]struct{ java, maven, says string }{
		"no java":  {"", "Maven 3.8", "install a Java runtime, 17 or newer"},
		"old java": {`openjdk version "11.0.2" 2019-01-15`, "Maven 3.8", "is Java 11: install a Java runtime, 17 or newer"},
		"no maven": {java17, "", "install Maven 3.8 or newer"},
	} {
		for _, what := range []string{"shared kafka", "private kafka", "shared pulsar", "private pulsar"} {
			t.Run(name+"/"+what, func(t *testing.T) {
				path, cache := machine(t, c.java, c.maven), t.TempDir()
				out, err := runHelper(t, what, path, cache, "0")
				if err != nil || !strings.Contains(out, "--- SKIP: TestHelper") || !strings.Contains(out, c.says) {
					t.Errorf("not skipped with %q: %v\n%s", c.says, err, out)
				}
				out, err = runHelper(t, what, path, cache, "1")
				if err == nil || !strings.Contains(out, "--- FAIL: TestHelper") || !strings.Contains(out, c.says) || !strings.Contains(out, EnvRequire) {
					t.Errorf("%s=1: no failure with %q: %v\n%s", EnvRequire, c.says, err, out)
				}
				out, err = runHelper(t, what, path, cache, "1", "-test.short")
				if err != nil || !strings.Contains(out, "--- SKIP: TestHelper") || !strings.Contains(out, "-short") {
					t.Errorf("-short: not skipped: %v\n%s", err, out)
				}
			})
		}
	}
}

func TestCachedJarsNeedNoMaven(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("JAVA_HOME", "")
	t.Setenv("PATH", machine(t, java17, ""))
	if err := kafkaRecipe.require(); err == nil {
		t.Fatal("no jars and no Maven, but the recipe could start a broker")
	}
	dir := t.TempDir()
	if err := kafkaRecipe.unpack(dir); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("bash", "-c", `cksum <"$0" | cut -d' ' -f1`, filepath.Join(dir, "pom.xml")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(cache, "wal-brokers", "kafka", strings.TrimSpace(string(out)), "lib"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := kafkaRecipe.require(); err != nil {
		t.Fatalf("the jars are cached, but: %v", err)
	}
}

func runHelper(t *testing.T, what, path, cache, required string, flags ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"-test.run=^TestHelper$", "-test.v"}, flags...)...)
	cmd.Env = []string{envHelper + "=" + what, "PATH=" + path, "XDG_CACHE_HOME=" + cache, "HOME=" + cache,
		"TMPDIR=" + t.TempDir(), EnvRequire + "=" + required}
	out, err := cmd.CombinedOutput()
	// The watchdog of a shared room leaves last.
	awaitNothing(t, strings.TrimPrefix(cmd.Env[4], "TMPDIR="))
	return string(out), err
}

func TestJavaVersionIsRead(t *testing.T) {
	for out, want := range map[string]int{
		java17:                     17,
		`java version "1.8.0_292"`: 8,
		"Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version \"21\" 2023-09-19": 21,
		`openjdk version "24-ea" 2025-03-18`:                                 24,
		"Segmentation fault":                                                 0,
	} {
		if got, ok := javaMajor([]byte(out)); got != want || ok != (want > 0) {
			t.Errorf("%q is %d, %v, want %d", out, got, ok, want)
		}
	}
}

func TestNamedKafkaIsUsed(t *testing.T) {
	skipIfShort(t)
	addr := listen(t)
	t.Setenv(EnvKafka, addr+",127.0.0.1:1")
	t.Setenv("PATH", t.TempDir()) // no Java is needed
	k := Kafka(t)
	if k.Addr != addr || len(k.Addrs) != 2 {
		t.Fatalf("got %+v, named %s", k, addr)
	}
}

func TestNamedPulsarIsUsed(t *testing.T) {
	web, service := listen(t), listen(t)
	want := PulsarEndpoint{ServiceURL: "pulsar://" + service, AdminURL: "http://" + web}
	for _, c := range []struct{ named, admin string }{
		{want.ServiceURL + "," + want.AdminURL, ""},
		{want.ServiceURL, want.AdminURL},
		{want.ServiceURL, want.AdminURL + "/"},
	} {
		got, err := namedPulsar(c.named, c.admin)
		if err != nil || got != want {
			t.Errorf("%+v: got %+v, %v", c, got, err)
		}
	}
	two := want.ServiceURL + ",127.0.0.1:2"
	if got, err := namedPulsar(two, want.AdminURL); err != nil || got.ServiceURL != two {
		t.Errorf("%s: got %+v, %v", two, got, err)
	}
	for named, says := range map[string]string{
		want.ServiceURL:                         EnvPulsarAdmin,
		want.AdminURL:                           "no service URL",
		"pulsar://127.0.0.1:1," + want.AdminURL: "accepts no connection",
		service + "," + want.AdminURL:           "is no URL",
	} {
		if _, err := namedPulsar(named, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", named, err, says)
		}
	}
}

func listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}
