package pulsar

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated part of docs/pulsar.md anew")

const (
	configBegin = "<!-- config:begin -->\n"
	configEnd   = "<!-- config:end -->"
)

func configTable() string {
	var b strings.Builder
	b.WriteString("| key | type | default | |\n|---|---|---|---|\n")
	for _, f := range configFields {
		def := "–"
		switch {
		case f.Required:
			def = "required"
		case f.Default != nil:
			def = fmt.Sprintf("`%v`", f.Default)
		}
		doc := f.Doc
		if f.Secret {
			doc += " (secret)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, def, doc)
	}
	return b.String()
}

func TestDocsListEveryKey(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "pulsar.md")
	text, err := os.ReadFile(file)
	must(t, err)
	before, rest, ok1 := strings.Cut(string(text), configBegin)
	have, after, ok2 := strings.Cut(rest, configEnd)
	if !ok1 || !ok2 {
		t.Fatal("the page has no marks for the table")
	}
	want := configTable()
	if *update {
		must(t, os.WriteFile(file, []byte(before+configBegin+want+configEnd+after), 0o644))
		return
	}
	if have != want {
		t.Errorf("the table of keys is out of date: go test ./plugins/pulsar -run TestDocs -update")
	}
}
