package config

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed intro.md
var intro string

// Markdown returns docs/configuration.md: the introduction and the table of
// keys. A test fails when the file in docs/ differs.
func Markdown() string {
	var b strings.Builder
	b.WriteString(intro)
	b.WriteString("\n## Keys\n\n<!-- Generated from the table in host/config/keys.go: `go test ./host/config -run TestDocs -update`. -->\n\n")
	b.WriteString("| key | type | default | variable | flag |\n|---|---|---|---|---|\n")
	for _, k := range keyTable {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s | %s | %s |\n", k.Name, anchor(k.Name), typeText(k), defaultText(k), code(k.Env()), code(flagText(k)))
	}
	for _, k := range keyTable {
		fmt.Fprintf(&b, "\n### `%s`\n\n%s\n", k.Name, k.Doc)
	}
	return b.String()
}

func typeText(k Key) string {
	if len(k.OneOf) > 0 {
		return "`" + strings.Join(k.OneOf, "` `") + "`"
	}
	return string(k.Type)
}

func defaultText(k Key) string {
	switch {
	case k.Required:
		return "required"
	case k.DefaultDoc != "":
		return k.DefaultDoc
	}
	return code(k.Default)
}

func flagText(k Key) string {
	if k.Flag() == "" {
		return ""
	}
	return "--" + k.Flag()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// anchor is the name that Markdown viewers give the heading of a key.
func anchor(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '<' || r == '>' || r == '`' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}
