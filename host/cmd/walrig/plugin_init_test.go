package main

import (
	"bytes"
	"context"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// initPlugin writes a new plugin that is built with this checkout.
func initPlugin(t *testing.T) newPlugin {
	t.Helper()
	p := newPlugin{Dir: filepath.Join(t.TempDir(), "mylog"), SDK: filepath.Join("..", "..", "..")}
	if err := p.complete(); err != nil {
		t.Fatal(err)
	}
	if err := p.write(); err != nil {
		t.Fatal(err)
	}
	return p
}

// goTool runs the go command in a folder, without a network and without leave to
// change go.mod.
func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOPROXY=off", "GOWORK=off")
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("if modules are missing, run `make docs`\ngo %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestNewPluginBuildsAndPassesItsTest(t *testing.T) {
	t.Parallel()
	p := initPlugin(t)
	goTool(t, p.Dir, "build", "./...")
	goTool(t, p.Dir, "vet", "./...")
	if testing.Short() {
		return
	}
	goTool(t, p.Dir, "test", "-short", "-count=1", "./...")
}

func TestNewPluginIsFormattedAndSmall(t *testing.T) {
	p := initPlugin(t)
	for _, name := range p.Files {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("{{")) || bytes.Contains(text, []byte("<no value>")) {
			t.Errorf("%s: the template is not filled in", name)
		}
		if filepath.Ext(name) != ".go" {
			continue
		}
		if good, err := format.Source(text); err != nil || !bytes.Equal(good, text) {
			t.Errorf("%s is not formatted (%v)", name, err)
		}
		if n := bytes.Count(text, []byte("\n")); n >= 150 {
			t.Errorf("%s has %d lines, the tour promises less than 150", name, n)
		}
	}
}

// The list of modules has all that the new plugin's packages come from.
func TestNewPluginDocsModules(t *testing.T) {
	p := initPlugin(t)
	if *update {
		// All that the checkout requires is enough to find out what is needed.
		sdkMod, err := os.ReadFile(filepath.Join(p.SDK, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"mod", "edit"}
		for _, m := range requireLine.FindAllStringSubmatch(string(sdkMod), -1) {
			args = append(args, "-require="+m[1]+"@"+m[2])
		}
		goTool(t, p.Dir, args...)
	}
	var needed []string
	for _, m := range strings.Fields(goTool(t, p.Dir, "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")) {
		if m != sdkModule && m != p.Module && !slices.Contains(needed, m) {
			needed = append(needed, m)
		}
	}
	slices.Sort(needed)
	path := filepath.Join("plugintemplate", "modules.txt")
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(needed, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	listed, err := neededModules()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range needed {
		if !slices.Contains(listed, m) {
			t.Errorf("%s does not list %s, which the new plugin needs: run `make docs`", path, m)
		}
	}
}

func TestNewPluginOfAReleaseRequiresItsVersion(t *testing.T) {
	for v, want := range map[string]bool{
		"v1.2.3": true, "v0.1.0": true, "v1.0.0-rc.1": true,
		"devel": false, "1.2.3": false, "v1.2.3-4-gabcdef0": false, "v1.2.3-dirty": false, "v01.2.3": false,
		"v1.2.3-0.20260101000000-abcdefabcdef": false,
	} {
		if got := published.MatchString(v); got != want {
			t.Errorf("%s: published %v, want %v", v, got, want)
		}
	}
	p := newPlugin{Module: "example.com/x", version: "v1.2.3"}
	mod, sum, err := p.modFiles()
	if want := "module example.com/x\n\ngo " + templateGo + "\n\nrequire github.com/walrig/walrig v1.2.3\n"; err != nil || sum != nil || string(mod) != want {
		t.Errorf("go.mod %q, go.sum %q, %v", mod, sum, err)
	}
	own, err := os.ReadFile(filepath.Join("..", "..", "..", "go.mod"))
	if m := goLine.FindSubmatch(own); err != nil || m == nil || string(m[1]) != templateGo {
		t.Errorf("the module's Go version is not %s (%v)", templateGo, err)
	}
}
