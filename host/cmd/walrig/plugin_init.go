package main

import (
	"bytes"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/walrig/walrig/sdk/walimpls"
)

//go:embed plugintemplate
var pluginTemplates embed.FS

// pluginFiles are the files of a new plugin, in the order in which they are
// worth reading, and the templates that they are made from.
var pluginFiles = []struct{ name, template string }{
	{"README.md", "README.md.tmpl"},
	{"backend.go", "backend.go.tmpl"},
	{"memstore.go", "memstore.go.tmpl"},
	{"main.go", "main.go.tmpl"},
	{"backend_test.go", "backend_test.go.tmpl"},
	{"Makefile", "Makefile.tmpl"},
	{".gitignore", "gitignore.tmpl"},
}

// newPlugin is what a new plugin is made of.
type newPlugin struct {
	Dir     string   `json:"dir"`
	Name    string   `json:"name"`
	Module  string   `json:"module"`
	SDK     string   `json:"sdk"` // folder of the checkout, "" for the published module
	Files   []string `json:"files"`
	version string   // of the published module
}

func (a *app) pluginInitCmd() *cobra.Command {
	var p newPlugin
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write a new plugin: a backend over a memory store that keeps the contract",
		Long: `Write a Go module with a plugin that works: a backend over a memory store that keeps the contract as far as it claims
to, its test, a Makefile and a README. DIR is made if it is missing, and must be empty.

The backend is called as the folder (without "walrig-plugin-") unless --name says otherwise. With --sdk the module is
built with the checkout of walrig in that folder, and needs no network; without it, with the published module of this
program's version. docs/writing-a-backend.md goes on from here.`,
		Example: `  walrig plugin init mylog --sdk ~/src/walrig
  walrig plugin init ./backend --name mylog --module example.com/team/mylog`,
		Args: needs("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			p.Dir = args[0]
			if err := p.complete(); err != nil {
				return err
			}
			if err := p.write(); err != nil {
				return err
			}
			return a.showNewPlugin(p)
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.SDK, "sdk", "", "folder of a checkout of walrig to build with")
	f.StringVar(&p.Name, "name", "", "name of the backend (default: the folder's)")
	f.StringVar(&p.Module, "module", "", "path of the Go module (default example.com/walrig-plugin-NAME)")
	return cmd
}

func (a *app) showNewPlugin(p newPlugin) error {
	if a.output == outputJSON {
		return a.out().json(p)
	}
	tidy := ""
	if p.SDK == "" {
		tidy = "  go mod tidy\n"
	}
	return a.out().printf("wrote the backend %s to %s: %s\n\nnext:\n  cd %s\n%s  make test\n  make conform\n",
		p.Name, p.Dir, strings.Join(p.Files, ", "), shellQuote(p.Dir), tidy)
}

var (
	backendName = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	modulePath  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)
	published   = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)[.0-9]*)?$`)
)

// complete fills in what was not given, and checks everything.
func (p *newPlugin) complete() error {
	dir, err := filepath.Abs(p.Dir)
	if err != nil {
		return usageError("", "%s: %v", p.Dir, err)
	}
	if p.Name == "" {
		p.Name = strings.TrimPrefix(strings.ToLower(filepath.Base(dir)), pluginPrefix)
	}
	if !backendName.MatchString(p.Name) || walimpls.ValidateName("backend", p.Name) != nil {
		return usageError("choose one with --name: lower-case letters, digits, '-' and '_', a letter first", "%q is no name for a backend", p.Name)
	}
	if p.Module == "" {
		p.Module = "example.com/" + pluginPrefix + p.Name
	}
	if !modulePath.MatchString(p.Module) {
		return usageError("write it like --module example.com/team/mylog", "%q is no path for a Go module", p.Module)
	}
	if p.SDK != "" {
		if p.SDK, err = filepath.Abs(p.SDK); err != nil {
			return usageError("", "--sdk: %v", err)
		}
		return nil
	}
	p.version = version
	if info, ok := debug.ReadBuildInfo(); ok && !published.MatchString(p.version) {
		p.version = info.Main.Version
	}
	if !published.MatchString(p.version) {
		return usageError("name the folder of its checkout with --sdk", "this walrig is a development build (%s), and no published module belongs to it", version)
	}
	return nil
}

// write makes the folder and its files, all or none.
func (p *newPlugin) write() (err error) {
	files, err := p.render()
	if err != nil {
		return err
	}
	switch entries, err := os.ReadDir(p.Dir); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return usageError("", "%v", err)
	case len(entries) > 0:
		return usageError("name an empty folder, or one that is not there yet", "%s is not empty: it has %s", p.Dir, entries[0].Name())
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return usageError("", "%v", err)
	}
	defer func() {
		if err != nil {
			for name := range files {
				_ = os.Remove(filepath.Join(p.Dir, name))
			}
		}
	}()
	for _, name := range p.Files {
		if err := os.WriteFile(filepath.Join(p.Dir, name), files[name], 0o644); err != nil {
			return walimpls.Errorf(walimpls.CodeInternal, "", "the plugin cannot be written: %w", err)
		}
	}
	return nil
}

// render makes the contents of all files, and lists them in p.Files.
func (p *newPlugin) render() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, f := range pluginFiles {
		text, err := pluginTemplates.ReadFile("plugintemplate/" + f.template)
		if err != nil {
			return nil, walimpls.Errorf(walimpls.CodeInternal, "", "the template %s: %w", f.name, err)
		}
		t, err := template.New(f.name).Parse(string(text))
		if err != nil {
			return nil, walimpls.Errorf(walimpls.CodeInternal, "", "the template %s: %w", f.name, err)
		}
		var b bytes.Buffer
		if err := t.Execute(&b, p); err != nil {
			return nil, walimpls.Errorf(walimpls.CodeInternal, "", "the template %s: %w", f.name, err)
		}
		files[f.name] = b.Bytes()
		p.Files = append(p.Files, f.name)
	}
	mod, sum, err := p.modFiles()
	if err != nil {
		return nil, err
	}
	files["go.mod"], p.Files = mod, append(p.Files, "go.mod")
	if sum != nil {
		files["go.sum"], p.Files = sum, append(p.Files, "go.sum")
	}
	return files, nil
}
