// Package rules holds tests that keep the shape of the repository.
package rules

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/walrig/walrig/"

// rooms says what each folder may import of walrig itself, tests excepted: data
// walks through the house in one direction. The longest matching folder counts.
var rooms = map[string][]string{
	"sdk/message":              {},
	"sdk/proto":                {"sdk/proto"},
	"sdk/walimpls":             {"sdk/message"},
	"sdk":                      {"sdk"},
	"plugins":                  {"sdk", "plugins"},
	"host/catalog":             {"sdk"},
	"host/pluginhost":          {"sdk"},
	"host/wal":                 {"sdk", "host/catalog", "host/wal"},
	"host/walmanager":          {"sdk", "host/wal"},
	"host/config":              {"sdk", "host/pluginhost"},
	"host/server":              {"sdk", "host", "flusher"},
	"host/flush":               {"sdk", "host/catalog", "host/wal", "flusher"},
	"host/bench":               {},
	"host/cmd":                 {""},
	"flusher":                  {"sdk", "flusher"},
	"conformance/faultbackend": {"sdk", "conformance/faultbackend"},
	"conformance":              {"sdk", "host/wal", "host/catalog", "host/pluginhost", "conformance"},
	"internal/brokers":         {},
	"internal":                 {""},
}

func TestImportsPointOneWay(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && rel != "." || d.Name() == "testdata" || rel == "bin" {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && rel != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		return check(t, filepath.ToSlash(rel), path)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Fatalf("looked at %d files only: the walk is broken", files)
	}
}

func check(t *testing.T, rel, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		return err
	}
	room, allowed, known := roomOf(rel)
	if !known {
		t.Errorf("%s is in no room: add its folder to the table, and to design documents", rel)
		return nil
	}
	for _, spec := range file.Imports {
		imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
		if ours && !anyPrefix(imported, allowed) {
			t.Errorf("%s imports %s: %s may import only %v", rel, imported, room, allowed)
		}
	}
	return nil
}

func roomOf(rel string) (room string, allowed []string, known bool) {
	for r, a := range rooms {
		if strings.HasPrefix(rel, r+"/") && len(r) > len(room) {
			room, allowed, known = r, a, true
		}
	}
	return room, allowed, known
}

func anyPrefix(path string, prefixes []string) bool {
	for _, p := range prefixes {
		if p == "" || path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}
